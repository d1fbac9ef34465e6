"""Iterators by the sequence protocol, forward and backward, and by calls up to a sentinel (``iter(call, end)``).

They take the place of the iterators that native code makes, advance by the program's rewritten methods, and are copied
and pickled as those are.
"""

from __future__ import annotations

import sys
import types
from builtins import iter, len, reversed  # a program may rebind them
from typing import Any

from torchjanus.rewrite import Site

__all__ = ["Indexing", "ReversedIndexing", "SentinelIterator", "WrappedIterable"]


def _reduction(iterator: Any) -> tuple[Any, ...]:
    return iterator.__reduce__()  # type: ignore[no-any-return]


# Return the reduction of a native iterator. It looks ``iter`` up among the builtins of the calling frame: those of this
# function are its own, since a key of the program's builtins may run code that uses the iterator up.
_reduced = types.FunctionType(_reduction.__code__, {"__builtins__": {"iter": iter, "reversed": reversed}})


class WrappedIterable:
    """Base of the iterables that take the place of an iterable of the program and enter its Python-level methods."""

    __slots__ = ()

    def native(self) -> Any:
        """Return the object that Python would have made. The program's objects hold it in place of this one."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return repr(self.native())

    def has_ended(self) -> bool:
        """Whether it yields nothing more, whatever happens to the iterable."""
        return False

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Return the reduction of Python's own object, so that it can be copied and pickled."""
        if not self.has_ended():
            reduced = self.native().__reduce_ex__(protocol)
            if not self.has_ended():  # the reduction looks a name up, which may run code that exhausts this one
                return reduced
        return iter, ((),)

    def __reduce__(self) -> Any:
        return self.__reduce_ex__(0)


class IndexedIterator(WrappedIterable):
    """One with an index, which the program may read and set. ``_twin``: the native object, once there is one."""

    __slots__ = ("_twin",)
    _twin: Any

    def __setstate__(self, index: Any) -> None:
        made = self.native()
        made.__setstate__(index)
        self.set_index(_reduced(made)[2:])

    def set_index(self, state: tuple[Any, ...]) -> None:
        """Set the index from the state of the native object, which is empty if that has ended."""
        raise NotImplementedError

    def _follow(self) -> None:
        """Take the position of the native object, if there is one: what has it may have advanced it, too."""
        if self._twin is not None and not self.has_ended():
            self.set_index(_reduced(self._twin)[2:])

    def __length_hint__(self) -> Any:
        self._follow()
        if self.has_ended():
            return 0
        return self.native().__length_hint__()


class EmptySequence:
    """The empty sequence behind an iterator that has ended."""

    def __getitem__(self, index: int) -> Any:
        raise IndexError


def _has_ended(twin: Any) -> bool:
    """Whether a native iterator by index, or up to a sentinel, has ended. One that was made before the end learns
    that only by asking the program's code once more, so another one takes its place."""
    reduced = _reduced(twin)
    return len(reduced) == 2 and len(reduced[1]) == 1


class Indexing(IndexedIterator):
    """Iterates by the sequence protocol: ``obj[0]``, ``obj[1]``, ... until IndexError."""

    __slots__ = ("_at", "_done", "_index", "_obj", "_semantics")

    def __init__(self, semantics: Any, at: Site, obj: Any) -> None:
        self._twin: Any = None
        self._semantics, self._at, self._obj, self._index, self._done = semantics, at, obj, 0, False

    def __iter__(self) -> Indexing:
        return self

    def __next__(self) -> Any:
        self._follow()
        if self._done:
            raise StopIteration
        if self._index == sys.maxsize:
            raise OverflowError("iter index too large")
        try:
            value = self._semantics.item(self._at, self._obj, self._index)
        except (IndexError, StopIteration):
            self._done, self._obj = True, None  # an iterator that has ended holds no sequence
            self._lead()
            raise StopIteration from None
        self._index += 1
        self._lead()
        return value

    def native(self) -> Any:
        if self._done and (self._twin is None or not _has_ended(self._twin)):
            self._twin = iter(EmptySequence())
            list(self._twin)
        elif self._twin is None:
            self._twin = iter(self._obj)
            self._lead()
        return self._twin

    def _lead(self) -> None:
        """Bring the native object, if there is one, to the position of this one."""
        if self._twin is not None:
            self._twin.__setstate__(sys.maxsize if self._done else self._index)

    def has_ended(self) -> bool:
        return self._done

    def set_index(self, state: tuple[Any, ...]) -> None:
        if not state:
            self._done, self._obj = True, None
        elif not self._done:  # an iterator that has ended stays ended
            self._index = state[0]


class ReversedIndexing(IndexedIterator):
    """Iterates by the sequence protocol from the last element to the first: ``reversed(obj)``."""

    __slots__ = ("_at", "_index", "_obj", "_semantics")

    def __init__(self, semantics: Any, at: Site, obj: Any, length: int) -> None:
        self._twin: Any = None
        self._semantics, self._at, self._obj, self._index = semantics, at, obj, length

    def __iter__(self) -> ReversedIndexing:
        return self

    def __next__(self) -> Any:
        self._follow()
        if self._index <= 0:
            self._obj = ()
            raise StopIteration
        self._index -= 1
        self._lead()
        try:
            return self._semantics.item(self._at, self._obj, self._index)
        except (IndexError, StopIteration):
            self._index, self._obj = 0, ()
            self._lead()
            raise StopIteration from None

    def native(self) -> Any:
        if self._twin is None:
            self._twin = reversed(self._obj)
            self._lead()
        return self._twin

    def _lead(self) -> None:
        """Bring the native object, if there is one, to the position of this one."""
        if self._twin is not None:
            self._twin.__setstate__(self._index - 1)

    def set_index(self, state: tuple[Any, ...]) -> None:
        self._index = state[0] + 1 if state else 0

    def __length_hint__(self) -> Any:
        length = self._semantics.length_hint(self._at, self._obj)
        return length if length is NotImplemented else self._index if self._index <= length else 0


class SentinelIterator(WrappedIterable):
    """``iter(call, end)``: yields the results of calls until one equals ``end``."""

    __slots__ = ("_at", "_call", "_done", "_end", "_semantics", "_twin")

    def __init__(self, semantics: Any, at: Site, call: Any, end: Any) -> None:
        self._twin: Any = None
        self._semantics, self._at, self._call, self._end, self._done = semantics, at, call, end, False

    def __iter__(self) -> SentinelIterator:
        return self

    def __next__(self) -> Any:
        if self._done:
            raise StopIteration
        try:
            value = self._semantics.call(self._at, self._call, (), {})
        except StopIteration:
            self._done, self._call, self._end = True, None, None
            raise
        if self._done:  # the function itself has exhausted this iterator
            raise StopIteration
        end = self._end
        compared = self._semantics.compare(self._at, "==", end, value)
        self._done = self._done or end is value or self._semantics.branch_value(self._at, compared)
        if self._done:
            self._call = self._end = None
            raise StopIteration
        return value

    def native(self) -> Any:
        if self._twin is None or (self._done and not _has_ended(self._twin)):
            self._twin = iter(int, 0) if self._done else iter(self._call, self._end)
            list(self._twin if self._done else ())
        return self._twin

    def has_ended(self) -> bool:
        return self._done
