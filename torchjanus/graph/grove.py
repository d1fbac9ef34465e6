"""The recursive calls that a step makes, put together so that the nodes of all its trees are run in one go.

Calls that depend on nothing done in between become one node of the program. Knows nothing of how trees are followed in
detail, nor of how cells are run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchjanus.errors import NOWHERE, Refusal, Refused
from torchjanus.graph.generalise import Generalised
from torchjanus.graph.invocations import Invocation
from torchjanus.graph.program import Node, Program, Ref
from torchjanus.graph.repertoire import Repertoire, assemble
from torchjanus.graph.walk import Root, Walker
from torchjanus.graph.ways import Way, given_tensors
from torchjanus.trace.events import Found, Invoked, Trace
from torchjanus.trace.recipes import Recipe

__all__ = ["Grove", "with_groves"]


@dataclass(eq=False)
class Grove:
    """Some recursive calls of one function, as one function of torch. ``given``: what each root is given."""

    invocation: Invocation
    walker: Walker
    given: tuple[tuple[tuple[str, Recipe], ...], ...]
    __name__ = "recursion"

    def __call__(self, shared: Sequence[torch.Tensor], seeds: Sequence[Sequence[torch.Tensor]]) -> list[torch.Tensor]:
        stacks = [torch.stack(list(rows)) for rows in seeds]
        found = [stack.unbind(0) for stack in self.invocation(len(self.given), shared, stacks)]
        return [column[root] for root in range(len(self.given)) for column in found]


def with_groves(plan: Generalised, trace: Trace, repertoire: Repertoire) -> Generalised:
    """The plan with its recursive calls in groves. Raises Refused."""
    events = [event for event in trace.events if isinstance(event, Invoked)]
    if not events:
        return plan
    nodes = list(plan.program.nodes)
    groves = []
    for group in _groups(plan.program, events):
        grove, node = _grove(plan, nodes, group, repertoire)
        groves.append(grove)
        first, *others = (position for position, _ in group)
        nodes[first] = node
        for position in others:
            nodes[position] = replace(nodes[position], func=_nothing, args=(), kwargs={}, outs=())
    return replace(plan, program=replace(plan.program, nodes=tuple(nodes)), groves=tuple(groves))


def _nothing() -> None:
    """The call is made with another."""


def _groups(program: Program, events: Sequence[Invoked]) -> Iterator[list[tuple[int, Invoked]]]:
    """The calls that can be made at one point of the program: that of the first of them."""
    waiting = iter(events)
    there = set(range(len(program.inputs)))
    opened: dict[Any, tuple[set[int], list[tuple[int, Invoked]]]] = {}
    for position, node in enumerate(program.nodes):
        if getattr(node.func, "__name__", "") == "invoke":
            event = next(waiting)
            group = opened.get(event.callee)
            if group is not None and any(ref.index not in group[0] for ref in node.args):
                yield opened.pop(event.callee)[1]
                group = None
            if group is None:
                group = opened[event.callee] = (set(there), [])
            group[1].append((position, event))
        elif _stands_between(node, there):
            yield from (group for _, group in opened.values())
            opened.clear()
        there.update(ref.index for ref in node.outs)
    yield from (group for _, group in opened.values())


def _stands_between(node: Node, there: set[int]) -> bool:
    """Whether calls before the node and calls after it cannot be made together."""
    name = str(getattr(node.func, "__name__", ""))
    plain = name.strip("_")
    in_place = name.endswith("_") and not name.endswith("__")
    in_place |= name.startswith("__i") and name.endswith("__") and plain not in ("index", "invert", "int", "iter")
    writes = name in ("__set__", "__setitem__", "__delete__") or "out" in node.kwargs
    return in_place or writes or plain in ("backward", "grad") or any(ref.index in there for ref in node.outs)


def _grove(
    plan: Generalised, nodes: Sequence[Node], group: list[tuple[int, Invoked]], repertoire: Repertoire
) -> tuple[Grove, Node]:
    callee = group[0][1].callee
    ways = repertoire.reached([callee])
    held = _held(plan, ways)
    inputs = plan.program.inputs
    examples = {token: _like(inputs[n].example, inputs[n].requires_grad) for token, n in held.items()}
    taken = {key for way in ways for part in way.parts for _, key in part.takes}
    rows: dict[Any, list[Ref]] = {}
    roots = []
    for position, event in group:
        seeds = []
        for token, ref in zip(given_tensors(event), nodes[position].args, strict=True):
            key = ("argument", callee, token)
            if key in taken:
                seeds.append((key, len(rows.setdefault(key, []))))
                rows[key].append(ref)
        roots.append(Root(callee, tuple(seeds)))
    results = {len(way.results) for way in ways if way.callee == callee}
    if len(results) != 1:
        what = f"{group[0][1].name} returns several kinds of things"
        raise Refused(Refusal(group[0][1].place, what, "Its callers could not go on alike.", ""))
    keys = [("result", callee, which) for which in range(results.pop())]
    assembled = assemble(ways, examples, [(key, _row(ways, key)) for key in rows], keys)
    walker = Walker(assembled, roots)
    invocation = Invocation(assembled.recursion)
    args = ([Ref(held[origin.token]) for origin in assembled.shared], list(rows.values()))
    outs = tuple(ref for position, _ in group for ref in nodes[position].outs)
    first = nodes[group[0][0]]
    given = tuple(event.given for _, event in group)
    return Grove(invocation, walker, given), Node(
        Grove(invocation, walker, given), args, {}, outs, first.modes, first.place
    )


def _held(plan: Generalised, ways: Sequence[Way]) -> dict[Any, int]:
    """Which input of the step each tensor is that calls find around themselves, by where they find it."""
    by_path = {origin.token: index for index, origin in enumerate(plan.origins)}
    by_tensor = {id(entry.example): index for index, entry in enumerate(plan.program.inputs)}
    held = {}
    for way in ways:
        for part in way.parts:
            for ref, origin in part.shared:
                # The step may have met it on another path.
                other = by_tensor.get(id(way.plan.program.inputs[ref.index].example))
                index = by_path.get(origin.token, other)
                if index is not None:
                    held[origin.token] = index
    return held


def _like(example: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    return example.detach().requires_grad_(requires_grad)


def _row(ways: Sequence[Way], key: Any) -> torch.Tensor:
    """What a row that the step supplies looks like."""
    _, callee, token = key
    for way in ways:
        if way.callee == callee:
            for event in way.trace.events:
                if isinstance(event, Found) and event.origin.token == token and event.kind == "tensor":
                    value: torch.Tensor = event.value
                    grad = value.is_floating_point()
                    return torch.empty(value.size(), dtype=value.dtype, device=value.device).requires_grad_(grad)
    raise Refused(Refusal(NOWHERE, "a recursive call is given a tensor that none was seen to use", "", ""))
