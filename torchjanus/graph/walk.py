"""Follows the recursive calls of one run on the host, without computing anything, and lays out a Forest.

The functions are written out as Python that goes through the same objects as the user's: each call is matched with a
way by what the way relies on, goes on to the calls that the way makes, and notes what is to be computed. Knows nothing
of how cells are run.
"""

from __future__ import annotations

import bisect
import operator
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchjanus.assumptions.assumption import Assumption, TensorKind, TypeOf
from torchjanus.assumptions.checks import BROKEN, read_item, same_keys, same_value
from torchjanus.assumptions.embed import compile_with_constants
from torchjanus.assumptions.source import Source
from torchjanus.errors import InternalFault
from torchjanus.graph.recursion import Adding, Batch, Column, Forest
from torchjanus.graph.repertoire import Assembled
from torchjanus.graph.ways import Way
from torchjanus.origin import Origin, Step
from torchjanus.trace.recipes import Build, Constant, FoundAt, Number, Recipe, TensorOf
from torchjanus.trace.values import is_local

__all__ = ["TENSOR", "Recogniser", "Root", "Walker", "given_text"]

_ROOM = 0.9  # of Python's limit on recursion: what may be deeper is left to eager, which knows its own limit


class _Tensor:
    def __repr__(self) -> str:
        return "<a tensor of the graph>"


TENSOR: Any = _Tensor()  # stands for a tensor among what a call is given: the host does not have it


@dataclass(frozen=True, slots=True)
class Root:
    """A call that the step itself makes. ``seeds``: the tensors that it passes, by where the callee finds them, each
    with its buffer and which of the rows it is that the step supplies."""

    callee: Any
    made: Any
    seeds: tuple[tuple[Any, int, int], ...]


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
    """Checks of one call, within a loop that ends where one fails. What belongs to the step is read by the step."""

    def __init__(self, needs: dict[Any, tuple[int, Origin]], names: dict[str, Any]) -> None:
        super().__init__(" " * 16)
        self._needs = needs
        self._shared = names

    def constant(self, value: Any, prefix: str = "C") -> str:
        name = super().constant(value, prefix)
        if name in self.names:
            name = f"X{id(value)}"
            self._shared[name] = value
        return name

    def object(self, value: Any) -> str:
        self._shared[f"X{id(value)}"] = value
        return f"X{id(value)}"

    def access(self, origin: Origin) -> str:
        if not is_local(origin) and origin not in self._values:
            number, _ = self._needs.setdefault(origin.token, (len(self._needs), origin))
            return f"step[{number}]"
        base = origin.base
        if origin.step is Step.ITEM and base is not None and base.step is Step.DICT and origin not in self._values:
            return f"{self.value(base)}[{self.constant(origin.key)}]"
        return super().access(origin)

    def flush(self) -> None:
        if self._failing:
            self.lines.append(f"{self.indent}if {' or '.join(self._failing)}: break")
            self._failing.clear()


class Recogniser:
    """Tells whether calls take ways that are known. ``reads``: what of the step ``follow`` is given."""

    def __init__(self, ways: dict[Any, list[Way]]) -> None:
        self._needs: dict[Any, tuple[int, Origin]] = {}
        names: dict[str, Any] = {}
        functions = {callee: f"f{number}" for number, callee in enumerate(ways)}
        lines = ["def follow(step, at, given, met, limit):"]
        for callee, own in ways.items():
            parameters = [f"p{number}" for number in range(len(own[0].parameters))]
            lines.append(f"    def {functions[callee]}({', '.join(['d', *parameters])}):")
            lines.append("        if d > limit: raise Unknown")
            for way in own:
                source, passed = _checked(way, self._needs, names)
                lines += ["        while True:", "            try:", *source.lines, "                pass"]
                lines += ["            except BROKEN: break"]
                if way.truths or way.writes:  # whether a call takes it, and what it writes, is known when it was made
                    lines.append("            raise Unknown")
                    continue
                lines.append(f"            met.add({way.number})")
                for site, text in zip(way.sites, passed, strict=True):
                    made = [w.number for w in ways.get(site.event.callee, ()) if w.made == site.event.made]
                    if not made:
                        lines.append("            raise Unknown")
                        break
                    call = f"{functions[site.event.callee]}({', '.join([f'd + {site.frames}', *text])})"
                    lines.append(f"            if {call} not in {(*made, -1)}: raise Unknown")
                lines.append(f"            return {way.number}")
            lines.append("        raise Unknown")
        lines.append(f"    return [{', '.join(functions.values())}][at](0, *given)")
        scope: dict[str, Any] = {**_SCOPE}
        compile_with_constants("\n".join(lines), "<torchjanus recognise>", names, scope)
        self._follow = scope["follow"]
        self._at = {callee: number for number, callee in enumerate(ways)}
        self._made = {way.number: way.made for own in ways.values() for way in own}

    @property
    def reads(self) -> list[Origin]:
        return [origin for _, origin in self._needs.values()]

    def recognise(
        self, callee: Any, step: Sequence[Any], given: Sequence[Any], room: int
    ) -> tuple[frozenset[int], Any] | None:
        """The ways that a call and those within take, and what it returns looks like. None where one is unknown, or
        where there is no ``room`` for them to go as deep as they do."""
        at = self._at.get(callee)
        if at is None:
            return None
        met: set[int] = set()
        try:
            way = self._follow(step, at, given, met, int(room * _ROOM))
        except (Unknown, RecursionError):
            return None
        return frozenset(met), self._made[way]


class Walker:
    """Follows the calls of one recursion. ``reads``: what the step has to read for it."""

    def __init__(
        self,
        assembled: Assembled,
        roots: Sequence[Root],
        counts: Sequence[int],
        reached: frozenset[Any],
        needs: dict[Any, tuple[int, Origin]],
    ) -> None:
        """``counts``: how many rows the step supplies of each seed; ``reached``: where calls find the shared tensors of
        which each run has to use all, and no others: a parameter that no call uses has no gradient; ``needs``: what the
        step reads in any case."""
        self._assembled = assembled
        self._roots = tuple(roots)
        self.needs = needs
        recursion = assembled.recursion
        self._counts = list(counts)
        tokens = {origin.token for origin, t in zip(assembled.shared, recursion.shared, strict=True) if t.requires_grad}
        self._wanted = reached & tokens
        self._used = [{o.token for o in part.flowing} & tokens for _, part in assembled.examples]
        self._complete: dict[tuple[int, ...], bool] = {}
        self._follow = self._written()

    @property
    def reads(self) -> list[Origin]:
        """What ``walk`` is given of the step, in this order."""
        return [origin for _, origin in self.needs.values()]

    def walk(self, step: Sequence[Any], given: Sequence[tuple[Any, ...]]) -> Forest | None:
        """The forest of these calls (what the roots are given), or None where one takes a way that was not seen, or
        goes deeper than eager could."""
        try:
            level, units, found, written = self._follow(step, given, int(sys.getrecursionlimit() * _ROOM))
        except (Unknown, RecursionError):
            return None
        except BROKEN as error:
            raise InternalFault(f"the calls of {self._roots[0].callee} cannot be followed: {error!r}") from error
        cells = tuple(number for number, some in enumerate(units) if some)
        if not self._reaches_all(cells[: bisect.bisect_left(cells, len(self._used))]):
            return None
        return self._forest(len(level), units, cells, found, written)

    def _reaches_all(self, cells: tuple[int, ...]) -> bool:
        """Whether the parameters that are used are those that have to be."""
        known = self._complete.get(cells)
        if known is None:
            reached = {token for cell in cells for token in self._used[cell]}
            known = self._complete[cells] = self._wanted == reached
        return known

    # -- the text -------------------------------------------------------------------------------------------------

    def _written(self) -> Any:
        names: dict[str, Any] = {}
        ways: dict[Any, list[Way]] = {}
        for way in self._assembled.ways:
            ways.setdefault(way.callee, []).append(way)
        self._functions = {callee: f"f{number}" for number, callee in enumerate(ways)}
        # Of each function the tensors that it is given, as far as they are of use: their rows are passed along.
        self._leaves: dict[Any, dict[Any, int]] = {}
        for key in self._assembled.buffers:
            if key[0] == "argument":
                leaves = self._leaves.setdefault(key[1], {})
                leaves[key[2]] = len(leaves)
        totals = range(len(self._assembled.recursion.totals))
        units = [*(f"u{number}" for number in range(len(self._assembled.examples))), *(f"t{n}" for n in totals)]
        seeds = sum(self._counts)
        lines = ["def follow(step, roots, limit):", f"    level = [-1] * {seeds}"]
        lines += [f"    {name} = []" for name in [*units, "written"]]
        for callee, own in ways.items():
            lines += self._function(callee, own, names)
        firsts = self._assembled.recursion.seeds
        begun = {buffer: sum(self._counts[:number]) for number, buffer in enumerate(firsts)}
        results = []
        for number, root in enumerate(self._roots):
            rows = {token: begun[buffer] + row for token, buffer, row in root.seeds}
            passed = [str(rows.get(token, 0)) for token in self._leaves.get(root.callee, ())]
            name = self._functions[root.callee]
            lines.append(f"    w{number}, *r{number} = {name}({', '.join(['0', *passed, f'*roots[{number}]'])})")
            lines.append(f"    if w{number} not in {self._kinds(root.callee, root.made)}: raise Unknown")
            results.append(f"r{number}")
        lines.append(f"    return level, ({''.join(f'{u}, ' for u in units)}), [{', '.join(results)}], written")
        scope: dict[str, Any] = {**_SCOPE}
        compile_with_constants("\n".join(lines), "<torchjanus walk>", names, scope)
        return scope["follow"]

    def _kinds(self, callee: Any, made: Any) -> str:
        """The ways that return such a thing, as text."""
        return f"({''.join(f'{w.number}, ' for w in self._assembled.ways if w.callee == callee and w.made == made)})"

    def _function(self, callee: Any, ways: list[Way], names: dict[str, Any]) -> Iterator[str]:
        leaves = [f"a{number}" for number in range(len(self._leaves.get(callee, ())))]
        parameters = [f"p{number}" for number in range(len(ways[0].parameters))]
        yield f"    def {self._functions[callee]}({', '.join(['d', *leaves, *parameters])}):"
        yield "        if d > limit: raise Unknown"
        for way in ways:
            yield "        while True:"
            yield from self._way(way, names)
        yield "        raise Unknown"

    def _way(self, way: Way, names: dict[str, Any]) -> Iterator[str]:
        source, passed = _checked(way, self.needs, names)
        columns = [
            [
                source.number(way.plan.slots[n]) if kind == "slot" else source.value(way.plan.origins[n])
                for kind, n in part.columns
            ]
            for part in way.parts
        ]
        written = [
            (source.value(write.event.base), self._value(source, write.value) if write.ref is None else "None")
            for write in way.writes
        ]
        source.flush()
        yield from ("            try:", *source.lines, "                pass", "            except BROKEN: break")
        for kind, number in way.order:
            if kind == "part":
                part = way.parts[number]
                takes = [self._row(way, ref) for ref in part.takes]
                levels = dict.fromkeys(f"level[{row}]" for row in takes)
                highest = f"max({', '.join(levels)})" if len(levels) > 1 else next(iter(levels), "-1")
                yield f"            g{number} = len(level); l = {highest} + 1"
                yield f"            level.extend(({'l, ' * len(part.gives)}))"
                noted = "".join(f"{text}, " for text in [*takes, *columns[number]])
                yield f"            u{self._assembled.cell_of[way.number, number]}.append((l, g{number}, {noted}))"
            elif kind == "fold":
                yield from self._fold(way, number)
            else:
                yield from self._writes(way, written, number)
                site = way.sites[number]
                callee = site.event.callee
                by_token = dict(site.args)
                rows = [
                    self._row(way, by_token[token]) if token in by_token else "0"
                    for token in self._leaves.get(callee, ())
                ]
                inner = ", ".join([f"d + {site.frames}", *rows, *passed[number]])
                yield f"            c{number} = {self._functions[callee]}({inner})"
                kinds = self._kinds(callee, site.event.made)
                if len([w for w in self._assembled.ways if w.callee == callee]) > kinds.count(","):
                    yield f"            if c{number}[0] not in {kinds}: raise Unknown"
        yield from self._writes(way, written, len(way.sites))
        for n, write in enumerate(way.writes):
            if write.ref is not None:
                yield f"            n{n}[2] = {self._row(way, write.ref)}"
        found = [self._row(way, ref) for ref in way.results]
        yield f"            return ({''.join(f'{text}, ' for text in [str(way.number), *found])})"

    def _fold(self, way: Way, number: int) -> Iterator[str]:
        fold = way.folds[number]
        start = "None" if fold.start is None else self._row(way, fold.start)
        items = [self._row(way, ref) for ref in fold.items]
        levels = dict.fromkeys(f"level[{row}]" for row in ([] if fold.start is None else [start]) + items)
        yield f"            s{number} = len(level); l = max({', '.join(levels)}, -1) + 1; level.append(l)"
        total = self._assembled.total_of[way.number, number]
        yield f"            t{total}.append((l, s{number}, {start}, ({''.join(f'{row}, ' for row in items)})))"

    def _writes(self, way: Way, texts: list[tuple[str, str]], before: int) -> Iterator[str]:
        """Note what eager writes when so many calls have been made. In which row it is, if in one, will be known."""
        for n, (write, (target, value)) in enumerate(zip(way.writes, texts, strict=True)):
            if write.before == before:
                number = next(k for k, known in enumerate(self._assembled.writes) if known is write)
                yield f"            n{n} = [{number}, {target}, {value}]; written.append(n{n})"

    @staticmethod
    def _value(source: _WaySource, value: Recipe) -> str:
        return source.number(value.expr) if isinstance(value, Number) else given_text(source, value)

    def _row(self, way: Way, ref: Any) -> str:
        """The number of the row that a tensor is: of an argument, of a call's result, or given by a cell of the way."""
        match way.source_of(ref):
            case ("argument", token):
                return f"a{self._leaves[way.callee][token]}"
            case ("call", site, which):
                return f"c{site}[{which + 1}]"
            case ("part", number, which):
                return f"g{number} + {which}"
            case ("fold", number, _):
                return f"s{number}"
        raise AssertionError(f"{ref} is no row")

    # -- the forest -----------------------------------------------------------------------------------------------

    def _forest(
        self,
        count: int,
        units: Sequence[list[Any]],
        cells: tuple[int, ...],
        results: list[list[int]],
        written: list[tuple[int, Any, Any]],
    ) -> Forest:
        """The batches, level by level. Every row that is passed on has a number; here it gets a place."""
        recursion, writes = self._assembled.recursion, self._assembled.writes
        sizes = [0] * len(recursion.buffers)
        rows = [0] * count
        begun = 0
        for buffer, seeds in zip(recursion.seeds, self._counts, strict=True):
            rows[begun : begun + seeds] = range(seeds)
            sizes[buffer] = seeds
            begun += seeds
        pending: dict[tuple[int, int], list[Any]] = {}
        for number in cells:
            for unit in units[number]:
                key = unit[0], number
                known = pending.get(key)
                if known is None:
                    pending[key] = [unit]
                else:
                    known.append(unit)
        first = [0] * len(recursion.cells)
        columns: list[list[list[Any]]] = [[[] for _ in cell.columns] for cell in recursion.cells]
        batches: list[Batch | Adding] = []
        indices: list[int] = []
        for at in sorted(pending):
            some, number = pending[at], at[1]
            if number >= len(recursion.cells):
                batches.append(self._adding(number - len(recursion.cells), some, rows, sizes, indices))
                continue
            cell = recursion.cells[number]
            offset, length = len(indices), len(some)
            last = 2 + len(cell.takes)
            for place in range(2, last):
                indices += [rows[unit[place]] for unit in some]
            for place, column in enumerate(columns[number], last):
                column += [unit[place] for unit in some]
            places = []
            for which, buffer in enumerate(cell.gives):
                base = sizes[buffer]
                places.append(base)
                for row, unit in enumerate(some, base):
                    rows[unit[1] + which] = row
                sizes[buffer] = base + length
            batches.append(Batch(number, length, offset, first[number], tuple(places)))
            first[number] += length
        return Forest(
            sizes,
            batches,
            torch.tensor(indices, dtype=torch.int64),
            [list(map(_stacked, own, cell.columns)) for own, cell in zip(columns, recursion.cells, strict=True)],
            [torch.tensor([rows[made[n]] for made in results]) for n in range(len(recursion.results))],
            [(n, target, value if writes[n].ref is None else rows[value]) for n, target, value in written],
        )

    def _adding(
        self, number: int, some: Sequence[Any], rows: list[int], sizes: list[int], indices: list[int]
    ) -> Adding:
        total = self._assembled.recursion.totals[number]
        offset, row = len(indices), sizes[total.gives]
        if total.start is not None:
            indices += [rows[start] for _, _, start, _ in some]
        indices += [rows[item] for _, _, _, items in some for item in items]
        indices += [place for place, unit in enumerate(some) for _ in unit[3]]
        for place, unit in enumerate(some, row):
            rows[unit[1]] = place
        sizes[total.gives] = row + len(some)
        return Adding(number, len(some), sum(len(items) for *_, items in some), offset, row)


def _stacked(values: list[Any], column: Column) -> torch.Tensor:
    if values and isinstance(values[0], torch.Tensor):
        return torch.stack(values)
    return torch.tensor(values, dtype=column.dtype).reshape(-1, *column.shape)


class Unknown(Exception):
    """A call takes a way that was not seen."""


_SCOPE: dict[str, Any] = {
    "BROKEN": BROKEN,
    "Unknown": Unknown,
    "MISS": Unknown,
    "same_keys": same_keys,
    "same_value": same_value,
    "item": read_item,
    "same": operator.is_,
}


def _checked(
    way: Way, needs: dict[Any, tuple[int, Origin]], names: dict[str, Any]
) -> tuple[_WaySource, list[list[str]]]:
    """The lines that check whether a call takes this way, and the texts of what its calls are given."""
    source = _WaySource(needs, names)
    for number, parameter in enumerate(way.parameters):
        source.give(Origin.parameter(parameter), f"p{number}")
    for origin in way.given.values():
        source.fail_if(f"{source.value(origin)} is not {source.object(TENSOR)}")
    for assumption in _own(way):
        if isinstance(assumption, TensorKind):
            held, detail = source.object(_held), source.object(assumption.detail)
            source.fail_if(f"not {held}({source.value(assumption.origin)}, {detail})")
        else:
            source.require(assumption)
    source.require_alike()
    source.require_same_items()
    passed = [[given_text(source, recipe) for _, recipe in site.event.given] for site in way.sites]
    source.flush()
    return source, passed


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
