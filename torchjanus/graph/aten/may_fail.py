"""Find operations that raise on some contents of their tensors, and bounds on inputs under which they do not.

Replay commits after its last operation, so every error comes before any update. A compiled artifact updates inputs in
the order of its scheduler: before it runs, its operations must be known not to raise. Knows no executors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchjanus.graph.aten.index_ranges import elements_of, end_of, named
from torchjanus.ops.aten import INDEXED, operator_of

__all__ = ["Bound", "SizeCondition", "bounds_of", "is_lost", "may_fail", "root_of"]


@dataclass(frozen=True, slots=True)
class Bound:
    """The elements of input ``index`` are at least 0 and less than ``limit``, or ``exempt``."""

    index: int
    limit: int
    exempt: int | None = None

    def holds(self, inputs: Sequence[torch.Tensor] | Mapping[int, torch.Tensor]) -> bool:
        """Whether the elements of the input are within the bound. Reads them on the host."""
        tensor = inputs[self.index]
        if not tensor.numel():
            return True
        low, high = torch.aminmax(tensor)
        if low.item() >= 0 and high.item() < self.limit:
            return True
        if self.exempt is None:
            return False
        return bool(((tensor >= 0) & (tensor < self.limit) | (tensor == self.exempt)).all())


@dataclass(frozen=True, slots=True)
class SizeCondition:
    """A condition on symbolic sizes, as a sympy expression."""

    condition: Any


def may_fail(node: torch.fx.Node) -> bool:
    """Whether the operation raises on some contents of its tensors."""
    known = operator_of(node.target)
    if known.name == "bernoulli" and _is_chance(node):
        return False
    return known.may_raise or (known.divides and _divides(node))


def _is_chance(node: torch.fx.Node) -> bool:
    """Whether it draws by a constant probability between 0 and 1, as dropout does."""
    chance = node.args[1] if len(node.args) > 1 else node.kwargs.get("p")
    return isinstance(chance, float | int) and 0 <= chance <= 1


def _divides(node: torch.fx.Node) -> bool:
    """Whether this division is of integers by a tensor's elements (those of ``div`` only with a rounding mode)."""
    value = node.meta.get("val")
    integral = isinstance(value, torch.Tensor) and not (value.dtype.is_floating_point or value.dtype.is_complex)
    return integral and isinstance(node.args[1], torch.fx.Node)


def root_of(node: torch.fx.Node) -> torch.fx.Node:
    """Return the node that the elements of this node come from."""
    while operator_of(node.target).same_elements:
        node = node.args[0]  # type: ignore[assignment]
    return node


def is_lost(node: torch.fx.Node) -> bool:
    """Whether a compiler would drop this operation, which may fail, or crash on it."""
    known = operator_of(node.target)
    return known.name == "_linalg_check_errors" or not node.users or (known.divides and _divides(node))


def bounds_of(node: torch.fx.Node, inputs: Mapping[torch.fx.Node, int]) -> list[Bound | SizeCondition] | None:
    """Return the bounds on inputs and conditions on sizes under which this operation, which may fail, does not raise;
    None if unknown. ``inputs``: the placeholders that hold only elements of one input, with its number."""
    name = operator_of(node.target).name
    if name in ("index", "index_put"):
        return _subscript(node, inputs)
    if name not in INDEXED:
        return None
    given = named(node)
    indexed, index = (given.get(key) for key in INDEXED[name])
    if not isinstance(indexed, torch.fx.Node) or not isinstance(index, torch.fx.Node):
        return None
    size = indexed.meta["val"].size()
    exempt = None
    if name.startswith("nll_loss"):
        limit = size[1] if len(size) > 1 else size[0]
        exempt = given.get("ignore_index", -100)
    elif not size:
        return None
    else:
        dim = 0 if name == "embedding" else given["dim"]
        limit = size[dim]
    return _bounds(index, limit, exempt, inputs)


def _bounds(
    index: torch.fx.Node, limit: Any, exempt: int | None, inputs: Mapping[torch.fx.Node, int]
) -> list[Bound | SizeCondition] | None:
    """Return the bounds under which the index is at least 0 and less than the limit, or exempt; None if unknown."""
    known, below = elements_of(index, inputs), end_of(limit)
    if known is None or below is None or (known.inputs and not isinstance(below, int)):
        return None
    conditions = known.within(below, exempt)
    if conditions is None:
        return None
    return [*map(SizeCondition, conditions), *(Bound(number, limit, exempt) for number in sorted(known.inputs))]


def _subscript(node: torch.fx.Node, inputs: Mapping[torch.fx.Node, int]) -> list[Bound | SizeCondition] | None:
    """Return the bounds of ``x[i, :, j]`` with integer tensors."""
    indexed, indices = node.args[:2]
    found: list[Bound | SizeCondition] = []
    for dim, index in enumerate(indices):  # type: ignore[arg-type]
        if index is None:
            continue
        if not isinstance(index, torch.fx.Node) or index.meta["val"].dtype in (torch.bool, torch.uint8):
            return None
        bounds = _bounds(index, indexed.meta["val"].size(dim), None, inputs)  # type: ignore[union-attr]
        if bounds is None:
            return None
        found += bounds
    return found
