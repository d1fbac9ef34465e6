"""The extern calls that one call of a step has made so far: each is made once, whoever asks for it again.

A graph makes its extern calls through the journal. If an assumption fails after that, the next graph that is tried, and
in the end the program itself, take what was given from the journal instead of calling again. Calls are known by their
number in program order, and by what they are given: on another way through the program the call of a number may be
another one. Knows nothing of graphs or of watching.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch

from torchjanus.trace.effects import Effects, Undo

__all__ = ["ExternRaised", "Journal", "Method", "Record", "method"]


class ExternRaised(Exception):
    """An extern call raised while a graph made it: the program itself has to see the error."""


class Method:
    """A call of a native object's method: ``Method("read")(file, 10)`` is ``file.read(10)``."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.__qualname__ = f".{name}"

    def __call__(self, owner: Any, /, *args: Any, **kwargs: Any) -> Any:
        return getattr(owner, self.name)(*args, **kwargs)


_methods: dict[str, Method] = {}


def method(name: str) -> Method:
    """The Method of this name: there is one of each, so that it can be compared by identity."""
    made = _methods.get(name)
    if made is None:
        made = _methods.setdefault(name, Method(name))
    return made


@dataclass(slots=True)
class Record:
    """One extern call that was made: what it gave or raised."""

    func: Any
    result: Any
    error: BaseException | None
    undo: Undo | None
    before: Any  # the state that it changed, as it was
    generator: torch.Tensor | None  # torch's generator after it, where it may have drawn from that
    taken: bool = False
    first: int = -1  # of several that a graph makes as one: the number of the first
    since: int = 0  # so many calls like it were made between ``before`` and it
    harmless: bool = False  # whether nobody can tell that it was made, once it is taken back
    given: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})

    def take_back(self) -> None:
        """Put back what the call has changed."""
        assert self.undo is not None
        self.undo.put_back(self.before)
        for _ in range(self.since):
            self.func(*self.given[0], **self.given[1])

    def again(self) -> Any:
        """What the call gave; its error is raised again."""
        self.taken = True
        if self.generator is not None:
            torch.default_generator.set_state(self.generator)
        if self.error is not None:
            raise self.error
        return self.result


def _alike(one: Any, other: Any, unknown: bool) -> bool:
    """Whether two calls are given the same. ``unknown``: what is said of two objects that may be equal."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, int | float | complex | str | bytes):
        return repr(one) == repr(other)
    if isinstance(one, range):
        return bool(one == other)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(_alike(a, b, unknown) for a, b in zip(one, other, strict=True))
    if isinstance(one, dict):
        same = len(one) == len(other) and all(_alike(a, b, unknown) for a, b in zip(one, other, strict=True))
        return same and all(_alike(a, b, unknown) for a, b in zip(one.values(), other.values(), strict=True))
    return unknown


class Journal:
    """The extern calls of one call, by number."""

    __slots__ = ("_left", "records")

    def __init__(self) -> None:
        self.records: dict[int, Record] = {}
        self._left: list[Record] = []  # calls that cannot be taken back, in whose place the program makes others

    def known(self, number: int, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Record | None:
        """The call of this number, if it has been made: by this function, and of the same."""
        record = self.records.get(number)
        if record is None or record.func is not func:
            return None
        # Objects may be made anew for the same call, tensors above all. Where nobody can tell of a call, it is rather
        # made again than taken for another one.
        return record if _alike(record.given, (args, kwargs), unknown=not record.harmless) else None

    def make(
        self, number: int, effects: Effects, draws: bool, func: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        """Make extern call ``number``, or give what it gave. Raises ExternRaised if it raises an Exception."""
        record = self.known(number, func, args, kwargs)
        if record is not None:
            if record.error is not None:
                raise ExternRaised
            if record.generator is not None:
                torch.default_generator.set_state(record.generator)
            return record.result
        undo = None if effects.undo is None else effects.undo.of(args)
        self.leave(number, undo)
        made = Record(func, None, None, undo, None if undo is None else undo.saved(), None, given=(args, kwargs))
        return self._make(number, made, effects, draws)

    def _make(self, number: int, record: Record, effects: Effects, draws: bool) -> Any:
        args, kwargs = record.given
        record.harmless = effects.harmless and not draws
        self.records[number] = record
        try:
            record.result = record.func(*args, **kwargs)
        except Exception as raised:
            record.error = raised
        if draws:
            record.generator = torch.default_generator.get_state()
        if record.error is not None:
            raise ExternRaised from record.error
        return record.result

    def several(
        self, first: int, count: int, effects: Effects, draws: bool, func: Callable[..., Any], /, *args: Any,
        **kwargs: Any,
    ) -> list[Any]:  # fmt: skip
        """Make so many extern calls, one after the other, or give what they gave. Raises ExternRaised."""
        for number, record in self.records.items():
            if record.first == first and number >= first + count:
                record.first = -1  # another graph thought that there would be more
        made, before, since = [], None, 0
        undo = None if effects.undo is None else effects.undo.of(args)
        for number in range(first, first + count):
            if undo is None or draws or self.known(number, func, args, kwargs) is not None:
                made.append(self.make(number, effects, draws, func, *args, **kwargs))
            else:
                if not since:  # the state of a generator is large: it is taken once
                    self.leave(number, undo)
                    before = undo.saved()
                record = Record(func, None, None, undo, before, None, since=since, given=(args, kwargs))
                made.append(self._make(number, record, effects, draws))
                since += 1
            self.records[number].first = first
        return made

    def commit(self, number: int, func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Make extern call ``number`` at commit, or give what it gave to a graph that was tried before."""
        record = self.known(number, func, args, kwargs)
        if record is not None:
            return record.again()
        self.leave(number)
        return func(*args, **kwargs)

    def leave(self, number: int, undo: Undo | None = None, world: bool = False) -> None:
        """The program is about to make call ``number``, and that is not the one that was made for it. If it goes
        another way than the graph thought, it never comes to what was called from there on: that is taken back, as far
        as it can be, before anybody draws from the same generator. ``undo``: how to take this call back; ``world``: it
        may have to do with anything."""
        later = [one for one in self.records if one >= number]
        parted = number in self.records or any(
            world or (undo is not None and self.records[one].undo == undo and not self.records[one].taken)
            for one in later
        )
        for other in sorted(later, reverse=True) if parted else ():
            record = self.records[other]
            if record.undo is not None and not record.taken:
                record.take_back()
                del self.records[other]
            elif other == number and not record.taken:
                gone = self.records.pop(other)
                self._left += [] if gone.harmless else [gone]

    def results(self) -> dict[int, Any]:
        """What the calls gave, by number."""
        return {number: record.result for number, record in self.records.items()}

    def made(self, numbers: Collection[int]) -> list[Record]:
        """The calls of these numbers, those among several that count as their first."""
        return [one for number, one in self.records.items() if number in numbers or one.first in numbers]

    @property
    def harmless(self) -> bool:
        """Whether the program may simply be run instead: once the calls are taken back nobody can tell of them."""
        return not self._left and all(record.harmless and not record.taken for record in self.records.values())

    def close(self, made: Collection[int] = ()) -> list[Record]:
        """The call has ended: take back the extern calls that it never came to. ``made``: those that the graph which
        served it came to. Returns those that cannot be taken back, and forgets all."""
        left, self._left = self._left, []
        for number, record in sorted(self.records.items(), reverse=True):
            if not record.taken and number not in made and record.first not in made:
                if record.undo is not None:
                    record.take_back()
                elif not record.harmless:
                    left.append(record)
        self.records.clear()
        return left
