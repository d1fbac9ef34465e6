"""Record which objects the program inspects, so that their class influences what it does.

An object that is only passed from call to call is not inspected.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import torch

from torchjanus.core.kinds import isinstance
from torchjanus.trace.values import Traced, TracedFloat, TracedInt, TracedStr

__all__ = ["records_inspection"]

_TRACED = frozenset(map(id, (TracedInt, TracedFloat, TracedStr)))
_HOLDING = frozenset(map(id, (tuple, list, set, frozenset, dict)))  # by the ids of the classes

# Hooks that inspect their operands; and those that inspect the elements of the program's own containers, too.
_AT_OPERANDS: tuple[str, ...] = (
    "set_attr", "del_attr", "item", "del_item", "star", "double_star", "branch", "not_", "iterate", "delegate"
)  # fmt: skip
_AT_OPERANDS += ("unpack", "context", "raised")
_INSIDE = ("compare", "binary", "inplace", "unary", "format", "set_item")


def records_inspection(watch: Any) -> Any:
    """Decorate a Watch class so that its hooks record the inspected objects."""
    for name in _AT_OPERANDS:
        setattr(watch, name, _noting(getattr(watch, name), False))
    for name in _INSIDE:
        setattr(watch, name, _noting(getattr(watch, name), True))
    watch.attr = _noting_attributes(watch.attr)
    watch.call = _noting_calls(watch.call)
    return watch


def _noting(hook: Callable[..., Any], inside: bool) -> Callable[..., Any]:
    operands = [*inspect.signature(hook).parameters][2:]
    notes = "".join(f"    NOTE(self.recording, {operand}, {inside})\n" for operand in operands)
    given = ", ".join(("self", "at", *operands))
    scope: dict[str, Any] = {"NOTE": _note, "HOOK": hook}
    # Generated with explicit parameters: packing and unpacking them would slow watching.
    exec(compile(f"def noting({given}):\n{notes}    return HOOK({given})\n", __file__, "exec"), scope)
    return functools.wraps(hook)(scope["noting"])


def _noting_attributes(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``attr``. For a method that is looked up to be called, the call decides whether its object is inspected."""

    @functools.wraps(hook)
    def noting(self: Any, at: Any, obj: Any, name: str) -> Any:
        waits = False
        try:
            made = hook(self, at, obj, name)
            if at is not None and at.kind == "method" and not self.recording.ending:
                waits = self.calls.lookups.add(made, obj, name)
            return made
        finally:
            if not waits:
                _note(self.recording, obj, False)

    return noting


def _noting_calls(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``call``. Functions that are entered record themselves; native ones may inspect all their arguments."""

    @functools.wraps(hook)
    def noting(self: Any, at: Any, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        inner = fn.__func__ if isinstance(fn, types.MethodType) else fn
        _note(self.recording, fn, False)
        name = self.calls.lookups.take(fn)
        if name is not None:
            self.calls.member = self.state.recursions.method_sets.record_method(at, name, fn)
        entered = isinstance(inner, types.FunctionType) and self.leave_native(inner) is None
        if fn is builtins.isinstance and not kwargs and self.recursion.note_instance_check(args):
            return hook(self, at, fn, args, kwargs)
        if not entered and not isinstance(fn, torch.nn.Module):
            for operand in (*args, *kwargs.values()):
                _note(self.recording, operand, True)
            if name is not None:
                _note(self.recording, fn.__self__, False)
        return hook(self, at, fn, args, kwargs)

    return noting


def _note(recording: Any, value: Any, inside: bool) -> None:
    """Record that a value is inspected, and with ``inside`` also the elements of new containers."""
    found, called_back = recording.trace.looked_at, recording.called_back
    kind = id(type(value))
    if not (called_back.any or kind in _TRACED or (inside and kind in _HOLDING)):  # mostly so
        access_path = recording.owner(value)
        if access_path is not None:
            found.add(access_path.token)
        return
    pending, seen = [value], set[int]()  # containers may hold themselves
    while pending:
        value = pending.pop()
        if called_back.any:
            called_back.look(value)
        if isinstance(value, Traced):
            recording.record_inspection(value.expr)
            continue
        access_path = recording.owner(value)
        if access_path is not None:
            found.add(access_path.token)
        elif inside and id(type(value)) in _HOLDING and id(value) not in seen:
            seen.add(id(value))
            pending += (*value.keys(), *value.values()) if type(value) is dict else value
