"""Another process lowers a program to the graph that this one would make of it, or says why not."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.graph.recording import generalise, record
from torchjanus.core.errors import Refusal, Refused
from torchjanus.execute.processes import orders
from torchjanus.execute.processes.lowering import Lowering, NotLowered, unpack_made
from torchjanus.graph.ir.program import Program
from torchjanus.graph.lowering.graph_bytes import signature
from torchjanus.graph.lowering.lower import lower
from torchjanus.graph.recursion.cells.invoke import NotBatched


def step(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    loss = torch.nn.functional.dropout(torch.tanh(x @ w), 0.5).sum()
    loss.backward()
    return loss.detach()


def in_two_dtypes(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    made = x + 1
    torch.set_default_dtype(torch.float64)
    try:
        return made * w
    finally:
        torch.set_default_dtype(torch.float32)


def program_of(function: Any) -> Program:
    return generalise([record(function, torch.ones(4, 4), torch.ones(4, 4, requires_grad=True))])[0]


def asked(program: Program, text: str | None = None) -> Lowering:
    request = Lowering.request(program, text or signature(program) or "")
    assert request is not None
    return Lowering(request)


def test_the_graph_is_the_same() -> None:
    program = program_of(step)
    made = unpack_made(asked(program).result(timeout=600), program, reserved=True)
    assert made is not None
    assert str(made) == str(lower(program))


def test_what_inductor_is_to_be_given_comes_with_the_graph() -> None:
    program = program_of(step)
    made = unpack_made(asked(program).result(timeout=600), program, reserved=True)
    assert made is not None and made.graph in orders._ORDERED
    there, here = orders.order_of(made), orders.order_of(lower(program))
    assert made.graph not in orders._ORDERED
    assert [request.key() for request in there.requests] == [request.key() for request in here.requests]
    one, other = there.prepared, here.prepared
    assert (one.floats, one.ints, one.copies) == (other.floats, other.ints, other.copies)


def test_settings_of_this_process_are_in_force_there() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    torch.set_default_dtype(torch.float64)
    try:
        program = program_of(step)
        made = unpack_made(asked(program).result(timeout=600), program, reserved=True)
    finally:
        torch.set_num_threads(threads)
        torch.set_default_dtype(torch.float32)
    assert made is not None and made.default_dtype == torch.float64


def test_what_would_be_lowered_otherwise_there_is_not() -> None:
    with pytest.raises(NotLowered, match="other settings"):
        asked(program_of(step), "another text").result(timeout=600)


def test_a_refusal_comes_back_with_its_place() -> None:
    program = program_of(in_two_dtypes)
    with pytest.raises(Refused) as here:
        lower(program)
    with pytest.raises(Refused) as there:
        asked(program).result(timeout=600)
    assert there.value.refusal == here.value.refusal
    assert there.value.refusal.place == program.nodes[0].place


def test_that_calls_cannot_be_run_many_at_a_time_comes_back_as_such(tmp_path: Path) -> None:
    class Over:
        folder = tmp_path

        def wait(self, timeout: float | None) -> str:
            return ""

        def cancel(self) -> None:
            pass

    refusal = Refusal("recursion-body", "a cell is odd")
    (tmp_path / "graph").write_bytes(pickle.dumps(("unrolled", refusal)))
    pending = object.__new__(Lowering)
    pending.child = Over()  # type: ignore[assignment]
    with pytest.raises(NotBatched) as there:
        pending.result()
    assert there.value.refusal == refusal


def test_it_can_be_given_up() -> None:
    pending = asked(program_of(step))
    pending.kill()
    with pytest.raises(NotLowered, match="SIGKILL"):
        pending.result(timeout=600)
    asked(program_of(step)).cancel()
