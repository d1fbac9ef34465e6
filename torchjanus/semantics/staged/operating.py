"""Attributes, elements and operators of staged values."""

from __future__ import annotations

import functools
import inspect
import operator
from types import FunctionType, MethodType
from typing import Any

import torch

from torchjanus.core.errors import refused
from torchjanus.core.kinds import isinstance
from torchjanus.rewrite import Site
from torchjanus.rewrite.hooks import BINARY, COMPARE, INPLACE, UNARY
from torchjanus.semantics.staged.changing import Changing
from torchjanus.semantics.staged.unknown.values import (
    ObjectType,
    Poison,
    StagedList,
    StagedNumber,
    StagedObject,
    StagedValue,
    is_staged,
)

__all__ = ["Operating"]


class Operating(Changing):
    """The part of the semantics that reads and computes."""

    def enters(self, fn: FunctionType) -> bool:
        """Whether a function is run lifted."""
        raise NotImplementedError

    # ---- reads ----

    def attr(self, at: Site, obj: Any, name: str) -> Any:
        """``obj.name``: of a staged object a part of it, else what Python returns; properties of the program are
        entered."""
        if isinstance(obj, StagedValue | Poison):
            return self._attribute(at, obj, name)
        staging = self.at(at)
        if isinstance(obj, torch.Tensor):
            return getattr(obj, name)
        self.reads_memory(at, obj)
        found = inspect.getattr_static(type(obj), name, None) if not isinstance(obj, type) else None
        if type(found) is property and type(found.fget) is FunctionType and self.enters(found.fget):
            return self.call(at, found.fget, (obj,), {})
        self.staging = staging
        return getattr(obj, name)

    def _attribute(self, at: Site, obj: Any, name: str) -> Any:
        """Return an attribute of a staged value. Raises Refused where its type does not tell it."""
        staging = self.at(at)
        if isinstance(obj, Poison):
            obj._raise()
        if isinstance(obj, StagedObject):
            type_: ObjectType = obj.type
            if name in type_.fields:
                return staging.part(getattr, obj, name, type_.fields[name])
            found = inspect.getattr_static(type_.cls, name, None) if type_.cls is not None else None
            if type(found) is property and found.fget is not None:
                return self.call(at, found.fget, (obj,), {})
            if isinstance(found, FunctionType):
                return MethodType(found, obj)
            raise AttributeError(f"'{getattr(type_.cls, '__name__', None)}' object has no attribute '{name}'")
        if isinstance(obj, StagedList) and name in ("append", "extend"):
            return functools.partial(_append if name == "append" else _extend, self, at, obj)
        if isinstance(obj, StagedNumber) and name == "bit_length":
            return functools.partial(staging.compute, int.bit_length, (obj,), "int")
        raise refused("staged-value", f".{name} of a staged {obj.type}", "", "", staging.place)

    def item(self, at: Site, obj: Any, key: Any) -> Any:
        """``obj[key]``. Raises Refused for a staged index of a container that the graph does not hold."""
        staging = self.at(at)
        if isinstance(obj, StagedList):
            if isinstance(key, slice):
                return staging.sliced(obj, key)
            return staging.part(operator.getitem, obj, key, obj.type.element)
        if isinstance(obj, StagedValue):
            raise refused("staged-value", "an element of a staged value", "", "", staging.place)
        if isinstance(key, StagedNumber) and not isinstance(obj, torch.Tensor):
            raise refused(
                "staged-value", f"an element of a {type(obj).__name__} at a staged index", "Which element it is is "
                "known only when the graph runs.", "Stack what it holds into a tensor, or stage the list (Rep).",
                staging.place,
            )  # fmt: skip
        self.reads_memory(at, obj, key)
        return obj[key]

    # ---- operators ----

    def binary(self, at: Site, op: str, a: Any, b: Any) -> Any:
        return self._operator(at, BINARY[op], a, b)

    def inplace(self, at: Site, op: str, a: Any, b: Any) -> Any:
        if isinstance(a, StagedList) and INPLACE[op] is operator.iadd:
            _extend(self, at, a, b)
            return a
        if isinstance(a, list | dict | set):
            self.changes(at, a)
            return INPLACE[op](a, b)
        return self._operator(at, INPLACE[op] if isinstance(a, torch.Tensor) else BINARY[op], a, b)

    def _operator(self, at: Site, function: Any, a: Any, b: Any) -> Any:
        """Return ``function(a, b)``: a node where one is a tensor, a longer staged list, or what Python returns."""
        staging = self.at(at)
        if isinstance(a, StagedList) or isinstance(b, StagedList):
            if function is operator.add and isinstance(a, list | StagedList) and isinstance(b, list | StagedList):
                return staging.extended(a if isinstance(a, StagedList) else staging.list_of(a), b)
            raise refused("staged-value", f"{function.__name__} of a list of unknown length", "", "", staging.place)
        if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
            if isinstance(a, torch.Tensor | StagedNumber | int | float | complex) and isinstance(
                b, torch.Tensor | StagedNumber | int | float | complex
            ):
                return staging.operation(function, (a, b), {})
        self.reads_memory(at, a, b)
        return function(a, b)

    def unary(self, at: Site, op: str, a: Any) -> Any:
        staging = self.at(at)
        return staging.operation(UNARY[op], (a,), {}) if isinstance(a, torch.Tensor) else UNARY[op](a)

    def compare(self, at: Site, op: str, a: Any, b: Any) -> Any:
        staging = self.at(at)
        for one in (a, b):
            if isinstance(one, Poison):
                one._raise()
        if op in ("is", "is not"):
            if any(isinstance(one, StagedObject) for one in (a, b)):
                return staging.compute(COMPARE[op], (a, b))
            if any(isinstance(one, StagedNumber) for one in (a, b)):
                return self._same_number(at, op, a, b)
            staging.compares_identity(a, b)
            return COMPARE[op](a, b)
        if op in ("in", "not in"):
            if is_staged(a) or isinstance(b, torch.Tensor | StagedValue):
                return self._contained(at, op, a, b)
            return COMPARE[op](a, b)
        if op in ("==", "!=") and isinstance(a, tuple) and isinstance(b, tuple):
            same = self._same_parts(at, a, b)
            return same if op == "==" else self.not_(at, same)
        if any(isinstance(one, StagedObject) for one in (a, b)):
            raise refused("staged-value", "a staged object is compared", "", "Compare by `is`.", staging.place)
        return self._operator(at, COMPARE[op], a, b)

    def _same_number(self, at: Site, op: str, a: Any, b: Any) -> Any:
        """Return whether a staged number is an object: True and False are the only numbers of which that is known."""
        number, other = (a, b) if isinstance(a, StagedNumber) else (b, a)
        kind = getattr(other, "type", None)
        if isinstance(other, StagedNumber) and {number.type.kind, getattr(kind, "kind", "")} != {"bool"}:
            raise refused("staged-value", "whether two staged numbers are one object", "", "Compare them by ==.",
                          self.at(at).place)  # fmt: skip
        if isinstance(other, bool | StagedNumber) and number.type.kind in ("bool", "number"):
            return self.at(at).compute(COMPARE[op], (a, b))
        if type(other) in (int, float) and number.type.kind in (type(other).__name__, "number"):
            raise refused("staged-value", "whether a staged number and another one are one object", "",
                          "Compare them by ==.", self.at(at).place)  # fmt: skip
        return op == "is not"

    def _same_parts(self, at: Site, a: tuple[Any, ...], b: tuple[Any, ...]) -> Any:
        """Return whether two tuples hold the same: sizes may be whole numbers that are not known."""
        staging = self.at(at)
        if not any(isinstance(one, StagedNumber) and one.type.kind == "int" for one in (*a, *b)):
            return a == b
        if len(a) != len(b):
            return False
        known: Any = True
        for one, other in zip(a, b, strict=True):
            if isinstance(one, StagedNumber) and isinstance(other, StagedNumber) and staging.fakes.are_one(one, other):
                continue
            same = self.compare(at, "==", one, other)
            if isinstance(same, torch.Tensor):
                raise refused("staged-value", "tuples of tensors are compared", "", "Compare what they hold.",
                              staging.place)  # fmt: skip
            if not is_staged(same):
                if not same:
                    return False
            else:
                known = same if known is True else staging.compute(operator.and_, (known, same))
        return known

    def _contained(self, at: Site, op: str, a: Any, b: Any) -> Any:
        staging = self.at(at)
        if isinstance(a, StagedNumber) and isinstance(b, tuple | list | range | set | frozenset | dict):
            known = tuple(b)
            if all(isinstance(one, int | float) for one in known):
                return staging.compute(operator.contains if op == "in" else _lacks, (known, a), "bool")
        raise refused("staged-value", f"{op} with a staged value", "", "", staging.place)

    def not_(self, at: Site, value: Any) -> Any:
        staging = self.at(at)
        return staging.compute(operator.not_, (staging.truth(value),)) if is_staged(value) else not value

    def branch(self, at: Site, value: Any) -> bool:
        """Whether native control flow goes the way of ``value``. Raises Refused where a staged value decides."""
        if is_staged(value):
            raise refused(
                "staged-decision", f"a staged value decides ({at.kind})",
                "Here control flow is native: in generators, coroutines and class bodies, in comprehensions of sets, "
                "of dictionaries or of several loops, and in patterns with what is left of a mapping.",
                "Write it as a statement of a function, or as a list comprehension.", self.at(at).place,
            )  # fmt: skip
        self.at(at)
        self.reads_memory(at, value)
        return bool(value)


def _append(semantics: Operating, at: Site, one: StagedList, value: Any) -> None:
    semantics.at(at).appends(one, (value,))


def _extend(semantics: Operating, at: Site, one: StagedList, more: Any) -> None:
    if not isinstance(more, StagedList):
        more = tuple(semantics.iterate(at, more))
    semantics.at(at).appends(one, more)


def _lacks(container: Any, item: Any) -> bool:
    """``item not in container``. Graphs call it."""
    return item not in container
