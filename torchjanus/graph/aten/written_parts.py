"""Parts of tensors of which parts were written, found without what was written elsewhere.

Functionalisation writes a part (``slice_scatter``) and takes all parts anew from the result. A part that was not
written is one of the tensor before; one that was is what was written, where it does not matter how that lies in memory:
what is computed several numbers at a time (a sigmoid) has other last bits where it has gaps. Knows nothing of programs.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch

__all__ = ["find_parts"]

aten = torch.ops.aten

# Each operation rounded once, element by element: the same wherever the elements lie.
_EXACT = (
    aten.add.Tensor,
    aten.sub.Tensor,
    aten.mul.Tensor,
    aten.sigmoid_backward.default,
    aten.tanh_backward.default,
)


def find_parts(graph: torch.fx.Graph) -> None:
    """Take parts by ``split`` from the tensor before, or from what was written, where that gives the same bits."""
    for part in list(graph.nodes):
        if part.target is operator.getitem and part.args[0].target is aten.split.Tensor:
            _find(graph, part)


def _find(graph: torch.fx.Graph, part: torch.fx.Node) -> None:
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
    """The writes of parts along ``dim`` that a tensor comes from, the latest first."""
    while isinstance(source, torch.fx.Node) and source.target is aten.slice_scatter.default:
        _, _, *where = source.args
        if len(where) != 3 or where[0] != dim or not all(isinstance(number, int) for number in where) or source.kwargs:
            return
        yield source
        source = source.args[0]


def _use(part: torch.fx.Node, written: torch.fx.Node) -> None:
    """Let those compute with what was written for whom it is the same."""
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
        return False  # to compare symbols would be to assume something of them
    return all(one >= other for one, other in pairwise(strides))
