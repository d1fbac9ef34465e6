"""Access paths: how a value is reached from an argument, a global, a cell, a pinned object or an extern call's result.

An AccessPath prints itself as the user would write it, reads itself from a later call's arguments, and serves as a key:
two access paths are equal when they are the same path, whatever value is there. This module does not know torch.
"""

from __future__ import annotations

import collections
import datetime
import decimal
import fractions
import types
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from torchjanus.core.kinds import getattr, hasattr, isinstance

__all__ = [
    "REGISTRIES", "RESULTS", "AccessPath", "Floats", "Ints", "Step", "native_class", "numbers_of", "read_item",
    "token_of",
]  # fmt: skip

# Where ``AccessPath.read`` finds the results of extern calls: in the keywords, under a key that no keyword can have.
RESULTS: Any = ("results of extern calls",)

REGISTRIES = ("_parameters", "_buffers", "_modules")  # the dictionaries of a module
_TORCH_VALUES = frozenset({"device", "dtype", "layout", "memory_format", "Size"})  # equal when their texts are equal
_PLAIN = frozenset(map(id, (int, float, complex, str, bytes, bool, type(None))))
# Values of these very classes are equal when their texts are equal.
_SHOWN = frozenset(map(id, (range, datetime.date, datetime.timedelta, decimal.Decimal, fractions.Fraction, uuid.UUID)))
_OF_TUPLES = ("__eq__", "__hash__", "__iter__")
_CONTAINERS: tuple[type, ...] = (
    collections.OrderedDict, dict, list, tuple, set, frozenset, collections.deque
)  # fmt: skip


class Step(Enum):
    """How one more step of a path is read from the object before it."""

    ARG = "arg"  # args[key] of the speculated call
    KWARG = "kwarg"  # kwargs[key]
    PARAMETER = "parameter"  # the argument of a recursive call for the parameter key
    CONST = "const"  # this object, held by reference
    CELL = "cell"  # key.cell_contents
    EXTERN = "extern"  # the result of the call's extern call number key
    DICT = "dict"  # base.__dict__
    ITEM = "item"  # base[key]
    AT = "at"  # base[key], where the key is an expression
    FIELD = "field"  # getattr(base, key), for slots and descriptors written in C
    LEN = "len"  # len(base)
    NUMBERS = "numbers"  # all elements of base, which are numbers of one type
    SIZE = "size"  # base.shape[key], of a tensor
    OF = "of"  # key(base), where key is a function of torchjanus that only reads
    CONTEXT = "context"  # base.get(None), for context variables
    OWN = "own"  # a tensor that the step has made before its recursive calls, held by its variable key
    GROWN = "grown"  # what recursive calls append to the list with the number key; or what call key[1] returns


class Ints(tuple[int, ...]):
    """All elements of a sequence, each exactly an int."""

    __slots__ = ()


class Floats(tuple[float, ...]):
    """All elements of a sequence, each exactly a float."""

    __slots__ = ()


def numbers_of(container: Any) -> Ints | Floats:
    """Return the elements of a list, tuple or deque. Raises TypeError where they are not all ints or all floats."""
    elements = tuple(native_class(type(container)).__iter__(container))
    kinds = set(map(type, elements))
    if kinds == {float}:
        return Floats(elements)
    if kinds == {int}:
        return Ints(elements)
    raise TypeError("the elements are not all numbers of one type")


def native_class(cls: type) -> Any:
    """Return the container class written in C that ``cls`` is or derives from, or None. Reads, guards and deferred
    writes use its methods, which are below any written in Python, since watching records there."""
    if cls is dict or cls is list or cls is tuple:
        return cls
    return next((base for base in _CONTAINERS if issubclass(cls, base)), None)


def read_item(container: Any, key: Any) -> Any:
    """Return ``container[key]`` without calling a default factory or a method written in Python. Raises TypeError where
    only such a method could return it."""
    if isinstance(container, dict) and not dict.__contains__(container, key):
        raise KeyError(key)
    native = native_class(type(container))
    if native is not None:
        return native.__getitem__(container, key)
    cls = type(container)
    if hasattr(cls, "__torch_function__") or isinstance(getattr(cls, "__getitem__", None), types.FunctionType):
        raise TypeError(f"a {type(container).__qualname__} is not asked for its items")
    return container[key]


def token_of(value: Any) -> Any:
    """Return a hashable key: numbers, strings, tuples and dates by type and value, all other objects by identity.

    An identity is meaningless once the object is gone: keep the object alive together with the token.
    """
    if id(type(value)) in _PLAIN:
        return (type(value).__name__, repr(value) if type(value) is float else value)
    if type(value) is tuple:
        return ("tuple", *(token_of(v) for v in value))
    if type(value) is frozenset:
        return ("frozenset", frozenset(map(token_of, value)))
    if type(value) is slice:
        return ("slice", token_of(value.start), token_of(value.stop), token_of(value.step))
    kind = type(value)
    if (kind.__module__ == "torch" and kind.__name__ in _TORCH_VALUES) or id(kind) in _SHOWN:
        return (kind.__name__, repr(value))
    if isinstance(value, tuple) and all(type.__getattribute__(kind, n) is getattr(tuple, n) for n in _OF_TUPLES):
        return ("tuple", id(kind), *(token_of(v) for v in value))  # a named tuple
    return ("id", id(value))


@dataclass(frozen=True, slots=True, eq=False)
class AccessPath:
    """One step of an access path. Compare and hash by ``token``."""

    step: Step
    base: AccessPath | None
    key: Any
    token: tuple[Any, ...]
    label: str = ""

    def __hash__(self) -> int:
        return hash(self.token)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AccessPath) and self.token == other.token

    @staticmethod
    def arg(index: int, name: str = "") -> AccessPath:
        return AccessPath(Step.ARG, None, index, ("arg", index), name or f"args[{index}]")

    @staticmethod
    def kwarg(name: str) -> AccessPath:
        return AccessPath(Step.KWARG, None, name, ("kwarg", name), name)

    @staticmethod
    def parameter(name: str) -> AccessPath:
        return AccessPath(Step.PARAMETER, None, name, ("parameter", name), name)

    @staticmethod
    def const(value: Any, label: str = "") -> AccessPath:
        return AccessPath(Step.CONST, None, value, ("const", id(value)), label)

    @staticmethod
    def cell(cell: Any, name: str) -> AccessPath:
        return AccessPath(Step.CELL, None, cell, ("cell", id(cell)), name)

    @staticmethod
    def extern(number: int, label: str) -> AccessPath:
        return AccessPath(Step.EXTERN, None, number, ("extern", number), label)

    @staticmethod
    def grown(number: Any) -> AccessPath:
        what = f"list {number}" if type(number) is int else "what a number"
        return AccessPath(Step.GROWN, None, number, ("grown", number), f"<{what} of recursive calls>")

    @staticmethod
    def own(name: str) -> AccessPath:
        return AccessPath(Step.OWN, None, name, ("own", name), name.removeprefix("^"))

    def prefixes(self) -> Iterator[AccessPath]:
        """Yield the path, and the paths that it goes through, down to its root."""
        at: AccessPath | None = self
        while at is not None:
            yield at
            at = at.base

    @property
    def is_grown(self) -> bool:
        """Whether it can be read only after the recursive calls of a step have been scheduled."""
        root = self
        while root.base is not None:
            root = root.base
        return root.step is Step.GROWN

    @property
    def waits_for(self) -> int:
        """How many extern calls must have been made before this can be read: 0 for the heap before the call."""
        calls, at = 0, self
        while at.base is not None:
            if at.step is Step.AT:
                calls = max(calls, _calls_before(at.key))
            at = at.base
        return max(calls, at.key + 1 if at.step is Step.EXTERN else 0)

    def then(self, step: Step, key: Any = None) -> AccessPath:
        """Return the path that is one step longer."""
        return AccessPath(step, self, key, (step._value_, self.token, token_of(key)))

    def item(self, key: Any) -> AccessPath:
        return self.then(Step.ITEM, key)

    def at(self, key: Any) -> AccessPath:
        """Return the path of the item whose key or index is the value of an expression, which may differ at
        each call."""
        return AccessPath(Step.AT, self, key, ("at", self.token, key.token))

    def attribute(self, name: str) -> AccessPath:
        """Return the path of the instance attribute ``name``, read from the object's ``__dict__``."""
        return self.then(Step.DICT).then(Step.ITEM, name)

    def read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the current value. Raises what Python raises where the path does not exist."""
        match self.step:
            case Step.ARG:
                return args[self.key]
            case Step.KWARG:
                return kwargs[self.key]
            case Step.CONST:
                return self.key
            case Step.CELL:
                return self.key.cell_contents
            case Step.EXTERN:
                return kwargs[RESULTS][self.key]
            case Step.PARAMETER:
                raise KeyError(f"{self} is known within a recursive call only")
            case Step.OWN:
                raise KeyError(f"{self} is known within the graph only")
            case Step.GROWN:
                raise KeyError(f"{self} is known once recursive calls have been followed")
        assert self.base is not None
        below = self.base.read(args, kwargs)
        match self.step:
            case Step.DICT:  # not by the __getattribute__ of a module's class: the program may count its calls
                read = types.ModuleType.__getattribute__ if isinstance(below, types.ModuleType) else getattr
                return read(below, "__dict__")
            case Step.ITEM | Step.AT:
                key = self.key if self.step is Step.ITEM else self.key.read(args, kwargs)
                return read_item(below, key)
            case Step.FIELD:
                return getattr(below, self.key)
            case Step.LEN:
                native = native_class(type(below))
                return len(below) if native is None else native.__len__(below)
            case Step.NUMBERS:
                return numbers_of(below)
            case Step.SIZE:
                return below.size(self.key)
            case Step.OF:
                return self.key(below)
            case Step.CONTEXT:
                return below.get(None)
        raise AssertionError(self.step)

    def __str__(self) -> str:
        match self.step:
            case Step.ARG | Step.KWARG | Step.CELL | Step.EXTERN | Step.PARAMETER | Step.OWN | Step.GROWN:
                return self.label
            case Step.CONST:
                return self.label or _name_of(self.key)
        base = self.base
        assert base is not None
        match self.step:
            case Step.DICT:
                return f"{base}.__dict__"
            case Step.LEN:
                return f"len({base})"
            case Step.NUMBERS:
                return f"{base}[:]"
            case Step.SIZE:
                if (text := getattr(base.key, "size_text", None)) is not None and base.step is Step.OF:
                    return str(text.format(base.base))
                return f"{base}.shape[{self.key}]"
            case Step.OF:
                return f"{_name_of(self.key)}({base})"
            case Step.CONTEXT:
                return f"{base}.get()"
            case Step.FIELD:
                return f"{base}.{self.key}"
            case Step.AT:
                return f"{base}[{self.key}]"
        if base.step is Step.DICT and isinstance(self.key, str):
            return f"{base.base}.{self.key}"
        if base.step is Step.ITEM and base.key in REGISTRIES and base.base is not None and base.base.step is Step.DICT:
            # What a user writes for the items of nn.Module's three dictionaries.
            digits = isinstance(self.key, str) and self.key.isdigit()
            return f"{base.base.base}[{self.key}]" if digits else f"{base.base.base}.{self.key}"
        if base.step is Step.CONST and base.label == "globals" and isinstance(self.key, str):
            return self.key
        return f"{base}[{_brief(self.key)}]"


def _calls_before(expr: Any) -> int:
    """Return how many extern calls must have been made before the value of an expression is known."""
    access_path = getattr(expr, "access_path", None)
    if isinstance(access_path, AccessPath):
        return access_path.waits_for
    return max(map(_calls_before, getattr(expr, "args", ())), default=0)


def _name_of(value: Any) -> str:
    if isinstance(value, types.ModuleType):
        # It may return anything for another attribute, and its class may be the program's.
        return str(types.ModuleType.__getattribute__(value, "__name__"))
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    return name if isinstance(name, str) else f"<{type(value).__name__}>"


def _brief(key: Any) -> str:
    if id(type(key)) in _PLAIN:
        return repr(key)
    return f"<{type(key).__name__}>"
