"""Which rows at most one call uses: their gradients need no accumulation.

Determined from the variants, independent of the trees: one call computes each row, and uses it, returns it or passes it
on. Independent of how cells run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from torchjanus.graph.ir.program import Ref
from torchjanus.graph.recursion.variants.variant import Variant

__all__ = ["lone_takes", "taken_once"]

BufferOf = Callable[[Variant, Ref], int]


def taken_once(variants: Sequence[Variant], buffer_of: BufferOf, buffers: int) -> list[bool]:
    """Return for each buffer whether each of its rows is used at most once: each call that has a row uses it once."""
    once = [True] * buffers
    for variant in variants:
        used = [ref for part in variant.parts for ref in part.takes]
        used += [ref for fold in variant.folds for ref in (fold.start, *fold.items) if ref is not None]
        used += [ref for site in variant.sites for _, ref in site.args]
        used += variant.results
        used += variant.appended
        counts = Counter(variant.source_of(ref) for ref in used)
        for ref in used:
            if counts[variant.source_of(ref)] > 1:
                once[buffer_of(variant, ref)] = False
    return once


def lone_takes(
    variants: Sequence[Variant],
    cell_of: dict[tuple[int, int], int],
    takes: Sequence[Sequence[int]],
    buffer_of: BufferOf,
) -> list[tuple[bool, ...]]:
    """Return for each of each cell's ``takes`` whether no two calls of a batch use the same row."""
    passed: set[int] = set()  # buffers whose rows may be held by unknown calls
    for variant in variants:
        for site in variant.sites:
            passed.update(buffer_of(variant, ref) for _, ref in site.args)
        # Only the step uses what is appended.
        returned = Counter(variant.source_of(ref) for ref in variant.results)
        for ref in variant.results:
            if variant.source_of(ref)[0] in ("call", "argument") or returned[variant.source_of(ref)] > 1:
                passed.add(buffer_of(variant, ref))
    alone = [[buffer not in passed for buffer in own] for own in takes]
    kinds: list[list[set[bool]]] = [[set() for _ in own] for own in takes]
    for variant in variants:
        met: set[Any] = set()
        for number, part in enumerate(variant.parts):
            cell = cell_of[variant.number, number]
            for place, ref in enumerate(part.takes):
                source = variant.source_of(ref)
                alone[cell][place] &= (cell, place, source) not in met and source[0] != "argument"
                met.add((cell, place, source))
                # A call and its caller may both use, at one level, a row that the call computes and returns.
                kinds[cell][place].add(source[0] == "call")
    return [
        tuple(one and len(some) < 2 for one, some in zip(own, kind, strict=True))
        for own, kind in zip(alone, kinds, strict=True)
    ]
