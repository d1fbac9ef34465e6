"""Which values of a program gradients may be asked for, and which are used late: upper bounds from its data flow.

In: the nodes of a tensor program or the operations of a trace. Out: numbers of tensors. A rewrite that would cut a
gradient, or free a value too early, asks here first.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from torchjanus.graph.ir.program import Node
from torchjanus.graph.recursion.variants.nodes import CUTTING
from torchjanus.ops.calls import VIEWS
from torchjanus.trace.actions import Op
from torchjanus.trace.user_code import MARKS

__all__ = ["asks_for_gradients", "differentiated", "looked_at_later", "writes"]


class _All(Container[int]):
    """All numbers."""

    def __contains__(self, number: object) -> bool:
        return True


def writes(node: Node | Op) -> bool:
    """Whether the node modifies a tensor or an object."""
    name = str(getattr(node.func, "__name__", ""))
    in_place = name.endswith("_") and not name.endswith("__")
    in_place |= name.startswith("__i") and name.endswith("__") and name not in _ASKING
    return in_place or name in ("__set__", "__setitem__", "__delete__") or "out" in node.kwargs


_ASKING = ("__index__", "__invert__", "__int__", "__iter__")


def asks_for_gradients(node: Node) -> bool:
    """Whether the node is a ``backward()`` or a ``grad()``."""
    return str(getattr(node.func, "__name__", "")).strip("_") in ("backward", "grad")


def differentiated(nodes: Sequence[Node]) -> Container[int]:
    """Return the indices of values whose gradients may be requested; all if no node requests any.

    That includes values that are modified in place, since views of them may be used, and operands of code that autograd
    calls."""
    found: set[int] = set()
    asked = False
    for node in reversed(nodes):
        asks = asks_for_gradients(node)
        asked |= asks
        reached = any(ref.index in found for ref in node.outs) and node.func not in CUTTING
        if asks or reached or not node.outs or writes(node) or isinstance(node.func, MARKS):
            found.update(ref.index for ref in node.inputs)
    return found if asked else _All()


def looked_at_later(nodes: Sequence[Node], positions: Sequence[int]) -> bool:
    """Whether an output of these nodes, or a view of it, is used after an in-place operation: eager's value may have
    changed."""
    known = {ref.index for position in positions for ref in nodes[position].outs}
    changed = False
    for node in nodes[positions[0] + 1 :]:
        name = getattr(node.func, "__name__", "")
        if any(ref.index in known for ref in node.inputs):
            if changed:
                return True
            if name in VIEWS:
                known.update(ref.index for ref in node.outs)
        changed |= writes(node) and name not in ("__set__", "__delete__")
    return False
