"""Rewrites a run: each iteration of a switched loop becomes one switch operation.

All iterations then have equal events, whichever arm they took. How the loop is lowered is not known here.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from torchjanus.core.remarks import NotMergeable
from torchjanus.graph.regions.switch import Switch
from torchjanus.graph.regions.switch_gradients import Flow, Flows
from torchjanus.graph.switches.analysis.after_loop import LiveOutUses
from torchjanus.graph.switches.analysis.arm_effects import ArmEffects
from torchjanus.graph.switches.analysis.arms import ArmResolution, ResolvedArms, SwitchSites
from torchjanus.graph.switches.analysis.effects import is_shown, with_shown
from torchjanus.graph.switches.analysis.evidence import are_known, limits_of
from torchjanus.graph.switches.analysis.index_predicates import ITERATION
from torchjanus.graph.switches.analysis.iteration_reader import iterations_in
from torchjanus.graph.switches.analysis.iterations import subject_of
from torchjanus.graph.switches.analysis.lists import check_unseen, filled_in, without_filled
from torchjanus.graph.switches.analysis.numbers import NumberStates
from torchjanus.graph.switches.analysis.variable_states import check_states, without_elements, without_unbound
from torchjanus.graph.switches.rewrites.arm_programs import switch_of
from torchjanus.graph.switches.rewrites.later_uses import distinct_place
from torchjanus.graph.switches.rewrites.numbering import Renumbering
from torchjanus.graph.switches.rewrites.operands import OperandRewriter
from torchjanus.trace.actions import Op
from torchjanus.trace.events import Fact, LoopEnd, Trace
from torchjanus.trace.facts import TensorPredicate, is_question
from torchjanus.trace.loops.records import LoopInstance, LoopSnapshots
from torchjanus.trace.operations import made_by, op_count, ops_of
from torchjanus.trace.terms import TensorRef

__all__ = ["with_switches"]

MOST = 4  # records of one loop, see ``SwitchSites.fits``


def with_switches(trace: Trace, frames: LoopSnapshots, known: list[SwitchSites]) -> Trace:
    """Return the run with the iterations of this loop as switches.

    ``known``: what earlier runs have shown of the loop, one record per set of compatible runs. Raises NotMergeable
    where the iterations cannot be merged, or not before more runs have been watched."""
    check_unseen(trace, frames)
    lists = filled_in(trace, frames)
    frames = with_shown(trace, without_elements(without_filled(frames, lists), _made(trace, frames)), lists)
    held = NumberStates.of(trace, frames, {name: place for one in known for name, place in one.places.items()})
    left = check_states(frames)
    frames = without_unbound(frames)
    iterations = iterations_in(trace, frames, held, lists)
    switches = next((one for one in known if one.fits(iterations, left)), None)
    if switches is None:
        switches = SwitchSites()
        known[:] = [switches, *known[: MOST - 1]]
    switches.learn(iterations, left)
    switches.places.update(held.access_paths)
    taken = switches.arms_of(iterations)
    proven = (
        [one for one in switches.arms if switches.leaves_all(one)]
        if frames.region
        else switches.proven(frames.count is not None)
    )
    if len(proven) < (2 if frames.count is None else 1) or any(arm not in proven for arm in taken):
        raise NotMergeable("branch-evidence")
    acting = ArmEffects(proven, taken, iterations, held, lists)
    after = LiveOutUses(trace, frames, switches, ArmResolution(proven, frames.states[0]), acting)
    return _SwitchRewriter(trace, frames, switches, after, taken, acting).trace()


def _made(trace: Trace, frames: LoopSnapshots) -> set[int]:
    """Return the tensors that the iterations make."""
    events = trace.events[frames.starts[0] : frames.end]
    return made_by(events)


class _SwitchRewriter(OperandRewriter):
    """Writes the run."""

    # -- the run --------------------------------------------------------------------------------------------------

    def trace(self) -> Trace:
        """Return the rewritten run. Raises NotMergeable, Refused."""
        self.rest()  # collects the live-outs
        self.check_leaving()
        self.wanted.update((name, None) for arm in self.acting.arms for name in arm.seen.ends if is_shown(name))
        self.acting.want(self.counted)
        resolved = self.after.resolving.resolved(self.wanted)
        given, events = self.operands(resolved)
        kinds = [self.kind_of_operand(resolved, place, given) for place in range(len(given))]
        switch = self._switch(resolved, kinds)
        self.flow = self._flow(switch, resolved, kinds, given)
        events += self._gates(resolved, given)
        starts, iterations = self._iterations(resolved, switch, given, self.before + op_count(events))
        check = self._check(self.before + op_count(events) + op_count(iterations), resolved)
        self.shift = op_count(events) + op_count(iterations) + op_count(check) - self.inside
        self.after.decided = 0
        self.after.context, self.recipes, self.fetched = 0, dict(self.shown), dict(self.acting.fetched)
        self.results = self._results
        rest, result = self.rest()
        old, start = self.old, self.start
        leading = next((n for n, event in enumerate(rest) if not isinstance(event, LoopEnd)), len(rest))
        hoisted = {subject_of(event) for event in events if isinstance(event, Fact)}
        tail = [*rest[:leading], *check, *rest[leading:]]
        places = self.position_map(len(events), len(iterations), len(check), leading)
        kept = [
            not (isinstance(event, Fact) and not is_question(event) and subject_of(event) in hoisted) for event in tail
        ]
        head = [*old.events[:start], *events, *iterations]
        dropped = [0, *itertools.accumulate(not one for one in kept)]

        def place(position: int) -> int:
            moved = places(position)
            return int(moved - dropped[moved - len(head)] if moved > len(head) else moved)

        first = len(old.events[:start]) + len(events)
        count, counters = self.frames.count, self.frames.counters
        new_starts = tuple(first + one for one in starts)
        found = list(self.moved_instances(place))
        if count is not None:
            counters = (*counters, *((one, 1) for one in sorted(self.acting.offsets) if (one, 1) not in counters))
            begins, back = self.frames.begins, self.frames.back
            unpinned = self.frames.unpinned
            found.append(
                LoopInstance(new_starts, len(head), count, counters, begins=begins, back=back, unpinned=unpinned)
            )
        fetched = {
            token: value
            for token, value in old.fetched.items()
            if token[1] not in self.after.made and token[2 if token[0] == "fetch" else 3] <= self.before
        }
        made = replace(
            old,
            events=[*head, *(event for event, stays in zip(tail, kept, strict=True) if stays)],
            tensors=self.tensors,
            access_paths=self.access_paths,
            memory=self.memory,
            kinds=self.kinds,
            result=result,
            recipes=self.recipes,
            fetched={**fetched, **self.fetched},
            loop_instances=sorted(found, key=lambda instance: instance.starts[:1]),
            loop_records=list(self.moved_records(place, new_starts)),
            plain=list(self.moved_plain(place)),
            peeked=[(place(position), number) for position, number in old.peeked],
            reread=[(place(position), where) for position, where in old.reread],
            counted=[(place(position), where, count) for position, where, count in old.counted],
            given=[replace(plain, position=place(plain.position)) for plain in old.given],
            changed={place(at): names for at, names in old.changed.items() if not start <= at < self.end},
            measured=place(old.measured) if old.measured >= 0 else old.measured,
            frames=[*self.moved_frames(place)],
            loops=[],
            alive=[*old.alive, old, switch],
        )
        return Renumbering(made).trace()

    def _switch(self, resolved: ResolvedArms, kinds: Sequence[tuple[Any, ...]]) -> Switch:
        questions, begins = self.acting.questions, self.frames.begins
        asked = tuple(tuple(some.items()) for some in questions)
        key = (resolved.key, tuple((*kind[:4],) for kind in kinds), asked, begins)
        known: Switch | None = self.switches.built.get(key)
        if known is None:
            for other in self.switches.built.values():
                other.stale = True
            known = self.switches.built[key] = switch_of(resolved, kinds, questions, begins)
        return known

    def _flow(
        self, switch: Switch, resolved: ResolvedArms, kinds: Sequence[tuple[Any, ...]], given: Sequence[Any]
    ) -> Flow | None:
        """Return the gradient checks of the switch, if it depends on the arms taken which inputs receive gradients."""
        places = {name: place for place, name in enumerate(resolved.carried)}
        last, each = (
            frozenset(places[name] for name in names) for names in (self.graded & {*self.lasts}, self.columns)
        )
        key = (last, each)
        if key not in switch.flowing:
            flows = Flows(switch.flows(kinds), last, each)
            asked = [
                i for i in sorted(flows.uncertain() | flows.dependent()) if given[i] is None or self.kinds[given[i]][4]
            ]
            asked = [i for i in asked if given[i] is not None or kinds[i][4]]
            switch.flowing[key] = Flow(flows, tuple(asked)) if asked else None
        found: Flow | None = switch.flowing[key]
        return found

    def _gates(self, resolved: ResolvedArms, given: list[Any]) -> list[Any]:
        """Append a gate for each input whose gradient depends on the arms taken; return the operations."""
        events = list[Any]()
        for index in () if self.flow is None else self.flow.asked:
            if given[index] is None:  # a scanned input
                given[index] = self.order(resolved.fixed[index - len(resolved.carried)], events)
            number = self.new(given[index])
            args, outs = (TensorRef(given[index]),), (TensorRef(number),)
            assert self.flow is not None
            events.append(Op(self.flow.gate, "gate", args, {}, outs, self.modes(), self.frames.place))
            given[index] = number
        self.gated = [] if self.flow is None else [given[index] for index in self.flow.asked]
        return events

    def _iterations(
        self, resolved: ResolvedArms, switch: Switch, given: Sequence[Any], before: int
    ) -> tuple[list[int], list[Any]]:
        """Return the starts and the events of all iterations. ``before``: the number of operations before them."""
        frames, old = self.frames, self.old
        operations = ops_of(old.events[self.start : self.end])
        modes = self.modes()
        draws, checks = any(op.draws for op in operations), any(op.checks for op in operations)
        current = list(given[: len(resolved.carried)])
        starts, events = list[int](), list[Any]()
        self._results, self._arms = list[dict[Any, int]](), list[int]()
        for iteration in range(len(frames.starts)):
            starts.append(len(events))
            fixed = []
            for source, tensor in zip(resolved.fixed, given[len(resolved.carried) :], strict=True):
                if source[0] == "indexed":
                    events.append(self.row(source, iteration, tensor))
                    tensor = events[-1].outs[0].number
                elif source == ITERATION:
                    events.append(self.iteration(tensor, iteration))
                    tensor = events[-1].outs[0].number
                elif source[0] == "row":
                    tensor = self.of_iteration(source, iteration)
                fixed.append(tensor)
            likes = [frames.states[iteration + 1].get(name, (None, None))[1] for name in resolved.carried]
            outs = [self.new(like) for like in likes]
            self.kinds.update((o, n[1]) for o, n in zip(outs, resolved.carried, strict=True) if is_shown(n))
            self._arms.append(self.new())
            args = tuple(TensorRef(number) for number in (*current, *fixed))
            made = tuple(TensorRef(number) for number in (*outs, self._arms[-1]))
            events.append(Op(switch, "switch", args, {}, made, modes, frames.place, draws, checks))
            current = outs
            self._results.append(dict(zip(resolved.carried, outs, strict=True)))
            after = before + op_count(events)
            merged, arm, results = frames.normalized(iteration), self._arms[-1], self._results[-1]
            for effect, recipes in self.acting.next_effects(iteration, merged, arm, results, after):
                events.append(effect)
                self.shown[id(effect)] = recipes
        return starts, events

    def _check(self, after: int, resolved: ResolvedArms) -> list[Any]:
        """Return the assertions: the iterations took known arms, and gradients reach the inputs that they did."""
        place, flow = self.frames.place, self.flow
        quiet = replace(self.modes(), grad=False)
        stacked, known = self.new(), self.new()
        rows = [TensorRef(number) for number in self._arms]
        limits = ((), (), ()) if self.frames.region else limits_of(resolved.arms, self.frames.begun)
        events: list[Any] = [
            Op(torch.stack, "torch.stack", (rows,), {}, (TensorRef(stacked),), quiet, place),
            Op(are_known, "are known", (TensorRef(stacked), *limits), {}, (TensorRef(known),), quiet, place),
            TensorPredicate(TensorRef(known), True, after + 2, distinct_place(place, 0)),
        ]
        events += self.check_rows(resolved, TensorRef(stacked), quiet, after + op_count(events))
        self.last = dict(self._results[-1])
        if flow is None:
            return events
        reached = TensorRef(self.new())
        events.append(Op(flow.reach, "reached", (TensorRef(stacked),), {}, (reached,), quiet, place))
        arms = [resolved.arms.index(arm) for arm in self.taken]
        for position, (tensor, outcome) in enumerate(zip(self.gated, flow.reached(arms), strict=True)):
            one = TensorRef(self.new())
            events.append(Op(torch.select, "torch.select", (reached, 0, position), {}, (one,), quiet, place))
            events.append(TensorPredicate(one, outcome, after + op_count(events), distinct_place(place, 1 + position)))
            if not outcome:
                events.append(Op(flow.close, "close", (TensorRef(tensor),), {}, (), quiet, place))
        for name in self.lasts:
            if name not in self.graded:
                continue
            events.append(self.mark(self.last[name]))
            self.last[name] = events[-1].outs[0].number
        return events
