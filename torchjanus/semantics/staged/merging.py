"""Merging: the values that the arms of a switch, or the iterations of a loop, leave become values of the graph."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from torchjanus.core.errors import Refused, refused
from torchjanus.core.kinds import isinstance, on_type
from torchjanus.semantics.staged.lists import Lists
from torchjanus.semantics.staged.unknown.tensors import quiet
from torchjanus.semantics.staged.unknown.values import (
    UNBOUND,
    ListType,
    NumberType,
    ObjectType,
    Poison,
    StagedList,
    StagedNumber,
    StagedObject,
    StagedValue,
    Unbound,
)
from torchjanus.tracegraph.graph import Operand

__all__ = ["Merging", "is_plain", "raised", "same_ordinary", "same_type"]

_NUMBERS = (int, float, StagedNumber)


class Merging(Lists):
    """What two values of one variable become."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.copies: list[tuple[Any, ...]] = []  # objects that merging has made, each with those in whose place it is

    def copied(self, made: Any, *of: Any) -> Any:
        """Note that ``made`` is in place of the objects ``of`` from now on, and return it."""
        if not isinstance(made, tuple):
            self.copies.append((made, *of))
        return made

    def join(self, one: Any, other: Any, name: str) -> Any:
        """Return a new value for what is either of two, not yet a value of the graph; the value itself if both are the
        same; a Poison if there is none."""
        if one is other or _alike(one, other):
            return one
        if isinstance(one, Poison):
            return one
        if isinstance(other, Poison):
            return other
        if one is Unbound or other is Unbound:
            known = one if other is Unbound else other
            return self._unsure(known, name)
        if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
            fake = self.fakes.joined(self.symbols(one), self.symbols(other))
            return self.different(name, _kind(one), _kind(other)) if fake is None else fake
        if isinstance(one, _NUMBERS) and isinstance(other, _NUMBERS):
            kinds = {self.type_of(one).kind, self.type_of(other).kind}
            return self.made(NumberType(kinds.pop() if len(kinds) == 1 else "number"))
        if isinstance(one, StagedObject | None) and isinstance(other, StagedObject | None):
            known = [value.type for value in (one, other) if value is not None]
            classes = {type_.cls for type_ in known if type_.cls is not None}
            if len(classes) == 1 or not classes:
                named = [type_ for type_ in known if type_.cls is not None] or known
                return self.made(named[0])
        if isinstance(one, StagedList | list) and isinstance(other, StagedList | list):
            type_ = self.list_type(one, other)
            if type_ is not None:
                return self.copied(self.made(type_), one, other)
        return self._container(one, other, name)

    def _unsure(self, known: Any, name: str) -> Any:
        """Return what a variable holds that may not be set."""
        if isinstance(known, torch.Tensor):
            fake = self.symbols(known)
            return self.fakes.joined(fake, fake)
        if isinstance(known, _NUMBERS):
            return self.made(self.type_of(known))
        if isinstance(known, StagedValue):
            return self.made(known.type)
        return self.different(name, "nothing", _kind(known))

    def list_type(self, one: Any, other: Any) -> ListType | None:
        """Return the type of a list of unknown length that is either list; None for ordinary ones of one length."""
        if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
            return None
        element = None
        for held in (one, other):
            if isinstance(held, StagedList):
                element = self.joined_element(element, held.type.element)
                continue
            for part in held:
                element = self.joined_element(element, self.element_of(part))
        return ListType(element)

    def _container(self, one: Any, other: Any, name: str) -> Any:
        cls = type(one)
        if cls is type(other):
            if isinstance(one, tuple | list) and len(one) == len(other):
                parts = [self.join(a, b, name) for a, b in zip(one, other, strict=True)]
                bad = next((part for part in parts if isinstance(part, Poison)), None)
                if bad is not None:
                    return bad
                if cls is torch.Size:
                    sizes = tuple(parts)
                    self.builder.sizes[id(sizes)] = sizes
                    return sizes
                return self.copied(cls(*parts) if hasattr(cls, "_fields") else cls(parts), one, other)
            if cls is dict and one.keys() == other.keys():
                return self.copied({key: self.join(one[key], other[key], name) for key in one}, one, other)
            held, also = getattr(one, "__dict__", None), getattr(other, "__dict__", None)
            if held is not None and also is not None and held.keys() == also.keys() and is_plain(cls):
                made: Any = object.__new__(cls)
                made.__dict__.update({key: self.join(held[key], also[key], name) for key in held})
                return self.copied(made, one, other)
        return self.different(name, _kind(one), _kind(other))

    def different(self, name: str, one: str, other: str) -> Poison:
        """Return what a variable is that no graph can have."""
        return Poison(self.refusal_of_difference(name, one, other))

    def refusal_of_difference(self, name: str, one: str, other: str) -> Refused:
        return refused(
            "staged-left", f"{name} is {one} one way and {other} the other",
            "A value that is not known decides which way the program goes: this one has to be of one kind both ways.",
            "Give it the same kind both ways (a tensor of the same dtype and number of dimensions, a number).",
            self.place,
        )  # fmt: skip

    def leaves(self, joined: Any, sides: tuple[Any, ...], into: list[tuple[Any, tuple[Any, ...]]]) -> None:
        """Collect the new values within what ``join`` has returned, each with what it is made of on each side."""
        if all(joined is side for side in sides) or isinstance(joined, Poison):
            return
        if isinstance(joined, torch.Tensor | StagedValue):
            into.append((joined, sides))
        elif isinstance(joined, tuple | list):
            for number, part in enumerate(joined):
                self.leaves(part, tuple(side[number] for side in sides), into)
        elif isinstance(joined, dict):
            for key, part in joined.items():
                self.leaves(part, tuple(side[key] for side in sides), into)
        elif not any(_alike(joined, side) for side in sides):
            for key, part in joined.__dict__.items():
                self.leaves(part, tuple(side.__dict__[key] for side in sides), into)

    def bind(self, made: Any, sides: tuple[Any, ...], name: str) -> Any:
        """Let a merged value be a value of the graph that is being made. Return its use."""
        if isinstance(made, torch.Tensor):
            ref = self.builder.tensor(made)
        else:
            ref = made.ref
        if Unbound in [side for side in sides if isinstance(side, type)] or any(
            id(side) in self.builder.unsure for side in sides
        ):
            if self.trying:
                raise self.unsure_in_try(name)
            self.builder.unsure[id(made)] = made, name
        return ref

    def unsure_in_try(self, name: str) -> Refused:
        return refused(
            "staged-try", f"{name}, which may not be set, within try",
            "Whether it is set is known only when the graph runs: handlers run when the function is staged.",
            "Set it before.", self.place,
        )  # fmt: skip

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """A ``try`` block of the program."""
        for _, name in self.builder.unsure.values():
            raise self.unsure_in_try(name)
        self.trying += 1
        try:
            yield
        finally:
            self.trying -= 1

    def side(self, value: Any) -> Operand:
        """One side of a merged value, as an operand of the block that makes it."""
        return self.builder.operand(UNBOUND if value is Unbound else value, checked=False)


def same_type(one: Any, other: Any) -> bool:
    """Whether two types of staged values are one: numbers of one kind, or objects of one class."""
    if one is other:
        return True
    match one, other:
        case NumberType(), NumberType():
            return bool(one.kind == other.kind)
        case ObjectType(), ObjectType():
            return one.cls is other.cls
    return False


def same_ordinary(one: Any, other: Any) -> bool:
    """Whether a variable that holds one or the other holds the same."""
    return one is other or (type(one) is type(other) and isinstance(one, str | int | float) and one == other)


def _alike(one: Any, other: Any) -> bool:
    """Whether two ordinary values are the same to a program."""
    if type(one) is not type(other):
        return False
    if isinstance(one, int | float | str | bytes):
        return repr(one) == repr(other)
    if isinstance(one, tuple) and len(one) == len(other):
        return all(a is b or _alike(a, b) for a, b in zip(one, other, strict=True))
    return isinstance(one, torch.dtype | torch.device | torch.Size) and one == other


def is_plain(cls: type) -> bool:
    """Whether an object of this class is what its attributes are."""
    heap = cls.__module__ not in ("builtins", "types", "functools", "torch")
    return (
        heap and on_type(cls, "__new__") is on_type(object, "__new__") and not issubclass(cls, torch.nn.Module | type)
    )


def raised(kind: type[BaseException], args: tuple[Any, ...]) -> None:
    """Raise an error. Graphs call it."""
    raise kind(*args)


@quiet
def _kind(value: Any) -> str:
    if value is Unbound:
        return "not set"
    if isinstance(value, torch.Tensor):
        return f"a tensor {str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, list | tuple | dict):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, StagedNumber | int | float):
        return f"a number ({value.type.kind if isinstance(value, StagedNumber) else type(value).__name__})"
    return "None" if value is None else f"a {type(value).__name__}"
