"""Makes a graph functional by exchanging operators, where all that it writes to are whole tensors.

Functionalisation traces a graph once more, which takes as long as the first time. Most graphs write only to whole
parameters, gradients and statistics, of which no view is read afterwards: there an in-place operator is replaced by its
functional form, and what follows reads the new value. ``functionalised`` looks first whether all writes are such, and
changes nothing if one is not.
"""

from __future__ import annotations

import keyword
import operator
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from torchjanus.graph.aten.symbolic_sizes import are_alike, key
from torchjanus.ops.aten import SAMPLERS, operator_of, out_of_place_form

__all__ = ["functionalised"]

aten = torch.ops.aten

# Operators that give results beside what they write -> the functional form, which gives these results, and then the new
# contents of the arguments.
_WITH_RESULTS: dict[Any, Any] = {
    aten._native_batch_norm_legit.default: aten._native_batch_norm_legit_functional.default,
}
# Not random_.from: code cannot name it.
_DRAWN: dict[Any, Any] = {one: form for form, one in SAMPLERS.items() if not keyword.iskeyword(form._overloadname)}


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


def functionalised(graph: torch.fx.Graph) -> dict[torch.fx.Node, torch.fx.Node] | None:
    """Make ``graph`` functional, in place. Returns the new contents of each placeholder that it writes to, in the order
    of the placeholders; None if it writes to parts of tensors or otherwise: then nothing is changed."""
    memory = {node: _memory(node) for node in graph.nodes if _is_tensor(node)}
    writes = _planned(graph, memory)
    return None if writes is None else _rewritten(graph, writes, memory)


# -- what is written ----------------------------------------------------------------------------------------------


def _planned(graph: torch.fx.Graph, memory: dict[torch.fx.Node, int]) -> dict[torch.fx.Node, _Write] | None:
    """Return all writes; None if one is not to a whole tensor, or a view of its old contents is read later."""
    position = {node: number for number, node in enumerate(graph.nodes)}
    last_use = {node: max((position[user] for user in node.users), default=-1) for node in position}
    sharing: defaultdict[int, list[torch.fx.Node]] = defaultdict(list)  # by memory: the nodes so far that lie there
    wholes: dict[int, torch.fx.Node] = {}  # by memory: what is written to
    writes: dict[torch.fx.Node, _Write] = {}
    for node, number in position.items():
        known = operator_of(node.target)
        if node.op == "call_function" and "val" not in node.meta and not known.gives_nothing:
            return None
        if known.moves_view:
            if _view_instead(node) is None or last_use[node.all_input_nodes[0]] > number:
                return None
        elif known.writes:
            write = _write(node)
            if write is None or len({memory[target] for target in write.targets}) < len(write.targets):
                return None
            for target in write.targets:
                whole = wholes.setdefault(memory[target], target)
                for other in sharing[memory[target]]:
                    is_read = last_use[other] > number or other.op == "placeholder"
                    if (is_read or other is target) and not _is_same(other, whole):
                        return None
            writes[node] = write
        for tensor in _tensors(node.meta.get("val")):
            sharing[tensor.untyped_storage()._cdata].append(node)
    return writes


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
    value = _evaluated(form, args, node.kwargs)
    made = [value] if first is None else value[first:]
    fits = len(made) == len(written) and all(
        isinstance(new, torch.Tensor) and _is_alike(one.meta["val"], new)
        for one, new in zip(written, made, strict=True)
    )
    return _Write(form, args, tuple(written), value, first) if fits else None


def _view_instead(node: torch.fx.Node) -> Any:
    """Return the operator that gives what this one makes of where its argument lies; None if there is none."""
    return out_of_place_form(node.target) if operator_of(node.target).moves_view else None


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


def _evaluated(form: Any, args: Any, kwargs: Any) -> Any:
    """Return what an operator gives for these arguments, of which nodes stand for their fakes."""
    args, kwargs = torch.fx.map_arg((args, kwargs), lambda one: one.meta["val"])
    fake = next(one for one in _tensors([*args, *kwargs.values()]) if isinstance(one, FakeTensor))
    with fake.fake_mode, torch.no_grad():
        return form(*args, **kwargs)


def _values_of(node: torch.fx.Node) -> Iterator[Any]:
    return _tensors([one.meta.get("val") for one in node.all_input_nodes])


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)


def _is_tensor(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _memory(node: torch.fx.Node) -> int:
    return int(node.meta["val"].untyped_storage()._cdata)


def _is_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two fakes are tensors of the same kind and layout."""
    return are_alike(one, other) and one.is_conj() == other.is_conj() and one.is_neg() == other.is_neg()


def _is_same(one: torch.fx.Node, other: torch.fx.Node) -> bool:
    """Whether two nodes that share memory are the same elements of it, in the same layout."""
    if not _is_tensor(one):
        return False
    first, second = one.meta["val"], other.meta["val"]
    return _is_alike(first, second) and key(first.storage_offset()) == key(second.storage_offset())


# -- the rewriting ------------------------------------------------------------------------------------------------


def _rewritten(
    graph: torch.fx.Graph, writes: dict[torch.fx.Node, _Write], memory: dict[torch.fx.Node, int]
) -> dict[torch.fx.Node, torch.fx.Node]:
    whole = {memory[target]: target for write in writes.values() for target in write.targets}
    # The nodes that are a tensor to be written to as a whole, and its memory.
    same = {node: at for node, at in memory.items() if at in whole and _is_same(node, whole[at])}
    placeholders = [node for node in same if node.op == "placeholder"]
    current: dict[int, torch.fx.Node] = {}  # by memory: the node that gives what was written last
    fresh: set[torch.fx.Node] = set()  # nodes in memory of their own, or views of such
    for node in list(graph.nodes):
        _read_latest(node, {one: current[same[one]] for one in node.all_input_nodes if same.get(one) in current})
        if node not in writes:
            node.target = _view_instead(node) or node.target
            if not fresh.isdisjoint(node.all_input_nodes) and _is_view(node):
                node.meta["val"] = _evaluated(node.target, node.args, node.kwargs)
                fresh.add(node)
            continue
        write = writes[node]
        with graph.inserting_before(node):
            made = graph.call_function(write.form, (*node.args, *write.args[len(node.args) :]), node.kwargs)
            made.meta = {**node.meta, "val": write.value}
            contents = [made] if write.first is None else [*_parts(graph, made, write)]
        node.replace_all_uses_with(made)
        for target, content in zip(write.targets, contents, strict=True):
            at = memory[target]
            current[at] = content
            same[content] = memory[content] = at
        fresh |= {made, *contents}
    for node in reversed(writes):
        graph.erase_node(node)
    return {node: current[same[node]] for node in placeholders}


def _read_latest(node: torch.fx.Node, latest: dict[torch.fx.Node, torch.fx.Node]) -> None:
    """Have a node read the latest contents."""
    if latest:
        node.args, node.kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda one: latest.get(one, one))


def _parts(graph: torch.fx.Graph, made: torch.fx.Node, write: _Write) -> Iterator[torch.fx.Node]:
    """Yield nodes for the new contents in the result of a functional operator."""
    assert write.first is not None
    for number in range(write.first, len(write.value)):
        part = graph.call_function(operator.getitem, (made, number))
        part.meta = {**made.meta, "val": write.value[number]}
        yield part


def _is_view(node: torch.fx.Node) -> bool:
    return operator_of(node.target).view or node.target is operator.getitem
