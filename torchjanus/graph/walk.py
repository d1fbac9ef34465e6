"""Follows the recursive calls of one run on the host, without computing anything, and lays out a Forest.

Each call is matched with a way through its function by checks generated from what the way relies on. Calls are followed
in eager's order with a stack of our own: trees may be deeper than Python's. Knows nothing of how cells are run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchjanus.assumptions.assumption import Assumption, TensorKind, TypeOf
from torchjanus.assumptions.checks import read_item, same_keys, same_value
from torchjanus.assumptions.embed import compile_with_constants
from torchjanus.assumptions.source import Source
from torchjanus.graph.recursion import Batch, Forest
from torchjanus.graph.repertoire import Assembled
from torchjanus.graph.ways import Way
from torchjanus.origin import Origin
from torchjanus.trace.recipes import Build, Constant, FoundAt, Number, Recipe, TensorOf
from torchjanus.trace.values import is_local

__all__ = ["TENSOR", "Root", "Walker", "given_text"]

_BROKEN = (KeyError, AttributeError, IndexError, TypeError, ValueError, NameError, ReferenceError, ArithmeticError)
_ROOM = 0.9  # of Python's limit on recursion: what may be deeper is left to eager, which knows its own limit


class _Tensor:
    def __repr__(self) -> str:
        return "<a tensor of the graph>"


TENSOR: Any = _Tensor()  # stands for a tensor among what a call is given: the host does not have it


@dataclass(frozen=True, slots=True)
class Root:
    """A call that the step itself makes. ``seeds``: which rows it supplies, by the key of their buffer."""

    callee: Any
    made: Any
    seeds: tuple[tuple[Any, int], ...]


def given_text(source: Source, recipe: Recipe) -> str:
    """The text of what a call is given, as the host knows it."""
    match recipe:
        case TensorOf():
            return source.object(TENSOR)
        case Constant(value=value):
            return source.constant(value)
        case Number(expr=expr):
            return source.number(expr)
        case FoundAt(origin=origin):
            return source.value(origin)
        case Build(cls=cls, items=items):
            inner = "".join(f"{given_text(source, part)}, " for part in items)
            return f"[{inner}]" if cls is list else f"({inner})"
    raise AssertionError(recipe)


class _WaySource(Source):
    """Checks of one call. What belongs to the step is read by the step, once."""

    def __init__(self, needs: dict[Any, tuple[int, Origin]]) -> None:
        super().__init__()
        self._needs = needs

    def access(self, origin: Origin) -> str:
        if not is_local(origin) and origin not in self._values:
            number, _ = self._needs.setdefault(origin.token, (len(self._needs), origin))
            return f"step[{number}]"
        return super().access(origin)


class _Follow:
    """A way, ready to be followed. ``script``: cells and calls, in eager's order."""

    def __init__(self, way: Way, walker: Walker) -> None:
        self.way = way
        self.match = _matcher(way, walker.needs)
        cells = {part.stage: number for number, (w, part) in enumerate(walker.assembled.cells) if w is way}
        self.cells = {stage: (number, way.parts[stage]) for stage, number in cells.items()}
        self.script: list[tuple[Any, ...]] = []
        columns = 0
        for stage in range(way.stages):
            if stage in cells:
                part = way.parts[stage]
                takes = tuple(self._source(ref, key) for ref, key in part.takes)
                span = (columns, columns + len(part.columns))
                self.script.append((None, cells[stage], takes, span, len(part.gives)))
                columns = span[1]
            for number, site in enumerate(way.sites):
                if site.stage == stage:
                    order = walker.leaves.setdefault(site.event.callee, {})
                    for token, _ in site.args:
                        order.setdefault(token, len(order))
                    args = {
                        order[token]: self._source(ref, ("argument", site.event.callee, token))
                        for token, ref in site.args
                    }
                    self.script.append((site.event.callee, number, args, site.frames))
        self.leaves = walker.leaves.setdefault(way.callee, {})
        self.results = [
            self._source(ref, ("result", way.callee, way.made, number)) for number, ref in enumerate(way.results)
        ]

    def _source(self, ref: Any, key: Any) -> tuple[Any, ...]:
        """Which row of the buffer ``key`` a tensor is: of an argument, of a call's result, or given by a cell."""
        way = self.way
        for stage, (_, part) in self.cells.items():
            if (ref, key) in part.gives:
                return ("cell", stage, part.gives.index((ref, key)))
        match way.source_of(ref):
            case ("argument", (_, _, token)):
                return ("argument", token)
            case ("call", site, which):
                return ("call", site, which)
        raise AssertionError(f"no cell gives {ref}")


class _Frame:
    __slots__ = ("args", "at", "calls", "columns", "depth", "follow", "results", "units")

    def __init__(self, follow: _Follow, found: Any, args: dict[int, int], depth: int) -> None:
        self.follow = follow
        self.columns, self.calls = found
        self.args = args
        self.depth = depth
        self.at = 0
        self.results: dict[int, list[int]] = {}
        self.units: dict[int, int] = {}

    def resolve(self, source: tuple[Any, ...]) -> int:
        if source[0] == "cell":
            return self.units[source[1]] + int(source[2])
        if source[0] == "call":
            return self.results[source[1]][source[2]]
        return self.args[self.follow.leaves[source[1]]]


class Walker:
    """Follows the calls of one recursion. ``needs``: what the step has to read for the checks."""

    def __init__(self, assembled: Assembled, roots: Sequence[Root], reached: frozenset[Any]) -> None:
        """``reached``: where calls find the shared tensors of which each run has to use all, and no others: a parameter
        that no call uses has no gradient."""
        self.assembled = assembled
        self.roots = tuple(roots)
        self.needs: dict[Any, tuple[int, Origin]] = {}
        self.leaves: dict[Any, dict[Any, int]] = {}
        self._follows: dict[Any, list[_Follow]] = {}
        for way in assembled.ways:
            self._follows.setdefault(way.callee, []).append(_Follow(way, self))
        recursion = assembled.recursion
        tokens = {origin.token for origin, t in zip(assembled.shared, recursion.shared, strict=True) if t.requires_grad}
        self._wanted = reached & tokens
        self._used = [{o.token for _, o in part.shared} & tokens for _, part in assembled.cells]
        self._complete: dict[frozenset[int], bool] = {}
        by_number = {number: key for key, number in assembled.buffers.items()}
        self._seeds = [by_number[number] for number in recursion.seeds]

    @property
    def reads(self) -> list[Origin]:
        """What ``walk`` is given of the step, in this order."""
        return [origin for _, origin in self.needs.values()]

    def walk(self, step: Sequence[Any], given: Sequence[tuple[Any, ...]]) -> Forest | None:
        """The forest of these calls (what the roots are given), or None where one takes a way that was not seen."""
        try:
            return self._walk(step, given)
        except _Unknown:
            return None

    def _walk(self, step: Sequence[Any], given: Sequence[tuple[Any, ...]]) -> Forest:
        counts = {key: self._count(key) for key in self._seeds}
        layout = _Layout(self.assembled, [counts[key] for key in self._seeds])
        limit = int(sys.getrecursionlimit() * _ROOM)
        rows = {key: [layout.seed(number) for number in range(count)] for key, count in counts.items()}
        results: list[list[int]] = []
        for root, args in zip(self.roots, given, strict=True):
            leaves = self.leaves.get(root.callee, {})
            seeds = {leaves[key[2]]: rows[key][row] for key, row in root.seeds if key[2] in leaves}
            stack = [self._enter(root.callee, step, args, seeds, 0)]
            while True:
                frame = stack[-1]
                script = frame.follow.script
                if frame.at == len(script):
                    made = [frame.resolve(source) for source in frame.follow.results]
                    stack.pop()
                    if not stack:
                        if frame.follow.way.made != root.made:
                            raise _Unknown
                        results.append(made)
                        break
                    caller = stack[-1]
                    site = caller.follow.script[caller.at - 1][1]
                    if caller.follow.way.sites[site].event.made != frame.follow.way.made:
                        raise _Unknown  # it was never seen to get such a thing
                    caller.results[site] = made
                    continue
                action = script[frame.at]
                frame.at += 1
                callee = action[0]
                if callee is None:
                    _, cell, takes, (first, last), gives = action
                    stage = self.assembled.cells[cell][1].stage
                    frame.units[stage] = layout.unit(
                        cell, [frame.resolve(source) for source in takes], frame.columns[first:last], gives
                    )
                    continue
                _, site, passed, frames = action
                sources = {place: frame.resolve(source) for place, source in passed.items()}
                depth = frame.depth + frames
                if depth > limit:
                    raise _Unknown
                stack.append(self._enter(callee, step, frame.calls[site], sources, depth))
        if not self._reaches_all(layout.cells):
            raise _Unknown
        return layout.forest(results)

    def _count(self, key: Any) -> int:
        return sum(any(k == key for k, _ in root.seeds) for root in self.roots)

    def _enter(self, callee: Any, step: Sequence[Any], args: Any, seeds: dict[int, int], depth: int) -> _Frame:
        for follow in self._follows.get(callee, ()):
            try:
                found = follow.match(step, *args)
            except _BROKEN:
                continue
            if found is not None:
                return _Frame(follow, found, seeds, depth)
        raise _Unknown

    def _reaches_all(self, cells: Any) -> bool:
        """Whether the parameters that are used are those that have to be."""
        key = frozenset(cells)
        known = self._complete.get(key)
        if known is None:
            reached = {token for cell in key for token in self._used[cell]}
            known = self._complete[key] = self._wanted == reached
        return known


class _Unknown(Exception):
    pass


class _Layout:
    """A forest in the making. Every row that is passed on has a number, by which it is known until it has a place."""

    def __init__(self, assembled: Assembled, seeds: Sequence[int]) -> None:
        """``seeds``: how many rows the step supplies of each seed."""
        self._recursion = assembled.recursion
        self._seeds = seeds
        self.cells: dict[int, tuple[list[int], list[int], list[list[int]], list[Any]]] = {}
        self._level: list[int] = []
        self._rows: list[int] = []

    def seed(self, row: int) -> int:
        """A row that the step supplies."""
        self._level.append(-1)
        self._rows.append(row)
        return len(self._rows) - 1

    def unit(self, cell: int, takes: list[int], columns: Any, gives: int) -> int:
        """A call goes through a cell. Returns the number of the first row that it gives."""
        level = self._level
        at = max((level[row] for row in takes), default=-1) + 1
        first = len(level)
        known = self.cells.get(cell)
        if known is None:
            known = self.cells[cell] = ([], [], [], [])
        known[0].append(at)
        known[1].append(first)
        known[2].append(takes)
        known[3].append(columns)
        level.extend([at] * gives)
        return first

    def forest(self, results: list[list[int]]) -> Forest:
        """The batches, level by level."""
        recursion = self._recursion
        sizes = [0] * len(recursion.buffers)
        for buffer, count in zip(recursion.seeds, self._seeds, strict=True):
            sizes[buffer] = count
        rows = self._rows + [0] * (len(self._level) - len(self._rows))
        pending: list[tuple[int, int, list[int]]] = []
        for cell, (levels, *_) in self.cells.items():
            by_level: dict[int, list[int]] = {}
            for number, level in enumerate(levels):
                by_level.setdefault(level, []).append(number)
            pending.extend((level, cell, units) for level, units in by_level.items())
        pending.sort(key=lambda one: one[:2])
        begun = dict.fromkeys(self.cells, 0)
        order: dict[int, list[int]] = {cell: [] for cell in self.cells}
        batches: list[Batch] = []
        indices: list[int] = []
        for _, cell, units in pending:
            _, firsts, takes, _ = self.cells[cell]
            count = len(units)
            offset = len(indices)
            for number in range(len(recursion.cells[cell].takes)):
                indices += [rows[takes[unit][number]] for unit in units]
            places = []
            for number, buffer in enumerate(recursion.cells[cell].gives):
                base = sizes[buffer]
                places.append(base)
                for unit in units:
                    rows[firsts[unit] + number] = base
                    base += 1
                sizes[buffer] = base
            batches.append(Batch(cell, count, offset, begun[cell], tuple(places)))
            begun[cell] += count
            order[cell] += units
        return Forest(
            sizes,
            batches,
            torch.tensor(indices, dtype=torch.int64),
            [self._columns(cell, order.get(cell, [])) for cell in range(len(recursion.cells))],
            [
                torch.tensor([rows[made[number]] for made in results], dtype=torch.int64)
                for number in range(len(recursion.results))
            ],
        )

    def _columns(self, cell: int, order: list[int]) -> list[torch.Tensor]:
        made = []
        for number, column in enumerate(self._recursion.cells[cell].columns):
            values = [self.cells[cell][3][unit][number] for unit in order]
            if values and isinstance(values[0], torch.Tensor):
                made.append(torch.stack(values))
            else:
                made.append(torch.tensor(values, dtype=column.dtype).reshape(-1, *column.shape))
        return made


def _matcher(way: Way, needs: dict[Any, tuple[int, Origin]]) -> Any:
    """A function of what the step has read, and of what a call is given: (columns, what the way's calls are given), or
    None where the call takes another way."""
    source = _WaySource(needs)
    names = [f"p{number}" for number in range(len(way.parameters))]
    for name, parameter in zip(names, way.parameters, strict=True):
        source.give(Origin.parameter(parameter), name)
    for origin in way.given.values():
        source.fail_if(f"{source.value(origin)} is not {source.object(TENSOR)}")
    for assumption in _own(way):
        if isinstance(assumption, TensorKind):
            held = source.constant(_held)
            source.fail_if(f"not {held}({source.value(assumption.origin)}, {source.constant(assumption.detail)})")
        else:
            source.require(assumption)
    source.require_alike()
    source.require_same_items()
    source.flush()
    columns = []
    for part in way.parts:
        if part.gives:
            for kind, number in part.columns:
                plan = way.plan
                columns.append(
                    source.number(plan.slots[number]) if kind == "slot" else source.value(plan.origins[number])
                )
    calls = []
    for site in way.sites:
        inner = "".join(f"{given_text(source, recipe)}, " for _, recipe in site.event.given)
        calls.append(f"({inner})")
    source.flush()
    made = f"({''.join(f'{text}, ' for text in columns)})", f"({''.join(f'{text}, ' for text in calls)})"
    code = "\n".join([f"def match({', '.join(['step', *names])}):", *source.lines, f"    return {', '.join(made)}"])
    scope: dict[str, Any] = {
        "MISS": None,
        "same_keys": same_keys,
        "same_value": same_value,
        "item": read_item,
        "same": _same,
    }
    compile_with_constants(code, "<torchjanus match>", source.names, scope)
    return scope["match"]


def _own(way: Way) -> Iterator[Assumption]:
    """What the way relies on of what its call is given. The rest is the step's affair."""
    for assumption in way.plan.assumptions:
        origins = list(assumption.origins())
        if not any(map(is_local, origins)):
            continue
        where = getattr(assumption, "origin", None)
        if where is not None and where.token in way.given and isinstance(assumption, TensorKind | TypeOf):
            continue  # a row of a buffer
        yield assumption


def _held(tensor: Any, detail: tuple[Any, ...]) -> bool:
    """Whether a tensor that a node holds is like the one that was seen."""
    _, dtype, shape, _, device, grad, _ = detail
    return (
        isinstance(tensor, torch.Tensor)
        and tuple(tensor.shape) == shape
        and str(tensor.dtype).removeprefix("torch.") == dtype
        and str(tensor.device) == device
        and tensor.requires_grad == grad
    )


def _same(a: Any, b: Any) -> bool:
    return a is b
