"""Assembles the variants of a recursion: which buffers its cells share, and the metadata of their rows.

Independent of trees and of how cells run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from torchjanus.core.access_path import AccessPath
from torchjanus.core.errors import NOWHERE, Place, Refused, refused
from torchjanus.graph.ir.program import Ref
from torchjanus.graph.recursion.variants.plan import Buffer, Cell, Column, Recursion, Reduction
from torchjanus.graph.recursion.variants.reads import is_read, result_key
from torchjanus.graph.recursion.variants.row_uses import lone_takes, taken_once
from torchjanus.graph.recursion.variants.segments import Segment
from torchjanus.graph.recursion.variants.variant import Variant
from torchjanus.graph.recursion.variants.writes import Write
from torchjanus.trace.facts import HeapRead

__all__ = ["TRUTH", "AssembledRecursion", "UnequalTerms", "assemble"]

MAX_CELLS = 20  # tracing a cell takes about a second
TRUTH = ("truth",)  # key of the buffer of predicates that have to be true


class UnequalTerms(Exception):
    """The terms of a sum at one place of the program differ in size."""

    def __init__(self, place: Place) -> None:
        super().__init__(str(place))
        self.place = place


@dataclass(slots=True)
class AssembledRecursion:
    """A recursion and what it was assembled from. ``cell_of``: (variant, segment) -> cell; ``total_of``: (variant,
    reduction of the variant) -> reduction; ``examples``: one segment of each cell; ``buffers``: key of a value ->
    buffer; ``shared``: where the step finds the tensors that all calls share; ``writes``: what calls write; ``stored``:
    (variant, write) -> buffer of the written value."""

    recursion: Recursion
    variants: list[Variant]
    cell_of: dict[tuple[int, int], int]
    total_of: dict[tuple[int, int], int]
    examples: list[tuple[Variant, Segment]]  # by cell
    buffers: dict[Any, int]
    shared: list[AccessPath]
    writes: list[Write]
    stored: dict[tuple[int, int], int]

    @property
    def forms(self) -> tuple[Any, ...]:
        return (*(part.form for _, part in self.examples), *self.recursion.totals)


class _UnionFind:
    """A union-find structure: keys of values that have to be rows of one buffer."""

    def __init__(self) -> None:
        self._above: dict[Any, Any] = {}

    def of(self, key: Any) -> Any:
        """Return the representative of the key's class."""
        above = self._above.setdefault(key, key)
        while above != key:
            key, above = above, self._above[above]
        return key

    def members(self) -> list[Any]:
        """Return all keys that were looked up or joined."""
        return list(self._above)

    def join(self, one: Any, other: Any) -> None:
        self._above[self.of(one)] = self.of(other)


def assemble(
    variants: Sequence[Variant],
    shared: dict[Any, torch.Tensor],
    seeds: Sequence[Any],
    roots: Sequence[Any],
    lists: Sequence[int] = (),
    several: bool = False,
    reached: frozenset[Any] = frozenset(),
) -> AssembledRecursion:
    """Assemble variants into one recursion. Raises Refused, and UnequalTerms. ``shared``: examples of all tensors that
    the step offers, by token of their access path; ``seeds``: keys of the arguments that the step passes; ``roots``:
    keys of the results that it takes; ``lists``: for each of its lists the number by which calls know it; ``several``:
    whether an argument may be passed to several calls; ``reached``: tokens of the shared tensors that have
    gradients."""
    _refuse_read_back(variants)
    forms: dict[Any, int] = {}
    examples: list[tuple[Variant, Segment]] = []
    cell_of: dict[tuple[int, int], int] = {}
    for variant in variants:
        for number, part in enumerate(variant.parts):
            if part.form not in forms:
                forms[part.form] = len(forms)
                examples.append((variant, part))
            cell_of[variant.number, number] = forms[part.form]
    folds: dict[Any, int] = {}
    total_of = {
        (variant.number, n): folds.setdefault(fold.form, len(folds))
        for variant in variants
        for n, fold in enumerate(variant.folds)
    }
    if len(examples) > MAX_CELLS:
        what = f"{len(examples)} bodies would have to be made for calls of {variants[0].name}"
        raise refused(
            "recursion-too-many-variants",
            what,
            "Nodes differ too much.",
            "Let nodes be of fewer kinds.",
            variants[0].place,
        )
    access_paths = {access_path.token: access_path for _, part in examples for _, access_path in part.shared}
    for token, access_path in access_paths.items():
        if token not in shared:
            raise refused("recursion-unseen", f"the step does not hold {access_path}", "Recursive calls use it.")
    order = list(access_paths)
    classes = _classes(variants, cell_of, total_of)
    numbers: dict[Any, int] = {}

    def number_of(key: Any) -> int:
        return numbers.setdefault(classes.of(key), len(numbers))

    takes = [[number_of(("take", n, k)) for k in range(len(part.takes))] for n, (_, part) in enumerate(examples)]
    gives = [[number_of(("give", n, k)) for k in range(len(part.gives))] for n, (_, part) in enumerate(examples)]
    firsts = [number_of(key) for key in seeds]
    lasts = [number_of(key) for key in (*roots, *(("list", number) for number in lists))]
    buffers = {key: numbers[classes.of(key)] for key in classes.members() if classes.of(key) in numbers}
    functions = [part.function(order) for _, part in examples]
    tensors = [shared[token] for token in order]
    known = {buffers[key]: _row(variants, key) for key in seeds}
    totals = tuple(
        Reduction(
            str(form[1]),
            None if form[2] else number_of(("start", n)),
            number_of(("item", n)),
            number_of(("total", n)),
            form[3],
        )
        for n, form in enumerate(folds)
    )
    rows = _rows(examples, functions, takes, gives, tensors, known, len(numbers), totals, [f[1] for f in folds])

    def buffer_of(variant: Variant, ref: Ref) -> int:
        return numbers[classes.of(_key_of(variant, ref, cell_of, total_of))]

    once = taken_once(variants, buffer_of, len(numbers))
    if several:
        once = [single and number not in known for number, single in enumerate(once)]
    rows = tuple(replace(row, once=single) for row, single in zip(rows, once, strict=True))
    alone = lone_takes(variants, cell_of, takes, buffer_of)
    made = tuple(
        Cell(
            f"{variant.name} ({variant.place}), stage {part.stage}",
            function,
            tuple(taken),
            tuple(_column(variant, kind, number) for kind, number in part.columns),
            tuple(given),
            lone,
            (part.form, *(order.index(access_path.token) for _, access_path in part.shared)),
        )
        for (variant, part), function, taken, given, lone in zip(examples, functions, takes, gives, alone, strict=True)
    )
    truths = (buffers[TRUTH],) if TRUTH in buffers else ()
    writes = {
        (variant.number, n): write
        for variant in variants
        for n, write in enumerate(variant.writes)
        if write.list is None
    }
    stored = {
        key: _buffer_of(variants, key, cell_of, total_of, buffers)
        for key, write in writes.items()
        if write.ref is not None
    }
    kept = tuple(sorted(set(stored.values())))
    sides = [(side, (variant.number, n)) for variant in variants for n, side in enumerate(variant.sides)]
    recursion = Recursion(
        made,
        rows,
        tuple(tensors),
        tuple(dict.fromkeys(firsts)),
        tuple(lasts),
        truths,
        kept,
        totals,
        len(lists),
        tuple(buffers["taking", *key] for side, key in sides if side.tensors <= reached),
        tuple(buffers["taking", *key] for side, key in sides if not side.tensors <= reached),
    )
    offered = [access_paths[token] for token in order]
    return AssembledRecursion(
        recursion, list(variants), cell_of, total_of, examples, buffers, offered, list(writes.values()), stored
    )


def _refuse_read_back(variants: Sequence[Variant]) -> None:
    """Raise Refused if calls read what calls write."""
    written = {write.name: variant for variant in variants for write in variant.writes}
    read = {name for variant in variants for name in variant.names_read} if written else set()
    for name, variant in written.items():
        if is_read(name, read):
            what = f"calls of {variant.name} write what calls read"
            raise refused(
                "recursion-reads-writes",
                what,
                "They are run many at a time, in another order.",
                "Return it.",
                variant.place,
            )


def _buffer_of(
    variants: Sequence[Variant],
    key: tuple[int, int],
    cell_of: dict[tuple[int, int], int],
    total_of: dict[tuple[int, int], int],
    buffers: dict[Any, int],
) -> int:
    variant = next(variant for variant in variants if variant.number == key[0])
    ref = variant.writes[key[1]].ref
    assert ref is not None
    return buffers[_key_of(variant, ref, cell_of, total_of)]


def _classes(
    variants: Sequence[Variant], cell_of: dict[tuple[int, int], int], total_of: dict[tuple[int, int], int]
) -> _UnionFind:
    """Return the classes of values that share a buffer."""
    classes = _UnionFind()

    def key_of(variant: Variant, ref: Ref) -> Any:
        return _key_of(variant, ref, cell_of, total_of)

    for variant in variants:
        for number, fold in enumerate(variant.folds):
            total = total_of[variant.number, number]
            if fold.start is not None:
                classes.join(("start", total), key_of(variant, fold.start))
            for ref in fold.items:
                classes.join(("item", total), key_of(variant, ref))
        for number, part in enumerate(variant.parts):
            for which, ref in enumerate(part.takes):
                classes.join(("take", cell_of[variant.number, number], which), key_of(variant, ref))
        for which, ref in enumerate(variant.results):
            classes.join(("result", variant.callee, variant.made, which), key_of(variant, ref))
        for ref in variant.truths:
            classes.join(TRUTH, key_of(variant, ref))
        for number, ref in enumerate(variant.takings):
            classes.join(("taking", variant.number, number), key_of(variant, ref))
        for write in variant.writes:
            if write.list is not None and write.ref is not None:
                classes.join(("list", write.list), key_of(variant, write.ref))
        for site in variant.sites:
            for token, ref in site.args:
                classes.join(("argument", site.event.callee, token), key_of(variant, ref))
    return classes


def _key_of(
    variant: Variant, ref: Ref, cell_of: dict[tuple[int, int], int], total_of: dict[tuple[int, int], int]
) -> Any:
    """Return the key of a tensor that is a row: an argument, a result, an output of a cell or a reduction."""
    source = variant.source_of(ref)
    match source[0]:
        case "call":
            return result_key(variant.sites[source[1]].event, source[2])
        case "argument":
            return ("argument", variant.callee, source[1])
        case "part":
            return ("give", cell_of[variant.number, source[1]], source[2])
        case "fold":
            return ("total", total_of[variant.number, source[1]])
    raise AssertionError(f"{ref} is no row")


def _row(variants: Sequence[Variant], key: Any) -> torch.Tensor:
    """Return an example of a row that the step supplies."""
    _, callee, token = key
    for variant in variants:
        if variant.callee == callee:
            for event in variant.trace.events:
                if isinstance(event, HeapRead) and event.access_path.token == token and event.kind == "tensor":
                    value: torch.Tensor = event.value
                    grad = value.is_floating_point()
                    return torch.empty(value.size(), dtype=value.dtype, device=value.device).requires_grad_(grad)
    raise refused("recursion-unseen", "a recursive call is given a tensor that none was seen to use")


def _column(variant: Variant, kind: str, number: int) -> Column:
    if number in variant.picks and kind == "tensor":
        return variant.picks[number].column
    if kind == "tensor":
        example = variant.plan.program.inputs[number].example
        if example.requires_grad:
            what = f"nodes hold a tensor that requires gradients ({variant.plan.access_paths[number]})"
            raise refused(
                "recursion-node-parameter",
                what,
                "Only shared tensors and those passed on have gradients.",
                place=variant.place,
            )
        return Column(tuple(example.size()), example.dtype)
    return Column((), torch.float64 if variant.number_at(number)[0] is float else torch.int64)


def _rows(
    cells: Sequence[tuple[Variant, Segment]],
    functions: Sequence[Callable[..., Sequence[torch.Tensor]]],
    takes: Sequence[Sequence[int]],
    gives: Sequence[Sequence[int]],
    shared: Sequence[torch.Tensor],
    seeds: dict[int, torch.Tensor],
    count: int,
    totals: Sequence[Reduction],
    places: Sequence[Place],
) -> tuple[Buffer, ...]:
    """Return the buffers: run the cells on fake tensors until a fixpoint of the rows' metadata is reached."""
    known: dict[int, Buffer] = {}
    for number, example in seeds.items():
        _settle(known, number, example, None)
    changed = True
    with _disable_current_modes(), FakeTensorMode(allow_non_fake_inputs=True), torch.enable_grad():
        fakes = [_blank(tuple(t.size()), t.dtype, t.device, t.requires_grad) for t in shared]
        while changed:
            changed = False
            for (variant, part), function, taken, given in zip(cells, functions, takes, gives, strict=True):
                if any(number not in known for number in taken):
                    continue
                rows = [_blank(b.shape, b.dtype, b.device, b.differentiable) for b in map(known.__getitem__, taken)]
                columns = [_column(variant, kind, number) for kind, number in part.columns]
                rows += [_blank(c.shape, c.dtype, torch.device("cpu"), False) for c in columns]
                try:
                    made = function(fakes, rows)
                except Refused as error:
                    if error.refusal.place is not NOWHERE:
                        raise
                    raise Refused(replace(error.refusal, place=part.place or variant.place)) from error
                except Exception as error:
                    what = f"{variant.name} cannot be computed for many calls at a time"
                    why = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
                    raise refused("recursion-body", what, why, place=variant.place) from error
                for number, value in zip(given, made, strict=True):
                    changed = _settle(known, number, value, variant) or changed
            for total, place in zip(totals, places, strict=True):
                changed = _added_up(known, total, place) or changed
    if len(known) < count:
        raise refused("recursion-unseen", "a recursion has no end that was seen", "Nothing returns.")
    return tuple(known[number] for number in range(count))


def _added_up(known: dict[int, Buffer], total: Reduction, place: Place) -> bool:
    """Record the metadata of a reduction's result. Return whether it changed. Raises UnequalTerms."""
    parts = [known.get(number) for number in (total.start, total.items) if number is not None]
    if any(part is None for part in parts):
        return False
    buffers = [part for part in parts if part is not None]
    # A sum of integers may have a wider type than its terms.
    if len({(part.shape, part.dtype, part.device) for part in buffers}) > 1 or not buffers[0].dtype.is_floating_point:
        raise UnequalTerms(place)
    flows = total.grad and any(part.differentiable for part in buffers)
    one = buffers[-1]
    return _settle(known, total.gives, _blank(one.shape, one.dtype, one.device, flows), None)


def _settle(known: dict[int, Buffer], number: int, value: torch.Tensor, variant: Variant | None) -> bool:
    """Record that such a row goes into the buffer. Return whether the buffer's metadata changed. Raises Refused."""
    made = Buffer(tuple(value.size()), value.dtype, value.device, value.requires_grad)
    before = known.get(number)
    if before is not None:
        if (before.shape, before.dtype, before.device) != (made.shape, made.dtype, made.device):
            what = f"recursive calls pass on tensors of sizes {list(before.shape)} and {list(made.shape)}"
            place = NOWHERE if variant is None else variant.place
            raise refused(
                "recursion-sizes", what, "Many are one tensor, a row each.", "Let them be of one size.", place
            )
        made = replace(made, differentiable=before.differentiable or made.differentiable)
    known[number] = made
    return made != before


def _blank(size: Sequence[int], dtype: torch.dtype, device: torch.device, grad: bool) -> torch.Tensor:
    return torch.empty(size, dtype=dtype, device=device).requires_grad_(grad)
