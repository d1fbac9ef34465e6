"""Find which dimensions of the inputs change from call to call, and which change together (JANUS, figure 4).

A dimension that is equal in all watched runs is constant. Dimensions that are equal to each other in every run, but not
the same in all runs, share one symbol. Knows nothing of how the graph is built.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchjanus.core.access_path import AccessPath, Step
from torchjanus.core.errors import JanusError
from torchjanus.graph.ir.number_sizes import carried, carrier_of, carries, wanted
from torchjanus.trace.events import Trace
from torchjanus.trace.expressions import evaluate, map_expr
from torchjanus.trace.facts import HeapRead, NumberPredicate
from torchjanus.trace.operations import ops_of
from torchjanus.trace.values import Read, Size

__all__ = [
    "FEW",
    "Dimensions",
    "Geometry",
    "Split",
    "decides_alike",
    "dimensions_of",
    "geometries",
    "holds_for",
    "in_inputs",
    "is_size",
    "key_of",
]  # fmt: skip

Geometry = tuple[tuple[int, ...], tuple[int, ...]]  # sizes, strides
Strides = tuple[int | tuple[int, ...], ...]
STRIDES = "strides"
FEW = "few"  # with a dimension: the part of a geometry that distinguishes sizes 0 and 1 from larger ones


class Split(JanusError):
    """These dimensions cannot change in one graph: each size needs an entry of its own. ``parts`` maps (token of the
    access path, part) to the reason; a part is a dimension, ``STRIDES``, or ``FEW`` with a dimension."""

    def __init__(self, parts: Mapping[tuple[Any, Any], str]) -> None:
        super().__init__("; ".join(parts.values()))
        self.parts = dict(parts)


@dataclass(slots=True)
class Dimensions:
    """The changing dimensions of a path. ``symbols[k]``: the dimensions that share size symbol k; ``seen[k]``: its size
    in each run; ``strides``: the strides of the tensors that have such dimensions."""

    symbols: list[tuple[tuple[AccessPath, int], ...]] = field(default_factory=list)
    seen: list[tuple[int, ...]] = field(default_factory=list)
    strides: dict[AccessPath, Strides] = field(default_factory=dict)
    counts: list[Read] = field(default_factory=list)  # trip counts: sizes of what the iterations make
    made: list[Size] = field(default_factory=list)  # sizes that the graph computes: how many elements it selects
    _made: dict[int, int] = field(default_factory=dict)  # selected tensor -> index in ``made``
    _numbers: dict[tuple[Any, int], int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.symbols or self.counts or self.made)

    def number(self, access_path: AccessPath, dim: int) -> int | None:
        """Return the symbol of a dimension, or None where it is constant."""
        return self._numbers.get((access_path.token, dim))

    def counted(self, expr: Read) -> int | None:
        """Return the symbol of a trip count, or None where ``expr`` is not one."""
        return next((n for n, one in enumerate(self.counts, len(self.symbols)) if one.token == expr.token), None)

    def select(self, size: Size, like: Size) -> None:
        """Record that the graph computes ``size``, which equals ``like`` (itself or a size recorded before)."""
        if like not in self.made:
            self.made.append(like)
        self._made[size.ref] = self.made.index(like)

    def selected(self, ref: int) -> int:
        """Return the symbol of the number of elements of a tensor that the graph selects."""
        return len(self.symbols) + len(self.counts) + self._made[ref]

    def of(self, access_path: AccessPath, count: int) -> tuple[int | None, ...]:
        """Return the symbols of a tensor's dimensions, None for constant ones; empty where all are constant."""
        found = tuple(self.number(access_path, dim) for dim in range(count))
        return found if any(number is not None for number in found) else ()

    def examples(self) -> tuple[int, ...]:
        """Return an example size for each symbol: the largest of one run, since code often special-cases small ones."""
        met = max(zip(*self.seen, strict=False), key=lambda row: (sum(size > 1 for size in row), sum(row)), default=())
        return tuple(
            max(2, *sizes) if size < 2 and self.may_be_few(k) else size
            for k, (size, sizes) in enumerate(zip(met, self.seen, strict=True))
        )

    def may_be_few(self, number: int) -> bool:
        """Whether a symbol may be 0 or 1: if an extern call gives the tensor, or if a run had such a size."""
        if number >= len(self.symbols):
            return False
        given = all(access_path.step is Step.EXTERN for access_path, _ in self.symbols[number])
        return given or any(min(sizes) < 2 for sizes in self.seen)

    def seen_few_times(self) -> Iterator[tuple[Any, Any]]:
        """Yield the parts of geometries (token, part) that distinguish runs with sizes 0 and 1 from others."""
        for number, members in enumerate(self.symbols):
            if self.may_be_few(number):
                yield from ((access_path.token, (FEW, dim)) for access_path, dim in members)

    def carriers(self) -> tuple[AccessPath, ...]:
        """Return the access paths of the tensors that carry numbers into the graph as sizes."""
        return tuple(members[0][0] for members in self.symbols if carries(members[0][0]))

    def read(self, number: int) -> Read:
        """Return the expression with which the host reads a symbol."""
        access_path, dim = self.symbols[number][0]
        return Read(access_path.then(Step.SIZE, dim))

    def add(self, members: Sequence[tuple[AccessPath, int]], sizes: tuple[int, ...]) -> None:
        """Add a symbol for the dimensions ``members``; ``sizes`` has its size in each run."""
        for access_path, dim in members:
            self._numbers[access_path.token, dim] = len(self.symbols)
        self.symbols.append(tuple(members))
        self.seen.append(sizes)


def in_inputs(expr: Any, measured: Mapping[Any, Any]) -> Any:
    """Return the expression with each size of an intermediate tensor replaced by its formula in sizes of the inputs."""
    return map_expr(expr, lambda part: measured[part.token] if isinstance(part, Size) else part)


def is_size(access_path: AccessPath) -> bool:
    """Whether the access path is the size of a tensor."""
    return access_path.step is Step.SIZE


def geometries(trace: Trace) -> dict[Any, Geometry]:
    """Return the sizes and strides of all tensors that a run read, by the token of the access path."""
    found = (
        e for e in trace.events if isinstance(e, HeapRead) and e.kind == "tensor" and isinstance(e.detail[3], tuple)
    )
    known: dict[Any, Geometry] = {event.access_path.token: (event.detail[2], event.detail[3]) for event in found}
    for event in _numbers_wanted(trace):
        carrier = carried(event)
        if len(carrier.value):
            known[carrier.access_path.token] = (carrier.detail[2], carrier.detail[3])
    return known


def _numbers_wanted(trace: Trace) -> Iterator[HeapRead]:
    numbers = wanted(event for event in ops_of(trace.events))
    return (
        e
        for e in trace.events
        if numbers and isinstance(e, HeapRead) and e.kind == "number" and e.access_path in numbers
    )


def key_of(trace: Trace, parts: Iterable[tuple[Any, Any]]) -> tuple[Any, ...]:
    """Return a key that distinguishes runs of one path where these parts of geometries cannot change in one graph."""
    known = geometries(trace)
    found: list[Any] = []
    for token, part in parts:
        sizes, strides = known[token]
        if part == STRIDES:
            found.append(strides)
        elif isinstance(part, tuple):
            found.append(sizes[part[1]] if sizes[part[1]] < 2 else None)
        else:
            found.append(sizes[part])
    return tuple(found)


def dimensions_of(
    traces: Sequence[Trace], seen: Sequence[Mapping[Any, Geometry]], relaxed: frozenset[Any], numbers: bool = False
) -> Dimensions:
    """Return the dimensions that change. ``seen``: the geometries in all runs of this path. ``numbers``: whether
    numbers that are used as sizes may change, too. Raises Split."""
    made = Dimensions()
    last = traces[-1]
    moving: list[AccessPath] = []
    first = {access_path.token for access_path in last.access_paths.values()}
    rows = [row for row in zip(*(t.events for t in traces), strict=True) if _is_tensor(row[-1])]
    # The first member of a symbol represents it, so inputs of the graph come first.
    rows.sort(key=lambda row: row[-1].access_path.token not in first)
    for row in rows:
        access_path = row[-1].access_path
        same = len({id(event.value) for event in row}) == 1 and access_path.token not in relaxed
        if (
            access_path not in moving
            and not same
            and len({g[access_path.token] for g in seen if access_path.token in g}) > 1
        ):
            moving.append(access_path)
    classes: dict[tuple[int, ...], list[tuple[AccessPath, int]]] = {}
    for access_path in moving:
        met = [geometry[access_path.token] for geometry in seen if access_path.token in geometry]
        for dim, sizes in enumerate(zip(*(sizes for sizes, _ in met), strict=True)):
            if len(set(sizes)) > 1:
                classes.setdefault(sizes, []).append((access_path, dim))
    for sizes, members in classes.items():
        made.add(members, sizes)
    for number in _numbers_wanted(last) if numbers else ():  # each is a symbol of its own, even if equal to another
        access_path = carrier_of(number.access_path)
        held = [geometry.get(access_path.token) for geometry in seen]
        if None not in held and (len(set(held)) > 1 or number.access_path.token in relaxed):
            made.add([(access_path, 0)], tuple(sizes[0] for sizes, _ in filter(None, held)))
            made.strides[access_path] = (1, 1)
    unordered = {}
    for access_path in moving:
        strides = _strides([g[access_path.token] for g in seen if access_path.token in g])
        if strides is None:
            unordered[access_path.token, STRIDES] = f"{access_path} has other strides at each call"
        else:
            made.strides[access_path] = strides
    if unordered:
        raise Split(unordered)
    return made


def holds_for(expr: Any, trace: Trace) -> bool:
    """Whether a condition on sizes of inputs held in a run."""
    numbers = {e.access_path.token: e.value for e in trace.events if isinstance(e, HeapRead) and e.kind == "number"}
    try:
        return bool(_value(expr, geometries(trace), numbers))
    except (ArithmeticError, KeyError):  # no tensor carries a number that cannot be a size
        return False


def decides_alike(trace: Trace, known: Mapping[Any, Geometry]) -> bool:
    """Whether the decisions of a run that depend on sizes alone would be the same with tensors of these geometries."""
    for event in trace.events:
        if isinstance(event, NumberPredicate):
            try:
                if bool(_value(event.expr, known, {})) is not event.outcome:
                    return False
            except (ArithmeticError, KeyError, TypeError):  # the decision depends on more than sizes
                continue
    return True


def _value(expr: Any, known: Mapping[Any, Geometry], numbers: Mapping[Any, Any]) -> Any:
    def read(part: Any) -> Any:
        if not isinstance(part, Read):
            return part
        if not is_size(part.access_path):
            return numbers[part.access_path.token]
        assert part.access_path.base is not None
        return known[part.access_path.base.token][0][part.access_path.key]

    return evaluate(expr, read)


def _is_tensor(event: Any) -> bool:
    return isinstance(event, HeapRead) and event.kind == "tensor" and isinstance(event.detail[3], tuple)


def _strides(met: Sequence[Geometry]) -> Strides | None:
    """Return for each dimension its stride, or the dimensions whose sizes multiply to it, as in a contiguous tensor.
    None where some stride is neither. Tensors without elements are left out where they fit neither: most operators give
    them other strides."""
    filled = [one for one in met if 0 not in one[0]] or met
    sizes, strides = max(reversed(filled), key=lambda one: sum(size > 1 for size in one[0]))
    order = sorted(range(len(sizes)), key=lambda dim: (strides[dim], sizes[dim] > 1))
    found: list[int | tuple[int, ...]] = []
    for dim in range(len(sizes)):
        inner = tuple(sorted(order[: order.index(dim)]))
        for some in (met, filled):
            if len({strides[dim] for _, strides in some}) == 1:
                found.append(strides[dim])
                break
            if all(math.prod(sizes[i] for i in inner) == strides[dim] for sizes, strides in some):
                found.append(inner)
                break
        else:
            return None
    return tuple(found)
