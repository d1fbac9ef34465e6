"""Summarise the content of objects in comparable marks: equal marks mean equal content.

Used for content that has no name of its own in a snapshot of the variables (see ``variables``). Objects are read
without running code of the program.
"""

from __future__ import annotations

import array
import collections
import functools
import types
from collections.abc import Iterable
from types import CodeType
from typing import Any

import torch

from torchjanus.core.kinds import is_one_of, isinstance, module_of

__all__ = ["KNOWN", "VALUES", "ContentMarker", "ContentMarks", "attributes_of", "holds"]

MANY = 64  # limit on an object's attributes
MOST = 4000  # limit on the objects of one snapshot
VALUES = (torch.Tensor, int, float, str, type(None))
KNOWN = frozenset({"builtins", "torch", "torchjanus", "collections", "functools"})
_BYTES = (bytearray, array.array)


class ContentMarks:
    """The content of an object. ``token``: equal for equal content in a run; of a list (``AppendOnlyList``, length)."""

    def __init__(self, token: tuple[Any, ...]) -> None:
        self.token = token


def attributes_of(value: Any, slots: bool = False) -> dict[str, Any]:
    """Return the attributes of a plain object of the program; nothing if there are more than ``MANY``."""
    # type() and not __class__, which may run code of the program.
    if issubclass(type(value), (type, torch.nn.Module, types.ModuleType)):
        return {}
    found = _slots(type(value), value) if slots else {}
    try:
        held = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return found
    return found | held if type(held) is dict and len(held) <= MANY else found


def _slots(cls: type, value: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for base in type.mro(cls):
        if base.__module__.partition(".")[0] in KNOWN:
            continue
        for name, member in type.__getattribute__(base, "__dict__").items():
            if type(member) is types.MemberDescriptorType:
                try:
                    found.setdefault(name, member.__get__(value, cls))
                except AttributeError:  # not set
                    continue
    return found


def holds(value: Any) -> bool:
    """Whether a value is a container or an object of the program, whose content may change."""
    if issubclass(type(value), (list, dict, set, collections.deque)):
        return True
    return module_of(type(value)).partition(".")[0] not in KNOWN and not issubclass(type(value), torch.Tensor)


class AppendOnlyList:
    """The record of a list while it only grows; any other change begins a new one. ``marks``: of its elements."""

    def __init__(self) -> None:
        self.marks: list[Any] = []
        self.ids: list[int] = []
        self.compound: list[int] = []  # indices of elements that have content themselves

    def add(self, element: Any, mark: Any) -> None:
        if isinstance(mark, tuple) and mark[0] != "tensor":
            self.compound.append(len(self.ids))
        self.ids.append(id(element))
        self.marks.append(mark)


class ContentMarker:
    """Makes the marks of one snapshot. ``running``: code objects of the active functions; ``records``: the records of
    lists from earlier snapshots, by name."""

    def __init__(self, running: Iterable[CodeType], records: dict[Any, AppendOnlyList]) -> None:
        self._records = records
        codes = {*running}
        # Cells of functions nested in a running one are variables of that one.
        self._inner = codes | {part for code in codes for part in code.co_consts if isinstance(part, CodeType)}
        self._left = MOST

    def unnamed(self, name: Any, value: Any, named: bool) -> tuple[Any, ...] | None:
        """Return the token of a value's content without names, None if there is none. ``named``: whether its parts have
        names."""
        cls = type(value)
        if is_one_of(cls, (list, collections.deque)):
            record = self._record(name, value)
            return (record, len(record.ids))
        if issubclass(cls, dict) and len(value) > 1 and named:
            # The order of the keys.
            return tuple(key if is_one_of(type(key), (int, str)) else id(key) for key in dict.keys(value))
        if named or (cls is tuple and not value):
            return None
        return (self._mark(value, frozenset()),)

    def _record(self, name: Any, value: Any) -> AppendOnlyList:
        within = frozenset({id(value)})
        parts = list(value)
        record = self._records.get(name, AppendOnlyList())
        known = len(record.ids)
        if list(map(id, parts[:known])) != record.ids or any(
            self._mark(parts[number], within) != record.marks[number] for number in record.compound
        ):
            record, known = AppendOnlyList(), 0
        for part in parts[known:]:
            record.add(part, self._mark(part, within))
        self._records[name] = record
        return record

    def _mark(self, value: Any, within: frozenset[int]) -> Any:
        """Return the mark of a value: equal for the same object with equal content. ``within``: ids of its holders."""
        cls = type(value)
        if issubclass(cls, torch.Tensor):
            return ("tensor", id(value))
        if issubclass(cls, VALUES):
            return value if is_one_of(cls, (int, float, str)) else id(value)
        if id(value) in within:
            return ("again", id(value))
        self._left -= 1
        if self._left < 0:
            return object()  # unknown: equal to nothing
        within |= {id(value)}

        def each(parts: Iterable[Any]) -> tuple[Any, ...]:
            return tuple(self._mark(part, within) for part in parts)

        if is_one_of(cls, (list, tuple, collections.deque)):
            return (cls.__name__, each(value))
        if issubclass(cls, dict):
            return (cls.__name__, each(dict.keys(value)), each(dict.values(value)))
        if issubclass(cls, set | frozenset):
            parts = set.__iter__(value) if issubclass(cls, set) else frozenset.__iter__(value)
            return (cls.__name__, frozenset(self._mark(part, within) for part in parts))
        if cls is types.FunctionType:
            code = value.__code__
            held = () if code in self._inner else map(_content, value.__closure__ or ())
            return ("function", id(code), each((value.__defaults__, value.__kwdefaults__)), each(held))
        if cls is types.MethodType:
            return ("method", self._mark(value.__func__, within), id(value.__self__))
        if cls is functools.partial:
            return ("partial", each((value.func, value.args, value.keywords)))
        if is_one_of(cls, _BYTES):
            return (cls.__name__, bytes(value))
        if module_of(cls).partition(".")[0] not in KNOWN and (attributes := attributes_of(value, slots=True)):
            return (cls.__name__, tuple(attributes), each(attributes.values()))
        return id(value)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty cell
        return None
