"""Which node or fact each event of a flat trace is: one table, read in both directions.

The operands of a node are the fields of its event. ``positional`` are printed without their names; fields that have
their default are left out.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from torchjanus.core.kinds import isinstance
from torchjanus.trace.actions import ContainerMutation, Extern, HeapWrite, InvokeOp, Op
from torchjanus.trace.effects import Effects, Undo
from torchjanus.trace.events import Decision, LoopEnd
from torchjanus.trace.facts import (
    EmptinessTest,
    HeapRead,
    HostComputation,
    IdentityTest,
    InstanceTest,
    KeyLookup,
    KeySetRead,
    NumberPredicate,
    Specialization,
    TensorPredicate,
)
from torchjanus.trace.modes import Modes
from torchjanus.trace.recipes import Constant, ExistingObject, NewObject, Number, ObjectReference, TensorAt, TensorOf
from torchjanus.trace.user_code import Begin, End, Hook, Unhook

__all__ = ["EVENTS", "FACTS", "KINDS", "POSITIONAL", "RECORDS", "Kind", "defaults_of"]


@dataclass(frozen=True, slots=True)
class Kind:
    """``live``: fields that hold objects of the program, which are constants whatever their class; ``derived``: fields
    that follow from where the node stands."""

    name: str
    event: type
    positional: tuple[str, ...]
    live: tuple[str, ...] = ()
    derived: tuple[str, ...] = ()
    is_fact: bool = False


_TABLE = (
    Kind("op", Op, ("name", "func", "args"), derived=("outs",)),
    Kind("invoke", InvokeOp, ("name", "callee", "given"), live=("callee", "made"), derived=("outs", "call")),
    Kind("write", HeapWrite, ("how", "base", "key"), live=("key", "value")),
    Kind("mutate", ContainerMutation, ("method", "base"), live=("args",)),
    Kind("extern", Extern, ("func",), live=("args", "kwargs"), derived=("number", "after", "caller")),
    Kind("decide", NumberPredicate, ("expr", "outcome")),
    Kind("assert", TensorPredicate, ("ref", "outcome"), derived=("after",)),
    Kind("branch", Decision, ("outcome",)),
    Kind("pin", Specialization, ("expr", "value"), live=("value",)),
    Kind("raises_not", HostComputation, ("expr",)),
    Kind("trips", LoopEnd, ("count",)),
    Kind("found", HeapRead, ("kind", "access_path", "value"), live=("value",), is_fact=True),
    Kind("absent", KeyLookup, ("base", "key", "present"), live=("key",), is_fact=True),
    Kind("filled", EmptinessTest, ("access_path", "filled"), is_fact=True),
    Kind("keys", KeySetRead, ("access_path", "keys"), live=("keys",), is_fact=True),
    Kind("same", IdentityTest, ("first", "second", "same"), is_fact=True),
    Kind("instance", InstanceTest, ("access_path", "classes", "outcome"), live=("classes",), is_fact=True),
)
KINDS = {kind.name: kind for kind in _TABLE}
EVENTS = {kind.event: kind for kind in _TABLE}
FACTS = frozenset(kind.name for kind in _TABLE if kind.is_fact)
# Nodes that are no event of the flat trace, and what is printed of them without a name.
POSITIONAL = {
    **{kind.name: kind.positional for kind in _TABLE},
    "compute": ("func", "args"),
    "read": ("path",),
    "fetch": ("ref", "type"),
    "size": ("ref", "dim"),
    "index": ("first", "step"),
    "meet": (),
    "rely": ("fact",),
    "loop": ("construct",),
    "switch": ("construct",),
    "call": ("name",),
    "apply": ("function", "args"),
}

# Plain data in operands, by the name in the text.
RECORDS: dict[str, type] = {
    "constant": Constant,
    "tensor": TensorOf,
    "copy": TensorAt,
    "number": Number,
    "found": ExistingObject,
    "build": NewObject,
    "again": ObjectReference,
    "begin": Begin,
    "end": End,
    "hook": Hook,
    "unhook": Unhook,
    "modes": Modes,
    "effects": Effects,
    "undo": Undo,
}


def defaults_of(cls: type) -> dict[str, Any]:
    """Return the fields of a dataclass that have a default, with it."""
    found = {}
    for one in dataclasses.fields(cls):
        if one.default is not dataclasses.MISSING:
            found[one.name] = one.default
        elif one.default_factory is not dataclasses.MISSING:
            found[one.name] = one.default_factory()
    return found


def is_default(value: Any, default: Any) -> bool:
    """Whether a field holds its default."""
    return value is default or (
        type(value) is type(default) and isinstance(value, int | str | tuple) and value == default
    )
