"""A program that was sent is the same program: it is found under the same text and lowered to the same graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.graph.lowering.test_lower import PROGRAMS, data, state
from tests.graph.recording import generalise, record
from torchjanus.graph.ir.program import Program
from torchjanus.graph.loops.rewrites.accumulators import CHANGES
from torchjanus.graph.lowering.graph_bytes import signature
from torchjanus.graph.lowering.lower import lower
from torchjanus.graph.lowering.program_bytes import bytes_of, pack_program, unpack_program
from torchjanus.graph.operators.stand_ins import _SYMBOLIC
from torchjanus.graph.regions.loop import TerminatedLoop


def sent(program: Program) -> Program:
    packed = pack_program(program)
    assert packed is not None
    return unpack_program(packed)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_what_was_sent_is_lowered_to_the_same_graph(program: Callable[..., Any]) -> None:
    held = state()
    made = generalise([record(program, held, *data(number)) for number in range(2)])[0]
    text = signature(made)
    assert text is not None
    other = sent(made)
    assert signature(other) == text
    # The fake kernel of a recurrent layer's backward pass gives one tensor twice, and two once its result is cached.
    lower(made)
    assert str(lower(other)) == str(lower(made))


def test_tensors_go_without_their_contents_and_share_memory_as_they_did() -> None:
    secret = torch.arange(1 << 16, dtype=torch.float64)
    weight = nn.Parameter(torch.ones(3))

    def program(whole: Tensor, part: Tensor, weight: Tensor) -> Tensor:
        return whole.sum() + part.sum() + weight.sum()

    made = generalise([record(program, secret, secret[4:].view(-1, 3)[:, 1], weight)])[0]
    packed = pack_program(made)
    assert packed is not None and len(packed) < 4000
    whole, part, parameter = (entry.example for entry in unpack_program(packed).inputs)
    assert whole.untyped_storage().data_ptr() == part.untyped_storage().data_ptr()
    assert (part.shape, part.stride(), part.storage_offset()) == ((21844,), (3,), 5)
    assert type(parameter) is nn.Parameter and parameter.requires_grad
    assert bytes_of(made.inputs) == (1 << 16) * 8 + 3 * 4


def test_inference_tensors_stay_inference_tensors() -> None:
    with torch.inference_mode():
        x = torch.ones(2)
    (entry,) = sent(generalise([record(lambda x: x * 2, x)])[0]).inputs
    assert entry.example.is_inference()


def test_what_cannot_be_there_without_its_contents_is_not_sent() -> None:
    meta = generalise([record(lambda x: x * 2, torch.ones(2, device="meta"))])[0]
    assert pack_program(meta) is None
    conjugate = generalise([record(lambda x: x * 2, torch.ones(2, dtype=torch.complex64).conj())])[0]
    assert pack_program(conjugate) is None


def test_loops_that_a_tensor_ends_end_there_where_they_did() -> None:
    made = generalise([record(lambda x: x * 2, torch.ones(2))])[0]
    loop = TerminatedLoop(made, 1, 0, unseen=frozenset({0}), go=False)
    other = replace(made, nodes=tuple(replace(node, func=loop) for node in made.nodes))
    text = signature(other)
    assert text is not None and "TerminatedLoop(1,0,False,[0],False,False," in text
    assert signature(sent(other)) == text
    (node,) = sent(other).nodes
    assert (node.func.go, node.func.unseen) == (False, loop.unseen)


def product(x: Tensor, w: Tensor) -> Tensor:
    return x @ w


@pytest.mark.parametrize("func", [*_SYMBOLIC.values(), *CHANGES.values()], ids=lambda func: str(func.__name__))
def test_what_stands_for_torchs_functions_is_found_by_name(func: Callable[..., Any]) -> None:
    made = generalise([record(product, torch.randn(2, 3), torch.randn(3, 4)) for _ in range(2)])[0]
    other = replace(made, nodes=tuple(replace(node, func=func) for node in made.nodes))
    text = signature(other)
    assert text is not None and f".{func.__name__}(" in text
    assert signature(sent(other)) == text


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x**2,
        lambda x: 2**x,
        lambda x: 3 // x,
        lambda x: 7 % x,
        lambda x: torch.distributions.Normal(x, 1.0).log_prob(x + 1),
        lambda x: F.max_pool2d(x.view(1, 1, 2, 2), 2),
    ],
    ids="power rpower floordiv mod normal pool".split(),
)
def test_functions_that_others_are_wrapped_in_are_found_where_torch_has_them(function: Callable[..., Any]) -> None:
    made = generalise([record(function, torch.rand(4) + 1) for _ in range(2)])[0]
    text = signature(made)
    assert text is not None
    other = sent(made)
    assert signature(other) == text
    assert str(lower(other)) == str(lower(made))
