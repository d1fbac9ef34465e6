"""Splits the graph of a path into stages that can begin while Python is still at work (Terra, section 4.2).

A stage begins as soon as all that it takes from outside is known: most of a forward pass when its first argument is
met, the update when the optimizer has said its numbers. Random numbers are drawn in stages of their own, by the
thread of the skeleton, since no other code may draw in between. Knows neither threads nor skeletons.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchjanus.graph.aten.clean_up import is_random
from torchjanus.graph.aten.segments import stages_of
from torchjanus.graph.ir.lowered import Lowered
from torchjanus.graph.ir.program import Cut
from torchjanus.ops.aten import SAMPLERS, operator_of
from torchjanus.runtime.coexecution.graphs.path import Path, Plan
from torchjanus.runtime.coexecution.recording.events import Event, Kind, Provenance
from torchjanus.runtime.coexecution.recording.kinds import DIFFERENTIATING, called

__all__ = ["Stages", "stages"]

_STRETCH = 16  # operators that a stage has at least, unless Python waits for it
_aten = torch.ops.aten
_ANY = 1 << 62


@dataclass(frozen=True, slots=True)
class Stages:
    """The graph with the cuts between its stages; the last stage computes nothing and commits.

    ``due``: for each stage, how many events have to have matched before all that it takes is known; ``draws``: the
    stages that draw random numbers, and do nothing else; ``of_cut``: for each cut of the path's own, its stage.
    """

    lowered: Lowered
    due: tuple[int, ...]
    draws: frozenset[int]
    of_cut: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Known:
    """When an input or a number is known: after so many events, at this place in the order of cuts."""

    matched: int
    key: int


def stages(path: Path, plan: Plan, lowered: Lowered) -> Stages | None:
    """Return the stages of a path's graph; None where it has to run as a whole, or between its fetches."""
    program = plan.program
    if lowered.assertions or any(isinstance(node.target, torch._ops.HigherOrderOperator) for node in _calls(lowered)):
        return None
    if any(one.example.device.type != "cpu" for one in program.inputs):
        return None  # its kernels run beside Python anyway
    inputs = [_known(path, n) for n in plan.inputs]
    slots = [_Known(0, 0)] * len(program.slots)
    for (event, _), slot in plan.slots.items():
        slots[slot] = _Known(event + 1, 2 * event)
    # Cuts in order: at 2k before event k, at 2k + 1 where event k fetches.
    fetches = {2 * event + 1: program.cuts[cut] for event, (cut, _) in plan.cuts.items()}
    drawn = {2 * event + 1: lowered.drawn[cut] for event, (cut, _) in plan.cuts.items()}
    operators = [0]
    for event_ in path.events:
        operators.append(operators[-1] + (event_.kind is Kind.OPERATOR))
    keys = _boundaries(path, [*inputs, *slots], sorted(fetches))
    end = 2 * len(path.events) + 1
    keys = [*keys, end]
    cuts = [fetches.get(key) or Cut(operators[min(key // 2, len(path.events))], ()) for key in keys]
    known = [sum(key <= one.key for key in keys) for one in (*inputs, *slots)]
    graph = _without_likes(lowered.graph)
    if graph is None:
        return None
    # Of the cuts that are no fetches none holds a draw back: it may come earlier than in eager, in the same order.
    before = [next((drawn[later] for later in keys[place:] if later in drawn), _ANY) for place in range(len(keys))]
    first = _with_cuts(lowered, graph, cuts, known, before)
    by_stage = Counter(stage for node, stage in stages_of(first).items() if _draws(node))
    # A stage that draws becomes two: the draws, and what takes inputs.
    shift = [sum(other in by_stage for other in range(stage + 1)) for stage in range(len(keys) + 1)]
    final, draws, counts, total = list[Cut](), set[int](), list[int](), 0
    for stage in range(len(keys) + 1):
        total += by_stage[stage]
        if stage in by_stage:
            draws.add(len(final))
            final.append(Cut(cuts[stage - 1].after if stage else 0, ()))
            counts.append(total)
        if stage < len(keys):
            final.append(cuts[stage])
            counts.append(total)
    known = [stage + shift[stage] for stage in known]
    split = _with_cuts(lowered, graph, final, known, counts)
    if any(stage not in draws for node, stage in stages_of(split).items() if _draws(node)):
        return None  # a draw needs what the graph computes
    due = [0] * (len(final) + 1)
    for one, stage in zip((*inputs, *slots), known, strict=True):
        due[stage] = max(due[stage], one.matched)
    for stage in draws:
        due[stage] = due[stage + 1]  # eager draws them then
    own = {key: stage for stage, key in enumerate(keys)}
    of_cut = tuple(own[2 * event + 1] + shift[own[2 * event + 1]] for event in plan.cuts)
    return Stages(split, tuple(due), frozenset(draws), of_cut)


def _known(path: Path, n: int) -> _Known:
    """Return when an external is known."""
    one = path.externals[n]
    if one.provenance is Provenance.GRADIENT:
        return _known(path, one.owner)
    if n in path.fixed:
        return _Known(0, 0)
    return _Known(one.first + 1, 2 * one.first + 2 * (one.provenance is Provenance.HOST))


def _boundaries(path: Path, known: Sequence[_Known], fetches: list[int]) -> list[int]:
    """Return the places of the cuts: at each fetch, and before what is known late. Composite events are not cut."""
    wanted = set(fetches)
    computed = [0]  # operators before each event
    for event in path.events:
        computed.append(computed[-1] + _operators(event))
    within = {2 * event: 2 * one.begin for one in path.sections for event in range(one.begin, one.end)}
    last, places = 0, list[int]()
    for key in sorted({*fetches, *(within.get(one.key, one.key) for one in known)}):
        count = computed[min(key // 2, len(path.events))]
        if key in wanted or count - last >= _STRETCH:
            places.append(key)
            last = count
    return places


def _operators(event: Event) -> int:
    """Return about how many operators an event stands for."""
    if event.kind is not Kind.OPERATOR or event.name.endswith(("__get__", "__set__")):
        return 0  # it only takes or gives a gradient
    return _STRETCH if called(event.func).short in DIFFERENTIATING else 1


def _with_cuts(
    lowered: Lowered, graph: torch.fx.GraphModule, cuts: Sequence[Cut], known: Sequence[int], drawn: Sequence[int]
) -> Lowered:
    """Return the graph with these cuts. ``known``: the stages of inputs and then of slots."""
    program, count = lowered.program, len(lowered.program.inputs)
    inputs = tuple(replace(one, stage=stage) for one, stage in zip(program.inputs, known[:count], strict=True))
    slots = tuple(replace(one, stage=stage) for one, stage in zip(program.slots, known[count:], strict=True))
    changed = replace(program, inputs=inputs, slots=slots, cuts=tuple(cuts))
    return replace(lowered, program=changed, graph=graph, drawn=tuple(drawn))


def _calls(lowered: Lowered) -> list[torch.fx.Node]:
    return [node for node in lowered.graph.graph.nodes if node.op == "call_function"]


def _draws(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and is_random(node)


def _without_likes(module: torch.fx.GraphModule) -> torch.fx.GraphModule | None:
    """Return the graph in which nothing that draws waits for a tensor of which it takes only the size and the like;
    None where such a size is not constant."""
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in module.graph.nodes:
        like = _like_of(node)
        if like is None:
            copies[node] = graph.node_copy(node, copies.__getitem__)
            continue
        value = like.meta["val"]
        size, stride = list(value.size()), list(value.stride())
        if any(type(number) is not int for number in (*size, *stride)):
            return None
        what = {"dtype": value.dtype, "device": value.device}
        blank = graph.call_function(_aten.empty_strided.default, (size, stride), what)
        blank.meta = dict(like.meta)
        if node is like:
            copies[node] = blank
            continue
        known = {**copies, like: blank}
        copies[node] = graph.node_copy(node, known.__getitem__)
    made = torch.fx.GraphModule(module, graph)
    graph.lint()
    return made


def _like_of(node: torch.fx.Node) -> torch.fx.Node | None:
    """Return the node of whose value this one takes the metadata alone: itself, for ``empty_like``; None if there is
    none, or that is a blank already."""
    if node.op != "call_function" or isinstance(node.meta.get("val"), (tuple, list)):
        return None
    if node.target is _aten.empty_like.default:
        return node
    if not (node.target in SAMPLERS or (is_random(node) and operator_of(node.target).name.endswith("_like"))):
        return None
    first: Any = node.args[0]
    others = [one for one in (*node.args[1:], *node.kwargs.values()) if one is first]
    return None if others or first.target in (_aten.empty_like.default, _aten.empty_strided.default) else first
