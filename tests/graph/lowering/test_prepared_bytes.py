"""Graphs for changing sizes, as another process sees them: symbols of its own, and what is asked of them comes back."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from torchjanus.graph.lowering.prepared_bytes import Geometry, Sizes, UnpackedExamples, fitting


def fakes() -> tuple[ShapeEnv, list[torch.Tensor]]:
    """A batch of 8 rows of 8, both changing, and as many rows of 3."""
    env = ShapeEnv(duck_shape=False)
    batch, width = (
        env.create_symintnode(
            env.create_symbol(8, source, dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None), hint=8, source=source
        )
        for source in (ConstantSource("batch"), ConstantSource("width"))
    )
    with FakeTensorMode(shape_env=env):
        sizes: list[list[Any]] = [[batch, width], [batch, 3]]
        return env, [torch.empty(size) for size in sizes]


def test_sizes_that_change_are_symbols_in_the_other_process_too() -> None:
    _, tensors = fakes()
    shipped = pickle.loads(pickle.dumps(([Geometry.of(one) for one in tensors], Sizes.of(tensors))))
    with UnpackedExamples(*shipped) as opened:
        first, second = opened.examples
        assert isinstance(first.size(0), torch.SymInt) and isinstance(first.size(1), torch.SymInt)
        assert str(first.size(0)) == str(second.size(0)) != str(first.size(1))  # though both are 8 in the example
        assert second.size(1) == 3 and str(first.stride(0)) == str(first.size(1))
        assert opened.conditions() == ()


def test_what_the_compiler_asks_of_sizes_comes_back() -> None:
    env, tensors = fakes()
    assert bool(tensors[0].size(0) >= 4)  # known of the graph already
    sizes = pickle.loads(pickle.dumps(Sizes.of(tensors)))
    assert len(sizes.conditions) == len(env.guards) == 1
    with UnpackedExamples([Geometry.of(one) for one in tensors], sizes) as opened:
        assert opened.conditions() == ()
        first = opened.examples[0]
        assert not bool(first.numel() > 100) and bool(first.size(0) // 2 == first.size(1) // 2)
    fits = fitting([*map(Geometry.of, tensors)], pickle.loads(pickle.dumps(opened.conditions())))
    assert fits is not None
    for batch, width, expected in (
        (8, 8, True),
        (8, 9, True),
        (9, 8, True),
        (10, 10, True),
        (10, 8, False),
        (12, 12, False),
    ):
        assert fits([torch.empty(batch, width), torch.empty(batch, 3)]) is expected, (batch, width)


def test_without_conditions_all_sizes_fit() -> None:
    assert fitting([*map(Geometry.of, fakes()[1])], ()) is None


def test_a_size_that_no_input_has_alone_cannot_be_sent() -> None:
    _, (first, _) = fakes()
    with pytest.raises(ValueError, match="no input has the size"):
        Sizes.of([first.flatten()])


def test_fixed_sizes_are_numbers() -> None:
    tensor = torch.empty(4, 3).t()
    assert Sizes.of([tensor]) == Sizes()
    geometry = Geometry.of(tensor)
    assert (geometry.size, geometry.stride, geometry.bytes) == ((3, 4), (1, 3), 48)
    with UnpackedExamples([geometry], Sizes()) as opened:
        (made,) = opened.examples
        assert type(made) is torch.Tensor and made.stride() == (1, 3)
        assert opened.conditions() == ()


def test_examples_for_a_device_take_none_of_its_memory() -> None:
    given = [Geometry((4, 3), (3, 1), torch.float32, "cuda:0"), Geometry((2,), (1,), torch.float64, "cpu")]
    with UnpackedExamples(given, Sizes()) as opened:
        assert all(isinstance(one, FakeTensor) for one in opened.examples)
        assert [Geometry.of(one) for one in opened.examples] == given
        assert opened.shapes == "from_tracing_context"
        assert opened.conditions() == ()
