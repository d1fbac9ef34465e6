"""What a graph cannot hold in a library's code is reported at the program's line that calls it."""

from __future__ import annotations

from typing import Any

import torch

import torchjanus
from tests.runtime.report.test_screen import said


def test_a_refusal_in_a_library_names_the_programs_line() -> None:
    net = torch.nn.Linear(3, 1)
    lengths = torch.tensor([3, 1])
    layer = torch.nn.GRU(3, 4, batch_first=True)

    @torchjanus.speculate(executor="replay")
    def step(x: torch.Tensor) -> Any:
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out, _ = layer(packed)  # here
        return net(out.data.float()[:, :3]).sum().detach()

    for _ in range(6):
        step(torch.randn(2, 3, 3))
    with open(__file__) as file:
        number = next(number for number, line in enumerate(file, 1) if "# here" in line)
    report = torchjanus.explain(step)
    assert f"test_library_lines.py:{number} (in " in report.detailed()
    assert f"test_library_lines.py:{number}" in said(step)
