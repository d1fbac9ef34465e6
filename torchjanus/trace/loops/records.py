"""Loops of a watched run: where their iterations begin and end in the trace, and what is known of them."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from torchjanus.core.access_path import AccessPath
from torchjanus.core.errors import NOWHERE, Place
from torchjanus.core.kinds import isinstance
from torchjanus.trace.values import Apply, Expr, Read, leaves

__all__ = [
    "KEPT", "ByIteration", "Iterations", "Loop", "LoopInstance", "LoopRecord", "LoopSnapshots", "TensorTermination",
    "UntracedComputation", "before_iterations",
]  # fmt: skip

KEPT = 3  # the evidence threshold: loops with fewer iterations are not generalised from


@dataclass(frozen=True, slots=True)
class TensorTermination:
    """The trip count of a tensor-terminated loop: it continues while the predicate tensor is ``go``.

    ``limit`` is the most iterations (None: no limit). In a trace it is a number or an expression over numbers from
    before the call and sizes; in a tensor program it is the operand of the loop node for that expression.
    """

    go: bool
    limit: Any


class Iterations:
    """What all descriptions of a loop's iterations share. ``starts``: the positions of the events before which they
    begin; ``end``: the one before which the last ends."""

    __slots__ = ()
    starts: tuple[int, ...]
    end: int

    @property
    def limits(self) -> tuple[int, ...]:
        """The positions at which iterations begin, and the end of the last."""
        return (*self.starts, self.end)

    @property
    def spans(self) -> list[tuple[int, int]]:
        """The begin and the end of each iteration."""
        return list(itertools.pairwise(self.limits))


@dataclass(frozen=True, slots=True)
class LoopInstance(Iterations):
    """A loop that ended, and that may have another trip count in another call.

    ``starts``: the positions of the events before which its iterations begin; ``end``: the one before which the last
    iteration ends; ``count``: the trip count. ``counters``: affine induction variables, as (value in the first
    iteration, step). No other untraced number depends on the iteration index, except ``recurrences``, which have a
    closed form that nothing uses.
    """

    starts: tuple[int, ...]
    end: int
    count: Expr | TensorTermination
    counters: tuple[tuple[int, int], ...] = ()
    skipped: int = 0  # peeled iterations before the first of ``starts``; ``count`` does not include them
    begins: int = 0  # lower bound of the loop's range: 1 for ``range(1, n)``
    back: bool = False  # the index goes down to 0 or 1
    asked: tuple[Expr, ...] = ()  # predicates that must hold for all iterations to be alike
    recurrences: Any = None  # closed forms of the recurrences, see ``trace.loops.recurrences``
    least: int = 1  # minimum trip count: with fewer, live-outs would still hold values from before the loop
    unpinned: bool = False  # it iterates over a tensor, and the trip count was not specialised on

    @property
    def whole(self) -> Expr | None:
        """The trip count, or its bound, if it is an expression; else None."""
        count = self.count.limit if isinstance(self.count, TensorTermination) else self.count
        return count if isinstance(count, Expr) else None

    @property
    def first(self) -> int:
        """The index of the first iteration of ``starts``."""
        return self.begins + self.skipped

    @property
    def moving(self) -> tuple[tuple[int, int], ...]:
        """The induction variables whose last value depends on the trip count."""
        return self.counters[1:] if self.back and not isinstance(self.count, TensorTermination) else self.counters

    def counted(self) -> list[int]:
        """Return the values of ``moving`` in the last iteration."""
        return [first + step * (len(self.starts) - 1) for first, step in self.moving]

    def without_first(self) -> LoopInstance:
        """Return the loop with its first iteration peeled (it may differ because an accumulator starts with a
        number)."""
        assert not isinstance(self.count, TensorTermination)
        count = Apply(operator.sub, (self.count, 1))
        counters = tuple((first + step, step) for first, step in self.counters)
        return replace(self, starts=self.starts[1:], count=count, counters=counters, skipped=self.skipped + 1)


def before_iterations(loops: Iterable[LoopInstance], at: int) -> int:
    """Return the position; if it is in the first iteration of a loop, the begin of that loop, so that what is inserted
    there leaves its iterations alike."""
    starts = (loop.starts for loop in loops if len(loop.starts) > 1)
    return min((first for first, second, *_ in starts if first <= at < second), default=at)


@dataclass(frozen=True, slots=True)
class UntracedComputation:
    """A computation with untraced numbers, made before the event at ``position``.

    ``operands``: its integer operands. ``total``: the sum, if it adds two of them. ``structure``: a structural hash of
    the operation and all operands if the result depends on nothing else, else None.
    """

    position: int
    operands: tuple[int, ...]
    total: int | None = None
    structure: Any = None
    reals: tuple[float, ...] = ()  # its float operands
    where: tuple[int, int] = (0, 0)  # line and column
    lookup: bool = False  # it only selected a tensor of a list: the event that uses the tensor records the index
    compared: str = ""  # the comparison operator, if two integers were compared


@dataclass(frozen=True, slots=True, eq=False)
class ByIteration:
    """The structure of an index relative to the enclosing loops.

    ``ahead``: the index minus the iteration index of each enclosing loop, outermost first. Two are equal if they agree
    for one loop (the index then follows that loop), or if ``otherwise``, the structure without loops, is equal.
    """

    ahead: tuple[int, ...]
    otherwise: Any = None

    def has_distance_of(self, other: object) -> bool:
        """Whether both have the same distance to the iteration index of one common loop."""
        if not isinstance(other, ByIteration) or len(self.ahead) != len(other.ahead):
            return False
        return any(one == another for one, another in zip(self.ahead, other.ahead, strict=True))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ByIteration):
            return NotImplemented
        return self.has_distance_of(other) or (self.otherwise is not None and self.otherwise == other.otherwise)

    def __hash__(self) -> int:
        return hash(len(self.ahead))


@dataclass(slots=True)
class LoopRecord:
    """A ``for`` loop from its begin on, while it runs and after.

    ``starts``: the positions of the events before which its iterations begin. ``over``: the range it iterates over, if
    any. ``end``: the position of its ``LoopEnd``, None if it was left early. ``plain``: the number of untraced
    computations before it. ``own``: it iterates over something that the run made, and no library does. ``access_path``:
    of the iterable, if it has one. ``given``: per iteration the untraced values that it got. ``count``: the trip
    count, if it is an expression. ``inner``: a library iterates over a container. ``unpinned``: see ``LoopInstance``.
    """

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
        """Return the record for renumbered events. The count is dropped if it depends on a tensor, since those are
        renumbered."""
        kept = self.count is not None and all(isinstance(leaf, Read) for leaf in leaves(self.count))
        return replace(self, starts=starts, end=end, count=self.count if kept else None)


@dataclass(slots=True)
class LoopSnapshots(Iterations):
    """A ``for`` loop that ended, with snapshots of the program's variables; or an ``if`` region, as a loop of one
    iteration (``region``).

    ``states``: the variables before each iteration and after the last, by name: ``("tensor", number)`` or a comparable
    description. ``count``: the trip count, if it is an expression. ``counters``: see ``LoopInstance``.
    ``untraced_counts``: the number of untraced computations before each iteration and after the last. ``given``:
    likewise the number of untraced numbers passed to native code.
    """

    starts: tuple[int, ...]
    end: int
    states: tuple[dict[Any, Any], ...]
    count: Expr | None
    counters: tuple[tuple[int, int], ...]
    place: Place = NOWHERE
    untraced_counts: tuple[int, ...] = ()
    given: tuple[int, ...] = ()
    counting: bool = False  # its iterations computed with untraced numbers, and differently
    region: bool = False
    unpinned: bool = False  # see ``LoopInstance``
    begun: tuple[Any, ...] = ()  # accumulators whose initial number 0 is represented as a tensor

    @property
    def begins(self) -> int:
        """The lower bound of the index, if it counts up; else 0."""
        return self.counters[0][0] if self.counters and self.counters[0][1] == 1 else 0

    @property
    def back(self) -> bool:
        """Whether the index counts down to 0 or 1."""
        first, step = self.counters[0] if self.counters and self.count is not None else (0, 0)
        return step == -1 and first - len(self.starts) in (-1, 0)

    def normalized(self, iteration: int) -> int:
        """Return the index of an iteration, shifted to begin with 0 if it counts up."""
        return self.number(iteration) - self.begins

    def number(self, iteration: int) -> int:
        """Return the index of an iteration."""
        return self.counters[0][0] - iteration if self.back else self.begins + iteration


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop of a recursive call: the events before which its iterations begin, and before which the last one ends."""

    place: Place
    starts: tuple[int, ...]
    end: int
