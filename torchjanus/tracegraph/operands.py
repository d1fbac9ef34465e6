"""Operands of events as operands of nodes, and back: one function each way for all that a flat trace holds.

Tensors by number and expressions become uses of values; which values these are is not known here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath, Step, token_of
from torchjanus.core.kinds import isinstance
from torchjanus.trace.recipes import Constant
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import Expr, Traced, plain, traced_key
from torchjanus.tracegraph.graph import Const, Dict, Operand, Path, Record, Ref, Sequence
from torchjanus.tracegraph.kinds import RECORDS, defaults_of, is_default

__all__ = ["Lifter", "Lowerer"]

_NAMES = {cls: name for name, cls in RECORDS.items()}
_LIVE = {Constant: ("value",)}
_DEFAULTS = {cls: defaults_of(cls) for cls in RECORDS.values()}


@dataclass(frozen=True, slots=True)
class Lifter:
    """From events to nodes. ``tensor``: the use of the tensor with a number; ``number``: that of an expression."""

    tensor: Callable[[int], Ref]
    number: Callable[[Expr], Ref]

    def lift(self, value: Any) -> Operand:
        cls = type(value)
        if isinstance(value, TensorRef):
            return self.tensor(value.number)
        if isinstance(value, Expr):
            return self.number(value)
        if isinstance(value, AccessPath):
            return self.path(value)
        if cls in (tuple, list):
            return Sequence(cls, tuple(map(self.lift, value)))
        if cls is dict:
            return Dict(tuple((Const(key), self.lift(part)) for key, part in value.items()))
        if cls is slice:
            parts = (("start", value.start), ("stop", value.stop), ("step", value.step))
            return Record("slice", tuple((name, self.lift(part)) for name, part in parts))
        if cls in _NAMES:
            return Record(_NAMES[cls], self.fields(value, _DEFAULTS[cls], _LIVE.get(cls, ()), ("after",)))
        if issubclass(cls, frozenset):
            return Sequence(cls, tuple(map(Const, sorted(value))))
        if issubclass(cls, tuple | list):
            return Sequence(cls, tuple(map(self.lift, value)))
        return Const(value)

    def live(self, value: Any) -> Operand:
        """Return an object of the program, or a number of it."""
        if isinstance(value, Traced):
            return Record("traced", (("value", Const(plain(value))), ("expr", self.number(value.expr))))
        return Const(value)

    def fields(
        self, value: Any, defaults: dict[str, Any], live: tuple[str, ...] = (), leave: tuple[str, ...] = ()
    ) -> tuple[tuple[str, Operand], ...]:
        """Return the fields of plain data that differ from their defaults."""
        found = []
        for one in dataclasses.fields(value):
            part = getattr(value, one.name)
            if one.name not in leave and not (one.name in defaults and is_default(part, defaults[one.name])):
                found.append((one.name, self.live(part) if one.name in live else self.lift(part)))
        return tuple(found)

    def path(self, path: AccessPath) -> Path:
        base = None if path.base is None else self.path(path.base)
        key = self.number(path.key) if path.step is Step.AT else Const(path.key)
        return Path(path.step.value, base, key, path.label)


@dataclass(frozen=True, slots=True)
class Lowerer:
    """From nodes to events. ``tensor``: the number of a tensor; ``number``: the expression of a number; ``after``: how
    many framework calls there are before the node."""

    tensor: Callable[[Ref], int]
    number: Callable[[Ref], Expr]
    after: int = 0

    def lower(self, operand: Operand) -> Any:
        match operand:
            case Ref(value=value):
                return TensorRef(self.tensor(operand)) if value.is_tensor else self.number(operand)
            case Const(value=value):
                return value
            case Sequence(cls=cls, items=items):
                return _made_of(cls, tuple(map(self.lower, items)))
            case Dict(items=items):
                return {self.lower(key): self.lower(part) for key, part in items}
            case Path():
                return self.path(operand)
            case Record(name="slice", fields=fields):
                return slice(*(self.lower(part) for _, part in fields))
            case Record(name="traced", fields=((_, value), (_, expr))):
                return traced_key(self.lower(value), self.lower(expr))
            case Record(name=name, fields=fields):
                extra = {"after": self.after} if name == "copy" else {}
                return RECORDS[name](**{field: self.lower(part) for field, part in fields}, **extra)
        raise AssertionError(operand)

    def path(self, path: Path) -> AccessPath:
        step, base = Step(path.step), None if path.base is None else self.path(path.base)
        key = self.lower(path.key)
        if step is Step.AT:
            token: tuple[Any, ...] = ("at", base.token if base else None, key.token)
        elif base is not None:
            token = (step.value, base.token, token_of(key))
        else:
            token = (step.value, id(key) if step in (Step.CONST, Step.CELL) else key)
        return AccessPath(step, base, key, token, path.label)


def _made_of(cls: Any, items: tuple[Any, ...]) -> Any:
    """Return an object of a class of sequences."""
    if cls is torch.Size or not issubclass(cls, tuple):
        return cls(items)
    return tuple.__new__(cls, items)
