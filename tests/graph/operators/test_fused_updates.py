"""The fused kernels of optimizers as operators: what they return, and what they do in place, is what torch's do."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import torchjanus
from torchjanus.execute.replay import of_updates
from torchjanus.graph.operators.fused_updates import FUSED_UPDATES

KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "adam": (torch.optim.Adam, {"amsgrad": True}),
    "adamw": (torch.optim.AdamW, {}),
    "sgd": (torch.optim.SGD, {"momentum": 0.9}),
    "adagrad": (torch.optim.Adagrad, {"lr_decay": 0.1}),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_learning_rate_that_changes_is_an_input_and_memory_is_overwritten(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    overwritten: list[bool] = []

    def looked(lowered: Any) -> Any:
        found = of_updates(lowered)
        overwritten.append(any("fused" in str(node.target) for node in found.forms))
        return found

    monkeypatch.setattr("torchjanus.execute.replay.of_updates", looked)

    def run(speculated: bool) -> tuple[list[float], list[torch.Tensor], Any]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
        make, options = KINDS[name]
        optimizer = make(model.parameters(), lr=0.1, fused=True, **options)

        def step(x: torch.Tensor, rate: float) -> float:
            optimizer.param_groups[0]["lr"] = rate
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.item()

        called = torchjanus.speculate(step, executor="replay") if speculated else step
        losses = [called(torch.randn(4, 5), 0.1 / (1 + call)) for call in range(12)]
        return losses, [*model.parameters()], called

    losses, parameters, _ = run(False)
    found, trained, step = run(True)
    assert found == losses
    assert all(map(torch.equal, trained, parameters))
    assert step.statistics().speculated >= 8 and step.statistics().entries == 1
    assert overwritten[-1]


def test_each_kernel_of_torch_has_one() -> None:
    kernels = {getattr(torch, name) for name in dir(torch) if name.startswith("_fused_") and name.endswith("_")}
    adams = {kernel for kernel in kernels if "ada" in kernel.__name__ or "sgd" in kernel.__name__}
    assert adams == set(FUSED_UPDATES)
