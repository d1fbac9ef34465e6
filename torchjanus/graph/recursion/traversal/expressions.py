"""Python expressions, as text, of what the generated traversal reads: lists, held tensors, numbers and picked rows.

In: a variant and the source of its checks. Out: text for the body of the generated functions (see ``traversal``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torchjanus.graph.recursion.traversal.text import VariantSource, number_text
from torchjanus.graph.recursion.variants.variant import Variant
from torchjanus.trace.values import Expr

__all__ = ["held_text", "list_text", "picking", "slot_text"]


def list_text(which: int | None) -> str:
    """Return the expression of one of the step's lists, or of a counter (see ``EntryCall``)."""
    if which is None:
        return "[]"
    return f"lists[{which}]" if which >= 0 else f"counts[{~which}]"


def held_text(source: VariantSource, variant: Variant, number: int) -> str:
    """Return the expression of a tensor that a node holds, or of the (table, row number) of a picked row."""
    pick = variant.picks.get(number)
    if pick is None:
        return source.value(variant.plan.access_paths[number])
    return f"({source.value(pick.table)}, {source.number(pick.number)})"


def slot_text(source: VariantSource, number: Any) -> str:
    """Return the expression of a host-supplied number."""
    return number_text(source, number) if isinstance(number, Expr) else repr(number)


def picking(picked: Iterable[tuple[int, str]]) -> Iterator[str]:
    """Yield the statements that note the number of rows each table needs; a negative row number is an unseen
    variant."""
    for table, text in picked:
        yield f"b = {text}"
        yield "if b < 0: raise UnseenVariant"
        yield f"if b >= bounds[{table}]: bounds[{table}] = b + 1"
