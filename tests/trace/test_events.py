"""Tokens say which path a run took and leave out what generalising decides; text shows the user's file and line."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch

from torchjanus.core.access_path import AccessPath
from torchjanus.core.errors import Place
from torchjanus.trace.actions import ContainerMutation, Extern, HeapWrite, Op
from torchjanus.trace.events import Decision, FunctionEntry, FunctionExit, LoopEnd, Trace
from torchjanus.trace.facts import (
    EmptinessTest,
    HeapRead,
    IdentityTest,
    KeyLookup,
    KeySetRead,
    NumberPredicate,
    Specialization,
    TensorPredicate,
)
from torchjanus.trace.recipes import Constant, ExistingObject, NewObject, Number, ObjectReference, TensorOf
from torchjanus.trace.terms import TensorRef, symbol_token
from torchjanus.trace.values import Apply, Fetch, Read

NET, COUNT = AccessPath.arg(0, "net"), AccessPath.arg(1, "count")
F32 = ("Tensor", "float32", (3,), (1,), "cpu", False, True)
ONE, TWO = TensorRef(1), TensorRef(2)
HERE = Place("train.py", 12, 4, "step")
MODES = None


def op(*args: Any, name: str = "torch.add", outs: tuple[TensorRef, ...] = (TWO,), **kwargs: Any) -> Op:
    return Op(torch.add, name, args, kwargs, outs, MODES, HERE)


# What a later run may differ in without having taken another path.
SAME_PATH = [
    (HeapRead(COUNT, 3, "number"), HeapRead(COUNT, 4, "number")),
    (HeapRead(NET, [], "object", "list"), HeapRead(NET, [], "object", "list")),
    (HeapRead(NET, 1, "tensor", F32), HeapRead(NET, 2, "tensor", F32)),
    (
        HeapRead(NET, 1, "tensor", F32),
        HeapRead(NET, 1, "tensor", ("Tensor", "float32", (7,), (2,), "cpu", False, True)),
    ),
    (
        HeapRead(NET, 1, "tensor", F32),
        HeapRead(NET, 1, "tensor", ("Tensor", "float32", (1,), (1,), "cpu", False, True)),
    ),
    (HeapWrite("item", NET, "k", 1), HeapWrite("item", NET, "k", 2)),
    (ContainerMutation(NET, "append", (1,)), ContainerMutation(NET, "append", (2,))),
    (Extern(print, ("a",), {}), Extern(print, ("b",), {})),
    (op(ONE, 2), op(ONE, 2)),
]


@pytest.mark.parametrize(("one", "other"), SAME_PATH, ids=[type(a).__name__ for a, _ in SAME_PATH])
def test_one_path(one: Any, other: Any) -> None:
    assert one.token == other.token


OTHER_PATH = [
    (HeapRead(COUNT, 3, "number"), HeapRead(COUNT, 3.0, "number")),
    (HeapRead(COUNT, "a", "constant"), HeapRead(COUNT, "b", "constant")),
    (HeapRead(COUNT, True, "constant"), HeapRead(COUNT, 1, "constant")),
    (HeapRead(NET, len, "pinned"), HeapRead(NET, abs, "pinned")),
    (
        HeapRead(NET, 1, "tensor", F32),
        HeapRead(NET, 1, "tensor", ("Tensor", "float64", (3,), (1,), "cpu", False, True)),
    ),
    (
        HeapRead(NET, 1, "tensor", F32),
        HeapRead(NET, 1, "tensor", ("Tensor", "float32", (3, 1), (1, 1), "cpu", False, True)),
    ),
    (KeyLookup(NET, "k"), KeyLookup(NET, "k", True)),
    (EmptinessTest(NET, True), EmptinessTest(NET, False)),
    (KeySetRead(NET, ("a", "b")), KeySetRead(NET, ("b", "a"))),
    (IdentityTest(NET, COUNT, True), IdentityTest(NET, COUNT, False)),
    (NumberPredicate(Read(COUNT), True), NumberPredicate(Read(COUNT), False)),
    (Specialization(Read(COUNT), 1), Specialization(Read(COUNT), 2)),
    (Specialization(Read(COUNT), 1), Specialization(Read(COUNT), 1.0)),
    (TensorPredicate(ONE, True, 3), TensorPredicate(ONE, False, 3)),
    (HeapWrite("item", NET, "k", 1), HeapWrite("delete-item", NET, "k", 1)),
    (HeapWrite("item", NET, 1, 1), HeapWrite("item", NET, True, 1)),
    (ContainerMutation(NET, "append", (1,)), ContainerMutation(NET, "insert", (1,))),
    (ContainerMutation(NET, "insert", (0, 1)), ContainerMutation(NET, "insert", (0,))),
    (Extern(print, ("a",), {}), Extern(print, ("a", "b"), {})),
    (Extern(print, (), {"sep": "a"}), Extern(print, (), {"end": "a"})),
    (Decision(True, HERE), Decision(False, HERE)),
    (LoopEnd(3, HERE), LoopEnd(4, HERE)),
    (FunctionEntry("f"), FunctionEntry("g")),
    (FunctionEntry("f"), FunctionExit("f")),
    (op(ONE, 2), op(ONE, 2.0)),
    (op(ONE, TWO), op(TWO, ONE)),
    (op(ONE, 2), op(ONE, other=2)),
    (op([ONE]), op((ONE,))),
    (op(ONE, name="torch.add"), op(ONE, name="torch.sub")),
    (op(ONE, outs=(ONE,)), op(ONE, outs=(TWO,))),
]


@pytest.mark.parametrize(("one", "other"), OTHER_PATH, ids=[f"{a} / {b}" for a, b in OTHER_PATH])
def test_another_path(one: Any, other: Any) -> None:
    assert one.token != other.token


def test_symbols_are_compared_by_parts() -> None:
    deep = {"a": [ONE, (Read(COUNT), slice(1, Fetch(1, 2, int)))], "b": None}
    again = {"a": [TensorRef(1), (Read(AccessPath.arg(1)), slice(1, Fetch(1, 2, int)))], "b": None}
    assert symbol_token(deep) == symbol_token(again)
    assert hash(symbol_token(deep)) == hash(symbol_token(again))
    again["a"] = [ONE, (Read(COUNT), slice(2, Fetch(1, 2, int)))]
    assert symbol_token(deep) != symbol_token(again)


TEXTS = [
    (HeapRead(COUNT, 3, "number"), "read   count -> 3"),
    (HeapRead(NET, torch.ones(1), "tensor", "f32[1]"), "read   net -> f32[1]"),
    (HeapRead(NET, object(), "object"), "read   net -> <object>"),
    (KeyLookup(NET, "forward"), "read   'forward' not in net"),
    (KeyLookup(NET, "forward", True), "read   'forward' in net"),
    (EmptinessTest(NET, False), "read   net is empty"),
    (EmptinessTest(NET, True), "read   net is not empty"),
    (KeySetRead(NET, ("a", 1)), "read   keys of net: ('a', 1)"),
    (IdentityTest(NET, COUNT, True), "assume net is count"),
    (IdentityTest(NET, COUNT, False), "assume net is not count"),
    (NumberPredicate(Apply(operator.lt, (Read(COUNT), 3)), True), "assume (count < 3) is True"),
    (Specialization(Read(COUNT), 3, why="used as an index"), "assume count == 3 (used as an index)"),
    (TensorPredicate(ONE, True, 2), "assert bool(%1) is True"),
    (op(ONE, Read(COUNT), alpha=2), "op     %2 = torch.add(%1, count, alpha=2)"),
    (op(ONE, "x" * 99, outs=()), "op     torch.add(%1, '" + "x" * 36 + "...)"),
    (HeapWrite("item", NET, "k", 2.5), "write  net['k'] = 2.5"),
    (HeapWrite("delete-item", NET, "k", None), "delete net['k']"),
    (ContainerMutation(NET.attribute("losses"), "append", (0.5,)), "write  net.losses.append(0.5)"),
    (Extern(print, ("loss", 1), {}), "extern print('loss', 1)"),
    (Decision(True), "branch True"),
    (LoopEnd(4), "loop   4 iterations"),
    (FunctionEntry("Net.forward"), "call   Net.forward"),
    (FunctionExit("Net.forward"), "return Net.forward"),
]


@pytest.mark.parametrize(("event", "text"), TEXTS, ids=[t for _, t in TEXTS])
def test_text(event: Any, text: str) -> None:
    assert str(event) == text


def test_a_trace_is_indented_by_call_with_places() -> None:
    inner = Place("model.py", 7)
    trace = Trace([FunctionEntry("f", HERE), Decision(True, inner), FunctionExit("f", inner), LoopEnd(2, HERE)])
    lines = str(trace).splitlines()
    assert [line.split()[0] for line in lines] == ["train.py:12", "model.py:7", "model.py:7", "train.py:12"]
    assert [line[41:] for line in lines] == ["call   f", "  branch True", "return f", "loop   2 iterations"]


def test_a_traces_tokens_speak_of_events_results_and_what_was_stored() -> None:
    def trace(result: Any, stored: Any) -> tuple[Any, ...]:
        event = HeapWrite("item", NET, "k", None)
        made = Trace([event], result=result)
        made.recipes[id(event)] = (stored,)
        return made.tokens()

    build = NewObject(0, list, (TensorOf(ONE),), ())
    assert trace(build, Constant(1)) == trace(NewObject(0, list, (TensorOf(ONE),), ()), Constant(1))
    tokens = {
        trace(build, Constant(1)),
        trace(NewObject(0, tuple, (TensorOf(ONE),), ()), Constant(1)),
        trace(NewObject(0, list, (TensorOf(TWO),), ()), Constant(1)),
        trace(NewObject(0, list, (TensorOf(ONE), ObjectReference(0)), ()), Constant(1)),
        trace(NewObject(0, list, (TensorOf(ONE),), (("a", Constant(1)),)), Constant(1)),
        trace(build, Constant(2)),
        trace(build, Number(Read(COUNT))),
        trace(build, ExistingObject(NET)),
    }
    assert len(tokens) == 8


def test_the_calls_within_which_a_line_ran() -> None:
    outer, inner, line = Place("program.py", 3), Place("library.py", 20), Place("library.py", 30)
    trace = Trace()
    trace.events += [
        FunctionEntry("f", outer),
        FunctionEntry("g", inner),
        FunctionExit("g", inner),
        FunctionEntry("h", inner),
        KeyLookup(AccessPath.arg(0, "x"), "k", True, line),
        FunctionExit("h", inner),
        FunctionExit("f", outer),
    ]
    assert trace.callers(line) == (inner, outer)
    assert trace.callers(outer) == ()
