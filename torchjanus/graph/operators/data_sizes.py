"""Operations whose results are as large as the contents of their operands say, in the midst of a graph.

While a program is traced, such a size is a symbol that the graph is given: what torch asks of it is noted, and who asks
too much is refused. Then each of them becomes ATen's operation, and the symbol the size of what that gives. Knows
nothing of programs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch

from torchjanus.core.errors import refused
from torchjanus.graph.operators.loop_op import TAGS, define

__all__ = ["FINDING", "count", "fold", "found", "found_sizes"]

aten = torch.ops.aten

_POSITIONS, _COUNTS, _REPEATED = "positions", "counts", "repeated"

# What the host calls -> how it is called in a graph.
FINDING: dict[Callable[..., Any], str] = {
    torch.nonzero: _POSITIONS,
    torch.bincount: _COUNTS,
    torch.repeat_interleave: _REPEATED,
}


def found(how: str, given: torch.Tensor, least: int, size: Any) -> torch.Tensor:
    """What ``FINDING``'s function of this name gives for one tensor, of which there are ``size``: positions under a
    mask, how often each number is there (``least`` of them are counted), or the places that repetitions come from."""
    made: torch.Tensor = _FOUND(how, given.detach(), least, size)
    return made


def count(given: torch.Tensor, dim: int) -> torch.Tensor:
    """How many there are of what has been selected, for Python to fetch when the graph has run."""
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
    """Let the graph find out these ``sizes``, which it is given, by itself. Raises Refused where it would have to know
    one before, or where two that are taken to be equal need not be."""
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


def found_sizes(module: torch.fx.GraphModule) -> frozenset[sympy.Symbol]:
    """The symbols of the sizes that a graph finds out by itself, as far as it says what its values are."""
    values = (node.meta.get("val") for node in module.graph.nodes if node.target in _TARGETS.values())
    sizes: Iterator[Any] = (value.size(0) for value in values if isinstance(value, torch.Tensor))
    return frozenset(symbol for one in sizes if isinstance(one, torch.SymInt) for symbol in one.node.expr.free_symbols)


_TARGETS: dict[str, Any] = {
    _POSITIONS: aten.nonzero.default,
    _COUNTS: aten.bincount.default,
    _REPEATED: aten.repeat_interleave.Tensor,
}
