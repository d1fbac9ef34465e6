"""Operators, comparisons and truth by Python's protocols: special methods, reflected methods, ``NotImplemented``."""

from __future__ import annotations

import array
import collections
from builtins import len  # a program may rebind builtins.len
from types import FunctionType
from typing import Any

from torchjanus.rewrite import Site
from torchjanus.semantics.protocols.leaves import MISSING, derives, on_type
from torchjanus.semantics.protocols.special_methods import SpecialMethods

__all__ = ["Operators"]

METHODS: dict[str, str] = {
    "+": "add",
    "-": "sub",
    "*": "mul",
    "@": "matmul",
    "/": "truediv",
    "//": "floordiv",
    "%": "mod",
    "**": "pow",
    "<<": "lshift",
    ">>": "rshift",
    "&": "and",
    "|": "or",
    "^": "xor",
}
NAMES = {
    op: (f"__{name}__", f"__r{name}__", f"__i{name}__", "** or pow()" if op == "**" else op)
    for op, name in METHODS.items()
}
UNARY = {"+": "__pos__", "-": "__neg__", "~": "__invert__"}
COMPARE = {"==": "__eq__", "!=": "__ne__", "<": "__lt__", "<=": "__le__", ">": "__gt__", ">=": "__ge__"}
MIRRORED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}

# The operators of these types run no Python-level code.
PLAIN = frozenset(
    map(id, (int, float, complex, bool, str, bytes, list, tuple, dict, set, frozenset, type(None), range))
)
# Their + and * belong to the sequence protocol, which Python tries after the other operand's reflected method.
SEQUENCES = (list, tuple, str, bytes, bytearray, collections.deque, array.array, memoryview)


class Operators(SpecialMethods):
    """``a + b``, ``a += b``, ``-a``, ``a < b``, ``a in b``, ``not a``."""

    def binary(self, at: Site, op: str, a: Any, b: Any) -> Any:
        if id(type(a)) in PLAIN and id(type(b)) in PLAIN:
            return self.native_binary(at, op, a, b)
        forward, reflected, _, shown = NAMES[op]
        if self.dunder(type(a), forward) is None and self.dunder(type(b), reflected) is None:
            return self.native_binary(at, op, a, b)
        result = self.attempt(at, op, a, b)
        if result is NotImplemented:
            raise TypeError(unsupported(shown, a, b))
        return result

    def attempt(self, at: Site, op: str, a: Any, b: Any) -> Any:
        """Return the result of an operator with a Python method on either side; it may be NotImplemented."""
        forward, reflected, _, _ = NAMES[op]
        ta, tb = type(a), type(b)
        left, right = on_type(ta, forward), on_type(tb, reflected) if tb is not ta else MISSING
        self.note_lookup(ta, forward)
        self.note_lookup(tb, reflected)
        late = op in "+*" and issubclass(type(a), SEQUENCES) and self.dunder(ta, forward) is None
        first = right is not MISSING and (late or (derives(tb, ta) and right is not on_type(ta, reflected)))
        if first:
            result = self.special(at, right, b, a)
            if result is not NotImplemented:
                return result
        if left is not MISSING:
            result = self.special(at, left, a, b)
            if result is not NotImplemented:
                return result
        if right is not MISSING and not first:
            return self.special(at, right, b, a)
        return NotImplemented

    def special(self, at: Site, method: Any, receiver: Any, *args: Any) -> Any:
        """Call a special method that was found on the receiver's class."""
        if type(method) is FunctionType or receiver is None:  # a slot of None's class takes None for "not bound"
            return self.call(at, method, (receiver, *args), {})
        return self.call(at, self.bind(at, method, receiver), args, {})

    def inplace(self, at: Site, op: str, a: Any, b: Any) -> Any:
        forward, reflected, own, shown = NAMES[op]
        if id(type(a)) in PLAIN and id(type(b)) in PLAIN:
            return self.native_inplace(at, op, a, b)
        method = self.dunder(type(a), own)
        if method is not None:
            result = self.invoke(at, method, a, b)
            if result is not NotImplemented:
                return result
        elif self.dunder(type(a), forward) is None and self.dunder(type(b), reflected) is None:
            return self.native_inplace(at, op, a, b)
        else:
            native = on_type(type(a), own)
            if native is not MISSING:
                if issubclass(type(a), SEQUENCES):  # x += y on a list tries y's reflected method first
                    other = on_type(type(b), reflected)
                    result = NotImplemented if other is MISSING else self.special(at, other, b, a)
                    return self.special(at, native, a, b) if result is NotImplemented else result
                result = self.special(at, native, a, b)
                if result is not NotImplemented:
                    return result
        result = self.attempt(at, op, a, b)
        if result is NotImplemented:
            raise TypeError(unsupported("**=" if op == "**" else f"{shown}=", a, b))
        return result

    def unary(self, at: Site, op: str, a: Any) -> Any:
        method = None if id(type(a)) in PLAIN else self.dunder(type(a), UNARY[op])
        return self.native_unary(at, op, a) if method is None else self.invoke(at, method, a)

    # ---- comparisons ----

    def compare(self, at: Site, op: str, a: Any, b: Any) -> Any:
        ta, tb = type(a), type(b)
        if op in COMPARE:
            if not (id(ta) in PLAIN and id(tb) in PLAIN) and (
                self.comparable(ta, op) or self.comparable(tb, MIRRORED[op])
            ):
                return self.rich_compare(at, op, a, b)
        elif op in ("in", "not in") and id(tb) not in PLAIN:
            found = self.contains(at, b, a)
            if found is not None:
                return found if op == "in" else not found
        return self.native_compare(at, op, a, b)

    def comparable(self, tp: type, op: str) -> bool:
        """Whether a Python method implements the comparison."""
        return self.dunder(tp, COMPARE[op]) is not None or (op == "!=" and self.dunder(tp, "__eq__") is not None)

    def rich_compare(self, at: Site, op: str, a: Any, b: Any) -> Any:
        ta, tb = type(a), type(b)
        mirrored = MIRRORED[op]
        first = ta is not tb and derives(tb, ta)
        if first:
            result = self.compare_one(at, mirrored, b, a)
            if result is not NotImplemented:
                return result
        result = self.compare_one(at, op, a, b)
        if result is not NotImplemented:
            return result
        if not first:
            result = self.compare_one(at, mirrored, b, a)
            if result is not NotImplemented:
                return result
        if op == "==":
            return a is b
        if op == "!=":
            return a is not b
        raise TypeError(f"'{op}' not supported between instances of '{ta.__name__}' and '{tb.__name__}'")

    def compare_one(self, at: Site, op: str, a: Any, b: Any) -> Any:
        method = on_type(type(a), COMPARE[op])
        self.note_lookup(type(a), COMPARE[op])
        if op == "!=" and method is object.__ne__:  # the negation of ==, unless that is NotImplemented
            result = self.compare_by(at, on_type(type(a), "__eq__"), a, b)
            return result if result is NotImplemented else not self.branch_value(at, result)
        if method is getattr(object, COMPARE[op]):  # object's own method, which compares identities
            return True if op == "==" and a is b else NotImplemented
        return self.compare_by(at, method, a, b)

    def compare_by(self, at: Site, method: Any, a: Any, b: Any) -> Any:
        if type(method) is FunctionType or a is None:
            return self.special(at, method, a, b)
        try:
            bound = self.bind(at, method, a)
        except BaseException:  # where a descriptor raises, Python acts as if there were no method
            return NotImplemented
        return self.call(at, bound, (b,), {})

    def contains(self, at: Site, container: Any, value: Any) -> bool | None:
        """Return the membership test if Python code implements it, else None."""
        tp = type(container)
        method = self.dunder(tp, "__contains__")
        if method is not None:
            return self.branch_value(at, self.invoke(at, method, container, value))
        going = "__getitem__" if on_type(tp, "__iter__") is MISSING else "__iter__"
        if on_type(tp, "__contains__") is MISSING and self.dunder(tp, going) is not None:
            for element in self.iterate(at, container):
                if element is value or self.branch_value(at, self.compare(at, "==", element, value)):
                    return True
            return False
        return None

    # ---- truth ----

    def branch(self, at: Site, value: Any) -> bool:
        return self.branch_value(at, value)

    def not_(self, at: Site, value: Any) -> bool:
        return not self.branch_value(at, value)

    def branch_value(self, at: Site, value: Any) -> bool:
        """Return the truth of a value: ``__bool__``, else ``__len__``, else True."""
        tp = type(value)
        if tp is bool:
            return self.truth(at, value)
        if id(tp) not in PLAIN:
            method = self.dunder(tp, "__bool__")
            self.note_lookup(tp, "__bool__")
            if method is not None:
                result = self.invoke(at, method, value)
                if type(result) is not bool:
                    raise TypeError(f"__bool__ should return bool, returned {type(result).__name__}")
                return result
            if on_type(tp, "__bool__") is MISSING and self.dunder(tp, "__len__") is not None:
                return self.truth(at, self.length(at, value))
        return self.truth(at, value)

    def length(self, at: Site, value: Any) -> Any:
        """Return ``len(value)``, where ``__len__`` is a Python function."""
        result = self.invoke(at, self.dunder(type(value), "__len__"), value)
        return self.same_number(result, len(Length(result)))


class Length:
    """Lets ``len`` itself check the result of a Python ``__len__`` and word the errors."""

    __slots__ = ("_result",)

    def __init__(self, result: Any) -> None:
        self._result = result

    def __len__(self) -> int:
        length: int = self._result
        return length


def unsupported(shown: str, a: Any, b: Any) -> str:
    return f"unsupported operand type(s) for {shown}: '{type(a).__name__}' and '{type(b).__name__}'"
