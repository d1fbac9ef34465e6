"""Lowers a program whose results have their backward pass still to come: to a forward graph that also returns what
eager's autograd would have saved, and a backward graph that takes it.

Nothing is computed twice, and autograd itself decides what is saved and in which order gradients are added. It knows
neither executors nor how results are handed to autograd.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from torchjanus.core.errors import InternalFault, Refused
from torchjanus.core.trees import map_leaves
from torchjanus.graph.aten.verify import verify
from torchjanus.graph.ir.lowered import FromInput, GradState, Lowered, NoGradient, Pullback, Source, ViewOf
from torchjanus.graph.ir.program import Backward, Input, Program, Ref
from torchjanus.graph.lowering.lower import lower, lower_rolled
from torchjanus.graph.tracing.node_tracing import is_own
from torchjanus.graph.tracing.recompute import require_same_saves
from torchjanus.graph.tracing.saved_tensors import Bases, undifferentiable
from torchjanus.trace.blanks import blank
from torchjanus.trace.user_code import MARKS

__all__ = ["backward_of", "lower_whole"]


def lower_whole(program: Program) -> Lowered:
    """Return the program as one graph, with the backward pass of its results if that is still to come. Raises
    Refused."""
    lowered = lower_rolled(program)
    if not any(lowered.outputs[place].state is GradState.LIVE for place in program.escaping):
        return lowered
    try:
        _require_plain(program, lowered)
        return _with_backward(program)
    except Refused as refused:
        if program.dimensions:
            raise  # the entry of each size has a backward pass
        return replace(lowered, undifferentiable=refused.refusal)


def _require_plain(program: Program, lowered: Lowered) -> None:
    """Raise Refused for what a forward graph with a backward graph does not hold."""
    if program.cuts:
        raise undifferentiable("the host is called in the middle of it", "the forward pass is not one graph.")
    if any(isinstance(node.func, MARKS) for node in program.nodes):
        why = "autograd calls it in the backward pass, of which nothing was watched."
        raise undifferentiable("it has hooks or an autograd.Function", why)
    if program.leaves:
        why = "gradients inside and outside of the step would be added in one graph."
        raise undifferentiable("the step works with gradients itself", why)
    if lowered.replaced or lowered.requires_grad_set:
        raise undifferentiable("the step changes what its inputs are", "the backward pass would see other inputs.")
    if any(is_own(node.func) for node in program.nodes):
        why = "their backward passes add gradients in an order of their own."
        raise undifferentiable("it has loops, branches or recursive calls as one operator", why)
    if program.dimensions:
        raise undifferentiable("its sizes change", "a backward graph is made for fixed sizes.")


def _with_backward(program: Program) -> Lowered:
    forward = replace(program, saves=True)
    try:
        lowered = lower(forward)
    except Bases as found:
        forward = _with_bases(forward, found.numbers)
        lowered = lower(forward)
    assert lowered.saves is not None
    try:
        inner = require_same_saves(lowered, _values(lowered, lowered.saves.saved))
    except (InternalFault, RuntimeError) as fault:
        why = "autograd could not make a backward pass that the backward graph is not made for."
        raise undifferentiable(f"where the step runs once more, {fault}", why) from fault
    while True:
        assert lowered.saves is not None
        tangents = [
            _like(value) for value in _values(lowered, [lowered.outputs[k].source for k in lowered.saves.results])
        ]
        backward = backward_of(lowered, range(len(tangents)), tangents)
        if backward.pinned.keys() <= lowered.pinned.keys():
            saves = replace(lowered.saves, inner=inner)
            return replace(
                lowered, program=replace(forward, saves=False), saves=saves, pullback=Pullback(saves, backward)
            )
        lowered = lower(forward, backward.pinned)


def _with_bases(program: Program, numbers: Mapping[int, int]) -> Program:
    """Return the program with the tensors of these ``numbers`` as results in place of their views, by place."""
    made = dict.fromkeys(numbers.values())
    places = {number: len(program.outputs) + k for k, number in enumerate(made)}
    escaping = (places[numbers[place]] if place in numbers else place for place in program.escaping)
    return replace(
        program,
        outputs=(*program.outputs, *map(Ref, made)),
        output_after=(*program.output_after, *(len(program.nodes) for _ in made)),
        escaping=tuple(dict.fromkeys(escaping)),
    )


def backward_of(lowered: Lowered, given: Sequence[int], tangents: Sequence[torch.Tensor]) -> Lowered:
    """Return the backward graph for gradients of the results ``given`` (positions in ``Saves.results``), which are like
    ``tangents``. Its inputs are all saved tensors and these gradients. Raises Refused."""
    saves, program = lowered.saves, lowered.program
    assert saves is not None
    count = len(program.inputs)
    saved = [_input(tensor, f"saved {k}") for k, tensor in enumerate(_values(lowered, saves.saved))]
    made = [_input(tensor, f"gradient {k}") for k, tensor in zip(given, tangents, strict=True)]
    first = count + len(saved)
    # Inputs have the first numbers.
    shift = len(saved) + len(made)
    moved = _renumbered(replace(program, saves=False), count, shift)
    backward = Backward(
        results=tuple(moved.outputs[saves.results[k]] for k in given),
        tangents=tuple(Ref(first + k) for k in range(len(made))),
        saved={number: Ref(count + place) for number, place in saves.packs},
        wanted=tuple(Ref(k) for k, entry in enumerate(program.inputs) if entry.requires_grad),
    )
    inputs = (*program.inputs, *saved, *made)
    whole = replace(moved, inputs=inputs, assertions=(), backward=backward)
    return _alone(lower(whole, lowered.pinned), count)


def _values(lowered: Lowered, sources: Sequence[Source]) -> list[torch.Tensor]:
    """Return tensors without contents that are like what these sources give."""
    output: Any = lowered.graph.graph.output_node()
    found = []
    for source in sources:
        base = source.base if isinstance(source, ViewOf) else source
        assert not isinstance(base, NoGradient)
        taken = lowered.program.inputs[base.index].example if isinstance(base, FromInput) else None
        below = output.args[0][base.index].meta["val"] if taken is None else taken
        size, stride = (below.size(), below.stride()) if source is base else _geometry(source)
        dtype = source.dtype if isinstance(source, ViewOf) and source.dtype is not None else below.dtype
        found.append(blank(torch.empty_strided(size, stride, dtype=dtype, device=below.device)))
    return found


def _geometry(view: Any) -> tuple[Any, Any]:
    return view.size, view.stride


def _like(result: torch.Tensor) -> torch.Tensor:
    """Return what a gradient of a result is most often like."""
    return blank(torch.empty_like(result))


def _input(example: torch.Tensor, name: str) -> Input:
    return Input(example, requires_grad=False, is_leaf=True, name=name)


def _renumbered(program: Program, count: int, shift: int) -> Program:
    """Return the program with the numbers of tensors from ``count`` on increased."""

    def leaf(value: object) -> object:
        return Ref(value.index + shift) if isinstance(value, Ref) and value.index >= count else value

    def refs(some: Sequence[Ref]) -> tuple[Ref, ...]:
        return tuple(leaf(ref) for ref in some)  # type: ignore[misc]

    nodes = tuple(
        replace(node, args=map_leaves(node.args, leaf), kwargs=map_leaves(node.kwargs, leaf), outs=refs(node.outs))
        for node in program.nodes
    )
    measures = tuple(replace(one, ref=refs((one.ref,))[0]) for one in program.measures)
    return replace(program, nodes=nodes, outputs=refs(program.outputs), measures=measures)


def _alone(lowered: Lowered, count: int) -> Lowered:
    """Return a backward graph without the first ``count`` inputs, those of the forward pass, which it does not use."""
    graph = lowered.graph.graph
    placeholders = [node for node in graph.nodes if node.op == "placeholder"][:count]
    for place, node in enumerate(placeholders):
        if node.users:
            name = lowered.program.inputs[place].name
            what = f"its backward pass needs {name or f'input {place}'}, which autograd does not save"
            raise undifferentiable(what, "the backward graph takes only what eager keeps for it.")
        graph.erase_node(node)
    lowered.graph.recompile()

    def moved(source: Source) -> Source:
        if isinstance(source, FromInput):
            return FromInput(source.index - count)
        return replace(source, base=moved(source.base)) if isinstance(source, ViewOf) else source  # type: ignore[arg-type]

    inputs = lowered.program.inputs[count:]
    program = Program(inputs, lowered.program.slots, (), (), (), (), (), escaping=())
    outputs = tuple(replace(result, source=moved(result.source)) for result in lowered.outputs)
    alone = replace(lowered, program=program, outputs=outputs, leaves=(), lent=0)
    verify(alone)
    return alone
