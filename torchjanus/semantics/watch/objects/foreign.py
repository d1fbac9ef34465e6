"""Watch foreign objects: each operation on one is an extern call.

This layer handles foreign operands and delegates all others to the next class.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from torch.overrides import TorchFunctionMode

from torchjanus.core.kinds import hasattr, isinstance
from torchjanus.host.journal import method
from torchjanus.rewrite import Site
from torchjanus.semantics.external.handling import may_suppress
from torchjanus.semantics.watch.objects.base import WatchBase
from torchjanus.semantics.watch.objects.values import INPLACE, OPERATORS, UNARY
from torchjanus.trace.effects import WORLD
from torchjanus.trace.events import Decision

__all__ = ["ForeignWatch"]


class ForeignWatch(WatchBase):
    """The hooks that foreign objects concern."""

    def load_attr(self, at: Site, obj: Any, name: str) -> Any:
        if not self.natives.is_foreign(obj):
            return super().load_attr(at, obj, name)
        self.at(at)
        if name in ("__class__", "__dict__"):
            return getattr(obj, name)
        return self.natives.foreign_attribute(obj, name)

    def store_attr(self, at: Site, obj: Any, name: str, value: Any) -> None:
        if not self.natives.is_foreign(obj):
            super().store_attr(at, obj, name, value)
            return
        self._drop(at)
        self.natives.extern(setattr, (obj, name, value), {}, WORLD)

    def drop_attr(self, at: Site, obj: Any, name: str) -> None:
        if not self.natives.is_foreign(obj):
            super().drop_attr(at, obj, name)
            return
        self._drop(at)
        self.natives.extern(delattr, (obj, name), {}, WORLD)

    def _drop(self, at: Site) -> None:
        self.at(at)
        self.natives.externs.dropped = True

    def load_item(self, at: Site, obj: Any, key: Any) -> Any:
        if not self.natives.is_foreign(obj) and (
            isinstance(obj, dict | list | tuple) or not self.natives.is_foreign(key)
        ):
            return super().load_item(at, obj, key)
        return self._operate(at, operator.getitem, "__getitem__", obj, key)

    def store_item(self, at: Site, obj: Any, key: Any, value: Any) -> None:
        if not self.natives.is_foreign(obj):
            super().store_item(at, obj, key, value)
            return
        self._drop(at)
        self.natives.extern(operator.setitem, (obj, key, value), {}, WORLD)

    def drop_item(self, at: Site, obj: Any, key: Any) -> None:
        if not self.natives.is_foreign(obj):
            super().drop_item(at, obj, key)
            return
        self._drop(at)
        self.natives.extern(operator.delitem, (obj, key), {}, WORLD)

    def truth(self, at: Site, value: Any) -> bool:
        if not self.natives.is_foreign(value):
            return super().truth(at, value)
        outcome = bool(self._operate(at, bool, "__bool__", value))
        self.recording.note(Decision(outcome, self.recording.place))
        return outcome

    def native_binary(self, at: Site, op: str, a: Any, b: Any) -> Any:
        if not self._any_foreign(a, b):
            return super().native_binary(at, op, a, b)
        return self._operate(at, OPERATORS[op], op, a, b)

    def native_inplace(self, at: Site, op: str, a: Any, b: Any) -> Any:
        if not self._any_foreign(a, b):
            return super().native_inplace(at, op, a, b)
        function: Callable[..., Any] = getattr(operator, INPLACE[op])
        # Immutable operands (numbers, array scalars) make a new object.
        changes = self.natives.is_foreign(a) and hasattr(type(a), f"__{INPLACE[op]}__") and hasattr(a, "__setitem__")
        return self._operate(at, function, f"__{INPLACE[op]}__" if changes else op, a, b)

    def native_unary(self, at: Site, op: str, a: Any) -> Any:
        if not self.natives.is_foreign(a):
            return super().native_unary(at, op, a)
        return self._operate(at, UNARY[op], op, a)

    def native_compare(self, at: Site, op: str, a: Any, b: Any) -> Any:
        if op in ("is", "is not") or not self._any_foreign(a, b):
            return super().native_compare(at, op, a, b)
        if op in ("in", "not in"):
            if not self.natives.is_foreign(b):
                return super().native_compare(at, op, a, b)
            found = self._operate(at, operator.contains, "__contains__", b, a)
            return found if op == "in" else not found
        return self._operate(at, OPERATORS[op], op, a, b)

    def _any_foreign(self, *values: Any) -> bool:
        return any(self.natives.is_foreign(value) for value in values)

    def _operate(self, at: Site, function: Callable[..., Any], name: str, *values: Any) -> Any:
        self.at(at)
        return self.natives.foreign_operation(function, name, values)

    def native_next(self, at: Site, iterator: Any) -> Any:
        if not self.natives.is_foreign(iterator):
            return super().native_next(at, iterator)
        self.at(at)
        return self.natives.take_next(iterator)

    def context(self, at: Site, manager: Any) -> Any:
        externs = self.natives.externs
        externs.suppressing = externs.suppressing or may_suppress(manager)
        if not self.natives.is_foreign(manager):
            if isinstance(manager, TorchFunctionMode):
                self.at(at)
                self.natives.enters(manager)
            return super().context(at, manager)
        return _ForeignContext(self, at, manager)


class _ForeignContext:
    """A foreign context manager that is entered and left by extern calls."""

    def __init__(self, watch: ForeignWatch, at: Site, manager: Any) -> None:
        self._watch = watch
        self._at = at
        self._manager = manager

    def __enter__(self) -> Any:
        self._watch.at(self._at)
        return self._watch.natives.extern(method("__enter__"), (self._manager,), {}, WORLD)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        self._watch.at(self._at)
        if error is not None:
            self._watch.recording.refuse(
                "native-with-block",
                f"an error goes through 'with' of a {type(self._manager).__name__}",
                "whether native code lets it pass is not part of a graph.",
                "",
            )
            return bool(self._manager.__exit__(kind, error, trace))
        self._watch.natives.externs.dropped = True
        self._watch.natives.extern(method("__exit__"), (self._manager, None, None, None), {}, WORLD)
        return False
