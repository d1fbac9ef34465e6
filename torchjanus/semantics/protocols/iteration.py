"""Iteration, unpacking and context managers by Python's protocols.

Native code that iterates over an object with Python-level methods is given a ``WrappedIterable``, which enters them.
"""

from __future__ import annotations

import functools
from builtins import iter, len, reversed  # a program may rebind them
from types import TracebackType
from typing import Any

from torchjanus.core.kinds import isinstance
from torchjanus.rewrite import Site
from torchjanus.semantics.protocols.indexed_iterators import Indexing, WrappedIterable
from torchjanus.semantics.protocols.leaves import MISSING, on_type
from torchjanus.semantics.protocols.operators import Operators

__all__ = ["Iteration"]

PLAIN = frozenset(
    map(id, (list, tuple, dict, set, frozenset, str, bytes, range, enumerate, zip, map, filter, reversed))
)


class Iteration(Operators):
    """``for``, unpacking, ``*`` and ``with`` on objects with Python-level methods."""

    def iterate(self, at: Site, iterable: Any) -> Any:
        tp = type(iterable)
        if id(tp) in PLAIN:
            return self.native_iter(at, iterable)
        method = self.dunder(tp, "__iter__")
        if method is not None:
            return self.stepping(at, self.iterator_by(at, method, iterable))
        if on_type(tp, "__iter__") is MISSING and self.dunder(tp, "__getitem__") is not None:
            return Indexing(self, at, iterable)
        return self.native_iter(at, iterable)

    def iterator_by(self, at: Site, method: Any, iterable: Any) -> Any:
        """Return the iterator that a Python-level ``__iter__`` returns. Raises TypeError."""
        iterator = self.invoke(at, method, iterable)
        if on_type(type(iterator), "__next__") is MISSING:
            raise TypeError(f"iter() returned non-iterator of type '{type(iterator).__name__}'")
        return iterator

    def delegate(self, at: Site, iterable: Any) -> Any:
        tp = type(iterable)
        method = self.dunder(tp, "__iter__")
        if method is not None:
            iterable = self.iterator_by(at, method, iterable)
            tp = type(iterable)
        # Generators and awaitables: values are sent in as well, and their return value is used.
        takes = on_type(tp, "__await__") is not MISSING or on_type(tp, "send") is not MISSING
        if takes and self.dunder(tp, "__next__") is None:
            return iterable
        steps = self.iterate(at, iterable) if method is None else self.stepping(at, iterable)
        return steps if isinstance(steps, WrappedIterator) else DelegatedIterable(steps, iterable)

    def stepping(self, at: Site, iterator: Any) -> Any:
        """Return the iterator, wrapped so that a Python-level ``__next__`` is entered."""
        if self.dunder(type(iterator), "__next__") is None:
            return self.native_iter(at, iterator)
        return WrappedIterator(self, at, iterator)

    def next_of(self, at: Site, iterator: Any) -> Any:
        """Return ``next(iterator)``."""
        method = self.dunder(type(iterator), "__next__")
        return self.native_next(at, iterator) if method is None else self.invoke(at, method, iterator)

    def reaches(self, value: Any) -> bool:
        """Whether iterating over the value runs Python-level methods of its class."""
        tp = type(value)
        if id(tp) in PLAIN:
            return False
        if self.dunder(tp, "__iter__") is not None or self.dunder(tp, "__next__") is not None:
            return True
        return on_type(tp, "__iter__") is MISSING and self.dunder(tp, "__getitem__") is not None

    def unpack(self, at: Site, value: Any, before: int, star: bool, after: int) -> tuple[Any, ...]:
        if self.reaches(value):
            value = self.iterate(at, value)
            if star and isinstance(value, WrappedIterator):
                value = Starred(self, at, value)
        return super().unpack(at, value, before, star, after)

    def star(self, at: Site, iterable: Any) -> Any:
        return self.for_consumption(at, iterable)

    def for_consumption(self, at: Site, iterable: Any) -> Any:
        """Return what native code is given in place of an iterable that it consumes and may measure."""
        if not self.reaches(iterable):
            return iterable
        iterator, tp = self.iterate(at, iterable), type(iterable)
        if on_type(tp, "__len__") is MISSING and on_type(tp, "__length_hint__") is MISSING:
            return iterator
        return SizedIterable(self, at, iterable, iterator)

    def length_hint(self, at: Site, iterable: Any) -> Any:
        """Return the length that ``list`` asks for: ``__len__``, else ``__length_hint__``, else NotImplemented."""
        tp = type(iterable)
        if on_type(tp, "__len__") is not MISSING:
            try:
                return len(iterable) if self.dunder(tp, "__len__") is None else self.length(at, iterable)
            except TypeError:  # CPython ignores it
                pass
        hint = on_type(tp, "__length_hint__")
        return NotImplemented if hint is MISSING else self.special(at, hint, iterable)

    def context(self, at: Site, manager: Any) -> Any:
        tp = type(manager)
        enter, leave = on_type(tp, "__enter__"), on_type(tp, "__exit__")
        self.note_lookup(tp, "__enter__")
        self.note_lookup(tp, "__exit__")
        if enter is MISSING or leave is MISSING:
            return manager
        if self.dunder(tp, "__enter__") is None and self.dunder(tp, "__exit__") is None:
            return manager
        return WrappedContext(self, at, manager, enter, leave)


class WrappedIterator(WrappedIterable):
    """An iterator whose ``__next__`` is a Python function, as native code advances it."""

    __slots__ = ("_at", "_iterator", "_semantics")

    def __init__(self, semantics: Iteration, at: Site, iterator: Any) -> None:
        self._semantics, self._at, self._iterator = semantics, at, iterator

    def __iter__(self) -> WrappedIterator:
        return self

    def __next__(self) -> Any:
        return self._semantics.next_of(self._at, self._iterator)

    def native(self) -> Any:
        return self._iterator

    def __getattr__(self, name: str) -> Any:
        """Return ``send``, ``throw`` or ``close``, which ``yield from`` looks up."""
        method = self._semantics.attr(self._at, self._iterator, name)
        return functools.partial(self._call_watched, method)

    def _call_watched(self, method: Any, *args: Any) -> Any:
        return self._semantics.call(self._at, method, args, {})


class Starred(WrappedIterable):
    """An iterator of which a starred target takes the rest, as a list of it: Python asks for its iterator again."""

    __slots__ = ("_at", "_begun", "_semantics", "_steps")

    def __init__(self, semantics: Iteration, at: Site, steps: WrappedIterator) -> None:
        self._semantics, self._at, self._steps, self._begun = semantics, at, steps, False

    def __iter__(self) -> Any:
        if self._begun:
            return self._semantics.iterate(self._at, self.native())
        self._begun = True
        return self

    def __next__(self) -> Any:
        return next(self._steps)

    def __length_hint__(self) -> Any:
        return self._semantics.length_hint(self._at, self.native())

    def native(self) -> Any:
        return self._steps.native()


class DelegatedIterable(WrappedIterable):
    """Takes the place of an iterable in ``yield from``, where the iterable does not receive sent values."""

    __slots__ = ("_iterable", "_steps")

    def __init__(self, steps: Any, iterable: Any) -> None:
        self._steps, self._iterable = iter(steps), iterable

    def __iter__(self) -> DelegatedIterable:
        return self

    def __next__(self) -> Any:
        return next(self._steps)

    def native(self) -> Any:
        return self._iterable

    def __getattr__(self, name: str) -> Any:
        return getattr(iter(self._iterable), name)


class SizedIterable(WrappedIterable):
    """An iterable with a length, as native code consumes it."""

    __slots__ = ("_at", "_iterable", "_iterator", "_semantics")

    def __init__(self, semantics: Iteration, at: Site, iterable: Any, iterator: Any) -> None:
        self._semantics, self._at, self._iterable, self._iterator = semantics, at, iterable, iterator

    def __iter__(self) -> Any:
        return iter(self._iterator)

    def __length_hint__(self) -> Any:
        return self._semantics.length_hint(self._at, self._iterable)

    def native(self) -> Any:
        return self._iterable


class WrappedContext:
    """A context manager with Python-level methods, as ``with`` enters it."""

    __slots__ = ("_at", "_enter", "_exit", "_manager", "_semantics")

    def __init__(self, semantics: Iteration, at: Site, manager: Any, enter: Any, leave: Any) -> None:
        self._semantics, self._at, self._manager, self._enter, self._exit = semantics, at, manager, enter, leave

    def __enter__(self) -> Any:
        return self._semantics.special(self._at, self._enter, self._manager)

    def __exit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        result = self._semantics.special(self._at, self._exit, self._manager, kind, exception, traceback)
        # Python evaluates the truth only where there is an exception to swallow.
        return exception is not None and self._semantics.branch_value(self._at, result)
