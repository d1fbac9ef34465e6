"""What built-in functions are on staged values. Each is given the semantics, the site, and the arguments, and answers
NotImplemented where Python's own function is called."""

from __future__ import annotations

import abc
import builtins
import contextvars
import math
import operator
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from torchjanus.core.errors import refused
from torchjanus.core.kinds import isinstance
from torchjanus.rewrite import Site
from torchjanus.semantics.staged.unknown.tensors import is_fake
from torchjanus.semantics.staged.unknown.values import (
    NumberType,
    ObjectType,
    StagedList,
    StagedNumber,
    StagedObject,
    StagedRange,
    StagedValue,
)

__all__ = ["NATIVES", "Zipped", "is_impure"]

_IMPURE = frozenset(
    {print, input, open, builtins.id, builtins.hash, abc.ABCMeta.register, time.time, time.perf_counter, time.sleep}
)
_OF_CONTEXTS = (contextvars.ContextVar, contextvars.Context)  # what they hold is not the program's alone
_IMPURE_MODULES = frozenset({"random", "numpy.random", "time", "logging", "socket", "subprocess"})


def is_impure(fn: Any) -> bool:
    """Whether a function is known to do more than compute its result."""
    try:
        if fn in _IMPURE:
            return True
    except TypeError:
        return False
    owner = getattr(fn, "__self__", None)
    if isinstance(owner, _OF_CONTEXTS):
        return True
    if isinstance(owner, random.Random) or type(owner).__module__.startswith("numpy.random"):
        return True
    return getattr(fn, "__module__", None) in _IMPURE_MODULES


@dataclass
class Zipped:
    """``zip`` or ``enumerate`` of things of which some have no known length."""

    parts: tuple[Any, ...]
    first: int | None = None  # of ``enumerate``

    def staged(self, elements: Callable[[Any], Any], staging: Any) -> Any:
        """Return the range of indices that a loop goes over, with the element at each. ``elements`` returns the range
        of one part. Raises Refused where only some parts are of unknown length."""
        known = [elements(part) for part in self.parts]
        ranges = [part for part in known if isinstance(part, StagedRange)]
        if len(ranges) != len(known):
            raise refused(
                "staged-length", "zip of something of known and something of unknown length", "", "", staging.place
            )
        count = ranges[0].count
        for one in ranges[1:]:
            count = staging.compute(min, (count, one.count))

        def element(index: Any) -> Any:
            parts = tuple(one.element(index) for one in ranges)
            return parts if self.first is None else (index + self.first, *parts)

        return StagedRange(count, element)


def _is_endless(one: Any) -> bool:
    """Whether something has no known length."""
    if isinstance(one, torch.Tensor):
        return not isinstance(one.shape[0], int)
    return isinstance(one, StagedList | StagedRange | Zipped)


def _len(semantics: Any, at: Site, one: Any) -> Any:
    if isinstance(one, torch.Tensor):
        return semantics.at(at).shape(one)[0]
    if isinstance(one, StagedRange):
        return semantics.at(at).compute(max, (0, one.count))
    return semantics.at(at).compute(len, (one,)) if isinstance(one, StagedList) else NotImplemented


def _range(semantics: Any, at: Site, *bounds: Any) -> Any:
    staged = any(isinstance(one, StagedValue) for one in bounds)
    return semantics.at(at).range(*bounds) if staged else NotImplemented


def _converted(kind: type) -> Callable[..., Any]:
    """Return how ``int()``, ``float()`` or ``bool()`` is staged: a fetch of a tensor, or a computed number."""

    def convert(semantics: Any, at: Site, *args: Any) -> Any:
        staging = semantics.at(at)
        if len(args) == 1 and isinstance(args[0], torch.Tensor):
            return staging.fetch(args[0], kind)
        if len(args) == 1 and isinstance(args[0], StagedValue):
            return staging.truth(args[0]) if kind is bool else staging.compute(kind, args)
        return NotImplemented

    return convert


def _abs(semantics: Any, at: Site, one: Any) -> Any:
    if isinstance(one, torch.Tensor):
        return semantics.at(at).operation(torch.abs, (one,), {})
    return NotImplemented


def _extreme(function: Any, comparison: Any) -> Callable[..., Any]:
    """Return how ``min()`` or ``max()`` is staged: tensors are compared one after the other, numbers at once."""

    def extreme(semantics: Any, at: Site, /, *args: Any, **kwargs: Any) -> Any:
        staging = semantics.at(at)
        items = args if len(args) > 1 else tuple(semantics.iterate(at, args[0]))
        if not any(isinstance(one, StagedNumber | torch.Tensor) for one in items):
            return NotImplemented if len(args) > 1 else function(items, **kwargs)
        if kwargs:
            raise refused("staged-value", f"{function.__name__}() of staged values with a key", "", "", staging.place)
        if any(isinstance(one, torch.Tensor) for one in items):
            best = items[0]
            for one in items[1:]:
                better = staging.truth(semantics._operator(at, comparison, one, best))
                best = staging.choose(better, lambda one=one: one, lambda best=best: best, "conditional")
            return best
        return staging.compute(function, items)

    return extreme


def _sum(semantics: Any, at: Site, iterable: Any, start: Any = 0) -> Any:
    """``sum()``: additions, or a loop of the graph over a list of unknown length."""
    staging = semantics.at(at)
    over = semantics.elements(at, iterable)
    total = start
    if not isinstance(over, StagedRange):
        for one in over:
            total = semantics._operator(at, operator.add, total, one)
        return total
    if (
        type(start) is int
        and start == 0
        and isinstance(iterable, StagedList)
        and not isinstance(iterable.type.element, NumberType | None)
    ):
        raise refused(
            "staged-left", "sum() of a list of unknown length that holds tensors", "It is the number 0 if the list "
            "is empty, else a tensor.", "Give it a tensor to begin with: sum(values, torch.zeros(())).", staging.place,
        )  # fmt: skip

    def add(item: Any) -> None:
        nonlocal total
        total = semantics._operator(at, operator.add, total, item)

    staging.repeat(("total",), lambda: True, add, over)
    return total


def _any_or_all(kind: str) -> Callable[..., Any]:
    """Return how ``any()`` or ``all()`` is staged: truth values joined; known ones may end it at once."""

    def decide(semantics: Any, at: Site, iterable: Any) -> Any:
        staging = semantics.at(at)
        found: Any = kind == "all"
        for one in semantics.iterate(at, iterable):
            if not isinstance(one, torch.Tensor | StagedValue):
                if bool(one) is (kind == "any"):
                    return kind == "any"
                continue
            truth = staging.truth(one)
            function = operator.and_ if kind == "all" else operator.or_
            found = truth if isinstance(found, bool) else staging.compute(function, (found, truth))
        return found

    return decide


def _isinstance(semantics: Any, at: Site, one: Any, kind: Any) -> Any:
    """``isinstance()``: known from the type of a staged value; for an object of unknown class, computed by the
    graph."""
    if isinstance(one, StagedNumber):
        classes = {"int": int, "float": float, "bool": bool}
        known = classes.get(one.type.kind)
        if known is None:
            raise refused(
                "staged-value", "the class of a number that is an int or a float", "", "", semantics.at(at).place
            )
        return issubclass(known, kind)
    if isinstance(one, StagedObject):
        if one.type.cls is None or one.type.optional:
            return semantics.at(at).compute(isinstance, (one, kind))
        return issubclass(one.type.cls, kind)
    if isinstance(one, StagedList):
        return issubclass(list, kind)
    return NotImplemented


def _type(semantics: Any, at: Site, *args: Any) -> Any:
    """``type()`` of a staged value whose class is known. Raises Refused where it is not."""
    if len(args) == 1 and isinstance(args[0], StagedNumber):
        found = {"int": int, "float": float, "bool": bool}.get(args[0].type.kind)
        if found is not None:
            return found
    if len(args) == 1 and isinstance(args[0], StagedList):
        return list
    if len(args) == 1 and isinstance(args[0], StagedValue):
        type_ = args[0].type
        if isinstance(type_, ObjectType) and type_.cls is not None and not type_.optional:
            return type_.cls
        raise refused("staged-value", "the class of a staged value", "", "Use isinstance().", semantics.at(at).place)
    if len(args) == 1 and isinstance(args[0], torch.Tensor) and not isinstance(args[0], torch.nn.Parameter):
        return torch.Tensor
    return NotImplemented


def _enumerate(semantics: Any, at: Site, one: Any, start: int = 0) -> Any:
    if _is_endless(one):
        return Zipped((one,), start)
    return enumerate(semantics.iterate(at, one), start)


def _zip(semantics: Any, at: Site, *parts: Any, strict: bool = False) -> Any:
    if any(map(_is_endless, parts)):
        if strict:
            raise refused("staged-length", "zip(strict=True) of unknown lengths", "", "", semantics.at(at).place)
        return Zipped(parts)
    return zip(*(semantics.iterate(at, part) for part in parts), strict=strict)


def _reversed(semantics: Any, at: Site, one: Any) -> Any:
    if isinstance(one, StagedList):
        one = semantics.elements(at, one)
    if isinstance(one, StagedRange):
        count = one.count
        return StagedRange(count, lambda index: one.element(count - 1 - index))
    return reversed(tuple(semantics.iterate(at, one))) if isinstance(one, torch.Tensor) else NotImplemented


def _collected(kind: type) -> Callable[..., Any]:
    def collect(semantics: Any, at: Site, *args: Any) -> Any:
        if kind is list and len(args) == 1 and isinstance(args[0], StagedList):
            return semantics.at(at).sliced(args[0], slice(None))
        if len(args) == 1 and isinstance(args[0], torch.Tensor | StagedValue | StagedRange | Zipped):
            return kind(semantics.iterate(at, args[0]))
        return NotImplemented

    return collect


def _map(semantics: Any, at: Site, fn: Any, *parts: Any) -> Any:
    rows = zip(*(semantics.iterate(at, part) for part in parts), strict=False)
    return iter([semantics.call(at, fn, row, {}) for row in rows])


def _of_math(function: Any) -> Callable[..., Any]:
    def compute(semantics: Any, at: Site, *args: Any) -> Any:
        staging = semantics.at(at)
        given = tuple(staging.fetch(one, float) if isinstance(one, torch.Tensor) else one for one in args)
        return (
            staging.compute(function, given) if any(isinstance(one, StagedNumber) for one in given) else NotImplemented
        )

    return compute


def _rounded(semantics: Any, at: Site, *args: Any) -> Any:
    if isinstance(args[0], StagedNumber):
        return semantics.at(at).compute(round, args, "int" if len(args) == 1 else "float")
    return NotImplemented


def _overridden(semantics: Any, at: Site, *args: Any) -> Any:
    """Whether a class of the program's own takes a call of torch: a tensor that is not known is an ordinary one."""
    given = args[0] if len(args) == 1 and isinstance(args[0], list | tuple) else args
    return any(
        hasattr(type(one), "__torch_function__") and type(one) not in (torch.Tensor, torch.nn.Parameter)
        for one in given if not is_fake(one) and not isinstance(one, StagedValue)
    )  # fmt: skip


def _refused(what: str) -> Callable[..., Any]:
    def refuse(semantics: Any, at: Site, /, *args: Any, **kwargs: Any) -> Any:
        given = [one for arg in args for one in (arg if isinstance(arg, list | tuple) else (arg,))]
        if any(isinstance(one, StagedValue | torch.Tensor) for one in given):
            raise refused("staged-value", f"{what} of staged values", "", "", semantics.at(at).place)
        return NotImplemented

    return refuse


NATIVES: dict[Any, Callable[..., Any]] = {
    len: _len,
    range: _range,
    int: _converted(int),
    float: _converted(float),
    bool: _converted(bool),
    abs: _abs,
    min: _extreme(min, operator.lt),
    max: _extreme(max, operator.gt),
    sum: _sum,
    any: _any_or_all("any"),
    all: _any_or_all("all"),
    builtins.isinstance: _isinstance,
    type: _type,
    enumerate: _enumerate,
    zip: _zip,
    reversed: _reversed,
    list: _collected(list),
    tuple: _collected(tuple),
    map: _map,
    round: _rounded,
    torch.overrides.has_torch_function: _overridden,
    torch.overrides.has_torch_function_unary: _overridden,
    torch.overrides.has_torch_function_variadic: _overridden,
    sorted: _refused("sorted()"),
    str: _refused("the text"),
    repr: _refused("the text"),
    divmod: _refused("divmod()"),
    **{getattr(math, name): _of_math(getattr(math, name)) for name in (
        "sqrt", "exp", "log", "log2", "log10", "sin", "cos", "tan", "tanh", "floor", "ceil", "isnan", "isinf",
        "isfinite", "fabs", "pow", "atan", "asin", "acos", "sinh", "cosh",
    )},
}  # fmt: skip
