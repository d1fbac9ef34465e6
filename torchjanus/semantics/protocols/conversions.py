"""Conversions to numbers by native code (``int(x)``, ``math.sqrt(x)``), and the functions of ``operator``.

A special method of the object's class that is written in Python runs rewritten, and the native function is given its
result. Knows Python's protocols, not what a semantics does with them.
"""

from __future__ import annotations

import array
import collections
import math
import operator
import types
from builtins import len  # a program may rebind builtins.len
from collections.abc import Callable
from typing import Any

from torchjanus.core.kinds import getattr, is_one_of, isinstance
from torchjanus.rewrite import Site
from torchjanus.semantics.protocols.attributes import Attributes
from torchjanus.semantics.protocols.iteration import Iteration
from torchjanus.semantics.protocols.leaves import MISSING, on_type
from torchjanus.semantics.protocols.operators import COMPARE, METHODS, PLAIN, UNARY

__all__ = ["CONVERTING_CLASSES", "CONVERTING_ROUTES", "INDEX", "Conversions"]

Args = tuple[Any, ...]

INDEX = ("__index__",)
FLOAT = ("__float__", "__index__")
INT = ("__int__", "__index__")
COMPLEX = ("__complex__", *FLOAT)
# The class that native code requires of a special method's result.
KINDS: dict[str, type] = {"__int__": int, "__index__": int, "__float__": float, "__complex__": complex}

CONVERTING_CLASSES: dict[type, tuple[str, ...]] = {int: INT, float: FLOAT, complex: COMPLEX, range: INDEX}
_BY_INDEX = (
    operator.index, chr, hex, oct, bin, math.gcd, math.lcm, math.factorial, math.comb, math.perm, math.isqrt
)  # fmt: skip
# Functions that call a special method of their own.
_OWN_METHODS = {
    round: "__round__",
    math.floor: "__floor__",
    math.ceil: "__ceil__",
    math.trunc: "__trunc__",
    divmod: "__divmod__",
    pow: "__pow__",
}
_SEQUENCES = (list, tuple, str, bytes, bytearray, range, collections.deque, array.array)
_OF_SEQUENCES = frozenset((math.fsum, math.prod, math.dist, getattr(math, "sumprod", math.fsum)))


class Conversions(Attributes, Iteration):
    """Conversions to numbers, and operators called as functions."""

    def special_result(self, at: Site, value: Any, names: tuple[str, ...]) -> Any:
        """Return the result of the first of these special methods that is to be entered; else the value."""
        tp = type(value)
        if id(tp) in PLAIN:
            return value
        for name in names:
            found = on_type(tp, name)
            self.note_lookup(tp, name)
            if found is MISSING:
                continue
            if name == "__index__" and issubclass(tp, int):
                return value  # native code takes it as an int
            method = self.dunder(tp, name)
            if method is None:
                return value
            result = self.invoke(at, method, value)
            kind = KINDS.get(name)
            if kind is None or self.kind_of(result) is kind:
                return result
            return _object_answering(tp.__name__, name, result)
        return value

    # An index object of the program is converted to its number before a sequence sees it.

    def item(self, at: Site, obj: Any, key: Any) -> Any:
        return super().item(at, obj, self._index(at, obj, key))

    def set_item(self, at: Site, obj: Any, key: Any, value: Any) -> None:
        super().set_item(at, obj, self._index(at, obj, key), value)

    def del_item(self, at: Site, obj: Any, key: Any) -> None:
        super().del_item(at, obj, self._index(at, obj, key))

    def _index(self, at: Site, obj: Any, key: Any) -> Any:
        if not issubclass(type(obj), _SEQUENCES):
            return key
        if type(key) is slice:
            parts = (key.start, key.stop, key.step)
            converted_parts = [self.special_result(at, part, INDEX) for part in parts]
            return key if all(a is b for a, b in zip(parts, converted_parts, strict=True)) else slice(*converted_parts)
        return self.special_result(at, key, INDEX)

    def converted(self, at: Site, args: Args, names: tuple[str, ...]) -> Args:
        return tuple(self.special_result(at, value, names) for value in args)

    def call_converting(self, at: Site, fn: Any, args: Args) -> Any:
        """Call a function of numbers. Where it has a special method of its own, that comes first."""
        name = _OWN_METHODS.get(fn)
        if name is not None and args:
            if is_one_of(fn, (divmod, pow)):
                if len(args) == 2 and (
                    self.has_python_method(args[0], name) or self.has_python_method(args[1], f"__r{name[2:]}")
                ):
                    return self.by_method(at, fn, *args)
            elif self.has_python_method(args[0], name):
                rest = () if args[1:] == (None,) else args[1:]
                return self.invoke(at, self.dunder(type(args[0]), name), args[0], *rest)
        names = INDEX if is_one_of(fn, _BY_INDEX) else FLOAT
        if fn is round:  # the second number is an index
            args = (*args[:1], *self.converted(at, args[1:], INDEX))
        return self.call_native(at, fn, self.converted(at, args, names), {})

    def has_python_method(self, value: Any, name: str) -> bool:
        return id(type(value)) not in PLAIN and self.dunder(type(value), name) is not None

    def by_method(self, at: Site, fn: Any, a: Any, b: Any) -> Any:
        """Return ``divmod(a, b)`` or ``pow(a, b)``, where one operand has a Python method for it."""
        if fn is pow:
            return self.binary(at, "**", a, b)
        for receiver, other, name in ((a, b, "__divmod__"), (b, a, "__rdivmod__")):
            method = on_type(type(receiver), name)
            if method is not MISSING and not (receiver is b and type(a) is type(b)):
                result = self.special(at, method, receiver, other)
                if result is not NotImplemented:
                    return result
        return self.call_native(at, fn, (a, b), {})  # TypeError

    # ---- operators by name ----

    def call_operator(self, at: Site, fn: Any, args: Args) -> Any:
        kind, op = _OPERATORS[fn]
        if len(args) != (1 if kind == "unary" else 2):
            return self.call_native(at, fn, args, {})  # TypeError
        return getattr(self, kind)(at, op, *args)

    def call_asking_truth(self, at: Site, fn: Any, args: Args) -> Any:
        if len(args) != 1:
            return self.call_native(at, fn, args, {})  # TypeError
        return self.branch_value(at, args[0]) is (fn is operator.truth)

    def call_contains(self, at: Site, fn: Any, args: Args) -> Any:
        if len(args) != 2:
            return self.call_native(at, fn, args, {})  # TypeError
        return self.compare(at, "in", args[1], args[0])

    def call_iconcat(self, at: Site, fn: Any, args: Args) -> Any:
        if len(args) != 2 or not isinstance(args[0], list | collections.deque):
            return self.call_native(at, fn, args, {})  # it makes a new sequence, or raises TypeError
        return self.inplace(at, "+", *args)

    def call_item_function(self, at: Site, fn: Any, args: Args) -> Any:
        match fn.__name__, args:
            case "getitem", (obj, key):
                return self.item(at, obj, key)
            case "setitem", (obj, key, value):
                return self.set_item(at, obj, key, value)
            case "delitem", (obj, key):
                return self.del_item(at, obj, key)
        return self.call_native(at, fn, args, {})  # TypeError


def _object_answering(cls: str, name: str, answer: Any) -> Any:
    """Return an object whose special method gives this answer, so that native code words the error."""
    return type(cls, (), {name: lambda self: answer})()


def _operators() -> dict[Any, tuple[str, str]]:
    """Return the hook and operator of each function of ``operator``."""
    found: dict[Any, tuple[str, str]] = {}
    for op, name in METHODS.items():
        spelled = f"{name}_" if name in ("and", "or") else name
        found[getattr(operator, spelled)] = ("binary", op)
        found[getattr(operator, f"i{name}")] = ("inplace", op)
    for op, name in COMPARE.items():
        found[getattr(operator, name.strip("_"))] = ("compare", op)
    for op, name in UNARY.items():
        found[getattr(operator, name.strip("_"))] = ("unary", op)
    return found


_OPERATORS = _operators()
_OF_MATH = tuple(f for f in vars(math).values() if isinstance(f, types.BuiltinFunctionType) and f not in _OF_SEQUENCES)
CONVERTING_ROUTES: dict[int, Callable[[Conversions, Site, Any, Args], Any]] = {
    **{id(fn): Conversions.call_converting for fn in (*_BY_INDEX, *_OWN_METHODS, *_OF_MATH)},
    **{id(fn): Conversions.call_operator for fn in _OPERATORS},
    id(operator.not_): Conversions.call_asking_truth,
    id(operator.truth): Conversions.call_asking_truth,
    id(operator.contains): Conversions.call_contains,
    id(operator.iconcat): Conversions.call_iconcat,
    **{id(fn): Conversions.call_item_function for fn in (operator.getitem, operator.setitem, operator.delitem)},
}
