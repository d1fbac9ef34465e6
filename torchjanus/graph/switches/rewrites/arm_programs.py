"""Builds tensor programs from the arms of a switched loop: inputs, carried outputs and the outcomes of predicates.

Works on resolved arms (see ``analysis.arms``), not on the runs they come from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath
from torchjanus.core.remarks import NotMergeable
from torchjanus.core.trees import map_leaves
from torchjanus.graph.generalize.builder import Builder
from torchjanus.graph.ir.dimensions import dimensions_of, geometries
from torchjanus.graph.ir.numbers import Numbers, split_numbers
from torchjanus.graph.ir.program import Node, Program, Ref
from torchjanus.graph.regions.switch import ArmProgram, Switch
from torchjanus.graph.switches.analysis.arms import ResolvedArms
from torchjanus.graph.switches.analysis.index_predicates import IndexPredicate
from torchjanus.graph.switches.analysis.iterations import Source
from torchjanus.graph.switches.analysis.tensor_predicates import PredicateLowering
from torchjanus.trace.actions import Op
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import HeapRead, NumberPredicate, TensorPredicate
from torchjanus.trace.modes import Modes
from torchjanus.trace.operations import ops_of
from torchjanus.trace.recipes import Constant, TensorOf
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import Apply, Expr, Fetch

__all__ = ["switch_of"]


def switch_of(
    resolved: ResolvedArms, kinds: Sequence[tuple[Any, ...]], questions: Sequence[Mapping[int, Any]], begins: int
) -> Switch:
    """Return the arms as one switch function.

    ``kinds``: size, stride, dtype, device and gradient of each carried variable and fixed tensor; ``questions``: for
    each arm, the trees of its index predicates by event; ``begins``: the index of the first iteration. Raises
    NotMergeable, Refused."""
    arms = tuple(_program(resolved, n, kinds, questions[n], begins) for n in range(len(resolved.arms)))
    return Switch(arms, len(resolved.carried))


def _program(
    resolved: ResolvedArms, number: int, kinds: Sequence[tuple[Any, ...]], questions: Mapping[int, Any], begins: int
) -> ArmProgram:
    arm, inputs = resolved.arms[number].seen, len(kinds)
    places: dict[Source, int] = {("name", name): place for place, name in enumerate(resolved.carried)}
    places.update((source, len(resolved.carried) + place) for place, source in enumerate(resolved.fixed))

    def numbered(tensor: int) -> int:
        return inputs + tensor if tensor >= 0 else places[resolved.takes[number][-tensor - 1]]

    trace = Trace(tensors=[None] * (inputs + arm.sizes), result=Constant(None))
    for place, kind in enumerate(kinds):
        access_path = AccessPath.parameter(f"input {place}")
        trace.access_paths[place] = access_path
        trace.events.append(_found(access_path, kind))
    done = (event.modes for one in resolved.arms for event in ops_of(one.seen.events))
    modes = next(done, None)
    if modes is None:
        raise NotMergeable("loop-small", "iterations ask, and compute nothing")
    asking = PredicateLowering(trace, begins, modes)
    for position, event in enumerate(arm.events):
        if isinstance(event, IndexPredicate):
            asking.ask(questions[position], event, numbered)
        elif isinstance(event, Op | TensorPredicate | NumberPredicate):
            asking.operations += isinstance(event, Op)
            trace.events.append(_renumbered(event, numbered, asking.moved, arm.fetched, trace.fetched))
    ends = [inputs + one[1] if one[0] == "own" else places[one] for one in resolved.ends[number]]
    trace.recipes = {0: tuple(TensorOf(TensorRef(tensor)) for tensor in (*range(inputs), *ends))}
    work = Numbers([trace], frozenset())
    work.dimensions = dimensions_of([trace], [geometries(trace)], frozenset())
    split_numbers(work)
    builder = Builder(work, trace, ops_of(trace.events))
    program = builder.build()
    if len(program.inputs) != inputs or program.slots:
        raise NotMergeable("branch-arms-differ", "an arm takes a number that may change")
    outputs = [program.outputs[builder.outputs["tensor", tensor]] for tensor in ends]
    return ArmProgram(*_asking(program, outputs, asking.modes))


def _asking(program: Program, outputs: Sequence[Ref], modes: Modes) -> tuple[Program, tuple[bool, ...]]:
    """Return the program with clones of inputs that it outputs unchanged, and with its assertions as boolean outputs.

    The second result is the expected outcome of each. ``modes``: those of a program without operations."""
    free = 1 + max([len(program.inputs) - 1, *(ref.index for node in program.nodes for ref in node.outs)])
    if program.nodes:
        modes = replace(program.nodes[0].modes, grad=any(node.modes.grad for node in program.nodes))
    quiet = Modes(grad=False, default_dtype=modes.default_dtype)
    nodes: list[Node] = []
    flags: list[Ref] = []
    pending = list(program.assertions)
    for position in range(len(program.nodes) + 1):
        while pending and pending[0].after <= position:
            flags.append(Ref(free))
            nodes.append(Node(_answer, (pending.pop(0).ref,), {}, (flags[-1],), quiet))
            free += 1
        nodes += program.nodes[position : position + 1]
    given: list[Ref] = []
    for ref in outputs:
        if ref.index < len(program.inputs) or ref in given:
            nodes.append(Node(torch.clone, (ref,), {}, (Ref(free),), modes))
            ref, free = Ref(free), free + 1
        given.append(ref)
    body = replace(
        program, nodes=tuple(nodes), outputs=(*given, *flags), output_after=(len(nodes),) * (len(given) + len(flags)),
        assertions=(), leaves=(),
    )  # fmt: skip
    return body, tuple(assertion.expected for assertion in program.assertions)


def _answer(asked: torch.Tensor) -> torch.Tensor:
    return asked.detach().reshape(()).ne(0)


def _found(access_path: AccessPath, kind: tuple[Any, ...]) -> HeapRead:
    size, stride, dtype, device, needs = kind
    example = torch.empty_strided(size, stride, dtype=dtype, device=device)
    detail = ("Tensor", str(dtype).removeprefix("torch."), size, stride, str(device), needs, True)
    return HeapRead(access_path, example, "tensor", detail)


def _renumbered(
    event: Any,
    numbered: Callable[[int], int],
    moved: Callable[[int], int],
    known: dict[Any, Any],
    fetched: dict[Any, Any],
) -> Any:
    def expr(part: Any) -> Any:
        if isinstance(part, Fetch):
            made = replace(part, ref=numbered(part.ref), after=moved(part.after))
            fetched[made.token] = known[part.token]
            return made
        return Apply(part.func, tuple(map(expr, part.args))) if isinstance(part, Apply) else part

    def leaf(value: Any) -> Any:
        if isinstance(value, TensorRef):
            return TensorRef(numbered(value.number))
        return expr(value) if isinstance(value, Expr) else value

    if isinstance(event, TensorPredicate):
        return replace(event, ref=TensorRef(numbered(event.ref.number)), after=moved(event.after))
    if isinstance(event, NumberPredicate):
        return replace(event, expr=expr(event.expr))
    outs = tuple(TensorRef(numbered(ref.number)) for ref in event.outs)
    return replace(event, args=map_leaves(event.args, leaf), kwargs=map_leaves(event.kwargs, leaf), outs=outs)
