"""Operations whose result sizes depend on the contents of their operands, within a graph.

While a program is traced, such a size is a symbol that the graph takes as an input; guards on it are recorded, and code
that needs its value is refused. Then ``fold`` puts ATen's operation in place and derives the symbol from its result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from torchjanus.core.errors import refused
from torchjanus.graph.operators.loop_op import TAGS, define

__all__ = ["count", "finding", "fold", "found", "found_sizes"]

aten = torch.ops.aten

_POSITIONS, _COUNTS, _REPEATED = "positions", "counts", "repeated"

# Function of torch -> its name in the operator ``found``.
_FINDING: dict[Callable[..., Any], str] = {
    torch.nonzero: _POSITIONS,
    torch.bincount: _COUNTS,
    torch.repeat_interleave: _REPEATED,
}


def finding(func: Any) -> str:
    """Return the name in the operator ``found`` of a function that an extern call makes, "" for all others. Compares by
    identity: the function may be an object of the program's with a ``__hash__`` of its own, or with none."""
    return next((how for known, how in _FINDING.items() if known is func), "")


def found(how: str, given: torch.Tensor, least: int, size: Any) -> torch.Tensor:
    """Return the result of ``_FINDING``'s function of this name, with ``size`` elements.

    That is the positions under a mask, the counts of each number (at least ``least`` of them), or the sources of
    repetitions."""
    made: torch.Tensor = _FOUND(how, given.detach(), least, size)
    return made


def count(given: torch.Tensor, dim: int) -> torch.Tensor:
    """Return the number of selected elements as a tensor, which the host fetches after the graph has run."""
    with torch.no_grad():
        return torch.full((), given.size(dim), dtype=torch.int64, device="cpu")


def _compute(how: str, given: torch.Tensor, least: int, size: int) -> torch.Tensor:
    if how == _POSITIONS:
        return torch.nonzero(given)
    return torch.bincount(given, minlength=least) if how == _COUNTS else torch.repeat_interleave(given)


def _shapes(how: str, given: torch.Tensor, least: int, size: Any) -> torch.Tensor:
    sizes, strides = ((size, given.dim()), (1, size)) if how == _POSITIONS else ((size,), (1,))
    dtype = given.dtype if how == _REPEATED else torch.int64
    return torch.empty_strided(sizes, strides, dtype=dtype, device=given.device)


_FOUND = define("found", "(str how, Tensor given, int least, SymInt size) -> Tensor", _compute, _shapes, TAGS)


def fold(module: torch.fx.GraphModule, sizes: Sequence[torch.fx.Node]) -> None:
    """Make the graph compute these ``sizes``, which it takes as inputs, from the operations' results.

    Raises Refused where a size is used before it is known, or where two sizes taken to be equal may differ."""
    graph = module.graph
    order = {node: place for place, node in enumerate(graph.nodes)}
    for size in sizes:
        finding = [node for node in size.users if node.target is _FOUND]
        if any(node.args != finding[0].args for node in finding) or any(
            not finding or order[user] < order[finding[0]] for user in size.users
        ):
            what = "the size of what is selected is used before, or together with another"
            raise refused("selection-on-host", what, "The host makes the selection.")
        if finding:
            with graph.inserting_after(finding[0]):
                merged = graph.call_function(aten.sym_size.int, (finding[0], 0))
            merged.meta["val"] = size.meta["val"]
            size.replace_all_uses_with(merged, lambda user: user.target is not _FOUND)
        for node in finding:
            how, given, least, _ = node.args
            node.target, node.args = _TARGETS[str(how)], (given,)
            if how == _COUNTS:
                node.args = (given, None, least)
        graph.erase_node(size)
    if sizes:
        graph.lint()
        module.recompile()


def found_sizes(module: torch.fx.GraphModule) -> frozenset[Any]:
    """Return the symbols of the sizes that the graph computes itself, as far as its nodes have values recorded."""
    values = (node.meta.get("val") for node in module.graph.nodes if node.target in _TARGETS.values())
    sizes: Iterator[Any] = (value.size(0) for value in values if isinstance(value, torch.Tensor))
    return frozenset(symbol for one in sizes if isinstance(one, torch.SymInt) for symbol in one.node.expr.free_symbols)


_TARGETS: dict[str, Any] = {
    _POSITIONS: aten.nonzero.default,
    _COUNTS: aten.bincount.default,
    _REPEATED: aten.repeat_interleave.Tensor,
}
