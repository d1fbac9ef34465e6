"""Read parts of partly written tensors without depending on writes to other parts.

Functionalisation writes a part by ``slice_scatter`` and reads all parts from the result. A part that was not written
equals that of the tensor before. One that was written equals the written value, if the user of it does not depend on
the layout: vectorised operations (a sigmoid) round differently on memory with gaps. Knows nothing of programs.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch

__all__ = ["find_parts"]

aten = torch.ops.aten

# Elementwise with one rounding per operation: bitwise equal in every layout.
_EXACT = (
    aten.add.Tensor,
    aten.sub.Tensor,
    aten.mul.Tensor,
    aten.sigmoid_backward.default,
    aten.tanh_backward.default,
)


def find_parts(graph: torch.fx.Graph) -> None:
    """Read parts by ``split`` from the tensor before, or from the written value, where that is bitwise equal."""
    for part in list(graph.nodes):
        if part.target is operator.getitem and part.args[0].target is aten.split.Tensor:
            _find(graph, part)


def _find(graph: torch.fx.Graph, part: torch.fx.Node) -> None:
    """Replace one part of a split by an equal value that does not depend on writes to the other parts."""
    split: Any = part.args[0]
    index: Any = part.args[1]
    source, size, *rest = split.args
    dim = rest[0] if rest else 0
    if not all(isinstance(number, int) for number in (size, dim, index)):
        return
    begin, written = index * size, None
    base = source
    for scatter in _scatters(source, dim):
        if scatter.args[3:5] == (begin, begin + size):
            written = written or scatter
        elif scatter.args[3] % size or scatter.args[4] - scatter.args[3] != size:
            return
        base = scatter.args[0]
    if base is source:
        return
    if written is not None:
        _use(part, written.args[1])
        if not part.users or base is written.args[0]:
            return
    with graph.inserting_before(part):
        if written is not None:
            base = graph.call_function(aten.slice_scatter.default, (base, *written.args[1:]))
            base.meta.update(written.meta)
        other = graph.call_function(aten.split.Tensor, (base, *split.args[1:]))
        other.meta.update(split.meta)
        found = graph.call_function(operator.getitem, (other, index))
        found.meta.update(part.meta)
    part.replace_all_uses_with(found)
    graph.erase_node(part)


def _scatters(source: Any, dim: int) -> Iterator[Any]:
    """Yield the writes of parts along ``dim`` that made a tensor, the latest first."""
    while isinstance(source, torch.fx.Node) and source.target is aten.slice_scatter.default:
        _, _, *where = source.args
        if len(where) != 3 or where[0] != dim or not all(isinstance(number, int) for number in where) or source.kwargs:
            return
        yield source
        source = source.args[0]


def _use(part: torch.fx.Node, written: torch.fx.Node) -> None:
    """Replace the part by the written value in the users for which it is bitwise equal."""
    if not _without_gaps(written) or not _row_by_row(part):
        return
    for user in list(part.users):
        if user.target in _EXACT and not user.kwargs and _without_gaps(user):
            user.replace_input_with(part, written)


def _without_gaps(node: torch.fx.Node) -> bool:
    return _row_by_row(node) and bool(node.meta["val"].is_contiguous())


def _row_by_row(node: torch.fx.Node) -> bool:
    value = node.meta["val"]
    strides = value.stride()
    if not all(isinstance(number, int) for number in (*value.shape, *strides)):
        return False  # comparing symbols would add guards
    return all(one >= other for one, other in pairwise(strides))
