"""Operations that raise on some contents of their tensors, and what inputs must keep to so that they do not.

Replay commits after its last operation, so whatever raises comes before any update. A compiled artifact updates inputs
in whatever order its scheduler found: there an operation that raises must be known not to, before the artifact runs.
Knows ATen's operations, not who runs them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Bound", "bounds_of", "is_lost", "may_fail", "root_of"]

aten = torch.ops.aten

# Schema name -> (the argument that is indexed, the index). What is indexed along ``dim`` has such an argument.
_INDEXED = {
    "embedding": ("weight", "indices"),
    "index_select": ("self", "index"),
    "index_add": ("self", "index"),
    "index_copy": ("self", "index"),
    "index_fill": ("self", "index"),
    "gather": ("self", "index"),
    "scatter": ("self", "index"),
    "scatter_add": ("self", "index"),
    "scatter_reduce": ("self", "index"),
    "nll_loss_forward": ("self", "target"),
    "nll_loss2d_forward": ("self", "target"),
}
# Operations that look at contents in other ways.
_OTHERS = frozenset(
    """index index_put take put masked_scatter multinomial bernoulli binary_cross_entropy bincount histc poisson
    embedding_bag _embedding_bag _embedding_bag_forward_only one_hot repeat_interleave max_unpool2d max_unpool3d
    _ctc_loss cholesky cholesky_inverse cholesky_solve geqrf lu_solve ormqr segment_reduce searchsorted _assert_async
    _assert_scalar multi_margin_loss multilabel_margin_loss_forward unfold_backward""".split()
)
# Of linalg's operations those that look at no contents.
_PLAIN = frozenset({"linalg_vector_norm", "linalg_cross", "linalg_diagonal", "linalg_vecdot"})
_DIVISIONS = frozenset({"floor_divide", "remainder", "fmod"})
_SAME_CONTENTS = frozenset(
    """view _unsafe_view reshape _reshape_alias expand permute transpose t unsqueeze squeeze clone alias detach slice
    select contiguous as_strided""".split()
)


@dataclass(frozen=True, slots=True)
class Bound:
    """The elements of input ``index`` are at least 0 and less than ``limit``, or ``exempt``."""

    index: int
    limit: int
    exempt: int | None = None

    def holds(self, inputs: Sequence[torch.Tensor] | Mapping[int, torch.Tensor]) -> bool:
        tensor = inputs[self.index]
        if not tensor.numel():
            return True
        low, high = torch.aminmax(tensor)
        if low.item() >= 0 and high.item() < self.limit:
            return True
        if self.exempt is None:
            return False
        return bool(((tensor >= 0) & (tensor < self.limit) | (tensor == self.exempt)).all())


def _name(node: torch.fx.Node) -> str:
    target = node.target
    return target._schema.name.removeprefix("aten::") if isinstance(target, torch._ops.OpOverload) else ""


def may_fail(node: torch.fx.Node) -> bool:
    """Whether the operation raises on some contents of its tensors."""
    name = _name(node)
    if name in _PLAIN or (name == "bernoulli" and _is_chance(node)):
        return False
    if name in _INDEXED or name in _OTHERS or name.startswith(("linalg_", "_linalg_")):
        return True
    return _divides(node, name)


def _is_chance(node: torch.fx.Node) -> bool:
    """Whether it draws by a probability that is one: dropout's is a constant as a rule."""
    chance = node.args[1] if len(node.args) > 1 else node.kwargs.get("p")
    return isinstance(chance, float | int) and 0 <= chance <= 1


def _divides(node: torch.fx.Node, name: str) -> bool:
    """Whether this divides integers by a tensor's: zero raises, or ends the program in compiled code."""
    if name not in _DIVISIONS and not (name == "div" and node.kwargs.get("rounding_mode") is not None):
        return False
    value = node.meta.get("val")
    integral = isinstance(value, torch.Tensor) and not (value.dtype.is_floating_point or value.dtype.is_complex)
    return integral and isinstance(node.args[1], torch.fx.Node)


def root_of(node: torch.fx.Node) -> torch.fx.Node:
    """Where the elements of this come from."""
    while _name(node) in _SAME_CONTENTS:
        node = node.args[0]  # type: ignore[assignment]
    return node


def is_lost(node: torch.fx.Node) -> bool:
    """Whether a compiler would drop this operation, which may fail, or crash on it."""
    name = _name(node)
    return name == "_linalg_check_errors" or not node.users or _divides(node, name)


def bounds_of(node: torch.fx.Node, inputs: Mapping[torch.fx.Node, int]) -> list[Bound] | None:
    """The bounds of inputs under which this operation, which may fail, does not raise; None where that is not known.
    ``inputs``: which of the graph's placeholders hold elements of which inputs, and no others."""
    name = _name(node)
    if name not in _INDEXED:
        return None
    target: Any = node.target
    named = dict(zip((a.name for a in target._schema.arguments), node.args, strict=False)) | node.kwargs
    indexed, index = (named.get(key) for key in _INDEXED[name])
    if not isinstance(indexed, torch.fx.Node) or not isinstance(index, torch.fx.Node):
        return None
    size = indexed.meta["val"].size()
    exempt = None
    if name.startswith("nll_loss"):
        limit = size[1] if len(size) > 1 else size[0]
        exempt = named.get("ignore_index", -100)
    elif not size:
        return None
    else:
        dim = 0 if name == "embedding" else named["dim"]
        limit = size[dim]
    if isinstance(limit, torch.SymInt):
        return None
    root = root_of(index)
    if root in inputs:
        if root.meta["val"].dtype.is_floating_point:
            return None
        return [Bound(inputs[root], limit, exempt)]
    last = _largest_of_range(root)
    return [] if last is not None and last < limit else None


def _largest_of_range(node: torch.fx.Node) -> int | None:
    """The largest element of ``arange(n)`` or ``arange(start, n)`` from 0 on."""
    if _name(node) != "arange" or not 1 <= len(node.args) <= 2:
        return None
    start, end = (0, *node.args)[-2:]
    return end - 1 if isinstance(start, int) and isinstance(end, int) and start >= 0 else None
