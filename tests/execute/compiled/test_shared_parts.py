"""Parts of cells are compiled once, as long as they are in use."""

from __future__ import annotations

import torch

from tests.forests import MODELS
from torchjanus.execute.compiled.shared_parts import compile_part
from torchjanus.graph.lowering.invoke_for_inductor import PARTS, writing_of
from torchjanus.graph.recursion.cells.invoke import Invocation


def test_equal_parts_are_compiled_once() -> None:
    made = []
    for _ in range(2):
        recursion = MODELS["TreeRNN"](6, torch.float32).recursion
        inner = Invocation(recursion).partition(recursion.shared, []).cells[1]
        made.append([writing_of(inner, recursion, name) for name in PARTS])
    texts = set()
    for first, second in zip(*made, strict=True):
        assert first is not None
        assert second is not None
        assert compile_part(first) is compile_part(second)
        texts.add(first.text())
    assert len(texts) == 3
