"""Graphs prepared for Inductor compute what the lowered ones do, with numbers as data and updates under the flags."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from tests.graph.recording import generalise, record
from torchjanus.execute.replay import Replay
from torchjanus.graph.lowering.for_inductor import Prepared, prepare
from torchjanus.graph.lowering.lower import lower


def targets(prepared: Prepared) -> list[str]:
    return [str(node.target) for node in prepared.graph.graph.nodes if node.op == "call_function"]


def both(step: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> tuple[Prepared, Any, Any]:
    """The prepared graph, and what it and replay give for the last of the calls."""
    recordings = [record(step, *call) for call in calls]
    program, values = generalise(recordings)
    lowered = lower(program)
    prepared = prepare(lowered)
    inputs = [entry.example.detach().clone() for entry in program.inputs]
    slots = values(recordings[-1])
    packed = []
    for texts, dtype in ((prepared.floats, torch.float64), (prepared.ints, torch.int64)):
        if texts:
            packed.append(torch.tensor([eval(text, {"slots": slots}) for text in texts], dtype=dtype))
    others = [tensor.clone() for tensor in inputs]
    mine = prepared.graph(*inputs, *packed, *prepared.constants)
    theirs = Replay(lowered).run(others, slots)
    for one, other in zip(inputs, others, strict=True):
        assert torch.equal(one, other)  # updated alike
    return prepared, list(mine), list(theirs)


def scaled(x: torch.Tensor, n: float) -> torch.Tensor:
    return torch.sin(x * n)


def test_a_changing_number_is_an_element_of_one_packed_tensor() -> None:
    prepared, mine, theirs = both(scaled, [(torch.ones(3), n) for n in (0.5, 0.25)])
    assert prepared.floats == ("slots[0]",)
    assert prepared.ints == ()
    assert torch.equal(mine[0], theirs[0])


def test_a_constant_number_is_none() -> None:
    prepared, mine, theirs = both(scaled, [(torch.ones(3), 0.5)] * 2)
    assert (prepared.floats, prepared.ints) == ((), ())
    assert torch.equal(mine[0], theirs[0])


def test_an_update_in_place_is_made_by_the_graph() -> None:
    def step(w: torch.Tensor, n: float) -> None:
        w.add_(torch.ones(3), alpha=-n)

    prepared, *_ = both(step, [(torch.ones(3), n) for n in (0.5, 0.25)])
    assert "aten.copy_.default" in targets(prepared)


def test_the_factor_of_a_sum_is_written_around() -> None:
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.add(x, y @ y, alpha=0.3)

    x, y = torch.randn(3, 3), torch.randn(3, 3)
    prepared, mine, theirs = both(step, [(x, y)])
    assert "aten.add.Tensor" not in targets(prepared)
    assert torch.equal(mine[0], theirs[0])
    kept = prepare(lower(generalise([record(step, x, y)])[0]), rewrite_alpha=False)
    assert "aten.add.Tensor" in targets(kept)


@pytest.mark.parametrize("shape", [(0,), (1,), (2, 3)])
def test_any_shape(shape: tuple[int, ...]) -> None:
    _, mine, theirs = both(lambda x, n: (x * n + 1).sum(), [(torch.ones(shape), n) for n in (2.0, 3.0)])
    assert torch.equal(mine[0], theirs[0])


def test_what_is_to_be_known_without_the_graph() -> None:
    prepared, *_ = both(scaled, [(torch.ones(3), n) for n in (0.5, 0.25)])
    bare = prepared.bare()
    assert list(bare.graph.graph.nodes) == []
    assert bare.floats == prepared.floats
