"""A graph that has been kept is the graph that lowering would make, and is found for equal programs only."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchjanus
from tests.execute.lockstep import Lockstep
from tests.graph.lowering.test_lower import PROGRAMS, data, state
from tests.graph.recording import generalise, record
from torchjanus.execute.replay import Replay
from torchjanus.graph.ir.lowered import Lowered
from torchjanus.graph.ir.program import Program
from torchjanus.graph.lowering.graph_bytes import pack_lowered, signature, unpack_lowered
from torchjanus.graph.lowering.lower import lower


def kept(lowered: Lowered) -> Lowered:
    packed = pack_lowered(lowered, lowered.program)
    if packed is None:
        pytest.skip("the graph holds the contents of tensors")
    found = unpack_lowered(packed, lowered.program)
    assert found is not None
    assert str(found) == str(lowered)
    return found


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_a_graph_that_was_kept_does_what_eager_does(program: Callable[..., Any]) -> None:
    run = Lockstep(state(), program, data, lambda lowered: Replay(kept(lowered)))
    for _ in range(3):
        run.advance()


def program_of(function: Callable[..., Any], *args: Any) -> Program:
    return generalise([record(function, *args)])[0]


def arguments(seed: int = 0) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(4, 4, generator=draw), torch.randn(4, 4, generator=draw).requires_grad_()


def plain(x: Tensor, w: Tensor) -> Tensor:
    loss = F.dropout(torch.tanh(x @ w), 0.5).mul(0.25).sum()
    loss.backward()
    return loss.detach()


def test_equal_programs_have_equal_signatures_whatever_the_tensors_hold() -> None:
    first, second = (signature(program_of(plain, *arguments(seed))) for seed in (0, 1))
    assert first is not None
    assert first == second


def other_constant(x: Tensor, w: Tensor) -> Tensor:
    loss = F.dropout(torch.tanh(x @ w), 0.5).mul(0.26).sum()
    loss.backward()
    return loss.detach()


def negative_zero(x: Tensor) -> Tensor:
    return x * -0.0


def positive_zero(x: Tensor) -> Tensor:
    return x * 0.0


def integer(x: Tensor) -> Tensor:
    return x * 0


def truth(x: Tensor) -> Tensor:
    return x * False


def views() -> tuple[Tensor, Tensor]:
    base = torch.zeros(5, 4)
    return base[:4], base[1:]


def both(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1)
    return x * y


def different() -> Iterator[str | None]:
    x, w = arguments()
    yield signature(program_of(plain, x, w))
    yield signature(program_of(other_constant, x, w))
    yield signature(program_of(plain, x.double(), w.detach().double().requires_grad_()))
    yield signature(program_of(plain, x[:2], w))
    yield signature(program_of(plain, x.t(), w))
    yield signature(program_of(plain, x, nn.Parameter(w.detach())))
    yield from (signature(program_of(f, x)) for f in (negative_zero, positive_zero, integer, truth))
    yield signature(program_of(both, x, x.clone()))
    yield signature(program_of(both, *views()))
    with torch.no_grad():
        yield signature(program_of(integer, x))
    with torch.autocast("cpu"):
        yield signature(program_of(negative_zero, x))


def test_unlike_programs_have_unlike_signatures() -> None:
    found = [*different()]
    assert None not in found
    assert len({*found}) == len(found)


def test_what_torch_is_set_to_is_in_the_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    program = program_of(plain, *arguments())
    found = [signature(program)]
    for switch, back in (
        (lambda: torch.use_deterministic_algorithms(True), lambda: torch.use_deterministic_algorithms(False)),
        (lambda: torch._C._set_mkldnn_enabled(False), lambda: torch._C._set_mkldnn_enabled(True)),
        (lambda: torch.set_default_dtype(torch.float64), lambda: torch.set_default_dtype(torch.float32)),
        (lambda: torch.set_num_threads(2), lambda: torch.set_num_threads(1)),
        (lambda: torch.backends.cuda.enable_math_sdp(False), lambda: torch.backends.cuda.enable_math_sdp(True)),
    ):
        switch()
        try:
            found.append(signature(program))
        finally:
            back()
    assert None not in found
    assert len({*found}) == len(found)
    assert signature(program) == found[0]


@torch.library.custom_op("torchjanus_tests::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x * 2


@twice.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def test_what_is_the_users_has_no_signature() -> None:
    (x, _) = arguments()
    assert signature(program_of(lambda x: torch.ops.torchjanus_tests.twice(x), x)) is None
    program = program_of(integer, x)
    assert signature(program) is not None
    node = program.nodes[0]
    assert signature(replace(program, nodes=(replace(node, func=lambda x, y: x),))) is None
    assert signature(replace(program, nodes=(replace(node, args=(*node.args[:1], object())),))) is None


def test_a_torch_that_somebody_has_changed_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    program = program_of(plain, *arguments())
    monkeypatch.setattr(F, "softmax", lambda *args, **kwargs: None)
    assert signature(program) is None
    monkeypatch.undo()
    assert signature(program) is not None
    for other in (signature.__get__(program), math.tanh):  # a bound method, and what is not written in Python
        monkeypatch.setattr(torch, "tanh", other)
        assert signature(program) is None
        monkeypatch.undo()


def test_what_torch_itself_changes_when_it_is_used_matters_not() -> None:
    program = program_of(plain, *arguments())
    torch.func.vmap(torch.sin)(torch.ones(2, 3))  # registers batching rules the first time
    assert any(name.endswith("FuncTorchBatched") for name in torch.library._impls)
    assert signature(program) is not None


def test_under_a_mode_of_somebodys_own_there_is_none() -> None:
    program = program_of(plain, *arguments())
    with torch.device("meta"):
        assert signature(program) is None


def test_a_graph_with_slots_held_is_for_their_values_only() -> None:
    def sized(x: Tensor, n: int) -> Tensor:
        return x.repeat(n, 1)

    x, _ = arguments()
    program = generalise([record(sized, x, n) for n in (2, 3)])[0]
    lowered = lower(program)
    assert lowered.pinned
    packed = pack_lowered(lowered, program)
    assert packed is not None
    assert unpack_lowered(packed, program) is not None
    other = replace(program, slots=(replace(program.slots[0], seen=(2, 4)),))
    assert signature(other) == signature(program)
    assert unpack_lowered(packed, other) is None


def changing() -> Lowered:
    """A graph for changing sizes, of a program of its own."""
    w = torch.randn(4, 4, requires_grad=True)

    def with_sizes(x: Tensor) -> tuple[Tensor, Tensor]:
        n = x.shape[0]
        made = (x @ w).view(n // 1, 4)
        loss = F.dropout(made, 0.5).sum() / n + made.narrow(0, 1, 2).sum()
        loss.backward()
        return loss.detach(), made.detach()[:, 1]

    step = torchjanus.speculate(with_sizes, executor="replay")
    for rows in (3, 5, 4, 6):
        w.grad = None
        step(torch.randn(rows, 4))
    (entry,) = step.entries
    assert entry.lowered.program.dimensions and entry.lowered.conditions
    return entry.lowered


def test_a_graph_for_changing_sizes_is_for_those_of_the_program_that_takes_it() -> None:
    lowered, other = changing(), changing()
    assert signature(lowered.program) == signature(other.program) is not None
    packed = pack_lowered(lowered, lowered.program)
    assert packed is not None
    assert b"Origin" not in packed
    found = unpack_lowered(packed, other.program)
    assert found is not None
    assert str(found) == str(other) and found.outputs == other.outputs
    assert [c.token for c in found.conditions] == [c.token for c in other.conditions]
    fakes = [node.meta["val"] for node in found.graph.graph.nodes if node.op == "placeholder"]
    assert any(isinstance(size, torch.SymInt) for fake in fakes if isinstance(fake, Tensor) for size in fake.shape)
