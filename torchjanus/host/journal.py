"""The extern calls that one call of a step has made so far: each is made once, even if it is requested again.

A graph makes its extern calls through the journal. If an assumption fails after that, the next graph that is tried, and
finally the program itself, take the results from the journal instead of calling again. Calls are identified by their
number in program order and by function and arguments, since on another path the call of a number may be another one.
What a call has written to the memory of arrays is restored when an attempt reaches the call, and not before: an attempt
begins with the memory as it was. This module knows neither graphs nor watching.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from torchjanus.core.caches import Interned
from torchjanus.core.kinds import isinstance
from torchjanus.host.program_lines import called
from torchjanus.trace.effects import Effects, Undo

__all__ = ["ExternRaised", "Journal", "Method", "Record", "method"]


class ExternRaised(Exception):
    """An extern call raised while a graph made it: the program itself has to see the exception."""


class Method:
    """A call of a native object's method: ``Method("read")(file, 10)`` is ``file.read(10)``."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.__qualname__ = f".{name}"

    def __call__(self, owner: Any, /, *args: Any, **kwargs: Any) -> Any:
        return getattr(owner, self.name)(*args, **kwargs)


def method(name: str) -> Method:
    """Return the Method of this name. There is one for each name, so that it can be compared by identity."""
    return _METHODS.get(name, lambda: Method(name))


_METHODS: Interned[Method] = Interned()


class Memory(Protocol):
    """The contents of memory at some moment."""

    def put_back(self) -> None: ...


@dataclass(slots=True)
class Record:
    """One extern call that was made, with its result or exception."""

    func: Any
    result: Any
    error: BaseException | None
    undo: Undo | None
    before: Any  # the state that it changed, as it was
    generator: torch.Tensor | None  # torch's generator after it, where it may have drawn from that
    taken: bool = False
    since: int = 0  # so many similar calls were made between ``before`` and it
    harmless: bool = False  # whether it has no effect that remains after it is undone
    given: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
    attempt: int = 0  # the last attempt that reached it
    memory: tuple[Memory, Memory] | None = None  # memory that it may have written to, before it and after
    rewound: bool = False  # whether that memory is as it was before

    def take_back(self) -> None:
        """Undo what the call has changed."""
        assert self.undo is not None
        self.undo.put_back(self.before)
        for _ in range(self.since):
            self.func(*self.given[0], **self.given[1])

    def rewind(self) -> None:
        """Restore its memory to the contents before the call."""
        if self.memory is not None and not self.rewound:
            self.memory[0].put_back()
            self.rewound = True

    def forward(self) -> None:
        """Restore its memory to the contents after the call."""
        if self.memory is not None and self.rewound:
            self.memory[1].put_back()
            self.rewound = False

    def again(self) -> Any:
        """Return the call's result, or raise its exception again."""
        self.taken = True
        if self.generator is not None:
            torch.default_generator.set_state(self.generator)
        if self.error is not None:
            raise self.error
        return self.result


def _alike(one: Any, other: Any, unknown: bool) -> bool:
    """Whether the arguments of two calls are equal. ``unknown``: the answer for two objects that may be equal."""
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
    """The extern calls of one call, by number.

    Each run of a graph or of the program is an attempt. A call of an earlier attempt that the current one has not
    reached is left over: it is reached later, or undone.
    """

    __slots__ = ("_attempt", "_left", "records")

    def __init__(self) -> None:
        self.records: dict[int, Record] = {}
        self._attempt = 0
        self._left: list[Record] = []  # calls that cannot be undone, in place of which the program makes others

    def begin(self) -> None:
        """Begin another attempt."""
        self._attempt += 1
        for record in reversed(self.records.values()):
            record.rewind()

    def known(self, number: int, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Record | None:
        """Return the record of this number, if it is of the same function with the same arguments; else None."""
        record = self.records.get(number)
        if record is None or called(record.func) is not called(func):
            return None
        if record.attempt != self._attempt:
            undo = record.undo
            if undo is not None and any(one < number and self.records[one].undo == undo for one in self._left_over()):
                return None  # a call before it, on which its draw depends, is not in this attempt
        # Objects, tensors above all, may be new in each attempt. A call without effects is rather repeated than
        # confused with another one.
        if not _alike(record.given, (args, kwargs), unknown=not record.harmless):
            if record.harmless and record.undo is None:
                del self.records[number]  # as if it had never been made: that does not affect later calls
            return None
        record.attempt = self._attempt
        record.forward()
        return record

    def make(
        self, number: int, effects: Effects, draws: bool, func: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        """Make extern call ``number``, or return its recorded result. Raises ExternRaised if it raises an Exception."""
        return self._given(number, effects, draws, func, args, kwargs, None)

    def overwrite(
        self, look: Callable[[Any], Memory], number: int, effects: Effects, draws: bool, func: Callable[..., Any], /,
        *args: Any, **kwargs: Any,
    ) -> Any:  # fmt: skip
        """Do as ``make``, for a call that may write to memory which the program has read before. ``look`` returns the
        contents of the memory that can be reached from some values."""
        return self._given(number, effects, draws, func, args, kwargs, look)

    def _given(
        self, number: int, effects: Effects, draws: bool, func: Callable[..., Any], args: tuple[Any, ...],
        kwargs: dict[str, Any], look: Callable[[Any], Memory] | None,
    ) -> Any:  # fmt: skip
        record = self.known(number, func, args, kwargs)
        if record is not None:
            if record.error is not None:
                raise ExternRaised
            if record.generator is not None:
                torch.default_generator.set_state(record.generator)
            return record.result
        undo = None if effects.undo is None else effects.undo.of(args)
        self.leave(number, undo, effects.world)
        made = Record(func, None, None, undo, None if undo is None else undo.saved(), None, given=(args, kwargs))
        if look is None:
            return self._make(number, made, effects, draws)
        reached = (func, *args, *kwargs.values())
        before = look(reached)
        try:
            return self._make(number, made, effects, draws)
        finally:
            made.memory = before, look(reached)

    def _make(self, number: int, record: Record, effects: Effects, draws: bool) -> Any:
        args, kwargs = record.given
        record.harmless = effects.harmless and not draws
        record.attempt = self._attempt
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
        """Make ``count`` extern calls, one after the other, or return their recorded results. Raises ExternRaised."""
        made, before, since = [], None, 0
        undo = None if effects.undo is None else effects.undo.of(args)
        for number in range(first, first + count):
            if undo is None or draws or self.known(number, func, args, kwargs) is not None:
                made.append(self.make(number, effects, draws, func, *args, **kwargs))
            else:
                if not since:  # the state of a generator is large, so it is saved once
                    self.leave(number, undo)
                    before = undo.saved()
                record = Record(func, None, None, undo, before, None, since=since, given=(args, kwargs))
                made.append(self._make(number, record, effects, draws))
                since += 1
        return made

    def commit(self, number: int, effects: Effects, func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Make extern call ``number`` at commit, or return the result that an earlier attempt recorded."""
        record = self.known(number, func, args, kwargs)
        if record is not None:
            return record.again()
        self.leave(number, None if effects.undo is None else effects.undo.of(args), effects.world)
        return func(*args, **kwargs)

    def leave(self, number: int, undo: Undo | None = None, world: bool = False) -> None:
        """Prepare for a new call ``number`` that differs from the recorded one, or has none.

        If this attempt takes another path than the one before, it never reaches the recorded calls from here on: they
        are undone, as far as possible, before another call draws from the same generator. ``undo``: how to undo this
        call; ``world``: it may depend on anything.
        """
        left = self._left_over()
        undone = [one for one in left if self.records[one].undo is not None]
        # These calls keep their order: one made before this call and not reached yet never will be.
        passed = [one for one in undone if world or self.records[one].undo == undo]
        if not passed and number not in left:
            return
        first = min([*passed, number])
        for other in sorted(undone, reverse=True):
            if other >= first:
                self.records.pop(other).take_back()
        if number in left and number in self.records:
            gone = self.records.pop(number)
            self._left += [] if gone.harmless else [gone]

    def _left_over(self) -> list[int]:
        """Return the numbers of calls of earlier attempts that this one has not reached."""
        return [n for n, record in self.records.items() if record.attempt != self._attempt and not record.taken]

    def awaiting(self, func: Any) -> list[Record]:
        """Return the calls of ``func`` that an earlier attempt has made, and this one has not reached, in order."""
        left = [self.records[number] for number in sorted(self._left_over())]
        return [record for record in left if called(record.func) is func]

    def results(self) -> dict[int, Any]:
        """Return the results of the calls, by number."""
        return {number: record.result for number, record in self.records.items()}

    def made(self) -> list[Record]:
        """Return the calls that this attempt has reached."""
        return [record for record in self.records.values() if record.attempt == self._attempt]

    @property
    def harmless(self) -> bool:
        """Whether the program may simply be run instead: undoing the calls leaves no effect."""
        return not self._left and all(record.harmless and not record.taken for record in self.records.values())

    @property
    def is_met(self) -> bool:
        """Whether this attempt has reached all recorded calls."""
        return not self._left and not self._left_over()

    def close(self, served: bool = False) -> list[Record]:
        """End the call: undo the extern calls that it never reached, and clear the journal. ``served``: a graph has
        made the call, and reached those of its attempt. Returns those that cannot be undone."""
        left, self._left = self._left, []
        for _, record in sorted(self.records.items(), reverse=True):
            if not record.taken and not (served and record.attempt == self._attempt):
                if record.undo is not None:
                    record.take_back()
                elif not record.harmless:
                    left.append(record)
        self.records.clear()
        return left
