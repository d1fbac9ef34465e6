"""Clean-up passes for functional ATen graphs. Every pass keeps values bitwise and random draws in order."""

from __future__ import annotations

import operator
from typing import Any

import torch

from torchjanus.core.errors import InternalFault
from torchjanus.core.trees import tree_token
from torchjanus.graph.aten.dead_writes import drop_dead_writes
from torchjanus.graph.aten.may_fail import may_fail
from torchjanus.graph.aten.symbolic_sizes import are_alike
from torchjanus.graph.aten.written_parts import find_parts
from torchjanus.graph.ir.passes import Part, Pass, PassList, Stage
from torchjanus.ops.aten import operator_of

__all__ = ["CLEAN_UP", "clean", "has_effect", "is_random", "is_view", "protect_outside"]

aten = torch.ops.aten


def is_random(node: torch.fx.Node) -> bool:
    """Whether the node advances a random generator."""
    return operator_of(node.target).draws


def has_effect(node: torch.fx.Node) -> bool:
    """Whether the node must stay even if its value is unused: it draws, mutates or may raise."""
    if node.op in ("placeholder", "output"):
        return True
    known = operator_of(node.target)
    # An operation that returns nothing exists to raise: linalg's error checks.
    return bool(known.writes) or known.draws or known.gives_nothing or may_fail(node)


def is_view(node: torch.fx.Node) -> bool:
    """Whether the node's result shares memory with its first argument, which may be a number: that has no memory."""
    if node.target is operator.getitem:
        return is_view(node.args[0])  # type: ignore[arg-type]
    return operator_of(node.target).view and isinstance(node.args[0], torch.fx.Node)


def clean(module: torch.fx.GraphModule) -> None:
    """Run all passes, in an order that needs no repetition."""
    graph = module.graph
    CLEAN_UP.run(graph)
    graph.lint()
    module.recompile()


def _drop_profiling(graph: torch.fx.Graph) -> None:
    for node in reversed(list(graph.nodes)):
        if isinstance(node.target, torch._ops.OpOverload) and node.target.namespace == "profiler":
            graph.erase_node(node)


def _fix_dtypes(graph: torch.fx.Graph) -> None:
    """Make the dtypes of factories explicit, which would otherwise follow the default dtype at run time."""
    for node in graph.nodes:
        if not isinstance(node.target, torch._ops.OpOverload) or "dtype" in node.kwargs:
            continue
        schema = node.target._schema
        takes_tensor = any("Tensor" in str(argument.type) for argument in schema.arguments)
        value = node.meta.get("val")
        names = {argument.name for argument in schema.arguments}
        if not takes_tensor and "dtype" in names and isinstance(value, torch.Tensor):
            node.kwargs = {**node.kwargs, "dtype": value.dtype}


def _simplify_all(graph: torch.fx.Graph) -> None:
    for node in list(graph.nodes):
        _simplify(node)


def _drop_dead_code(graph: torch.fx.Graph) -> None:
    graph.eliminate_dead_code(is_impure_node=has_effect)


def _drop_dead_writes(graph: torch.fx.Graph) -> None:
    drop_dead_writes(graph, _escaping(graph))


def _simplify(node: torch.fx.Node) -> None:
    if node.op != "call_function":
        return
    target, arguments = node.target, node.args
    if operator_of(target).identity:
        _replace(node, arguments[0])
    elif target is aten.t.default and _called(arguments[0], aten.t.default):
        _replace(node, arguments[0].args[0])  # type: ignore[union-attr]
    elif target in (aten.view.default, aten._unsafe_view.default, aten.expand.default, aten.reshape.default):
        source = arguments[0]
        if target is not aten.expand.default and (first := _viewed(source)) is not None:
            source = first
            node.args = (source, *arguments[1:])
        if isinstance(source, torch.fx.Node) and are_alike(node, source):
            _replace(node, source)


def _viewed(value: Any) -> torch.fx.Node | None:
    """Return the tensor of one element of which this is a view with other sizes; None if it is none."""
    found = None
    while isinstance(value, torch.fx.Node) and value.target in (aten.view.default, aten._unsafe_view.default):
        value = value.args[0]
        if not _is_single(value):
            break
        found = value
    return found


def _is_single(value: Any) -> bool:
    """Whether it has one element in every call."""
    made = value.meta.get("val") if isinstance(value, torch.fx.Node) else None
    return isinstance(made, torch.Tensor) and all(type(size) is int and size == 1 for size in made.shape)


def _called(value: Any, target: object) -> bool:
    return isinstance(value, torch.fx.Node) and value.op == "call_function" and value.target is target


def _replace(node: torch.fx.Node, value: Any) -> None:
    if not isinstance(value, torch.fx.Node):
        raise InternalFault(f"{node.target} is applied to {value!r}")
    node.replace_all_uses_with(value)
    node.graph.erase_node(node)


def _escaping(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """Return the nodes whose memory an output may share: each such result must stay a distinct tensor."""
    output: Any = graph.output_node()
    found: set[torch.fx.Node] = set()
    pending = [value for value in output.args[0] if isinstance(value, torch.fx.Node)]
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            if is_view(node) or node.target is operator.getitem:
                pending.append(node.args[0])  # type: ignore[arg-type]
    return found


def _drop_clones(graph: torch.fx.Graph) -> None:
    """Drop copies of the same geometry that do not leave the graph, or are all that uses what is copied; nothing in it
    is mutated. A stack of one number is a view of it."""
    escaping = _escaping(graph)
    for node in list(graph.nodes):
        if node in escaping:
            source = node.args[0] if node.target is aten.clone.default else None
            if isinstance(source, torch.fx.Node) and _is_only_for(source, node) and are_alike(node, source):
                _replace(node, source)
            continue
        if node.target in (aten.clone.default, aten._to_copy.default):
            source = node.args[0]
            if are_alike(node, source) and not _is_read_otherwise(source):
                _replace(node, source)
        elif node.target is aten.stack.default and len(node.args[0]) == 1:
            source = node.args[0][0]
            if _is_single(source) and not _is_read_otherwise(source):
                node.target = aten.unsqueeze.default
                node.args = (source, node.args[1] if len(node.args) > 1 else 0)


def _is_only_for(node: torch.fx.Node, user: torch.fx.Node) -> bool:
    """Whether the node makes new memory, which only ``user`` reads."""
    known = operator_of(node.target) if node.op == "call_function" else None
    return known is not None and [*node.users] == [user] and (known.new_memory or (known.pointwise and not known.draws))


def _is_read_otherwise(node: Any) -> bool:
    """Whether it may be a conjugate or negative view, whose clone is ordinary memory (``view_as_real`` needs that)."""
    while isinstance(node, torch.fx.Node) and is_view(node):
        if node.target in (aten._conj.default, aten._neg_view.default):
            return True
        node = node.args[0]
    return False


def protect_outside(graph: torch.fx.Graph) -> None:
    """Clone each result that would share memory with an input or a constant."""
    output: Any = graph.output_node()
    results = []
    for value in output.args[0]:
        root = value
        while is_view(root):
            root = root.args[0]
        if root.op in ("placeholder", "get_attr"):
            with graph.inserting_before(output):
                copied = graph.call_function(aten.clone.default, (value,))
            copied.meta["val"] = value.meta["val"]
            results.append(copied)
        else:
            results.append(value)
    output.args = (results,)


def _merge_equal(graph: torch.fx.Graph) -> None:
    """Merge common subexpressions, except random draws and results that leave the graph."""
    escaping = _escaping(graph)
    seen: dict[Any, torch.fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or has_effect(node) or node in escaping:
            continue
        if operator_of(node.target).varies_in_bits:
            continue
        key = (node.target, tree_token((node.args, node.kwargs), _leaf))
        known = seen.setdefault(key, node)
        if known is not node and _alike_or_lists(known, node):
            _replace(node, known)


def _alike_or_lists(one: torch.fx.Node, other: torch.fx.Node) -> bool:
    return are_alike(one, other) or not isinstance(one.meta.get("val"), torch.Tensor)


def _leaf(value: Any) -> Any:
    return (float, value.hex()) if isinstance(value, float) else (type(value), value)  # -0.0 equals 0.0


_DEAD_CODE = Pass(
    "drop_dead_code",
    Stage.GRAPH,
    _drop_dead_code,
    "Drops operations whose values are not used, except those that draw random numbers or may raise.",
)
CLEAN_UP = PassList(
    Part.CLEAN_UP,
    (
        Pass("drop_profiling", Stage.GRAPH, _drop_profiling, "Drops marks that are there for profilers."),
        Pass("fix_dtypes", Stage.GRAPH, _fix_dtypes, "Writes out the dtypes of factories that follow the default."),
        Pass("simplify", Stage.GRAPH, _simplify_all, "Drops views that change nothing, and transposes of transposes."),
        Pass(
            "find_written_parts",
            Stage.GRAPH,
            find_parts,
            "Reads a part from what was written there, or from the tensor before, where that has the same bits.",
        ),
        _DEAD_CODE,
        Pass("merge_equal", Stage.GRAPH, _merge_equal, "Computes equal operations once (common subexpressions)."),
        Pass(
            "drop_clones",
            Stage.GRAPH,
            _drop_clones,
            "Drops copies that do not leave the graph, or are of what nothing else reads.",
        ),
        Pass(
            "drop_dead_writes",
            Stage.GRAPH,
            _drop_dead_writes,
            "Drops writes to memory that is written again as a whole before it is read.",
            entry=drop_dead_writes,
        ),
        _DEAD_CODE,
        Pass(
            "protect_outside",
            Stage.GRAPH,
            protect_outside,
            "Copies results that would share memory with an input or a constant.",
        ),
    ),
)
