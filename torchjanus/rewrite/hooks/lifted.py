"""The hooks of lifted code (see ``rewrite.lifting``), and what they do natively: what Python does.

A part of a function that is lifted returns None where control reaches its end, else an ``Exit``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from types import CellType, FunctionType
from typing import Any

from torchjanus.rewrite import Site
from torchjanus.rewrite.hooks.bound import Bound
from torchjanus.rewrite.hooks.matching import captures, matches
from torchjanus.rewrite.hooks.semantics import CURRENT, NOTHING, Semantics
from torchjanus.rewrite.lifting import lifted

__all__ = ["BREAK", "CONTINUE", "RETURN", "Exit", "LiftedBound", "LiftedSemantics", "cells_of", "lifted_form"]

# How control may leave a part, besides at its end (0).
CONTINUE, BREAK, RETURN = 1, 2, 4

Part = Callable[..., Any]
Cases = tuple[tuple[Any, Part | None, Part], ...]


class Exit:
    """How a part is left. ``kinds``: the ways that are possible; ``flag``: which it is, if there are several;
    ``value``: what is returned."""

    __slots__ = ("flag", "kinds", "value")

    def __init__(self, kinds: frozenset[int], value: Any = None, flag: Any = None) -> None:
        self.kinds, self.value, self.flag = kinds, value, flag

    @property
    def only(self) -> int | None:
        """The one way in which it is left; None if there are several."""
        return next(iter(self.kinds)) if len(self.kinds) == 1 else None


BREAKS, CONTINUES = Exit(frozenset({BREAK})), Exit(frozenset({CONTINUE}))


def cells_of(*parts: Any) -> dict[str, CellType]:
    """The variables that these functions share with the function around them."""
    found: dict[str, CellType] = {}
    for part in parts:
        if part is not None:
            found.update(zip(part.__code__.co_freevars, part.__closure__ or (), strict=True))
    return found


class LiftedSemantics(Semantics):
    """The meaning of control flow whose parts are functions. This class does what Python does."""

    def switch(self, at: Site, value: Any, then: Part, orelse: Part, rest: Part | None) -> Any:
        """An ``if`` statement, and the rest of its block if an arm may leave it."""
        return self.after(at, then() if self.branch(at, value) else orelse(), rest)

    def loop(
        self, at: Site, names: tuple[str, ...], test: Part, body: Part, orelse: Part | None, rest: Part | None
    ) -> Any:
        """A ``while`` statement. ``names``: the variables that its body sets."""
        while self.branch(at, test()):
            left = body()
            if left is not None and left.only == BREAK:
                return self.after(at, None, rest)
            if left is not None and left.only == RETURN:
                return left
        return self.after(at, self.after(at, None, orelse), rest)

    def each(
        self, at: Site, names: tuple[str, ...], iterable: Any, body: Part, orelse: Part | None, rest: Part | None
    ) -> Any:
        """A ``for`` statement: ``body`` takes the element."""
        for item in self.iterate(at, iterable):
            left = body(item)
            if left is not None and left.only == BREAK:
                return self.after(at, None, rest)
            if left is not None and left.only == RETURN:
                return left
        return self.after(at, self.after(at, None, orelse), rest)

    def match(self, at: Site, subject: Any, cases: Cases, rest: Part | None) -> Any:
        """A ``match`` statement. ``cases``: of each the pattern (see ``rewrite.lifted_match``), the guard or None, and
        the body; the first of these two takes what the pattern binds."""
        return self.after(at, self._case(at, subject, cases), rest)

    def _case(self, at: Site, subject: Any, cases: Cases) -> Any:
        for pattern, guard, body in cases:
            if self.branch(at, matches(self, at, pattern, subject)):
                found = captures(self, at, pattern, subject)
                if guard is None:
                    return body(found)
                if self.branch(at, guard(found)):
                    return body()
        return None

    def after(self, at: Site, left: Any, rest: Part | None) -> Any:
        """What follows a statement that was left so."""
        return rest() if left is None and rest is not None else left

    def result(self, left: Any) -> Any:
        """What a function returns of which the last part was left so."""
        return None if left is None else left.value

    def logical(self, at: Site, first: Any, others: tuple[Part, ...]) -> Any:
        """``and`` and ``or`` (see ``at.kind``)."""
        value = first
        for other in others:
            if self.branch(at, value) is (at.kind == "or"):
                return value
            value = other()
        return value

    def decided(self, at: Site, first: Any, others: tuple[Part, ...]) -> Any:
        """``and`` and ``or`` of which only the truth counts."""
        return self.logical(at, first, others)

    def choose(self, at: Site, value: Any, then: Part, orelse: Part) -> Any:
        """A conditional expression."""
        return then() if self.branch(at, value) else orelse()

    def stores(self, at: Site, cell: CellType, name: str, value: Any) -> Any:
        """An assignment expression within an operand that may be left unevaluated: set the variable ``name``."""
        cell.cell_contents = value
        return value

    def asserts(self, at: Site, value: Any, message: Part | None) -> None:
        """An ``assert`` statement."""
        if not self.branch(at, value):
            raise AssertionError(*([] if message is None else [message()]))

    def attempt(self) -> AbstractContextManager[Any, Any]:
        """A context around what is done within ``try``, if there are handlers."""
        return NOTHING

    def shares(self, cells: tuple[CellType, ...]) -> None:
        """A function of the program begins that may set these variables of functions around it."""

    def collect(self, at: Site, iterable: Any, many: bool, element: Part, filters: tuple[Part, ...]) -> Any:
        """A list comprehension. ``many``: the functions take the items of an element each for itself."""
        made = []
        for item in self.iterate(at, iterable):
            given = tuple(item) if many else (item,)
            if all(self.branch(at, test(*given)) for test in filters):
                made.append(element(*given))
        return made


class _Natively(LiftedSemantics):
    """Lifted code under a semantics that knows nothing of it: the semantics is asked what it is asked of other code."""

    def branch(self, at: Site, value: Any) -> bool:
        semantics = CURRENT.get()
        return bool(value) if semantics is None else semantics.branch(at, value)

    def iterate(self, at: Site, iterable: Any) -> Iterable[Any]:
        semantics = CURRENT.get()
        return iterable if semantics is None else semantics.iterate(at, iterable)


_NATIVELY = _Natively()


def _current() -> LiftedSemantics:
    semantics = CURRENT.get()
    return semantics if isinstance(semantics, LiftedSemantics) else _NATIVELY


class LiftedBound(Bound):
    """The hook object in lifted code."""

    __slots__ = ()

    def switch(self, n: int, names: tuple[str, ...], value: Any, then: Part, orelse: Part, rest: Any = None) -> Any:
        return _current().switch(self.sites[n], value, then, orelse, rest)

    def loop(
        self, n: int, names: tuple[str, ...], test: Part, body: Part, orelse: Part | None, rest: Any = None
    ) -> Any:
        return _current().loop(self.sites[n], names, test, body, orelse, rest)

    def each(
        self, n: int, names: tuple[str, ...], iterable: Any, body: Part, orelse: Part | None, rest: Any = None
    ) -> Any:
        return _current().each(self.sites[n], names, iterable, body, orelse, rest)

    def match(self, n: int, subject: Any, cases: Cases, rest: Any = None) -> Any:
        return _current().match(self.sites[n], subject, cases, rest)

    def part(self, n: int, part: Part, rest: Any = None) -> Any:
        return _current().after(self.sites[n], part(), rest)

    def follows(self, n: int, left: Any, rest: Part | None) -> Any:
        return _current().after(self.sites[n], left, rest)

    def result(self, left: Any) -> Any:
        return _current().result(left)

    def leaves(self, n: int, value: Any) -> Exit:
        return Exit(frozenset({RETURN}), value)

    def breaks(self) -> Exit:
        return BREAKS

    def continues(self) -> Exit:
        return CONTINUES

    def logical(self, n: int, first: Any, *others: Part) -> Any:
        return _current().logical(self.sites[n], first, others)

    def decided(self, n: int, first: Any, *others: Part) -> Any:
        return _current().decided(self.sites[n], first, others)

    def choose(self, n: int, value: Any, then: Part, orelse: Part) -> Any:
        return _current().choose(self.sites[n], value, then, orelse)

    def stores(self, n: int, reader: FunctionType, value: Any) -> Any:
        [(name, cell)] = cells_of(reader).items()
        return _current().stores(self.sites[n], cell, name, value)

    def asserts(self, n: int, value: Any, message: Part | None) -> None:
        _current().asserts(self.sites[n], value, message)

    def attempt(self) -> AbstractContextManager[Any, Any]:
        return _current().attempt()

    def shares(self, reader: FunctionType) -> None:
        _current().shares(reader.__closure__ or ())

    def collect(self, n: int, iterable: Any, many: bool, element: Part, *filters: Part) -> Any:
        return _current().collect(self.sites[n], iterable, many, element, filters)


def lifted_form(fn: FunctionType) -> FunctionType:
    """Return the form of ``fn`` whose control flow asks the current semantics. Raises SourceUnavailable."""
    return lifted(fn, LiftedBound)
