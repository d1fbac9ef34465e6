"""Lists of unknown length that a staged program makes: what a comprehension keeps of which a staged value decides, what
staged loops and arms append.

In the graph they are values that never change; the program's list is a ``StagedList`` that stands for another value
after each change. Its elements are of one type: tensors of one dtype and number of dimensions, or numbers.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchjanus.core.errors import refused
from torchjanus.core.kinds import isinstance
from torchjanus.semantics.staged.staging import Staging
from torchjanus.semantics.staged.unknown.tensors import quiet
from torchjanus.semantics.staged.unknown.values import (
    LikeType,
    ListType,
    NumberType,
    ObjectType,
    StagedList,
    StagedValue,
    TensorSpec,
)
from torchjanus.tracegraph.graph import Const, Operand, Sequence

__all__ = ["Lists", "extended"]

_JOINING = frozenset({"stack", "cat", "concat", "concatenate", "hstack", "vstack"})


def extended(items: list[Any], more: Iterable[Any]) -> list[Any]:
    """Return a new list of all these. Graphs call it."""
    return [*items, *more]


class Lists(Staging):
    """What staged programs do with lists of unknown length."""

    @quiet
    def fresh(self, type_: Any) -> Any:
        if not isinstance(type_, LikeType):
            return super().fresh(type_)
        fake = self.fakes.renewed(type_.value)
        self.builder.tensor(fake)
        return fake

    def list_of(self, items: Iterable[Any]) -> StagedList:
        """Return a new list of elements that are known to be there."""
        given = tuple(items)
        element: Any = None
        for one in given:
            element = self.joined_element(element, self.element_of(one))
        return self._made(list, (self.operand(given),), element)

    def extended(self, one: StagedList, more: Any) -> StagedList:
        """Return a new list: ``one`` and what ``more``, a list or a tuple, holds."""
        if isinstance(more, StagedList):
            element = self.joined_element(one.type.element, more.type.element)
        elif type(more) in (list, tuple):
            element = one.type.element
            for value in more:
                element = self.joined_element(element, self.element_of(value))
        else:
            raise refused("staged-length", f"a list of unknown length and a {type(more).__name__}", "", "", self.place)
        return self._made(extended, (self.operand(one), self.operand(more)), element)

    def own(self, one: StagedList) -> StagedList:
        """Return a list that nothing else holds, and which the program may change."""
        made: StagedList = StagedList(self, one.ref, one.type)
        made.is_new = True
        return made

    def sliced(self, one: StagedList, key: slice) -> StagedList:
        """Return the slice ``one[key]`` of a list of unknown length: another such list."""
        return self._made(operator.getitem, (self.operand(one), self.operand(key)), one.type.element)

    def _made(self, function: Any, args: tuple[Operand, ...], element: Any) -> StagedList:
        made: StagedList = self.made(ListType(element))
        fields = (("func", Const(function)), ("args", Sequence(tuple, args)))
        self.builder.emit("compute", fields, (made.ref,), self.place)
        made.is_new = True
        return made

    def changes(self, obj: Any) -> None:
        """The program is about to change an ordinary object, or a list."""
        raise NotImplementedError

    def appends(self, one: StagedList, more: Any) -> None:
        """Let the program's list stand for a longer one."""
        if not one.is_new:
            raise refused(
                "staged-mutation", "a list of unknown length is changed that others may hold, too",
                "It is from before the call, or one of several: the graph makes new lists.",
                "Make a list of its own: `new = old + [x]`.", self.place,
            )  # fmt: skip
        made = self.extended(one, more)
        self.changes(one)
        one.ref, one.type = made.ref, made.type

    # ---- types of elements ----

    def element_of(self, value: Any) -> Any:
        """Return the type of a list's element. Raises Refused for what no list of unknown length holds."""
        if isinstance(value, torch.Tensor):
            return LikeType(self.symbols(value))
        if isinstance(value, StagedValue) or type(value) in (int, float, bool):
            return self.type_of(value)
        raise refused(
            "staged-length", f"a list of unknown length that holds a {type(value).__name__}",
            "Its elements are tensors, numbers or staged objects, all of one kind.",
            "Keep a list for each of the things that belong together.", self.place,
        )  # fmt: skip

    def joined_element(self, one: Any, other: Any) -> Any:
        """Return the type of what is of either type. Raises Refused if there is none."""
        if one is None or other is None or one is other or one == other:
            return other if one is None else one
        if isinstance(one, LikeType | TensorSpec) and isinstance(other, LikeType | TensorSpec):
            first, second = self._like_of(one), self._like_of(other)
            if self.fakes.takes(first, second):
                return one
            joined = self.fakes.joined(first, second)
            if joined is not None:
                return LikeType(joined)
        if isinstance(one, NumberType) and isinstance(other, NumberType):
            return NumberType("number")
        if isinstance(one, ListType) and isinstance(other, ListType):
            return ListType(self.joined_element(one.element, other.element))
        if isinstance(one, ObjectType) and isinstance(other, ObjectType) and one.cls is other.cls:
            return one if one.optional else other
        raise refused(
            "staged-left", "a list of unknown length whose elements are of different kinds", "It has one type of "
            "element: tensors of one dtype and number of dimensions, or numbers.", "Keep a list for each kind.",
            self.place,
        )  # fmt: skip

    def _like_of(self, type_: Any) -> torch.Tensor:
        return type_.value if isinstance(type_, LikeType) else self.fakes.like(type_)

    def same_list(self, one: ListType, other: ListType) -> bool:
        """Whether a list of the type ``one`` takes what a list of the type ``other`` holds."""
        first, second = one.element, other.element
        if second is None or first is second or first == second:
            return True
        if isinstance(first, LikeType) and isinstance(second, LikeType):
            return self.fakes.takes(first.value, second.value)
        if isinstance(first, ListType) and isinstance(second, ListType):
            return self.same_list(first, second)
        if isinstance(first, NumberType) and isinstance(second, NumberType):
            return first.kind == "number"
        if isinstance(first, ObjectType) and isinstance(second, ObjectType):
            return first.cls is second.cls and first.optional >= second.optional
        return False

    # ---- calls of torch ----

    def operation(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not any(isinstance(one, StagedList) for one in pytree.tree_leaves((args, kwargs))):
            return super().operation(function, args, kwargs)
        return self._of_lists(function, args, kwargs)

    @quiet
    def _of_lists(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call torch with a list of tensors: what varies if it has two elements, or three, is a size that is not
        known."""
        name = getattr(function, "__name__", "")
        lists = [one for one in pytree.tree_leaves((args, kwargs)) if isinstance(one, StagedList)]
        if name not in _JOINING or any(not isinstance(one.type.element, LikeType | TensorSpec) for one in lists):
            raise refused(
                "staged-value", f"a list of unknown length given to {name or function}()", "Torch's functions that "
                "put tensors together take one: stack, cat.", "Use these, or a loop.", self.place,
            )  # fmt: skip
        if self.trying:
            raise refused("staged-try", f"{name}() within try", "", "Do it before the try statement.", self.place)
        found: list[torch.Tensor] = []
        with self.fakes.asked(f"{name}()", self.place):
            for count in (2, 3):
                given, named = pytree.tree_map(lambda one, n=count: self._elements(one, n), (args, kwargs))
                with self.fakes.mode:
                    found.append(function(*given, **named))
        return self._note(function, args, kwargs, self.fakes.varying(*found), [])

    def _elements(self, one: Any, count: int) -> Any:
        if not isinstance(one, StagedList):
            return self.symbols(one)
        return [self.fakes.renewed(self._like_of(one.type.element)) for _ in range(count)]
