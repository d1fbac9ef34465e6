"""What a list or deque from before the call holds once the call has changed its length.

Knows where each element comes from: from the heap as it was, or from this very run. Knows nothing of hooks.
"""

from __future__ import annotations

import collections
import operator
from collections.abc import Iterator
from typing import Any

from torchjanus.origin import Origin, Step
from torchjanus.semantics.recording import Recording
from torchjanus.trace.values import Apply, Read, trace_value

__all__ = ["Shadow", "Shadows"]

_NEW = -1


class Shadow:
    """The elements of one container as (index before the call or _NEW, value).

    ``grown`` is by how much it is longer than before the call, and ``tail`` how many elements were appended with
    nothing else done since. ``bounded`` containers do not grow by the same number from every length.
    """

    def __init__(self, recording: Recording, container: Any, origin: Origin) -> None:
        self.recording = recording
        self.origin = origin
        self.maxlen = container.maxlen if isinstance(container, collections.deque) else None
        self.before = len(container)
        self.bounded = self.maxlen is not None
        self.items: list[tuple[int, Any]] = [
            (_NEW, recording.written(container, i)) if recording.has_written(container, i) else (i, value)
            for i, value in enumerate(container)
        ]
        self.grown = 0
        self.tail = 0

    # -- reads ----------------------------------------------------------------------------------------------------

    def _hold_length(self) -> None:
        """What is read from now on depends on the length that there was."""
        length = self.recording.found(self.origin.then(Step.LEN), self.before)
        self.recording.pin(length, "the length decides what is read")

    def length(self) -> Any:
        """``len(container)``: an expression over the length before the call."""
        origin = self.origin.then(Step.LEN)
        if self.bounded:
            self._hold_length()
            return len(self.items)
        self.recording.found(origin, self.before)
        return trace_value(len(self.items), Apply(operator.add, (Read(origin), self.grown)))

    def filled(self) -> bool:
        if self.tail == 0:
            self._hold_length()
        return bool(self.items)

    def _value(self, item: tuple[int, Any]) -> Any:
        index, value = item
        return value if index == _NEW else self.recording.found(self.origin.item(index), value)

    def elements(self) -> Iterator[Any]:
        self._hold_length()
        for item in list(self.items):
            yield self._value(item)

    def read(self, index: int) -> Any:
        """``container[index]``. Raises IndexError."""
        if index < 0 and self.tail == self.grown and not self.bounded:
            # Nothing but appends: counted from the back, an old element is found whatever the length is.
            place, value = self.items[index]
            return value if place == _NEW else self.recording.found(self.origin.item(place - self.before), value)
        if not -self.tail <= index < 0:
            self._hold_length()
        return self._value(self.items[index])

    # -- changes, made after or before the real ones ----------------------------------------------------------------

    def store(self, index: int, value: Any) -> None:
        self._hold_length()
        self.items[index] = (_NEW, value)

    def take(self, index: int) -> Any:
        """``container.pop(index)``. Raises IndexError."""
        value = self.read(index)
        del self.items[index]
        self.grown -= 1
        self.tail = max(0, self.tail - 1) if index == -1 else min(self.tail, len(self.items))
        return value

    def change(self, method: str, args: tuple[Any, ...]) -> None:
        """A mutating method that returns nothing: append, appendleft, extend, extendleft, insert, clear, reverse."""
        was = len(self.items)
        self.bounded = self.bounded or method == "clear"
        mirror: Any = collections.deque(self.items, self.maxlen) if self.maxlen is not None else self.items
        if not isinstance(mirror, collections.deque) and method in ("appendleft", "extendleft"):
            mirror = collections.deque(self.items)
        match method:
            case "append" | "appendleft":
                getattr(mirror, method)((_NEW, args[0]))
            case "extend" | "extendleft":
                getattr(mirror, method)([(_NEW, value) for value in args[0]])
            case "insert":
                mirror.insert(args[0], (_NEW, args[1]))
            case _:
                getattr(mirror, method)()
        self.items = list(mirror)
        self.grown += len(self.items) - was
        if method in ("append", "extend"):
            self.tail = min(self.tail + (1 if method == "append" else len(args[0])), len(self.items))
        else:
            self.tail = 0


class Shadows:
    """The shadows of one run, by container."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self._known: dict[int, Shadow] = {}

    def of(self, container: Any) -> Shadow | None:
        """The container's shadow, if this run has changed its length."""
        return self._known.get(id(container))

    def make(self, container: Any, origin: Origin) -> Shadow:
        """The shadow of a container that is about to be changed. The recording keeps the container alive."""
        shadow = self._known.get(id(container))
        if shadow is None:
            self.recording.keep(container)
            shadow = self._known[id(container)] = Shadow(self.recording, container, origin)
        return shadow
