"""Follows the recursive calls of one run on the host without computing anything.

The functions are generated as Python code that traverses the same objects as the user's code. It matches each call with
a variant by the variant's assumptions, follows the calls that the variant makes, and notes what to compute. Independent
of how cells run.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from torchjanus.core.access_path import AccessPath
from torchjanus.core.errors import InternalFault
from torchjanus.graph.recursion.cells.buffers import AssembledRecursion
from torchjanus.graph.recursion.traversal.expressions import held_text, list_text, picking, slot_text
from torchjanus.graph.recursion.traversal.matching import room_within
from torchjanus.graph.recursion.traversal.notes import CallNotes, Unit, UnitRow
from torchjanus.graph.recursion.traversal.schedule import NoSuchRow, TraversalNotes, lay_out
from torchjanus.graph.recursion.traversal.text import (
    SCOPE,
    MatchedVariant,
    UnseenVariant,
    VariantSource,
    branches,
    by_size,
    checked,
    given_text,
    number_text,
)
from torchjanus.graph.recursion.variants.counts import counting_text
from torchjanus.graph.recursion.variants.gradients import Used
from torchjanus.graph.recursion.variants.plan import LevelSchedule
from torchjanus.graph.recursion.variants.reads import Written, numbers_made
from torchjanus.graph.recursion.variants.variant import Variant
from torchjanus.graph.recursion.variants.writes import Write
from torchjanus.host.checks import BROKEN
from torchjanus.host.embed import compile_with_constants
from torchjanus.trace.actions import HeapWrite, place_of
from torchjanus.trace.recipes import Number

__all__ = ["EntryCall", "HostTraversal", "with_aliases"]


@dataclass(frozen=True, slots=True)
class EntryCall:
    """An entry call: a recursive call that the step makes.

    ``seeds``: for each tensor it passes the token of the callee's access path, the buffer, and the index among the rows
    that the step supplies. ``lists``: for each list to which the callee appends, by the callee's number, the index of
    the step's list; None if nothing is appended to it; the complement of the index of a counter. ``each``: among so
    many ``parameters``, the positions of the lists for each of whose elements the call is made; empty for a single
    call. ``never``: variants that it may not take; ``even``: those lists must have equal lengths; ``used``: the results
    and appended values to which gradients may flow (see ``variants.gradients``).
    """

    callee: Any
    made: Any
    seeds: tuple[tuple[Any, int, int], ...]
    lists: tuple[int | None, ...] = ()
    each: tuple[int, ...] = ()
    parameters: int = 0
    never: frozenset[int] = frozenset()
    even: bool = False
    used: Used = frozenset()


class HostTraversal:
    """The host traversal of one recursion. ``reads``: the access paths of the step's values that it needs."""

    def __init__(
        self,
        assembled: AssembledRecursion,
        roots: Sequence[EntryCall],
        counts: Sequence[int],
        reached: frozenset[Any],
        needs: dict[Any, tuple[int, AccessPath]],
        excluded: Mapping[Any, frozenset[int]],
        exact: bool = False,
        written: Sequence[Written] = (),
        alike: Mapping[Any, frozenset[Any]] = MappingProxyType({}),
        tables: Sequence[Any] = (),
    ) -> None:
        """``counts``: rows that the step supplies of each seed; ``reached``: the shared tensors that each run has to
        use, exactly these, since a parameter that no call uses has no gradient; ``needs``: what the step reads in any
        case; ``excluded``: for functions that return results of inner calls, the variants that those inner calls may
        not take; ``exact``: decide the use of shared tensors by the gradient flow of each call, not by cell;
        ``written``: what the step changes before, which calls must not read; ``alike``: for each token of a shared
        tensor all tokens of the same tensor; ``tables``: tokens of the tensors of which the largest picked row is
        noted."""
        self._tables = {token: number for number, token in enumerate(tables)}
        self._exact = exact
        self._written_before = written
        self._alike = alike
        self._assembled = assembled
        self._roots = tuple(roots)
        self.needs = needs
        self._excluded = excluded
        recursion = assembled.recursion
        self._counts = list(counts)
        shared = zip(assembled.shared, recursion.shared, strict=True)
        tokens = {access_path.token for access_path, tensor in shared if tensor.requires_grad}
        self._wanted, self._tokens = reached & tokens, tokens
        self._used = [
            {o.token for o in part.flowing if o.token in reached or o.token not in variant.sometimes} & tokens
            for variant, part in assembled.examples
        ]
        self._complete: dict[tuple[int, ...], bool] = {}
        self._rows_written = [write.ref is not None for write in assembled.writes]
        self._follow = self._written()

    @property
    def reads(self) -> list[AccessPath]:
        """The access paths of the step's values that ``walk`` takes, in this order."""
        return [access_path for _, access_path in self.needs.values()]

    def walk(
        self, step: Sequence[Any], given: Sequence[tuple[Any, ...]], starts: Sequence[Any] = ()
    ) -> LevelSchedule | None:
        """Return the LevelSchedule of these calls, or None if one takes an unknown variant or goes deeper than eager
        could. ``given``: the arguments of each entry call; ``starts``: the values of the counters before the first
        call."""
        try:
            noted, met = self._follow(step, given, starts, room_within(sys.getrecursionlimit()))
        except (UnseenVariant, RecursionError, ArithmeticError):
            return None
        except BROKEN as error:
            raise InternalFault(f"the calls of {self._roots[0].callee} cannot be followed: {error!r}") from error
        cells = tuple(number for number, some in enumerate(noted.units) if any(some.values()))
        if not (self._gradients_reach_all(met) if self._exact else self._reaches_all(cells)):
            return None
        try:
            forest = lay_out(self._assembled.recursion, self._counts, noted, self._rows_written)
        except NoSuchRow:
            return None
        forest.bounds = noted.bounds
        forest.counts = [count for (count,) in noted.counts]
        forest.numbers = [made[self._assembled.recursion.by_root :] for made in noted.results]
        return forest

    def _reaches_all(self, cells: tuple[int, ...]) -> bool:
        """Whether these cells use exactly the parameters that have to be used."""
        known = self._complete.get(cells)
        if known is None:
            reached = {token for cell in cells for token in self._used[cell]}
            known = self._complete[cells] = self._wanted == with_aliases(reached, self._alike) & self._tokens
        return known

    def _gradients_reach_all(self, met: Iterable[tuple[int, Used]]) -> bool:
        """Return the same by gradient flow: ``met`` holds the variants taken, each with the results in use."""
        gradients = {variant.number: variant.gradients for variant in self._assembled.variants}
        found = [gradients[number].flow(used)[0] for number, used in met]
        return with_aliases(frozenset().union(*found), self._alike) & self._tokens == self._wanted

    # -- code generation ----------------------------------------------------------------------------------------

    def _written(self) -> Any:
        """Generate and compile the traversal."""
        names: dict[str, Any] = {}
        variants: dict[Any, list[Variant]] = {}
        for variant in self._assembled.variants:
            variants.setdefault(variant.callee, []).append(variant)
        self._functions = {callee: f"f{number}" for number, callee in enumerate(variants)}
        # For each function the tensor arguments in use, whose row numbers are passed along.
        self._leaves: dict[Any, dict[Any, int]] = {}
        for key in self._assembled.buffers:
            if key[0] == "argument":
                leaves = self._leaves.setdefault(key[1], {})
                leaves[key[2]] = len(leaves)
        lines = ["def follow(step, roots, starts, limit):"]
        lines += [f"    {line}" for line in self._notebook()]
        for callee, own in variants.items():
            lines += self._function(callee, own, names)
        firsts = self._assembled.recursion.seeds
        begun = {buffer: sum(self._counts[:number]) for number, buffer in enumerate(firsts)}
        results = []
        for number, root in enumerate(self._roots):
            rows = {token: begun[buffer] + row for token, buffer, row in root.seeds}
            passed = [str(rows.get(token, 0)) for token in self._leaves.get(root.callee, ())]
            name = self._functions[root.callee]
            names[f"U{number}"] = root.used
            first = ["0", f"U{number}"] if self._exact else ["0"]
            lines += [f"    q{n} = {list_text(which)}" for n, which in enumerate(root.lists)]
            kinds = self._kinds(root.callee, root.made, root.never)
            if root.each:
                lines += self._each(number, root, f"{name}({', '.join([*first, *passed])}", kinds)
            else:
                lines.append(f"    w{number}, *r{number} = {name}({', '.join([*first, *passed, f'*roots[{number}]'])})")
                lines.append(f"    if w{number} not in {kinds}: raise UnseenVariant")
            lines += [f"    if q{n}: raise UnseenVariant" for n, which in enumerate(root.lists) if which is None]
            results.append(f"r{number}")
        noted = f"level, units, columns, sums, terms, [{', '.join(results)}], written, lists, counts, bounds"
        lines.append(f"    return TraversalNotes({noted}), met")
        scope: dict[str, Any] = {**SCOPE, "TraversalNotes": TraversalNotes, "levels": defaultdict}
        compile_with_constants("\n".join(lines), "<torchjanus walk>", names, scope)
        return scope["follow"]

    @staticmethod
    def _each(number: int, root: EntryCall, call: str, kinds: str) -> Iterator[str]:
        """Yield the loop that makes the entry call for each element of some lists."""
        names = [f"x{place}" for place in root.each]
        lists = ", ".join(f"roots[{number}][{place}]" for place in root.each)
        if root.even and len(names) > 1:
            first, *others = (f"len(roots[{number}][{place}])" for place in root.each)
            yield f"    if not ({' == '.join([first, *others])}): raise UnseenVariant"
        given = "".join(f", x{n}" if n in root.each else f", roots[{number}][{n}]" for n in range(root.parameters))
        yield f"    for {', '.join(names)} in {f'zip({lists})' if len(names) > 1 else lists}:"
        yield f"        if {call}{given})[0] not in {kinds}: raise UnseenVariant"
        yield f"    r{number} = []"

    def _notebook(self) -> Iterator[str]:
        """Yield the definitions of the note containers. Methods that each node calls get local names."""
        recursion = self._assembled.recursion
        cells, totals = range(len(recursion.cells)), range(len(recursion.totals))
        yield f"level = [0] * {sum(self._counts)}; rise = level.append; climb = level.extend"
        yield f"units = [{', '.join('levels(list)' for _ in cells)}]"
        columns = (", ".join("levels(list)" for _ in cell.columns) for cell in recursion.cells)
        yield f"columns = [{', '.join(f'[{texts}]' for texts in columns)}]"
        lists = ", ".join("levels(list)" for _ in totals)
        yield f"sums = [{lists}]; terms = [{lists}]"
        yield f"met = set(); written = []; lists = [{', '.join('[]' for _ in range(recursion.lists))}]"
        yield f"bounds = {[0] * len(self._tables)}"
        yield "counts = [[start] for start in starts]"
        yield from (f"q{n} = []" for n in range(max((len(root.lists) for root in self._roots), default=0)))
        for n, cell in enumerate(recursion.cells):
            at = "" if cell.takes else "[0].append"  # a cell without input rows runs at level 0 only
            yield f"u{n} = units[{n}]{at}"
            yield from (f"k{n}_{place} = columns[{n}][{place}]{at}" for place in range(len(cell.columns)))
        for n in totals:
            yield f"t{n} = sums[{n}]; i{n} = terms[{n}]"

    def _kinds(self, callee: Any, made: Any, never: frozenset[int] = frozenset()) -> str:
        """Return a tuple expression of the callee's variants whose results have the structure ``made``."""
        variants = (w.number for w in self._assembled.variants if w.callee == callee and w.made == made)
        return f"({''.join(f'{number}, ' for number in variants if number not in never)})"

    def _function(self, callee: Any, variants: list[Variant], names: dict[str, Any]) -> Iterator[str]:
        """Yield the function that follows calls of ``callee``."""
        leaves = [f"a{number}" for number in range(len(self._leaves.get(callee, ())))]
        parameters = [f"p{number}" for number in range(len(variants[0].parameters))]
        flag = ["g"] if self._exact else []  # the results to which gradients flow
        yield f"    def {self._functions[callee]}({', '.join(['d', *flag, *leaves, *parameters])}):"
        yield "        if d > limit: raise UnseenVariant"
        entered = sorted(set().union(*(variant.entered for variant in variants)))
        yield from (f"        y{n} = q{n}[0]" for n in entered)
        yield from branches([self._variant(variant, names) for variant in by_size(variants)])
        yield "        raise UnseenVariant"

    def _variant(self, variant: Variant, names: dict[str, Any]) -> MatchedVariant:
        """Return the checks and the body of one variant."""
        source, passed = checked(variant, self.needs, names, self._written_before)
        if self._exact and variant.sites:
            names[f"F{variant.number}"] = variant.gradients.flow
        columns = [
            [
                slot_text(source, variant.number_at(n)[1]) if kind == "slot" else held_text(source, variant, n)
                for kind, n in part.columns
            ]
            for part in variant.parts
        ]
        written = [
            ("", "")
            if write.list is not None and not write.counts
            else ("", self._value(source, write))
            if write.list is not None
            else (source.value(write.event.base), self._value(source, write) if write.ref is None else "None")
            for write in variant.writes
        ]
        numbers = [given_text(source, recipe) for recipe in variant.numbers]
        picked = [
            (self._tables[token], slot_text(source, variant.number_at(slot)[1]))
            for token, slots in variant.tables.items()
            for slot in (slots or () if token in self._tables else ())
        ]
        source.flush()
        body = (*picking(picked), *self._body(variant, passed, columns, written, numbers))
        return MatchedVariant(tuple(source.lines), body)

    def _body(
        self,
        variant: Variant,
        passed: list[list[str]],
        columns: list[list[str]],
        written: list[tuple[str, str]],
        numbers: list[str],
    ) -> Iterator[str]:
        """Yield the statements that note a call that takes this variant."""
        if self._exact:
            yield f"met.add(({variant.number}, g))"
            if variant.sites:
                yield f"_, e = F{variant.number}(g)"
        stretch, units = CallNotes(), list[Unit]()
        for kind, number in (*variant.order, ("end", 0)):
            if kind == "part":
                units.append(self._part(variant, number, columns[number]))
            elif kind == "fold":
                units.append(self._fold(variant, number))
            else:
                yield from stretch.noted(units)
                units.clear()
            if kind == "site":
                yield from self._writes(variant, written, number)
                yield from self._call(variant, number, passed[number], stretch)
        yield from self._writes(variant, written, len(variant.sites))
        for n, write in enumerate(variant.writes):
            if write.ref is not None and write.list is None:
                yield f"n{n}[2] = {stretch.row(self._row(variant, write.ref))}"
            elif write.ref is not None:
                yield f"q{write.list}[n{n}] = {stretch.row(self._row(variant, write.ref))}"
        found = [stretch.row(self._row(variant, ref)) for ref in variant.results]
        yield f"return ({''.join(f'{text}, ' for text in [str(variant.number), *found, *numbers])})"

    def _part(self, variant: Variant, number: int, columns: list[str]) -> Unit:
        """Return the notes of one segment of the variant."""
        part, cell = variant.parts[number], self._assembled.cell_of[variant.number, number]
        takes = [self._row(variant, ref) for ref in part.takes]
        rows = ", ".join(f"{{{place}}}" for place in range(len(takes)))
        line = f"u{cell}[{{level}}].extend(({{row}}, {rows}))" if takes else f"u{cell}({{row}})"
        at = "[{level}].append" if takes else ""
        texts = (text.replace("{", "{{").replace("}", "}}") for text in columns)
        lines = (line, *(f"k{cell}_{place}{at}({text})" for place, text in enumerate(texts)))
        return Unit(f"part{number}", takes, len(part.gives), lines)

    def _fold(self, variant: Variant, number: int) -> Unit:
        """Return the notes of one reduction of the variant."""
        fold, total = variant.folds[number], self._assembled.total_of[variant.number, number]
        begin = 0 if fold.start is None else 1
        takes = [self._row(variant, ref) for ref in ((fold.start,) if fold.start is not None else ()) + fold.items]
        terms = "".join(f"{{{place}}}, " for place in range(begin, len(takes)))
        lines = (
            f"t{total}[{{level}}].extend(({{row}}, {'{0}' if begin else '0'}, {len(fold.items)}))",
            f"i{total}[{{level}}].extend(({terms}))",
        )
        return Unit(f"fold{number}", takes, 1, lines)

    def _call(self, variant: Variant, number: int, passed: list[str], stretch: CallNotes) -> Iterator[str]:
        """Yield the statements that follow a call that the variant makes."""
        site = variant.sites[number]
        callee = site.event.callee
        by_token = dict(site.args)
        rows = [
            stretch.row(self._row(variant, by_token[token])) if token in by_token else "0"
            for token in self._leaves.get(callee, ())
        ]
        flag = [f"e[{number}]"] if self._exact else []
        inner = ", ".join([f"d + {site.frames}", *flag, *rows, *passed])
        yield f"c{number} = {self._functions[callee]}({inner})"
        never = self._excluded.get(variant.callee, frozenset()) if number in variant.handing else frozenset()
        kinds = self._kinds(callee, site.event.made, never)
        if len([w for w in self._assembled.variants if w.callee == callee]) > kinds.count(","):
            yield f"if c{number}[0] not in {kinds}: raise UnseenVariant"
        numbers = [f"v{number}_{which}" for which in range(len(numbers_made(site.event.made)))]
        if site.outs or numbers:
            rows = [f"c{number}_{which}" for which in range(len(site.outs))]
            yield f"_, {', '.join([*rows, *numbers])} = c{number}"

    def _writes(self, variant: Variant, texts: list[tuple[str, str]], before: int) -> Iterator[str]:
        """Yield the notes of the writes that eager makes after ``before`` calls. Rows are filled in later."""
        for n, (write, (target, value)) in enumerate(zip(variant.writes, texts, strict=True)):
            if write.before == before and write.list is not None and write.counts:
                yield f"q{write.list}[0] = ({value})(q{write.list}[0])"
            elif write.before == before and write.list is not None:
                yield f"n{n} = len(q{write.list}); q{write.list}.append(0)"
            elif write.before == before:
                number = next(k for k, known in enumerate(self._assembled.writes) if known is write)
                yield f"n{n} = [{number}, {target}, {value}]; written.append(n{n})"

    @staticmethod
    def _value(source: VariantSource, write: Write) -> str:
        """Return the expression of the written value; of a counter, a function of the value before."""
        if not write.counts:
            return given_text(source, write.value)
        event = write.event
        place = place_of(event) if isinstance(event, HeapWrite) else event.base
        if not isinstance(write.value, Number):
            return f"lambda c: {given_text(source, write.value)}"
        return counting_text(write.value.expr, place.token, partial(number_text, source), source.object)

    def _row(self, variant: Variant, ref: Any) -> UnitRow | str:
        """Return the row of a tensor: of an argument, of a call's result, or computed by a unit of this call."""
        match variant.source_of(ref):
            case ("argument", token):
                return f"a{self._leaves[variant.callee][token]}"
            case ("call", site, which):
                return f"c{site}_{which}"
            case ("part" | "fold" as kind, number, which):
                return UnitRow(f"{kind}{number}", which)
        raise AssertionError(f"{ref} is no row")


def with_aliases(tokens: Iterable[Any], alike: Mapping[Any, frozenset[Any]]) -> frozenset[Any]:
    """Return these tokens of shared tensors and all other tokens of the same tensors."""
    return frozenset().union(*(alike.get(token, frozenset({token})) for token in tokens))
