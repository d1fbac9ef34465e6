"""The operations of one watched call: what they take and give, and changes in place said as what they come to.

Knows nothing of how they are cut into cells.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torchjanus.graph.columns import PLAIN
from torchjanus.graph.program import Node, Ref, Slot
from torchjanus.graph.tracing import substitute

__all__ = ["frozen", "is_call", "refs_of", "seen_before", "slots_of", "without_changes"]


def is_call(node: Node) -> bool:
    """Whether the node is a recursive call."""
    return bool(getattr(node.func, "__name__", "") == "invoke")


def refs_of(node: Node) -> Iterator[Ref]:
    """The tensors that it takes, as often as it takes them."""
    return _of_kind((node.args, node.kwargs), Ref)


def slots_of(value: Any) -> Iterator[Slot]:
    """The numbers of a call's own in a structure."""
    return _of_kind(value, Slot)


def seen_before(nodes: Iterable[Node], changed: set[int]) -> set[int]:
    """Tensors that are changed in place when something else may share their memory."""
    read: set[int] = set()
    found: set[int] = set()
    for node in nodes:
        changes = {ref.index for ref in node.outs} & changed
        if node.func not in PLAIN:
            found.update(changes & {ref.index for ref in refs_of(node)})
            read.update(ref.index for ref in refs_of(node))
        else:
            found.update(changes & read)
            _, *others = refs_of(node)
            read.update(ref.index for ref in others)
    return found


def without_changes(nodes: Sequence[Node], own: set[int], free: int) -> tuple[list[Node], dict[int, Ref]]:
    """The nodes, where those that change one of these tensors in place give another instead; and which tensor each one
    that was changed is in the end. ``free``: a number from which on no tensor is known."""
    now: dict[int, Ref] = {}
    made: list[Node] = []

    def leaf(value: Any) -> Any:
        return now.get(value.index, value) if isinstance(value, Ref) else value

    for node in nodes:
        args, kwargs = substitute(node.args, leaf), substitute(node.kwargs, leaf)
        func, outs = node.func, node.outs
        if func in PLAIN and outs[0].index in own:
            now[outs[0].index] = Ref(free)
            func, outs, free = PLAIN[func], (Ref(free),), free + 1
        made.append(Node(func, args, kwargs, outs, node.modes, node.place))
    return made, now


def frozen(value: Any) -> Any:
    """A structure as something that can be compared and hashed."""
    if isinstance(value, list | tuple):
        return (type(value).__name__, *map(frozen, value))
    if isinstance(value, dict):
        return ("dict", *((key, frozen(part)) for key, part in value.items()))
    if isinstance(value, slice):
        return ("slice", frozen(value.start), frozen(value.stop), frozen(value.step))
    return value


def _of_kind(value: Any, kind: type) -> Iterator[Any]:
    if isinstance(value, kind):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _of_kind(part, kind)
    elif isinstance(value, dict):
        yield from _of_kind(list(value.values()), kind)
    elif isinstance(value, slice):
        yield from _of_kind((value.start, value.stop, value.step), kind)
