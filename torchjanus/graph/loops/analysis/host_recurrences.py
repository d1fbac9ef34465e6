"""Merges the expressions of a loop's iterations, among them loop-carried numbers of Python (``total += x.item()``).

What each iteration fetches from its own tensor becomes a row of a column: a list of numbers of which the host selects
one. A number that each iteration computes from the preceding one is the result of a scan over columns.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchjanus.core.access_path import token_of
from torchjanus.core.caches import Interned
from torchjanus.core.remarks import NotMergeable
from torchjanus.trace.expressions import map_expr
from torchjanus.trace.loops import recurrences
from torchjanus.trace.loops.recurrences import Form
from torchjanus.trace.values import Apply, Expr, Fetch, InductionVariable, Read, Size, leaves

__all__ = ["MOST", "Column", "ExpressionMerger", "entering", "expr_token", "pick"]


MOST = 200  # most columns of one loop
DEEPEST = 6  # most operations between the numbers of two consecutive iterations


@dataclass(frozen=True, slots=True)
class Column:
    """A tensor of each iteration. ``order``: its index within the iteration. ``taken``: after how many operations of
    the iteration it is read; -1: after the iteration, as a separate tensor."""

    order: int
    taken: int


def pick(column: Sequence[Any], iteration: int) -> Any:
    """Return the value of one iteration."""
    return column[iteration]


def entering(before: Any, after: Any) -> Any:
    """Mark ``before`` as the loop-carried number that the iteration makes ``after`` of. Returns ``before``."""
    return before


def _shifted(start: Any, made: Sequence[Any]) -> list[Any]:
    return [start, *made]


@dataclass(slots=True)
class ExpressionMerger:
    """The expressions of one loop's iterations. ``made``: tensor -> (iteration, index within the iteration).
    ``positions``: the number of operations before each iteration, and before what follows the last one. ``counters``:
    see ``LoopInstance``. ``free``: the first unused tensor number; each column takes ``1 + kept`` numbers, the first
    for the stack of its rows."""

    made: Mapping[int, tuple[int, int]]
    positions: Sequence[int]
    counters: Sequence[tuple[int, int]]
    count: Expr
    free: int
    kept: int
    back: bool = False  # the induction variable goes down to 0
    columns: dict[Column, int] = field(default_factory=dict)
    listed: dict[Fetch, list[Fetch]] = field(default_factory=dict)  # fetch of a column -> the fetches of the iterations
    risky: list[Apply] = field(default_factory=list)  # computations for all iterations that may raise
    counted: dict[Any, Apply] = field(default_factory=dict)  # token of the last value -> scan that needs no tensor
    _latest: dict[int, tuple[Any, int]] = field(default_factory=dict)

    # -- tensors --------------------------------------------------------------------------------------------------

    def iteration_of(self, tensor: int) -> int:
        """Return the iteration that made the tensor; -1 for none."""
        return self.made.get(tensor, (-1, -1))[0]

    def is_outside(self, refs: Sequence[int]) -> bool:
        """Whether this is one tensor for all iterations, made by none of them. Raises NotMergeable if it is neither
        that nor one of each iteration."""
        if len(set(refs)) == 1 and self.iteration_of(refs[0]) < 0:
            return True
        where = [self.made.get(ref, (-1, -1)) for ref in refs]
        if len({order for _, order in where}) > 1:
            raise NotMergeable("loop-results", "iterations take what different calls have made")
        first = where[0][0]
        if [number for number, _ in where] != list(range(first, first + len(where))) or first < 0:
            raise NotMergeable("loop-carried", "a tensor of an iteration is not used in the same iteration or the next")
        return False

    def taken(self, number: int, after: int) -> int:
        """Return the position relative to the begin of the iteration, in operations."""
        return after - self.positions[number]

    def column(self, refs: Sequence[int], taken: int) -> int:
        """Return the number of the tensor in which these are stacked."""
        column = Column(self.made[refs[0]][1], taken)
        if column not in self.columns:
            if len(self.columns) == MOST:
                raise NotMergeable("loop-numbers", "iterations fetch more numbers than are followed")
            self.columns[column] = self.free + len(self.columns) * (1 + self.kept)
        return self.columns[column]

    def own(self) -> Iterator[list[int]]:
        """Yield, for each column that leaves the call as separate tensors, the tensors of all iterations."""
        by_place = {place: tensor for tensor, place in self.made.items()}
        for column in self.columns:
            if column.taken < 0:
                yield [by_place[number, column.order] for number in range(len(self.positions) - 1)]

    def values(self, fetch: Fetch, fetched: Mapping[Any, Any]) -> list[Any]:
        """Return what the iterations fetched from a column. ``fetched``: token of a fetch -> its value."""
        return [fetched.get(one.token) for one in self.listed[fetch]]

    # -- numbers --------------------------------------------------------------------------------------------------

    def merged(self, row: Sequence[Any]) -> Any:
        """Return one expression, with induction variables, for the expressions of all iterations."""
        first = row[0]
        kinds = {type(expr) for expr in row}
        if len(kinds) > 1:
            raise NotMergeable("loop-numbers", "the iterations compute a number differently")
        if isinstance(first, Apply) and first.func is entering:
            return self._entered(row)
        if isinstance(first, Apply):
            scanned = self._scan(row)
            if scanned is not None:
                return scanned
            if len({(token_of(expr.func), len(expr.args)) for expr in row}) > 1:
                raise NotMergeable("loop-numbers", "iterations compute numbers by different operations")
            args = zip(*(expr.args for expr in row), strict=True)
            return Apply(first.func, tuple(self.merged(column) for column in args))
        if isinstance(first, Fetch) and self.latest(first) >= 0:
            return self._fetched(row)
        if isinstance(first, Size) and self.latest(first) >= 0:
            self.is_outside([size.ref for size in row])
            if len({size.dim for size in row}) > 1:
                raise NotMergeable("loop-sizes", "iterations ask for different dimensions")
            return row[-1]
        if len({expr_token(expr) for expr in row}) == 1:
            return first
        if kinds <= {int, InductionVariable}:
            return self._affine([expr.first if isinstance(expr, InductionVariable) else expr for expr in row])
        raise NotMergeable("loop-numbers", "a number of an iteration follows no formula")

    def recurrence(self, form: Form) -> Apply:
        """Return the expression for an untraced number that each iteration has computed by a closed form."""
        made = Apply(HostColumn.of(form), (self.count,))
        self.risky.append(made)
        return Apply(pick, (made, InductionVariable(0, 1)))

    def _entered(self, row: Sequence[Any]) -> Apply:
        """Return the expression for a loop-carried number before each iteration."""
        if any(expr.func is not entering for expr in row):
            raise NotMergeable("loop-numbers", "a number is loop-carried in some iterations only")
        made = self.merged([expr.args[1] for expr in row])
        if not (isinstance(made, Apply) and made.func is pick and isinstance(made.args[0].func, HostScan)):
            raise NotMergeable("loop-numbers", "a loop-carried number is not computed from its previous value")
        return Apply(pick, (Apply(_shifted, (made.args[0].args[0], made.args[0])), InductionVariable(0, 1)))

    def _affine(self, values: Sequence[int]) -> InductionVariable | Apply:
        last = values[-1]
        if self.back and list(values) == list(range(len(values) - 1 + last, last - 1, -1)):
            return Apply(operator.sub, (Apply(operator.add, (self.count, last - 1)), InductionVariable(0, 1)))
        for first, step in self.counters:
            if all(value == first + step * number for number, value in enumerate(values)):
                return InductionVariable(first, step)
        raise NotMergeable("loop-numbers", "a number of an iteration is no multiple of its index")

    def _fetched(self, row: Sequence[Fetch]) -> Apply:
        refs = [fetch.ref for fetch in row]
        taken = {self.taken(number, fetch.after) for number, fetch in enumerate(row)}
        kinds = {(fetch.type, fetch.index) for fetch in row}
        if self.is_outside(refs) or self.iteration_of(refs[0]) or len(taken) > 1 or len(kinds) > 1:
            raise NotMergeable("loop-numbers", "iterations fetch numbers from different places")
        fetch = Fetch(self.column(refs, taken.pop()), self.positions[-1], row[0].type, row[0].index, True)
        self.listed[fetch] = list(row)
        return Apply(pick, (fetch, InductionVariable(0, 1)))

    def latest(self, expr: Any) -> int:
        """Return the last iteration whose tensors the expression depends on; -1 for none."""
        if isinstance(expr, Fetch | Size):
            return self.iteration_of(expr.ref)
        if not isinstance(expr, Apply):
            return -1
        known = self._latest.get(id(expr))
        if known is None:
            known = self._latest[id(expr)] = (expr, max((self.latest(arg) for arg in expr.args), default=-1))
        return known[1]

    def after(self, expr: Any) -> Any:
        """Return an expression that is used after the loop; with a scan where it is loop-carried."""
        last = len(self.positions) - 2
        if isinstance(expr, Apply) and expr.token in self.counted:
            return Apply(pick, (self.counted[expr.token], -1))
        if not isinstance(expr, Apply) or self.latest(expr) < 0 or not self._uses_earlier_iteration(expr, last):
            return expr
        chain = self._chain(expr, last)
        if chain is None:
            return Apply(expr.func, tuple(self.after(arg) for arg in expr.args))
        merged = self.merged(chain)
        if not (isinstance(merged, Apply) and merged.func is pick and merged.args[1] == InductionVariable(0, 1)):
            raise NotMergeable("loop-numbers", "a number that is used after the loop is not the last of a recurrence")
        return Apply(pick, (merged.args[0], -1))

    def _uses_earlier_iteration(self, expr: Any, last: int) -> bool:
        return any(0 <= self.latest(leaf) < last for leaf in leaves(expr))

    def _chain(self, expr: Apply, last: int) -> list[Any] | None:
        """Return the value of the number in each iteration, if each computed it from the preceding one in the same
        way."""
        if self.latest(expr) != last:
            return None
        for path in self._paths(expr, last - 1):
            chain: list[Any] = [expr]
            for number in range(last - 1, -1, -1):
                part = _follow(chain[-1], path)
                if not _is_like(part, expr) or self.latest(part) != number:
                    break
                chain.append(part)
            else:
                return chain[::-1]
        return None

    def _paths(self, expr: Apply, number: int) -> Iterator[tuple[int, ...]]:
        """Yield the paths of subexpressions that depend on this iteration and no later one, the largest first."""
        pending: list[tuple[tuple[int, ...], Any]] = [((), expr)]
        while pending:
            path, part = pending.pop(0)
            if path and self.latest(part) == number and _is_like(part, expr):
                yield path
            if isinstance(part, Apply) and len(path) < DEEPEST:
                pending += [((*path, place), arg) for place, arg in enumerate(part.args) if self.latest(arg) >= number]

    def _scan(self, row: Sequence[Apply]) -> Apply | None:
        """Return the element of a scan, if each iteration computes the number from that of the preceding one; else
        None."""
        bodies: list[Any] = []
        for earlier, later in itertools.pairwise(row):
            body = _holed(later, earlier)
            if body is later:
                return None
            bodies.append(body)
        if not bodies:
            return None
        starts = list(_at_holes(bodies[0], row[0]))
        if not starts or len({expr_token(one) for one in starts}) > 1 or self.latest(starts[0]) >= 0:
            raise NotMergeable("loop-numbers", "a recurrence of numbers begins in no known way")
        first = _like(bodies[0], row[0])
        body = self.merged([first, *bodies])
        scanning, given = _scanning(body)
        made = Apply(scanning, (starts[0], self.count, *given))
        if self.latest(row[-1]) < 0:
            self.counted[row[-1].token] = made
        return Apply(pick, (made, InductionVariable(0, 1)))


# -- scans ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Hole:
    """The value of the preceding iteration."""

    token = ("hole",)


_HOLE: Any = _Hole()


def _follow(expr: Any, path: Sequence[int]) -> Any:
    for place in path:
        if not isinstance(expr, Apply) or place >= len(expr.args):
            return None
        expr = expr.args[place]
    return expr


def _is_like(part: Any, expr: Apply) -> bool:
    return isinstance(part, Apply) and token_of(part.func) == token_of(expr.func) and len(part.args) == len(expr.args)


def expr_token(expr: Any) -> Any:
    """Return a key that is equal for equal expressions and for equal constants."""
    return expr.token if hasattr(expr, "token") else ("constant", type(expr).__name__, repr(expr))


def _holed(expr: Any, part: Any) -> Any:
    """Return the expression with a hole in place of this part (by identity); the expression itself if it has no such
    part."""
    return map_expr(expr, lambda one: _HOLE if one is part else one)


def _at_holes(body: Any, expr: Any) -> Iterator[Any]:
    """Yield the parts of the first iteration's expression where the body of other iterations has holes."""
    if body is _HOLE:
        yield expr
    elif isinstance(body, Apply):
        if not isinstance(expr, Apply) or len(expr.args) != len(body.args):
            raise NotMergeable("loop-numbers", "the first iteration computes a number in another way")
        for inner, arg in zip(body.args, expr.args, strict=True):
            yield from _at_holes(inner, arg)


def _like(body: Any, expr: Any) -> Any:
    """Return the first iteration's expression with the holes of the body."""
    if body is _HOLE:
        return _HOLE
    if isinstance(body, Apply) and isinstance(expr, Apply) and len(body.args) == len(expr.args):
        return Apply(expr.func, tuple(_like(inner, arg) for inner, arg in zip(body.args, expr.args, strict=True)))
    return expr


class HostScan:
    """``scanning(start, count, *given)``: the list of the values that each of ``count`` iterations computes from the
    preceding one."""

    def __init__(self, body: Any, places: dict[Any, int], text: str) -> None:
        self._run = _compiled(body, places)
        self.__name__ = f"scan of {text}"

    def __call__(self, start: Any, count: int, *given: Any) -> list[Any]:
        found = []
        for iteration in range(count):
            start = self._run(start, iteration, given)
            found.append(start)
        return found


class HostColumn:
    """A function of the trip count: the list of the numbers that ``count`` iterations compute by a closed form."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self.__name__ = f"numbers by {form}"

    @classmethod
    def of(cls, form: Form) -> HostColumn:
        """Return the object for this form."""
        return _COLUMNS.get(repr(form), lambda: cls(form))  # 1 is not 1.0, nor 0.0 -0.0

    def __call__(self, count: int) -> list[Any]:
        return recurrences.column(self.form, count)


_COLUMNS: Interned[HostColumn] = Interned()  # expressions are compared by them
_Run = Callable[[Any, int, tuple[Any, ...]], Any]


def _is_given(body: Any) -> bool:
    """Whether the value is loop-invariant."""
    return isinstance(body, Read | Fetch | Size) or (isinstance(body, Apply) and isinstance(body.func, HostScan))


def _compiled(body: Any, places: dict[Any, int]) -> _Run:
    if body is _HOLE:
        return lambda before, iteration, given: before
    if isinstance(body, InductionVariable):
        return lambda before, iteration, given: body.first + body.step * iteration
    if _is_given(body):
        place = places[body.token]
        return lambda before, iteration, given: given[place]
    if not isinstance(body, Apply):
        return lambda before, iteration, given: body
    func, parts = body.func, [_compiled(arg, places) for arg in body.args]
    if len(parts) == 2:
        one, other = parts
        return lambda before, iteration, given: func(one(before, iteration, given), other(before, iteration, given))
    return lambda before, iteration, given: func(*(part(before, iteration, given) for part in parts))


_SCANS: Interned[HostScan] = Interned()  # by their structure: equal loops have equal scans


def _given(body: Any) -> Iterator[Any]:
    if _is_given(body):
        yield body
    elif isinstance(body, Apply):
        for arg in body.args:
            yield from _given(arg)


def _scanning(body: Any) -> tuple[HostScan, tuple[Any, ...]]:
    """Return the scan with this body, and its loop-invariant operands."""
    given = {leaf.token: leaf for leaf in _given(body)}
    places = {token: place for place, token in enumerate(given)}

    def form(part: Any) -> Any:
        if _is_given(part):
            return ("given", places[part.token])
        return (token_of(part.func), *map(form, part.args)) if isinstance(part, Apply) else expr_token(part)

    key = form(body)
    return _SCANS.get(key, lambda: HostScan(body, places, str(key))), tuple(given.values())
