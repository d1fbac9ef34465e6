"""Values that are not known when a program is staged, and what is said of them beforehand (``Rep``).

A tensor of unknown value is a fake tensor of torch. Numbers and objects are the classes here. Whatever a staged value
is asked that only its value could answer is refused; operators ask the staging that made it.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch

from torchjanus.core.errors import Refused, Unsupported, refused
from torchjanus.core.kinds import isinstance
from torchjanus.tracegraph.graph import Ref

__all__ = [
    "UNBOUND",
    "LikeType",
    "ListType",
    "NumberType",
    "ObjectType",
    "Pending",
    "Poison",
    "Rep",
    "StagedList",
    "StagedNumber",
    "StagedObject",
    "StagedRange",
    "StagedValue",
    "TensorSpec",
    "Unbound",
    "is_staged",
    "kind_of_number",
    "type_of_example",
]


_COMPARING = {operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge, operator.not_, operator.is_}
_TRUTHS = {*_COMPARING, operator.is_not, bool, isinstance, math.isnan, math.isinf, math.isfinite}
_WHOLE = {int, len, math.floor, math.ceil, round}
_REAL = {float, operator.truediv}


class Unbound:
    """What a variable holds in a graph where the program has not set it. The class itself is the value."""


UNBOUND = Unbound


class Pending(Exception):
    """A recursive call whose result's type is not known yet."""


# ---- types ----


@dataclass(frozen=True)
class TensorSpec:
    """A tensor's dtype, device and sizes: numbers, or names of sizes that are not known."""

    dtype: torch.dtype
    sizes: tuple[int | str | None, ...]
    device: str = "cpu"
    requires_grad: bool = False


@dataclass(frozen=True)
class NumberType:
    """``kind``: "int", "float", "bool", or "number" if it is any of them."""

    kind: str


@dataclass(eq=False)
class ObjectType:
    """An object of one class, by the types of its attributes. Types are compared by identity: they may be recursive."""

    cls: type | None
    fields: dict[str, Any] = field(default_factory=dict)
    optional: bool = False  # whether it may be None


@dataclass(eq=False)
class ListType:
    """The type of a list of any length. ``element``: the type of its elements, None for an empty list."""

    element: Any


@dataclass(eq=False)
class LikeType:
    """A tensor like this one, of which the sizes may be known to the staging only."""

    value: torch.Tensor


class Rep:
    """Says that a value is not known when a function is staged (a ``Rep`` type of Lightweight Modular Staging).

    ``Rep(int)``, ``Rep(float)``, ``Rep(bool)``: a number. ``Rep(torch.float32, (3, "T"))``: a tensor; a name or None
    stands for a size that is not known either. ``Rep(example)``: whatever is like the example: a tensor, a number, or
    an object (such as a tree) whose attributes are like those of the objects that can be reached from it.
    """

    def __init__(self, what: Any, sizes: tuple[int | str | None, ...] | None = None) -> None:
        if isinstance(what, torch.dtype):
            self.type: Any = TensorSpec(what, tuple(sizes or ()))
        elif what in (int, float, bool) and isinstance(what, type):
            self.type = NumberType(what.__name__)
        elif isinstance(what, Rep):
            self.type = what.type
        else:
            self.type = type_of_example(what)

    def __repr__(self) -> str:
        return f"Rep({self.type})"


_LITERALS = (str, bytes, torch.dtype, torch.device)


def type_of_example(example: Any) -> Any:
    """Return the type of a value like this one. Raises Unsupported."""
    known: dict[type, ObjectType] = {}
    done: set[int] = set()
    kept: list[Any] = []

    def visit(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return TensorSpec(value.dtype, tuple(value.shape), str(value.device), value.requires_grad)
        if type(value) in (bool, int, float):
            return NumberType(type(value).__name__)
        if type(value) is list:
            elements = [visit(one) for one in value]
            return ListType(_joined(elements) if elements else None)
        if value is None:
            return ObjectType(None, optional=True)
        attributes = _attributes(value)
        if attributes is None or isinstance(value, (type, *_LITERALS)):
            raise Unsupported(f"Rep({value!r}): {type(value).__name__} is no tensor, number, list or plain object.")
        made = known.setdefault(type(value), ObjectType(type(value)))
        if id(value) not in done:
            done.add(id(value))
            kept.append(value)
            for name, one in attributes.items():
                found = visit(one)
                made.fields[name] = _join(made.fields[name], found) if name in made.fields else found
        return made

    return visit(example)


def _attributes(value: Any) -> dict[str, Any] | None:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
    slots = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ())]
    found = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    return {**found, **vars(value)} if hasattr(value, "__dict__") else found or None


def _joined(types: list[Any]) -> Any:
    first, *others = types
    for one in others:
        first = _join(first, one)
    return first


def _join(one: Any, other: Any) -> Any:
    """Return the type of values of either type."""
    if one is other or one == other:
        return one
    match one, other:
        case NumberType(), NumberType():
            return NumberType("number")
        case TensorSpec(), TensorSpec() if one.dtype == other.dtype and len(one.sizes) == len(other.sizes):
            sizes = tuple(a if a == b else None for a, b in zip(one.sizes, other.sizes, strict=True))
            return TensorSpec(one.dtype, sizes, one.device, one.requires_grad or other.requires_grad)
        case ListType(), ListType():
            if one.element is None or other.element is None:
                return one if other.element is None else other
            return ListType(_join(one.element, other.element))
        case (ObjectType(), ObjectType()) if one.cls is None or other.cls is None or one.cls is other.cls:
            known = other if one.cls is None else one
            return known if known.optional else _optional_of(known)
        case (ObjectType(cls=None), _) | (_, ObjectType(cls=None)):
            return _optional_of(other if isinstance(one, ObjectType) else one)
    raise Unsupported(f"Rep(): a field is {one} in one object and {other} in another.")


def _optional_of(known: Any) -> ObjectType:
    """Return the type of a value of this type or None. It shares the attributes, which may become known later."""
    return ObjectType(getattr(known, "cls", None), getattr(known, "fields", {}), True)


# ---- values ----


def _refusing(what: str) -> Callable[..., Any]:
    def method(self: StagedValue, *_: Any) -> Any:
        raise self._refusal(what)

    return method


class StagedValue:
    """What is not known. ``ref``: the value in the graph; ``staging``: who makes the graph, and is asked."""

    def __init__(self, staging: Any, ref: Ref, type_: Any) -> None:
        self.staging, self.ref, self.type, self.builder = staging, ref, type_, staging.builder

    def _refusal(self, what: str) -> Refused:
        return refused(
            "staged-value", f"{what} of a staged value",
            "The value is known only when the graph runs, and this code needs it now.",
            "Do it outside of the staged function, or let it work on an ordinary value.", self.staging.place,
        )  # fmt: skip

    __bool__ = _refusing("the truth")
    __index__ = __int__ = __float__ = _refusing("the number")
    __len__ = _refusing("the length")
    __iter__ = _refusing("the elements")
    __format__ = __str__ = __repr__ = _refusing("the text")
    __hash__ = _refusing("the hash")


def _binary(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def method(self: StagedNumber, other: Any) -> Any:
        return self.staging.number_operator(function, self, other)

    return method


def _reflected(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def method(self: StagedNumber, other: Any) -> Any:
        return self.staging.number_operator(function, other, self)

    return method


class StagedNumber(StagedValue):
    """A number. ``symbol``: what torch's fake tensors know of it."""

    def __init__(self, staging: Any, ref: Ref, type_: NumberType, symbol: Any) -> None:
        super().__init__(staging, ref, type_)
        self.symbol = symbol

    __hash__ = StagedValue.__hash__

    def __neg__(self) -> Any:
        return self.staging.compute(operator.neg, (self,))

    def __pos__(self) -> Any:
        return self.staging.compute(operator.pos, (self,))

    def __abs__(self) -> Any:
        return self.staging.compute(abs, (self,))

    def __invert__(self) -> Any:
        return self.staging.compute(operator.invert, (self,))


for _name in "add sub mul truediv floordiv mod pow and or xor lshift rshift".split():
    _function = getattr(operator, f"{_name}_" if _name in ("and", "or") else _name)
    setattr(StagedNumber, f"__{_name}__", _binary(_function))
    setattr(StagedNumber, f"__r{_name}__", _reflected(_function))
for _name in "eq ne lt le gt ge".split():
    setattr(StagedNumber, f"__{_name}__", _binary(getattr(operator, _name)))


class StagedObject(StagedValue):
    """An object of a known class, or None."""


class StagedList(StagedValue):
    """A list of unknown length. ``is_new``: whether the staged program has made it, and may change it."""

    is_new = False


@dataclass
class StagedRange:
    """What a staged loop goes over. ``count``: how many elements; ``element``: the one with a staged index."""

    count: Any
    element: Callable[[Any], Any]


class Poison:
    """Stands for a value that no graph can have. Every use of it raises the reason."""

    def __init__(self, reason: Refused) -> None:
        object.__setattr__(self, "reason", reason)

    def _raise(self, /, *args: Any, **kwargs: Any) -> NoReturn:
        raise object.__getattribute__(self, "reason")

    __getattr__ = __setattr__ = __call__ = __iter__ = __bool__ = __len__ = __getitem__ = __setitem__ = _raise
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _raise
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __neg__ = __matmul__ = __rmatmul__ = _raise
    __hash__ = __index__ = __int__ = __float__ = __pow__ = __rpow__ = __floordiv__ = __mod__ = _raise
    __str__ = __format__ = _raise

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for one in torch.utils._pytree.tree_leaves((args, kwargs)):
            if type(one) is Poison:
                one._raise()
        raise AssertionError("no poison")


def kind_of_number(function: Any, args: tuple[Any, ...]) -> str:
    """Return what kind of number a function gives for these arguments; "number" if that depends on their values."""
    if function in _TRUTHS:
        return "bool"
    if function in _WHOLE:
        return "int"
    if function in _REAL or getattr(function, "__module__", "") == "math":
        return "float"
    kinds = {one.type.kind if isinstance(one, StagedNumber) else type(one).__name__ for one in args}
    if kinds == {"bool"} and function in (operator.and_, operator.or_, operator.xor):
        return "bool"
    if kinds <= {"int", "bool"} and function is not operator.pow:
        return "int"
    if function is operator.pow and kinds <= {"int", "bool"}:
        known = args[1]
        return "int" if isinstance(known, int) and known >= 0 else "number"
    return "float" if "float" in kinds and kinds <= {"int", "float", "bool"} else "number"


def is_staged(value: Any) -> bool:
    """Whether a value is not known: tensors never are."""
    return isinstance(value, torch.Tensor | StagedValue)


def staged_parts(value: Any) -> list[Any]:
    """Return what is not known within a value, in order: within tuples, lists and dictionaries."""
    if is_staged(value):
        return [value]
    parts = value if isinstance(value, tuple | list) else value.values() if type(value) is dict else ()
    return [leaf for part in parts for leaf in staged_parts(part)]
