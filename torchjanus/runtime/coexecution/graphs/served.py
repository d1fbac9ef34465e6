"""The graph of one path: lowered, run in stages, and committed at the end. Knows neither skeletons nor placeholders'
rules.

``Served`` is a path with everything that serving it needs.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.autograd.graph import increment_version

from torchjanus.core.errors import InternalFault, refused
from torchjanus.execute.regions.loop import loops_of
from torchjanus.execute.regions.switch import switches_of
from torchjanus.execute.replay import Replay
from torchjanus.execute.running.base import Violated
from torchjanus.execute.staged import Staged, StagedRun
from torchjanus.graph.ir.lowered import FromInput, GradState, Lowered
from torchjanus.graph.lowering.lower import lower
from torchjanus.graph.lowering.risks import cannot_fail_within
from torchjanus.host.node_hooks import has_node_hooks
from torchjanus.host.source import Source
from torchjanus.runtime.coexecution.graphs.composite_plans import composites_of
from torchjanus.runtime.coexecution.graphs.evaluation import Evaluation
from torchjanus.runtime.coexecution.graphs.matching import Matcher, matchers
from torchjanus.runtime.coexecution.graphs.path import Path, Plan
from torchjanus.runtime.coexecution.graphs.stages import Stages, stages
from torchjanus.runtime.coexecution.recording.events import Meta, Provenance
from torchjanus.runtime.coexecution.recording.placeholders import fill
from torchjanus.runtime.coexecution.recording.unrecorded_code import is_exposed
from torchjanus.runtime.launch.results import Results

__all__ = ["Served"]

_REMEDY = "The call is Python's."


@dataclass(frozen=True, slots=True)
class _Outputs:
    """What ``Results`` asks of a plan: the position of each output."""

    outputs: dict[Any, int]


class OneStage:
    """A run of a graph that Python waits for only at its end; see ``StagedRun``."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay

    def advance(self, inputs: list[torch.Tensor], slots: list[float], stage: int) -> list[torch.Tensor] | Violated:
        """Run the whole graph, and commit."""
        return self._replay.run(inputs, slots)

    def abandon(self) -> None:
        """Nothing was begun."""


class Served:
    """A path with its graph. Raises Refused where no graph serves it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.diverged = 0  # calls in a row that began as calls of this path and left it
        self.events = list(path.events)
        self.externals = dict(path.externals)
        self.fixed = dict(path.fixed)
        self.tokens = [event.token for event in self.events]
        self.plan: Plan = path.plan()
        self.lowered: Lowered = lower(self.plan.program)
        self._require_supported()
        limits = cannot_fail_within(self.lowered, loops_of(self.plan.program), switches_of(self.plan.program))
        if limits is None or limits.fits is not None:
            what = "an operation may raise because of the contents of tensors that the graph computes"
            raise refused("coexecution-raises", what, "The program would see the error too late.", _REMEDY)
        self.staged = Staged(self.lowered) if self.plan.program.cuts else None
        self.replay = Replay(self.lowered) if self.staged is None else None
        program = self.plan.program
        known = range(len(program.cuts) + 1)
        self.inputs = [[k for k, one in enumerate(program.inputs) if one.stage == stage] for stage in known]
        self.slots = [[k for k, one in enumerate(program.slots) if one.stage == stage] for stage in known]
        self.matchers: list[Matcher] = matchers(self.events, self.externals, self.fixed, self.plan.slots)
        self.evaluation = Evaluation(lambda: self.stages is not None)
        self.commit = self._commit()
        self.count = max([-1, *self.externals, *(n for event in self.events for n in event.made)]) + 1
        self.known = self._known()
        self.draws = any(event.draws for event in self.events)
        self.bound = frozenset(path.bound)
        self.composites = composites_of(path, self.plan)
        self.exposed = is_exposed(path.modules)  # whether served calls have to be watched
        self.escaping = frozenset(self.plan.escapes.values())
        self.passing = [n for n in range(self.count) if n not in self.externals and n not in self.escaping]
        self.gradients = {
            one.owner: one.number for one in self.externals.values() if one.provenance is Provenance.GRADIENT
        }
        # For tensors whose memory the graph changes no other input may share it.
        changed = {*self.lowered.mutated, *self.lowered.restored}
        self.changed = frozenset(self.plan.inputs[index] for index in changed)
        self.bounds: dict[int, list[Any]] = {}
        for bound in limits.bounds:
            self.bounds.setdefault(self.plan.inputs[bound.index], []).append(bound)
        self.uncounted = [self.plan.inputs[index] for index in self.lowered.uncounted]

    def _require_supported(self) -> None:
        lowered, plan = self.lowered, self.plan
        if any(lowered.outputs[position].state is GradState.LIVE for position in plan.escapes):
            what = "a tensor with its backward graph lives on after the step"
            raise refused("coexecution-open", what, "The graph ends with the step.", "Detach what the step returns.")
        if lowered.replaced:
            raise InternalFault("a path gives tensors other memory")
        if lowered.pinned:
            held = "; ".join(lowered.pin_reasons.values())
            what = f"a number that varies shapes the graph ({held})"
            raise refused("coexecution-number", what, "There would be a graph for each.", _REMEDY)
        for index in lowered.mutated:
            one = self.externals[plan.inputs[index]]
            if one.shared:
                what = "the step changes a tensor that shares memory with an array"
                raise refused("coexecution-memory", what, "Its array would be changed too late.", _REMEDY)
        for position, n in plan.escapes.items():
            result = lowered.outputs[position]
            if result.inference or (isinstance(result.source, FromInput) and result.state is not GradState.PLAIN):
                what = "an input lives on as another tensor with gradients"
                raise refused("coexecution-open", what, "The graph ends with the step.", _REMEDY)
            assert n not in self.externals

    def _known(self) -> list[int]:
        """Return how many tensors are known before each event, and at the end."""
        known, number = [], 0
        by_event: dict[int, int] = {}
        for one in self.externals.values():
            by_event[one.first] = max(by_event.get(one.first, 0), one.number + 1)
        for k, event in enumerate(self.events):
            known.append(number)
            number = max([number, by_event.get(k, 0), *(n + 1 for n in event.made)])
        return [*known, number]

    def _commit(self) -> Any:
        """Return a function of the fresh values, the inputs and the tensors by number: it sets gradients and flags, and
        fills the placeholders that live on."""
        source = Source()
        names = {index: f"inputs[{index}]" for index in range(len(self.plan.inputs))}
        outputs = _Outputs({("tensor", n): position for position, n in self.plan.escapes.items()})
        results = Results(source, cast(Any, outputs), self.lowered, names, self.path.nodes)
        held = {n: results.tensor(n) for n in self.plan.escapes.values()}
        gradients = [(leaf.index, results.dressed(leaf.result)) for leaf in self.lowered.leaves if leaf.changed]
        for index in self.lowered.restored:
            source.line(f"{source.constant(increment_version)}({names[index]})")
        for index, text in gradients:
            source.line(f"{names[index]}.grad = {text}")
        for index, flag in self.lowered.requires_grad_set:
            source.line(f"{names[index]}.requires_grad_({flag})")
        for n, text in held.items():
            made = f"{text}.detach()" if text.startswith("inputs[") else text
            source.line(f"if V[{n}] is not None: {source.constant(fill)}(V[{n}], {made})")
        source.flush()
        text = "\n".join(["def commit(values, inputs, V):", *source.lines, "    return None"]) + "\n"
        exec(compile(text, "<torchjanus co-execution commit>", "exec"), source.names)
        return source.names["commit"]

    def begin_graph(self) -> StagedRun | OneStage:
        """Return a new run of the graph. Nothing is computed before it is advanced."""
        if self.replay is not None:
            return OneStage(self.replay)
        assert self.staged is not None
        return self.staged.begin()

    @functools.cached_property
    def stages(self) -> Stages | None:
        """The stages of a run beside the skeleton; None where there cannot be one."""
        return stages(self.path, self.plan, self.lowered)

    @functools.cached_property
    def overlapped(self) -> tuple[Staged, Stages]:
        """The graph for a run beside the skeleton, and its stages."""
        if self.stages is None:
            raise InternalFault("this path's graph runs as a whole")
        return Staged(self.stages.lowered), self.stages

    # -- what a run asks ------------------------------------------------------------------------------------------

    def begin(self) -> list[Any] | None:
        """Return the tensors that are known at the beginning, by number; None if one is not as it was."""
        values: list[Any] = [None] * self.count
        for n, tensor in self.fixed.items():
            values[n] = tensor
            one = self.externals[n]
            if not self._is_as(one.meta, tensor) or not self._gradient(n, tensor, values):
                return None
            if any(not bound.holds({bound.index: tensor}) for bound in self.bounds.get(n, ())):
                return None
        return values

    def accepts(self, n: int, tensor: Any, values: list[Any]) -> bool:
        """Whether a tensor may be external ``n``. If so, it and its gradient are put into ``values``."""
        one = self.externals[n]
        kind = torch.nn.Parameter if one.parameter else torch.Tensor
        if type(tensor) is not kind or not self._is_as(one.meta, tensor) or any(tensor is other for other in values):
            return False
        if any(not bound.holds({bound.index: tensor}) for bound in self.bounds.get(n, ())):
            return False
        if not self._gradient(n, tensor, values):
            return False
        values[n] = tensor
        return True

    @staticmethod
    def _is_as(meta: Meta, tensor: torch.Tensor) -> bool:
        return (
            tensor.requires_grad is meta.requires_grad
            and tensor.layout is torch.strided
            and tensor.size() == meta.size
            and tensor.stride() == meta.stride
            and tensor.dtype is meta.dtype
            and tensor.device == meta.device
            and tensor.grad_fn is None
            and not tensor._backward_hooks
            and not getattr(tensor, "_post_accumulate_grad_hooks", None)
            and not (meta.requires_grad and has_node_hooks(tensor))
            and not tensor.is_inference()
            and not tensor.is_conj()
            and not tensor.is_neg()
        )

    def _gradient(self, n: int, tensor: torch.Tensor, values: list[Any]) -> bool:
        """Whether the ``.grad`` of an external is as it was."""
        gradient, number = tensor.grad, self.gradients.get(n)
        if number is None or gradient is None:
            return number is None and gradient is None
        values[number] = gradient
        return self._is_as(self.externals[number].meta, gradient)

    def separate(self, values: Sequence[Any]) -> bool:
        """Whether no tensor that the graph changes shares memory with another input."""
        if not self.changed:
            return True
        owners: dict[int, int] = {}
        for n in self.plan.inputs:
            if values[n] is not None:
                memory = values[n].untyped_storage()._cdata
                other = owners.setdefault(memory, n)
                if other != n and (n in self.changed or other in self.changed):
                    return False
        return True
