"""Convert an ATen graph with in-place operations to a functional one that returns the new contents of mutated inputs.

Knows nothing of programs except the shapes of their inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from torchjanus.core.errors import InternalFault, refused
from torchjanus.graph.aten import clean_up, dead_writes
from torchjanus.graph.aten.complex_division import DIVIDE_IN_PLACE
from torchjanus.graph.aten.functional import rewrite_writes, views
from torchjanus.graph.aten.in_place import write_code, write_out_of_place
from torchjanus.graph.aten.symbolic_sizes import Symbolic
from torchjanus.graph.ir.passes import unobserved
from torchjanus.graph.ir.program import Input
from torchjanus.ops.aten import operator_of
from torchjanus.trace.layout import extent, result_layout_of

__all__ = ["functionalise"]

aten = torch.ops.aten


def functionalise(
    graph: torch.fx.GraphModule, inputs: Sequence[Input], symbolic: Symbolic, sizes: Sequence[Any] = ()
) -> tuple[torch.fx.GraphModule, tuple[int, ...], tuple[int, ...]]:
    """Return a cleaned functional graph, the inputs that it mutates, and the inputs that are written to but have their
    old contents in the end. The graph returns what ``graph`` does, followed by the new contents of the mutated inputs.
    ``sizes``: its arguments before the inputs. Raises Refused."""
    _declare_hidden_writes(graph)
    _refuse_crossed_lists(graph)
    _refuse_other_kernels(graph)
    _multiply_exactly(graph)
    _divide_exactly(graph)
    _refuse_resizing(graph.graph)
    views.make_exact(graph.graph)
    graph.graph.eliminate_dead_code(is_impure_node=clean_up.has_effect)
    _refuse_own_writes(graph)
    contents = rewrite_writes.functionalised(graph.graph)
    if contents is None:
        graph = _traced_again(graph, symbolic, [*sizes, *(symbolic.fake(entry) for entry in inputs)])
        contents = _final_contents(graph.graph)
    mutated = _return_contents(graph.graph, contents, inputs, len(sizes))
    with unobserved():
        clean_up.clean(graph)
    mutated, restored = _drop_restored(graph, mutated, len(sizes))
    return graph, mutated, restored


def _traced_again(graph: torch.fx.GraphModule, symbolic: Symbolic, fakes: list[Any]) -> torch.fx.GraphModule:
    """Return the graph as functionalisation makes it. At its end it copies the new contents into the inputs."""
    write_out_of_place(graph.graph)
    _exchange(graph, _KEPT)
    write_code(graph)

    def run(*args: torch.Tensor) -> object:
        # Not the module itself: calling it would run the user's global module hooks.
        return graph.forward(*args)

    with torch.no_grad():
        functional = make_fx(torch.func.functionalize(run, remove="mutations"), tracing_mode="fake")
        try:
            second = functional(*fakes)
        except RuntimeError as error:
            if "SymIntArrayRef" not in str(error):
                raise
            # Python can infer some sizes that C++ cannot, but it may also decompose operations differently.
            with symbolic.dispatcher():
                second = functional(*fakes)
            if other := sorted(_names(second, writing_back=False) - _names(graph)):
                raise symbolic.unsuited(f"torch decomposes the step to {', '.join(other)}") from error
    _exchange(second, {stand_in: op for op, stand_in in _KEPT.items()})
    return second


def _names(graph: torch.fx.GraphModule, writing_back: bool = True) -> set[str]:
    """Return the names of a graph's operations, in-place or not; ``writing_back``: also those that write views back."""
    known = (operator_of(node.target) for node in graph.graph.nodes)
    names = (one.name for one in known if one.name and (writing_back or not one.writes_back))
    return {name.rstrip("_").removesuffix("_functional") for name in names}


@torch.library.custom_op("torchjanus::kept_cross_entropy", mutates_args=())
def _kept_cross_entropy(
    input: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    pos_weight: torch.Tensor | None = None,
    reduction: int = 1,
) -> torch.Tensor:
    made: torch.Tensor = aten.binary_cross_entropy_with_logits(input, target, weight, pos_weight, reduction)
    return made


_kept_cross_entropy.register_fake(aten.binary_cross_entropy_with_logits.default)

# Operators that functorch (and so functionalisation) decomposes by a formula that rounds differently.
_KEPT: dict[Any, Any] = {aten.binary_cross_entropy_with_logits.default: torch.ops.torchjanus.kept_cross_entropy.default}


def _exchange(graph: torch.fx.GraphModule, other: Mapping[Any, Any]) -> None:
    """Replace operators by others with equal arguments."""
    for node in graph.graph.nodes:
        if node.op == "call_function" and node.target in other:
            node.target = other[node.target]


def _declare_hidden_writes(graph: torch.fx.GraphModule) -> None:
    """Replace native_batch_norm, whose schema does not declare its writes to running statistics, by its _legit form."""
    for node in graph.graph.nodes:
        if node.target is aten.native_batch_norm.default:
            running = node.args[3:5]
            if running[0] is None and running[1] is None:
                node.target = aten._native_batch_norm_legit.no_stats
                node.args = (*node.args[:3], *node.args[5:])
            else:
                node.target = aten._native_batch_norm_legit.default


def _has_value_of(node: torch.fx.Node, other: Any) -> None:
    """Record that a node gives a tensor like that of another one: later changes in place may be made to it."""
    if isinstance(other, torch.fx.Node):
        node.meta["val"] = other.meta["val"]


def _multiply_exactly(graph: torch.fx.GraphModule) -> None:
    """Round the number of ``mul_(tensor, number)`` first in half precision, as CPU kernels do in place."""
    for node in list(graph.graph.nodes):
        known = operator_of(node.target)
        if not known.rounds_number or not known.writes:
            continue
        target, number = node.args
        targets = target if isinstance(target, list | tuple) else [target]
        values = [one.meta["val"] for one in targets]
        if not any(value.dtype in (torch.bfloat16, torch.float16) and value.device.type == "cpu" for value in values):
            continue
        numbers = number if isinstance(number, list | tuple) else [number] * len(targets)
        call = graph.graph.call_function
        with graph.graph.inserting_before(node):
            made = []
            for one, value, factor in zip(targets, values, numbers, strict=True):
                rounded = call(aten.scalar_tensor.default, (factor,), {"dtype": value.dtype})
                made.append(call(aten.mul_.Tensor, (one, rounded)))
        _has_value_of(made[0], target)
        if node.target is aten.mul_.Scalar:
            node.replace_all_uses_with(made[0])
        graph.graph.erase_node(node)


def _divide_exactly(graph: torch.fx.GraphModule) -> None:
    """Round complex quotients that are written over the dividend as CPU kernels do in place."""
    for node in list(graph.graph.nodes):
        known = operator_of(node.target)
        if not known.rounds_complex or not known.writes:
            continue
        if not isinstance(node.args[1], torch.fx.Node | list | tuple):
            continue  # by a number all quotients are rounded alike
        several = isinstance(node.args[0], list | tuple)
        pairs = zip(*node.args, strict=True) if several else [node.args]
        if not any(one.meta["val"].dtype.is_complex for one in (node.args[0] if several else node.args[:1])):
            continue
        call = graph.graph.call_function
        with graph.graph.inserting_before(node):
            made = [call(aten.copy_.default, (one, call(DIVIDE_IN_PLACE, (one, other)))) for one, other in pairs]
        _has_value_of(made[0], node.args[0])
        if not several:
            node.replace_all_uses_with(made[0])
        graph.graph.erase_node(node)


def _undetached(value: Any) -> Any:
    while isinstance(value, torch.fx.Node) and value.target is aten.detach.default:
        value = value.args[0]
    return value


def _refuse_resizing(graph: torch.fx.Graph) -> None:
    """Refuse in-place changes of an input's geometry: the updates of a graph write elements only."""
    for node in graph.nodes:
        if operator_of(node.target).moves_view and getattr(_undetached(node.args[0]), "op", "") == "placeholder":
            what = f"{node.target} changes a tensor in a way that cannot be held back"
            raise refused("write-unsupported", what, "A graph's updates write elements.", "Make a view, and use that.")


def _refuse_own_writes(graph: torch.fx.GraphModule) -> None:
    """Refuse writes of operators that are not torch's own: their functional forms are unknown."""
    for node in graph.graph.nodes:
        if operator_of(node.target).writes and node.target.namespace not in ("aten", "prims"):
            _refuse_write(node.target)


def _refuse_write(target: torch._ops.OpOverload) -> NoReturn:
    what = f"{target} changes a tensor in a way that cannot be held back"
    raise refused("write-unsupported", what, "A graph's updates are all made at its end.", "Use torch's own operators.")


def _refuse_crossed_lists(graph: torch.fx.GraphModule) -> None:
    """Refuse list calls in which an element reads what an earlier element wrote. Eager processes the lists one by one;
    the functional form reads everything first. Only an element's own tensor may appear among its operands."""
    for node in graph.graph.nodes:
        known = operator_of(node.target)
        if not known.writes or not known.name.startswith("_foreach_"):
            continue
        own = [part.meta["val"].untyped_storage()._cdata for part in node.args[0]]
        for operands in (argument for argument in node.args[1:] if isinstance(argument, list | tuple)):
            for position, part in enumerate(operands):
                if isinstance(part, torch.fx.Node):
                    storage = part.meta["val"].untyped_storage()._cdata
                    if storage in own and own[position] != storage:
                        what = f"{node.target} reads a tensor that it has changed earlier in its list"
                        why = "A graph would read its old contents."
                        raise refused("foreach-order", what, why, "Call it with a copy.")


def _refuse_other_kernels(graph: torch.fx.GraphModule) -> None:
    """Refuse results in given tensors that are not row-major. A matrix product then uses another routine, which rounds
    sums differently. Some other kernels ignore the strides of the tensor that they write to."""
    for node in graph.graph.nodes:
        target, known = node.target, operator_of(node.target)
        if not known.writes:
            continue
        given = [argument.name for argument in target._schema.arguments if argument.kwarg_only and argument.is_out]
        written = [node.kwargs[one] for one in given if isinstance(node.kwargs.get(one), torch.fx.Node)]
        if known.product:
            if any(_lies_otherwise(one) for one in written or [node.args[0]]):
                _refuse_product(target)
            continue
        if not known.writes_any_layout and not known.any_pointwise and any(map(_lies_otherwise, written)):
            what = f"{target} writes into a given tensor that is not contiguous"
            why = (
                "Not all of torch's kernels respect the strides of such a tensor, and a graph computes elsewhere first."
            )
            raise refused("write-strided", what, why, "Use what the operation returns when it is given no tensor.")


def _lies_otherwise(node: Any) -> bool:
    return node.meta["val"].dim() > 1 and result_layout_of(node.meta["val"]) is not True


def _refuse_product(target: torch._ops.OpOverload) -> NoReturn:
    what = f"{target} writes a product into a tensor that is not contiguous"
    why = "A graph computes it elsewhere first, where its sums are rounded otherwise."
    raise refused("write-strided", what, why, "Use what the operation returns when it is given no tensor to write to.")


def _final_contents(graph: torch.fx.Graph) -> dict[torch.fx.Node, torch.fx.Node]:
    """Drop the final ``copy_`` into each placeholder. Return what was copied, by placeholder."""
    contents = {}
    for node in list(graph.nodes):
        if node.target is aten.copy_.default and node.args[0].op == "placeholder":
            contents[node.args[0]] = node.args[1]
            if node.users:
                raise InternalFault("functionalisation left a use of an input after its update")
            graph.erase_node(node)
        elif operator_of(node.target).writes:
            _refuse_write(node.target)
    return contents


def _return_contents(
    graph: torch.fx.Graph, contents: Mapping[torch.fx.Node, torch.fx.Node], inputs: Sequence[Input], sizes: int
) -> tuple[int, ...]:
    """Let the graph return the new contents of placeholders, too. Return the inputs that these are."""
    placeholders = graph.find_nodes(op="placeholder")[sizes:]
    mutated = [placeholders.index(node) for node in contents]
    _refuse_shared_storage(inputs, mutated)
    _refuse_inference(inputs, mutated)
    _refuse_overlapping(inputs, mutated)
    graph.lint()
    output: Any = graph.output_node()
    output.args = ([*output.args[0], *contents.values()],)
    return tuple(mutated)


def _drop_restored(
    graph: torch.fx.GraphModule, mutated: tuple[int, ...], sizes: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Drop the updates of inputs that get their old contents back. Return the other mutated inputs, and these."""
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"][sizes:]
    output: Any = graph.graph.output_node()
    values = list(output.args[0])
    first = len(values) - len(mutated)
    same = dead_writes.unchanged([placeholders[index] for index in mutated], values[first:])
    if same:
        output.args = ([value for place, value in enumerate(values) if place - first not in same],)
        graph.graph.eliminate_dead_code(is_impure_node=clean_up.has_effect)
        graph.recompile()
    kept = tuple(index for place, index in enumerate(mutated) if place not in same)
    return kept, tuple(mutated[place] for place in same)


def _refuse_shared_storage(inputs: Sequence[Input], mutated: Sequence[int]) -> None:
    for index in mutated:
        storage = inputs[index].example.untyped_storage()._cdata
        for other, entry in enumerate(inputs):
            if other != index and entry.example.untyped_storage()._cdata == storage and _overlap(inputs[index], entry):
                what = f"input {index} is changed, and input {other} shares its memory"
                raise refused("input-shares-memory", what, "The graph would not see the change through the other.")


def _refuse_inference(inputs: Sequence[Input], mutated: Sequence[int]) -> None:
    if any(inputs[index].example.is_inference() for index in mutated):
        what = "a tensor that was made under inference_mode() is changed"
        why = "Updates are written when the graph has run, outside of that mode, where such tensors stay as they are."
        raise refused("tensor-inference-mode", what, why, "Make it under torch.no_grad(), or outside of both.")


def _refuse_overlapping(inputs: Sequence[Input], mutated: Sequence[int]) -> None:
    """Refuse to change inputs with overlapping elements, which kernels of running statistics do not check."""
    for index in mutated:
        example = inputs[index].example
        if any(size > 1 and step == 0 for size, step in zip(example.size(), example.stride(), strict=True)):
            what = "the step changes a tensor through an expanded or unfolded view of it"
            why = "A graph would not write exactly that back."
            raise refused("write-expanded", what, why, "Change the tensor itself.")


def _overlap(one: Input, other: Input) -> bool:
    (low, high), (first, last) = extent(one.example), extent(other.example)
    return bool(low < last and first < high)
