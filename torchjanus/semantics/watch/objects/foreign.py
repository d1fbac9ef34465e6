"""Watch foreign objects: each operation on one is an extern call. The caller tells which operands are foreign."""

from __future__ import annotations

import operator
import types
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from torchjanus.core.kinds import hasattr, is_one_of, isinstance
from torchjanus.host.journal import method
from torchjanus.rewrite import Site
from torchjanus.semantics.external.handling import may_suppress
from torchjanus.semantics.external.refusals import refuse_mode, refuse_native
from torchjanus.semantics.known.not_entered import REPLACING, module_reason
from torchjanus.semantics.protocols.leaves import on_type
from torchjanus.semantics.watch.objects.state import Part
from torchjanus.semantics.watch.objects.values import INPLACE, OPERATORS, UNARY
from torchjanus.trace.effects import WORLD
from torchjanus.trace.events import Decision

__all__ = ["ForeignObjects"]

_COMMON = (int, float, str, tuple, list, torch.Tensor, torch.nn.Parameter)  # operands without such methods


class ForeignObjects(Part):
    """Operations with a foreign operand."""

    def load_attr(self, at: Site, obj: Any, name: str) -> Any:
        self.at(at)
        if name == "__class__":
            return getattr(obj, name)
        if name == "__dict__" and hasattr(obj, name):
            self.recording.refuse(
                "attribute-unwatched",
                f"reads the attribute '__dict__' of a {type(obj).__qualname__}",
                "what is written to it there is not watched.",
                "Get and set its attributes by their names.",
            )
            return obj.__dict__
        return self.natives.foreign_attribute(obj, name)

    def change(self, at: Site, function: Callable[..., Any], *args: Any) -> None:
        """Set or delete an attribute or item."""
        self.at(at)
        self.natives.externs.dropped = True
        self.natives.extern(function, args, {}, WORLD)

    def load_item(self, at: Site, obj: Any, key: Any) -> Any:
        return self._operate(at, operator.getitem, "__getitem__", obj, key)

    def truth(self, at: Site, value: Any) -> bool:
        outcome = bool(self._operate(at, bool, "__bool__", value))
        self.recording.note(Decision(outcome, self.recording.place))
        return outcome

    def computes(self, op: str, a: Any, b: Any) -> bool:
        """Whether code of a foreign operand, or a library's method that is not entered, computes ``a op b``."""
        if self.natives.is_foreign(a) or self.natives.is_foreign(b):
            return True
        name = OPERATORS[op].__name__.strip("_")
        return self._has_library_method(a, f"__{name}__") or self._has_library_method(b, f"__r{name}__")

    def _has_library_method(self, value: Any, name: str) -> bool:
        if is_one_of(type(value), _COMMON) or self.recording.owner(value) is None:
            return False
        found = on_type(type(value), name)
        return isinstance(found, types.FunctionType) and self.natives.is_foreign_function(found)

    def binary(self, at: Site, op: str, a: Any, b: Any) -> Any:
        return self._operate(at, OPERATORS[op], op, a, b)

    def inplace(self, at: Site, op: str, a: Any, b: Any) -> Any:
        function: Callable[..., Any] = getattr(operator, INPLACE[op])
        # Immutable operands (numbers, array scalars) make a new object.
        changes = self.natives.is_foreign(a) and hasattr(type(a), f"__{INPLACE[op]}__") and hasattr(a, "__setitem__")
        return self._operate(at, function, f"__{INPLACE[op]}__" if changes else op, a, b)

    def unary(self, at: Site, op: str, a: Any) -> Any:
        return self._operate(at, UNARY[op], op, a)

    def is_compared(self, op: str, a: Any, b: Any) -> bool:
        """Whether a comparison other than of identity runs code of a foreign operand."""
        return self.natives.is_foreign(b) or (op not in ("in", "not in") and self.natives.is_foreign(a))

    def compare(self, at: Site, op: str, a: Any, b: Any) -> Any:
        if op in ("in", "not in"):
            found = self._operate(at, operator.contains, "__contains__", b, a)
            return found if op == "in" else not found
        return self._operate(at, OPERATORS[op], op, a, b)

    def _operate(self, at: Site, function: Callable[..., Any], name: str, *values: Any) -> Any:
        self.at(at)
        return self.natives.foreign_operation(function, name, values)

    def native_next(self, at: Site, iterator: Any) -> Any:
        self.at(at)
        return self.natives.take_next(iterator)

    def context(self, at: Site, manager: Any) -> Any:
        """Return what enters and leaves a context manager; None if it is not foreign."""
        externs = self.natives.externs
        externs.suppressing = externs.suppressing or may_suppress(manager)
        if self.natives.is_foreign(manager):
            return _ForeignContext(self, at, manager)
        enter = on_type(type(manager), "__enter__")
        if type(enter) is types.FunctionType and module_reason(enter.__globals__.get("__name__"), REPLACING):
            self.at(at)
            refuse_native(self.recording, enter, f"{enter.__module__}.{enter.__qualname__}")
        if isinstance(manager, TorchFunctionMode):
            self.at(at)
            refuse_mode(self.recording, manager)
        return None


class _ForeignContext:
    """A foreign context manager that is entered and left by extern calls."""

    def __init__(self, objects: ForeignObjects, at: Site, manager: Any) -> None:
        self._objects = objects
        self._at = at
        self._manager = manager

    def __enter__(self) -> Any:
        self._objects.at(self._at)
        return self._objects.natives.extern(method("__enter__"), (self._manager,), {}, WORLD)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        self._objects.at(self._at)
        if error is not None:
            self._objects.recording.refuse(
                "native-with-block",
                f"an error goes through 'with' of a {type(self._manager).__name__}",
                "whether native code lets it pass is not part of a graph.",
                "",
            )
            return bool(self._manager.__exit__(kind, error, trace))
        self._objects.natives.externs.dropped = True
        self._objects.natives.extern(method("__exit__"), (self._manager, None, None, None), {}, WORLD)
        return False
