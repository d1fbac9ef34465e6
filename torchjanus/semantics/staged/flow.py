"""Control flow whose parts are functions, on staged and on ordinary values."""

from __future__ import annotations

import operator
from typing import Any

import torch

from torchjanus.core.errors import refused
from torchjanus.core.kinds import isinstance
from torchjanus.rewrite import Site
from torchjanus.rewrite.hooks.lifted import BREAK, RETURN, Exit
from torchjanus.rewrite.hooks.matching import captures, matches
from torchjanus.semantics.staged.natives import Zipped
from torchjanus.semantics.staged.operating import Operating
from torchjanus.semantics.staged.unknown.places import Elements
from torchjanus.semantics.staged.unknown.values import (
    Poison,
    StagedList,
    StagedNumber,
    StagedRange,
    StagedValue,
    is_staged,
)

__all__ = ["Flow"]

_MOST_ITERATIONS = 10_000  # iterations of one loop that are run while staging


class Flow(Operating):
    """The part of the semantics that decides."""

    def switch(self, at: Site, value: Any, then: Any, orelse: Any, rest: Any) -> Any:
        staging = self.at(at)
        if not is_staged(value):
            return staging.after(then() if value else orelse(), rest)
        return staging.fork(staging.truth(value), then, orelse, rest, "if")

    def match(self, at: Site, subject: Any, cases: Any, rest: Any) -> Any:
        """One switch for each case of which a staged value decides, in the other arm of those before it."""
        around = (*(part for _, *parts in cases for part in parts), rest)

        def decide(value: Any, then: Any, orelse: Any, rest: Any) -> Any:
            staging = self.at(at)
            if not is_staged(value):
                return staging.after(then() if value else orelse(), rest, around)
            return staging.fork(staging.truth(value), then, orelse, rest, "match", around)

        def case(number: int, rest: Any = None) -> Any:
            if number == len(cases):
                return self.staging.after(None, rest)
            pattern, guard, body = cases[number]

            def matched() -> Any:
                found = captures(self, at, pattern, subject)
                return body(found) if guard is None else decide(guard(found), body, lambda: case(number + 1), None)

            fits = matches(self, at, pattern, subject)
            if not is_staged(fits) and not fits:
                return case(number + 1, rest)
            return decide(fits, matched, lambda: case(number + 1), rest)

        return case(0, rest)

    def after(self, at: Site, left: Any, rest: Any) -> Any:
        return self.at(at).after(left, rest)

    def result(self, left: Any) -> Any:
        """Return what a function returns whose body was left by ``left``: a staged choice, if only some arms return."""
        if left is None or left.kinds == {0}:
            return None
        if left.kinds == {RETURN}:
            return left.value
        returns = self.staging.compute(operator.ne, (left.flag, 0))
        found = self.staging.choose(returns, lambda: left.value, lambda: None, "return")
        if isinstance(found, Poison):
            found._raise()
        return found

    def choose(self, at: Site, value: Any, then: Any, orelse: Any) -> Any:
        staging = self.at(at)
        if not is_staged(value):
            return then() if value else orelse()
        return staging.choose(staging.truth(value), then, orelse, "conditional")

    def logical(self, at: Site, first: Any, others: tuple[Any, ...]) -> Any:
        if not others:
            return first
        if not is_staged(first):
            return first if bool(first) is (at.kind == "or") else self.logical(at, others[0](), others[1:])
        return self._either(at, first, first, lambda: self.logical(at, others[0](), others[1:]))

    def decided(self, at: Site, first: Any, others: tuple[Any, ...]) -> Any:
        if not others:
            return self.at(at).truth(first) if is_staged(first) else bool(first)
        if not is_staged(first):
            is_or = at.kind == "or"
            return is_or if bool(first) is is_or else self.decided(at, others[0](), others[1:])
        return self._either(at, first, at.kind == "or", lambda: self.decided(at, others[0](), others[1:]))

    def _either(self, at: Site, first: Any, ends: Any, goes_on: Any) -> Any:
        staging = self.at(at)
        predicate = staging.truth(first)
        if at.kind == "or":
            return staging.choose(predicate, lambda: ends, goes_on, at.kind)
        return staging.choose(predicate, goes_on, lambda: ends, at.kind)

    def attempt(self) -> Any:
        return self.staging.attempt()

    def asserts(self, at: Site, value: Any, message: Any) -> None:
        """An ``assert`` on a known value raises now; on a staged one it becomes a check of the graph."""
        staging = self.at(at)
        if not is_staged(value):
            if not value:
                error = AssertionError(*([] if message is None else [message()]))
                staging.thrown[id(error)] = error
                raise error
            return
        text = () if message is None else (message(),)
        staging.check(staging.truth(value), AssertionError, text)

    def loop(self, at: Site, names: tuple[str, ...], test: Any, body: Any, orelse: Any, rest: Any) -> Any:
        """Run the iterations of a ``while`` as long as its test is known; from the first staged test on it is a loop of
        the graph, whose body is run once."""
        staging = self.at(at)
        for _ in range(_MOST_ITERATIONS):
            decided, left = staging.iteration(test, body)
            if decided is None:
                self.at(at)
                left = staging.repeat(names, test, body, None)
                return self._ended(at, left, orelse, rest)
            if not decided:
                return self._ended(at, None, orelse, rest)
            if left is not None and left.only == BREAK:
                return staging.after(None, rest)
            if left is not None and left.only == RETURN:
                return left
        raise self._too_long(at)

    def _ended(self, at: Site, left: Exit | None, orelse: Any, rest: Any) -> Any:
        staging = self.at(at)
        left = staging.after(left, orelse)
        return staging.after(staging.without_break(left), rest)

    def _too_long(self, at: Site) -> Exception:
        return refused(
            "staged-long", f"a loop of more than {_MOST_ITERATIONS} iterations", "Nothing that is not known ends it: "
            "each iteration is a part of the graph.", "Give its length as a staged number (Rep(int)).",
            self.at(at).place,
        )  # fmt: skip

    def each(self, at: Site, names: tuple[str, ...], iterable: Any, body: Any, orelse: Any, rest: Any) -> Any:
        staging = self.at(at)
        over = self.elements(at, iterable)
        if isinstance(over, StagedRange):
            left = staging.repeat(names, lambda: True, body, over)
            return self._ended(at, left, orelse, rest)
        return staging.after(staging.iterations(Elements(iter(over)), body, orelse), rest)

    def elements(self, at: Site, iterable: Any) -> Any:
        """Return what a loop goes over: a StagedRange, or something with known elements."""
        staging = self.at(at)
        if isinstance(iterable, StagedRange):
            return iterable
        if isinstance(iterable, Zipped):
            return iterable.staged(lambda one: self.elements(at, one), staging)
        if isinstance(iterable, torch.Tensor):
            count = staging.shape(iterable)[0]
            if isinstance(count, StagedNumber):
                return StagedRange(count, lambda index: staging.operation(torch.select, (iterable, 0, index), {}))
            return staging.operation(torch.unbind, (iterable,), {})
        if isinstance(iterable, StagedList):
            count = staging.compute(len, (iterable,))
            return StagedRange(
                count, lambda index: staging.part(operator.getitem, iterable, index, iterable.type.element)
            )
        if isinstance(iterable, StagedValue):
            raise refused("staged-value", "a loop over a staged object", "", "", staging.place)
        self.advances(at, iterable)
        self.reads_memory(at, iterable)
        return iterable

    def iterate(self, at: Site, iterable: Any) -> Any:
        found = self.elements(at, iterable)
        if isinstance(found, StagedRange):
            raise refused(
                "staged-decision", "a loop over something of unknown length",
                "Here loops are native: in generators, and in comprehensions other than lists of one loop.",
                "Write it as a for statement, or as a list comprehension.", self.at(at).place,
            )  # fmt: skip
        return found

    def unpack(self, at: Site, value: Any, before: int, star: bool, after: int) -> tuple[Any, ...]:
        return super().unpack(at, tuple(self.iterate(at, value)) if is_staged(value) else value, before, star, after)

    def star(self, at: Site, iterable: Any) -> Any:
        return self.iterate(at, iterable)

    def collect(self, at: Site, iterable: Any, many: bool, element: Any, filters: tuple[Any, ...]) -> Any:
        """A list comprehension: a list of known length, or a staged one if what it goes over is of unknown length."""
        staging = self.at(at)
        over = self.elements(at, iterable)
        made: Any = []

        def add(item: Any) -> None:
            nonlocal made
            made = self._kept(at, made, tuple(self.iterate(at, item)) if many else (item,), element, filters)

        if isinstance(over, StagedRange):
            made = staging.list_of(())
            made.is_new = False  # the variable is carried, and holds another list in each iteration
            staging.repeat(("made",), lambda: True, add, over)
        else:
            for item in over:
                add(item)
        return staging.own(made) if isinstance(made, StagedList) else made

    def _kept(self, at: Site, made: Any, given: tuple[Any, ...], element: Any, filters: tuple[Any, ...]) -> Any:
        """Return what a comprehension has made, with the element for ``given`` if the filters keep it."""
        staging = self.at(at)
        if not filters:
            one = element(*given)
            return staging.extended(made, (one,)) if isinstance(made, StagedList) else [*made, one]
        decided = filters[0](*given)
        if not is_staged(decided):
            return self._kept(at, made, given, element, filters[1:]) if decided else made
        others = filters[1:]
        return staging.choose(
            staging.truth(decided), lambda: self._kept(at, made, given, element, others), lambda: made, "filter"
        )
