"""Loops that a watched run went through: where their iterations begin and end among its events, and what they are
like."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field, replace
from typing import Any

from torchjanus.core.access_path import AccessPath
from torchjanus.core.errors import NOWHERE, Place
from torchjanus.core.kinds import isinstance
from torchjanus.trace.values import Apply, Expr, Read, leaves

__all__ = ["KEPT", "ByIteration", "Frames", "Loop", "LoopInstance", "LoopRecord", "Plain", "Until"]

KEPT = 3  # iterations that stand for all iterations of a loop: nothing can be said of loops with fewer


@dataclass(frozen=True, slots=True)
class Until:
    """A loop goes on as long as a tensor decides ``go``, ``limit`` iterations at most (None: any number). In a run that
    is a number or an expression of numbers from before the call and of sizes; in a program what stands for it there."""

    go: bool
    limit: Any


@dataclass(frozen=True, slots=True)
class LoopInstance:
    """A loop that came to its end: before which events its iterations began, before which its last one ended, and how
    many there would be: a number, or as many as a tensor decides.

    Nothing in its iterations was computed by Python from plain numbers, so that no iteration could tell which one it
    was; but for ``counters``: plain integers that go up by the same step in each iteration, given by the first
    iteration's and the step; and for what is ``reckoned`` in the same way in each of them, and decides nothing.
    """

    starts: tuple[int, ...]
    end: int
    count: Expr | Until
    counters: tuple[tuple[int, int], ...] = ()
    skipped: int = 0  # iterations before the first of these, which ``count`` does not count
    begins: int = 0  # the number by which the loop's first iteration goes: of ``range(1, n)`` it is 1
    back: bool = False  # its numbers go down to 0 or 1, if no tensor ends it
    asked: tuple[Expr, ...] = ()  # what has to be true for the iterations to be told as they are
    reckoned: Any = None  # what else was computed with plain numbers, as forms: see ``trace.find_recurrences``
    least: int = (
        1  # of fewer iterations something from before the loop would be left where more leave what they have made
    )
    unpinned: bool = False  # it went over a tensor: nothing has had to say how many iterations that makes

    @property
    def whole(self) -> Expr | None:
        """How many iterations there are, or may be, where an expression says that."""
        count = self.count.limit if isinstance(self.count, Until) else self.count
        return count if isinstance(count, Expr) else None

    @property
    def first(self) -> int:
        """The number by which the first of these goes."""
        return self.begins + self.skipped

    @property
    def moving(self) -> tuple[tuple[int, int], ...]:
        """The counters by which it can be told how many iterations there were."""
        return self.counters[1:] if self.back and not isinstance(self.count, Until) else self.counters

    def counted(self) -> list[int]:
        """What these are in the last iteration."""
        return [first + step * (len(self.starts) - 1) for first, step in self.moving]

    def without_first(self) -> LoopInstance:
        """All iterations but the first: where that one does something else, it may be since it begins with a number."""
        assert not isinstance(self.count, Until)
        count = Apply(operator.sub, (self.count, 1))
        counters = tuple((first + step, step) for first, step in self.counters)
        return replace(self, starts=self.starts[1:], count=count, counters=counters, skipped=self.skipped + 1)


@dataclass(frozen=True, slots=True)
class Plain:
    """Before the event with number ``position`` the program's own code computed with these integers, among other
    things; ``total``: of two of them the sum. ``structure``: all that it was computed of, where nothing else decides
    what comes out; equal for equal computations, None where that is not known."""

    position: int
    operands: tuple[int, ...]
    total: int | None = None
    structure: Any = None
    reals: tuple[float, ...] = ()  # and with these
    where: tuple[int, int] = (0, 0)  # line and column
    lookup: bool = False  # it was nothing but which tensor stands at this place of a list: what uses that tensor tells
    compared: str = ""  # how two plain integers were compared


@dataclass(frozen=True, slots=True, eq=False)
class ByIteration:
    """What tells a number by which something is looked up while loops go on: how much more it is than the number of the
    iteration, for each of them, the outermost first. Equal where that is so for one of them, whose iterations go by it;
    or where ``otherwise`` is, which tells it without any loop."""

    ahead: tuple[int, ...]
    otherwise: Any = None

    def goes_with(self, other: object) -> bool:
        """Whether both are as far ahead of the iterations of the same loop."""
        if not isinstance(other, ByIteration) or len(self.ahead) != len(other.ahead):
            return False
        return any(one == another for one, another in zip(self.ahead, other.ahead, strict=True))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ByIteration):
            return NotImplemented
        return self.goes_with(other) or (self.otherwise is not None and self.otherwise == other.otherwise)

    def __hash__(self) -> int:
        return hash(len(self.ahead))


@dataclass(slots=True)
class LoopRecord:
    """A ``for`` that was begun: before which events its iterations began, and what it went over, if that was a range.
    ``end``: its ``Trips``, None where it was left before its end. ``plain``: how much was computed with plain numbers
    before it; ``own``: whether it went over something that the run had made, and no library did; ``access_path``: where
    else that was found; ``given``: what was not found anywhere of what each iteration was given; ``count``: how many
    iterations there would be at its end, if that is known by an expression; ``inner``: whether a library went over a
    container, which begins anew each time; ``unpinned``: see ``LoopInstance``."""

    starts: list[int]
    over: range | None
    plain: int
    end: int | None = None
    own: bool = False
    access_path: AccessPath | None = None
    given: list[tuple[Any, ...]] = field(default_factory=list)
    count: Expr | None = None
    inner: bool = False
    unpinned: bool = False

    def elsewhere(self, starts: list[int], end: int | None) -> LoopRecord:
        """The same between other events, where tensors may have other numbers: a count that speaks of one is lost."""
        structure = self.count is not None and all(isinstance(leaf, Read) for leaf in leaves(self.count))
        return replace(self, starts=starts, end=end, count=self.count if structure else None)


@dataclass(slots=True)
class Frames:
    """A ``for`` that came to its end, and what the program's variables were before each iteration and after the last:
    by name ``("tensor", number)``, or what can be compared with what it is another time. Or an ``if`` in which a tensor
    decided (``region``), as a loop of one iteration.

    ``count``: how many iterations there would be, if that is known; ``counters``: see ``LoopInstance``; ``plains``: how
    much had been computed with plain numbers before each iteration and after the last, ``given``: how much native code
    was given."""

    starts: tuple[int, ...]
    end: int
    states: tuple[dict[Any, Any], ...]
    count: Expr | None
    counters: tuple[tuple[int, int], ...]
    place: Place = NOWHERE
    plains: tuple[int, ...] = ()
    given: tuple[int, ...] = ()
    counting: bool = False  # whether its iterations have computed with plain numbers, and not all of them the same
    region: bool = False
    unpinned: bool = False  # see ``LoopInstance``
    begun: tuple[Any, ...] = ()  # variables that began with the number 0, and are told as if it were a tensor

    @property
    def begins(self) -> int:
        """The number by which the first iteration goes, if the iterations of the loop have numbers."""
        return self.counters[0][0] if self.counters and self.counters[0][1] == 1 else 0

    @property
    def back(self) -> bool:
        """Whether the numbers of the iterations go down to 0, or to 1."""
        first, step = self.counters[0] if self.counters and self.count is not None else (0, 0)
        return step == -1 and first - len(self.starts) in (-1, 0)

    def normalized(self, iteration: int) -> int:
        """By which number an iteration is told: as if all numbers began with 0, if they go up."""
        return self.number(iteration) - self.begins

    def number(self, iteration: int) -> int:
        """By which number an iteration goes."""
        return self.counters[0][0] - iteration if self.back else self.begins + iteration


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop of a recursive call, by where its iterations began and ended among the events."""

    place: Place
    starts: tuple[int, ...]
    end: int
