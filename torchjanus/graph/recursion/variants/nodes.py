"""The operations of one watched call: what they take and give, and changes in place said as what they come to.

Knows nothing of how they are cut into cells.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from torchjanus.core.errors import Place
from torchjanus.graph.ir.program import Node, Ref, Slot
from torchjanus.graph.operators.batched_numbers import PLAIN
from torchjanus.graph.tracing.trace_program import substitute
from torchjanus.trace.actions import Op
from torchjanus.trace.terms import TensorRef

__all__ = [
    "CUTTING",
    "VIEWS",
    "changed_views",
    "frozen",
    "gives_back",
    "is_call",
    "lifted",
    "named_rows",
    "refs_of",
    "seen_before",
    "slots_of",
    "taken_by",
    "with_equal_arguments",
    "without_changes",
]

# Functions through whose result no gradient flows.
CUTTING: frozenset[Any] = frozenset({torch.Tensor.detach, torch.detach, torch.Tensor.data.__get__})  # type: ignore[attr-defined]

# Functions that give equal tensors where they are called with equal numbers.
_MAKING = (torch.zeros, torch.ones, torch.full, torch.eye, torch.arange, torch.tensor)

# Functions whose result may share memory with what they are given.
VIEWS = frozenset(
    """__getitem__ __get__ __iter__ adjoint as_strided atleast_1d atleast_2d atleast_3d broadcast_tensors broadcast_to
    chunk contiguous cpu detach diagonal double dsplit expand expand_as flatten float half hsplit imag moveaxis movedim
    narrow permute positive ravel real reshape reshape_as select split split_with_sizes squeeze swapaxes swapdims t
    tensor_split to transpose type type_as unbind unflatten unfold unsqueeze view view_as view_as_complex view_as_real
    vsplit""".split()
)

_DROPOUTS = frozenset("dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout".split())


def gives_back(node: Node) -> bool:
    """Whether the node does no more than to give back a tensor that it is given: ``contiguous()`` may, and dropout when
    a model is evaluated."""
    name = str(getattr(node.func, "__name__", ""))
    if name in _DROPOUTS:
        if node.kwargs.get("training", node.args[2] if len(node.args) > 2 else True) is not False:
            return False
    elif name.startswith("__") or name not in VIEWS:
        return False
    return {ref.index for ref in node.outs} <= {ref.index for ref in refs_of(node)}


def is_call(node: Node) -> bool:
    """Whether the node is a recursive call."""
    return bool(getattr(node.func, "__name__", "") == "invoke")


def refs_of(node: Node) -> Iterator[Ref]:
    """The tensors that it takes, as often as it takes them."""
    return _of_kind((node.args, node.kwargs), Ref)


def taken_by(event: Op) -> Iterator[TensorRef]:
    """The tensors that an operation of a run takes."""
    return _of_kind((event.args, event.kwargs), TensorRef)


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


def changed_views(nodes: Iterable[Node], changed: set[int]) -> Iterator[Node]:
    """The nodes that change a tensor in place of which there is another view by then."""
    views: dict[int, set[int]] = {}
    for node in nodes:
        for ref in node.outs:
            if ref.index in changed and len(views.get(ref.index, ())) > 1:
                yield node
        if str(getattr(node.func, "__name__", "")) in VIEWS:
            alike = {ref.index for ref in (*refs_of(node), *node.outs)}
            alike = alike.union(*(views.get(index, ()) for index in alike))
            views.update(dict.fromkeys(alike, alike))


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


def named_rows(nodes: Sequence[Node], tables: frozenset[int]) -> Iterator[tuple[int, int | float]]:
    """Which nodes take a row of one of these tensors that the program names by a plain number, or make a tensor of one;
    each with the number."""
    for position, node in enumerate(nodes):
        match node.func, node.args:
            case torch.Tensor.__getitem__, (Ref(index=table), key) if table in tables and type(key) is int:
                yield position, key
            case torch.tensor, (value,) if type(value) in (int, float) and math.isfinite(value):
                yield position, value


def lifted(
    nodes: Sequence[Node], tables: frozenset[int], places: frozenset[Place], free: int
) -> tuple[list[Node], list[int | float]]:
    """The nodes, where those at these places take the numbers that they name from slots, from number ``free`` on; and
    what those hold."""
    made, values = list(nodes), list[int | float]()
    for position, value in named_rows(nodes, tables):
        node = nodes[position]
        if node.place in places:
            made[position] = replace(node, args=(*node.args[:-1], Slot(free + len(values))))
            values.append(value)
    return made, values


def with_equal_arguments(nodes: Sequence[Node]) -> list[Node]:
    """The nodes, where recursive calls are given the first of several equal tensors: a state from which each begins."""
    made = Counter(ref.index for node in nodes for ref in node.outs)
    first: dict[Any, Ref] = {}
    equal: dict[int, Ref] = {}
    found: list[Node] = []
    for node in nodes:
        if node.func in _MAKING and len(node.outs) == 1 and not any(True for _ in refs_of(node)):
            (out,) = node.outs
            if made[out.index] == 1:  # nobody changes it
                key = (node.func, frozen((node.args, node.kwargs)), node.modes)
                equal[out.index] = first.setdefault(key, out)
        elif is_call(node):
            node = replace(node, args=tuple(equal.get(ref.index, ref) for ref in node.args))
        found.append(node)
    return found


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
