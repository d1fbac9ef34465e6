"""Makes a graph functional by exchanging operators, where it writes to tensors as a whole or to simple parts of them.

Functionalisation traces a graph once more, which takes as long as the first time. Most graphs write to whole
parameters, gradients and statistics: there an in-place operator is replaced by its functional form, and what follows
reads the new value. A part that a slice, a selection or a split gives is put back into the whole, and taken anew where
it is read. ``functionalised`` looks first whether all writes are such, and changes nothing if one is not.
"""

from __future__ import annotations

import keyword
import operator
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from torchjanus.core.trees import leaves_of_kind
from torchjanus.graph.aten.clean_up import is_view
from torchjanus.graph.aten.in_place import evaluated
from torchjanus.graph.aten.symbolic_sizes import are_alike, geometry, key
from torchjanus.ops.aten import SAMPLERS, operator_of, out_of_place_form

__all__ = ["functionalised"]

aten = torch.ops.aten

# Operators that return results and write to arguments -> the functional form, which returns the results, then the new
# contents of the arguments.
_WITH_RESULTS: dict[Any, Any] = {
    aten._native_batch_norm_legit.default: aten._native_batch_norm_legit_functional.default,
}
# Operators that change the geometry of a tensor in place -> the view operator that has the same effect.
_VIEWS: dict[Any, Any] = {aten.transpose_.default: aten.transpose.int}
# Not random_.from: code cannot name it.
_DRAWN: dict[Any, Any] = {one: form for form, one in SAMPLERS.items() if not keyword.iskeyword(form._overloadname)}


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a tensor lies: which elements of a memory, in which layout."""

    memory: int
    geometry: tuple[Hashable, ...]
    offset: Hashable
    kind: tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class _Write:
    """One writing node. ``form``: the functional operator, with its positional ``args``; ``targets``: the nodes that it
    writes to; ``value``: the fake that the functional operator gives; ``first``: where in that the new contents begin,
    None if it is the new content itself."""

    form: Any
    args: tuple[Any, ...]
    targets: tuple[torch.fx.Node, ...]
    value: Any
    first: int | None

    @property
    def contents(self) -> list[Any]:
        """The new contents, as fakes."""
        return [self.value] if self.first is None else [*self.value[self.first :]]


@dataclass(frozen=True, slots=True)
class _Part:
    """Where a part lies: ``view`` takes it from ``base``. ``number``: which of its results it is, if that is a list."""

    base: torch.fx.Node
    view: torch.fx.Node
    number: int | None


@dataclass(frozen=True, slots=True)
class _Plan:
    """``places``: of each tensor, where in memory it lies, and how; ``wholes``: by memory, the place that is written as
    a whole or in parts; ``parts``: the others that are written, or read after a write."""

    places: dict[torch.fx.Node, _Place]
    writes: dict[torch.fx.Node, _Write]
    wholes: dict[int, _Place]
    parts: dict[_Place, _Part]


def functionalised(graph: torch.fx.Graph) -> dict[torch.fx.Node, torch.fx.Node] | None:
    """Make ``graph`` functional, in place. Returns the new contents of each placeholder that it writes to, in the order
    of the placeholders; None if it writes by other views: then nothing is changed."""
    plan = _planned(graph)
    return None if plan is None else _Rewriting(graph, plan).run()


# -- what is written ----------------------------------------------------------------------------------------------


def _planned(graph: torch.fx.Graph) -> _Plan | None:
    """Return all writes; None if one is not known, or what it changes is read later by a view that is no part."""
    position = {node: number for number, node in enumerate(graph.nodes)}
    last_use = {node: max((position[user] for user in node.users), default=-1) for node in position}
    plan = _Plan({node: _place(node) for node in position if _is_tensor(node)}, {}, {}, {})
    sharing: defaultdict[int, list[torch.fx.Node]] = defaultdict(list)  # by memory: the nodes so far that lie there
    for node, number in position.items():
        known = operator_of(node.target)
        if node.op == "call_function" and "val" not in node.meta and not known.gives_nothing:
            return None
        if known.moves_view:
            if _view_instead(node) is None or last_use[node.all_input_nodes[0]] > number:
                return None
        elif known.writes:
            write = _write(node)
            if write is None or len({plan.places[one].memory for one in write.targets}) < len(write.targets):
                return None
            plan.writes[node] = write
            for target, content in zip(write.targets, write.contents, strict=True):
                nodes = sharing[plan.places[target].memory]
                read = [one for one in nodes if last_use[one] > number or one.op == "placeholder"]
                if not _fits(plan, target, content, nodes, read):
                    return None
        for tensor in leaves_of_kind(node.meta.get("val"), torch.Tensor):
            sharing[tensor.untyped_storage()._cdata].append(node)
    return plan


def _fits(
    plan: _Plan, target: torch.fx.Node, content: torch.Tensor, nodes: list[torch.fx.Node], read: list[torch.fx.Node]
) -> bool:
    """Enter a write to ``target`` in the plan. Returns whether all that is ``read`` of its memory afterwards is the
    whole, or a known part of it. ``nodes``: all that lie there so far; ``content``: a fake of the new contents."""
    place = plan.places[target]
    part = _part(next(one for one in nodes if plan.places.get(one) == place), plan.places)
    whole = place if part is None else plan.places[part.base]
    if plan.wholes.setdefault(place.memory, whole) != whole:
        return False
    if part is None and not are_alike(target.meta["val"], content):
        return False
    for one in (target, *read):
        other = plan.places.get(one)
        if other is None:
            return False
        if other != whole and other not in plan.parts:
            found = _part(next(each for each in nodes if plan.places.get(each) == other), plan.places)
            if found is None or plan.places[found.base] != whole:
                return False
            plan.parts[other] = found
    return True


def _part(node: torch.fx.Node, places: dict[torch.fx.Node, _Place]) -> _Part | None:
    """Return of what the node takes a part, and how; None if it is no part that a scattering operator can put back."""
    view: Any = node
    number: Any = None
    if node.target is operator.getitem:
        view, number = node.args
    if not isinstance(view, torch.fx.Node) or view.target not in _SCATTERED:
        return None
    base = view.args[0]
    assert isinstance(base, torch.fx.Node)
    numbers = [*pytree.tree_leaves(view.args[1:]), *(base.meta["val"].size() if number is not None else ())]
    constant = all(type(one) is int or one is None for one in numbers) and not view.kwargs
    if not constant or (view.target in _LISTS) == (number is None) or places[base].memory != places[node].memory:
        return None
    return _Part(base, view, number)


def _write(node: torch.fx.Node) -> _Write | None:
    """Return what a writing node writes; None if no functional operator gives the same, of the same layout."""
    target: Any = node.target
    known = operator_of(target)
    if not known.aten or node.kwargs.get("generator") is not None:
        return None
    given = dict(zip((one.name for one in target._schema.arguments), node.args, strict=False)) | node.kwargs
    written = [given[name] for name in known.writes]
    first: int | None
    if target in _WITH_RESULTS:
        form, first = _WITH_RESULTS[target], len(target._schema.returns)
    else:
        form, first = _DRAWN.get(target) or out_of_place_form(target), None
        if isinstance(written[0], list | tuple):
            written, first = [*written[0]], 0
    args = None if form is None else _arguments(form, node)
    if args is None:
        return None
    if not all(isinstance(one, torch.fx.Node) and _is_tensor(one) for one in written):
        return None
    if not any(isinstance(one, FakeTensor) for one in _values_of(node)):
        return None
    write = _Write(form, args, tuple(written), evaluated(form, args, node.kwargs), first)
    fits = len(write.contents) == len(written) and all(
        _is_kind(one.meta["val"], new) for one, new in zip(written, write.contents, strict=True)
    )
    return write if fits else None


def _view_instead(node: torch.fx.Node) -> Any:
    """Return the operator that gives what this one makes of where its argument lies; None if there is none."""
    target = node.target
    return (_VIEWS.get(target) or out_of_place_form(target)) if operator_of(target).moves_view else None


def _arguments(form: Any, node: torch.fx.Node) -> tuple[Any, ...] | None:
    """Return the positional arguments of the functional form of a node's operator; None where they have another order.
    What is not given is the same default in both (not so in ``bernoulli_``), or is given."""
    ours, others = (
        [one for one in schema.arguments if not one.kwarg_only]
        for schema in (node.target._schema, form._schema)  # type: ignore[union-attr]
    )
    if [one.name for one in ours] != [one.name for one in others]:
        return None
    rest = [*zip(ours, others, strict=True)][len(node.args) :]
    same = all(one.name in node.kwargs or one.default_value == other.default_value for one, other in rest)
    return node.args if same else (*node.args, *(one.default_value for one, _ in rest))


def _values_of(node: torch.fx.Node) -> Iterator[Any]:
    return leaves_of_kind([one.meta.get("val") for one in node.all_input_nodes], torch.Tensor)


def _is_tensor(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _place(node: torch.fx.Node) -> _Place:
    value = node.meta["val"]
    kind = (value.dtype, value.is_conj(), value.is_neg())
    return _Place(int(value.untyped_storage()._cdata), geometry(value), key(value.storage_offset()), kind)


def _is_kind(one: torch.Tensor, other: Any) -> bool:
    """Whether two fakes are tensors of the same kind and size, whatever their strides are."""
    return (
        isinstance(other, torch.Tensor)
        and (one.dtype, one.device, one.is_conj(), one.is_neg())
        == (other.dtype, other.device, other.is_conj(), other.is_neg())
        and geometry(one)[0] == geometry(other)[0]
    )


# -- the rewriting ------------------------------------------------------------------------------------------------


class _Rewriting:
    """Goes through a graph in order, and has each node read the latest contents of what was written before it."""

    def __init__(self, graph: torch.fx.Graph, plan: _Plan) -> None:
        self._graph, self._plan = graph, plan
        self._places = dict(plan.places)
        self._written: dict[int, int] = {}  # by memory: how often
        # By place: the node that gives its contents, and how often its memory had been written to then.
        self._latest: dict[_Place, tuple[torch.fx.Node, int]] = {}
        self._fresh: set[torch.fx.Node] = set()  # nodes in memory of their own, and views of such

    def run(self) -> dict[torch.fx.Node, torch.fx.Node]:
        """Rewrite the graph. Returns the new contents of placeholders."""
        graph, writes = self._graph, self._plan.writes
        placeholders = [node for node in graph.find_nodes(op="placeholder") if node in self._places]
        for node in list(graph.nodes):
            with graph.inserting_before(node):
                latest = {one: self._now(one) for one in node.all_input_nodes if self._is_old(one)}
                if latest:
                    args = (node.args, node.kwargs)
                    node.args, node.kwargs = torch.fx.map_arg(args, lambda one: latest.get(one, one))  # noqa: B023
                if node in writes:
                    self._write(node, writes[node])
                elif node.op == "call_function":
                    node.target = _view_instead(node) or node.target
                    if not self._fresh.isdisjoint(node.all_input_nodes) and is_view(node):
                        node.meta["val"] = evaluated(node.target, node.args, node.kwargs)
                        self._fresh.add(node)
        for node in reversed(writes):
            graph.erase_node(node)
        changed = (node for node in placeholders if self._is_old(node))
        return {node: self._now(node) for node in changed}

    def _is_old(self, node: torch.fx.Node) -> bool:
        """Whether the place of a node has been written to, so that what it gives may be old contents."""
        place = self._places.get(node)
        if place is None or place.memory not in self._written:
            return False
        return place == self._plan.wholes[place.memory] or place in self._plan.parts

    def _now(self, node: torch.fx.Node) -> torch.fx.Node:
        """Return the node that gives the latest contents of a node's place."""
        place = self._places[node]
        count = self._written[place.memory]
        found, when = self._latest.get(place, (node, 0))
        if place in self._plan.parts and when != count:
            part = self._plan.parts[place]
            view = part.view
            found = self._call(view.target, (self._whole(part), *view.args[1:]), view.meta)
            if part.number is not None:
                found = self._call(operator.getitem, (found, part.number), view.meta)
            self._gives(place, found)
        return found

    def _whole(self, part: _Part) -> torch.fx.Node:
        """Return the node that gives the latest contents of what it is a part of."""
        return self._latest.get(self._places[part.base], (part.base, 0))[0]

    def _gives(self, place: _Place, node: torch.fx.Node) -> None:
        self._latest[place] = (node, self._written[place.memory])
        self._places[node] = place

    def _call(self, target: Any, args: tuple[Any, ...], meta: dict[str, Any]) -> torch.fx.Node:
        node = self._graph.create_node("call_function", target, args, name=operator_of(target).name or None)
        node.meta = {**meta, "val": evaluated(target, args, {})}
        self._fresh.add(node)
        return node

    def _write(self, node: torch.fx.Node, write: _Write) -> None:
        """Add the functional form of a writing node, and what it changes."""
        plan = self._plan
        args = (*node.args, *write.args[len(node.args) :])
        made = self._graph.create_node("call_function", write.form, args, node.kwargs, operator_of(write.form).name)
        made.meta = {**node.meta, "val": write.value}
        self._fresh.add(made)
        contents = [made]
        if write.first is not None:
            numbers = range(write.first, len(write.value))
            contents = [self._call(operator.getitem, (made, number), node.meta) for number in numbers]
        for target, content in zip(write.targets, contents, strict=True):
            place = plan.places[target]
            if place in plan.parts:
                part = plan.parts[place]
                whole = plan.wholes[place.memory]
                scattered = _SCATTERED[part.view.target](part)
                content = self._call(scattered[0], (self._whole(part), content, *scattered[1:]), node.meta)
                place = whole
            self._written[place.memory] = self._written.get(place.memory, 0) + 1
            self._gives(place, content)
        if write.first is None:
            self._places[node] = plan.places[write.targets[0]]
        else:
            node.replace_all_uses_with(made)


def _slice(part: _Part) -> tuple[Any, ...]:
    return (aten.slice_scatter.default, *part.view.args[1:])


def _select(part: _Part) -> tuple[Any, ...]:
    return (aten.select_scatter.default, *part.view.args[1:])


def _split(part: _Part) -> tuple[Any, ...]:
    """Return the operator that puts a part of a split back, with its arguments after the contents."""
    assert part.number is not None
    sizes: Any = part.view.args[1]
    dim: Any = part.view.args[2] if len(part.view.args) > 2 else 0
    if isinstance(sizes, int):
        length = part.base.meta["val"].size(dim)
        return aten.slice_scatter.default, dim, part.number * sizes, min((part.number + 1) * sizes, length)
    begin = sum(sizes[: part.number])
    return aten.slice_scatter.default, dim, begin, begin + sizes[part.number]


# Views -> the operator that puts contents back into what they are a view of.
_SCATTERED: dict[Any, Callable[[_Part], tuple[Any, ...]]] = {
    aten.slice.Tensor: _slice,
    aten.select.int: _select,
    aten.split.Tensor: _split,
    aten.split_with_sizes.default: _split,
}
_LISTS = frozenset({aten.split.Tensor, aten.split_with_sizes.default})
