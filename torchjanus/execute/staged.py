"""Runs a graph in parts, because the host has to make calls between them. As in replay, it calls ATen operator by
operator.

This module does not know what the host does at a cut.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import torch

from torchjanus.core.errors import InternalFault
from torchjanus.execute.pending import violated_before
from torchjanus.execute.regions.invoke import ready_calls
from torchjanus.execute.regions.loop import ready
from torchjanus.execute.running.base import Numbers, Violated
from torchjanus.execute.running.gate import Ambience, Generators, State, below_autograd
from torchjanus.execute.running.printing import ReplaySource, last_uses
from torchjanus.graph.aten.buffer_reuse import Overwriting, of_intermediates
from torchjanus.graph.aten.middle_segments import Middle
from torchjanus.graph.aten.segments import Tail, flags_at, given_at, known_from, stages_of
from torchjanus.graph.ir.lowered import Lowered

__all__ = ["Staged", "StagedRun"]

Inputs = Sequence[torch.Tensor]
Run = Callable[[Inputs, Numbers], "list[torch.Tensor] | Violated"]
Parts = Generator[tuple[list[torch.Tensor], list[torch.Tensor]], tuple[Inputs, Numbers], list[torch.Tensor]]


class Staged:
    """Runs a lowered graph with cuts. ``begin()`` starts a run, which is advanced part by part.

    If there is a ``tail``, the last part is run by what ``use`` was called with last; so are the ``middles``.
    """

    name = "replay"

    def __init__(self, lowered: Lowered, tail: Tail | None = None, middles: Sequence[Middle] = ()) -> None:
        self.lowered, self.tail, self.middles = lowered, tail, middles
        self.runs: dict[int, Run] = {}  # what runs the middles, and the tail, by stage
        self._at_first: dict[int, Run] = {}
        self._last = len(lowered.program.cuts)
        source = _StagedSource(lowered, tail, {one.stage: one for one in middles})
        self.source = source.generate()
        self.compute: Callable[[Inputs, Numbers, Mapping[int, Run]], Parts] = source.compute(self.source)
        self._loops = ready(lowered.program)
        self._calls = ready_calls(lowered.program)
        self.generators = Generators(lowered)
        parts, program = range(len(lowered.program.cuts) + 1), lowered.program
        self.inputs = [[i for i, entry in enumerate(program.inputs) if entry.stage == part] for part in parts]
        self.slots = [[i for i, slot in enumerate(program.slots) if slot.stage == part] for part in parts]

    def use(self, run: Run, stage: int | None = None) -> None:
        """Run the last part, or what of ``stage`` is a graph of its own, by ``run`` from the next run on."""
        stage = self._last if stage is None else stage
        run = run if stage == self._last else functools.partial(_run_alone, run)
        self.runs[stage] = run
        self._at_first.setdefault(stage, run)  # replay

    def begin(self, exact: bool = False) -> StagedRun:
        """Return a new run. Nothing is computed before it is advanced. ``exact``: all of it by replay."""
        return StagedRun(self, self._at_first if exact else self.runs)


def _run_alone(run: Run, given: Inputs, slots: Numbers) -> list[torch.Tensor] | Violated:
    """Run a graph in the middle. What it gives is overwritten later, and then handed to the program: it gets memory of
    its own where compiled code has made it as a part of something larger."""
    values = run(given, slots)
    if isinstance(values, Violated):
        return values
    return [value if value.untyped_storage().nbytes() <= value.nbytes else value.clone() for value in values]


class StagedRun:
    """One run: each advance takes the inputs and slots that have become known and computes up to the next cut."""

    __slots__ = ("_before", "_ended", "_numbers", "_open", "_parts", "_runs", "_staged", "_tensors")

    def __init__(self, staged: Staged, runs: Mapping[int, Run]) -> None:
        self._staged, self._runs = staged, runs
        self._parts: Parts | None = None
        self._before: State = staged.generators.save()
        self._open = True
        self._ended = False  # whether its code has returned or raised
        self._tensors: dict[int, torch.Tensor] = {}
        self._numbers: dict[int, float | int] = {}

    def advance(self, inputs: Inputs, slots: Numbers, stage: int) -> list[torch.Tensor] | Violated:
        """Compute up to the next cut and return what the host needs there, or, at the end, commit and return the fresh
        values. If it returns Violated or raises, nothing has changed and the generators are restored."""
        try:
            flags, values = self.compute(inputs, slots, stage)
            if flags is None:
                return self._finish(values) if self._staged.tail is None else self._finish_tail(values)
        except Exception as error:
            self.abandon()
            if (violated := violated_before(self._staged.lowered, error)) is not None:
                return violated
            raise
        except BaseException:
            self.abandon()
            raise
        failed = tuple(number for number, holds in enumerate(flags) if not bool(holds))
        if failed:
            self.abandon()
            return Violated(failed)
        return values

    def compute(
        self, inputs: Inputs, slots: Numbers, stage: int
    ) -> tuple[list[torch.Tensor] | None, list[torch.Tensor]]:
        """Compute up to the next cut; return the flags there, None at the end, and the values that the host needs.
        Commits nothing, and leaves the generators as they are where it raises. Any thread may call it."""
        self._tensors.update(zip(self._staged.inputs[stage], inputs, strict=True))
        if self._staged.tail is not None:
            self._numbers.update(zip(self._staged.slots[stage], slots, strict=True))
        if self._ended:
            raise InternalFault("the run has ended")
        self._ended = True  # unless it stops at a cut
        with Ambience(self._staged.lowered), below_autograd():
            try:
                if self._parts is None:
                    self._parts = self._staged.compute(inputs, slots, self._runs)
                    found = next(self._parts)
                else:
                    found = self._parts.send((inputs, slots))
            except StopIteration as end:
                self._parts = None
                return None, end.value
        self._ended = False
        return found

    def _finish(self, values: list[torch.Tensor]) -> list[torch.Tensor] | Violated:
        lowered = self._staged.lowered
        if lowered.flags is not None and not bool(values[lowered.flags].all()):
            self.abandon()
            flags = values[lowered.flags].tolist()
            return Violated(tuple(number for number, holds in enumerate(flags) if not holds))
        if lowered.mutated:
            with torch.no_grad():
                torch._foreach_copy_([self._tensors[index] for index in lowered.mutated], values[lowered.updates :])
        self._open = False
        return values[: lowered.fresh]

    def _finish_tail(self, values: list[torch.Tensor]) -> list[torch.Tensor] | Violated:
        """Run the last part, which commits."""
        tail = self._staged.tail
        assert tail is not None
        run = self._runs[len(self._staged.lowered.program.cuts)]
        made = dict(zip(tail.wanted, values, strict=True))
        values.clear()
        given = [self._tensors[index] for index in range(len(self._tensors))]
        given += [made[node] for node in tail.live]
        early = {place: made[node] for place, node in enumerate(tail.fresh) if not isinstance(node, int)}
        made.clear()
        found = run(given, [self._numbers[index] for index in range(len(self._numbers))])
        if isinstance(found, Violated):
            self.abandon()
            return found
        self._open = False
        return [early[place] if place in early else found[own] for place, own in enumerate(tail.fresh)]  # type: ignore[index]

    def abandon(self) -> None:
        """End the run, if it has not ended, and restore the generators."""
        if not self._open:
            return
        self._open = False
        self.rewind()
        if self._parts is not None:
            self._parts.close()

    def rewind(self) -> None:
        """Restore the generators' states of before the run, which may have ended."""
        self._staged.generators.restore(self._before)


class _StagedSource(ReplaySource):
    """Writes ``compute`` as a generator that stops at each cut."""

    def __init__(self, lowered: Lowered, tail: Tail | None, middles: Mapping[int, Middle]) -> None:
        # overwriting is found by generate()
        super().__init__(lowered.graph, len(lowered.program.inputs), Overwriting())
        self.lowered, self.tail, self.middles = lowered, tail, middles
        nodes = list(lowered.graph.graph.nodes)
        self._given = [node for node in nodes if node.op == "placeholder"]

    def generate(self) -> str:
        lowered = self.lowered
        program = lowered.program
        nodes = list(lowered.graph.graph.nodes)
        stages = stages_of(lowered)
        placeholders = self._given
        values = nodes[-1].args[0]
        lines = ["def compute(inputs, slots, runs):"]
        # stable, so in the order of execution
        order = sorted(nodes, key=lambda node: (node.op == "output", *self._place(node, stages.get(node, 0))))
        self._overwriting = of_intermediates(order)
        shown = {node.name for node in flags_at(lowered)}  # at every cut that comes after them
        shown |= {node.name for node in (() if self.tail is None else self.tail.wanted)}
        ends = {one.stage: [node for node in order if node in one.own][-1] for one in self.middles.values()}
        dying = last_uses(order, others={end: self.middles[stage].live for stage, end in ends.items()})
        known = known_from(lowered)
        count = len(program.inputs)
        looked_at = set[Any]()  # flags, at cuts before
        for stage in range(len(program.cuts) + 1):
            for group, entries in (("inputs", placeholders[:count]), ("slots", placeholders[count:])):
                names = [node.name for node in entries if known[placeholders.index(node)] == stage]
                if names:
                    lines.append(f"    {', '.join(names)}, = {group}")
            written = [n for n in order if n.op not in ("placeholder", "output") and stages[n] == stage]
            middle = self.middles.get(stage)
            if middle is not None:
                first = [node for node in written if node in middle.before]
                lines += self._computed(first, dying, shown)
                lines += self._run_of(middle, known, dying, shown)
                written = [node for node in written if node not in middle.before and node not in middle.own]
            if stage < len(program.cuts) or self.tail is None:
                lines += self._computed(written, dying, shown)
            if stage == len(program.cuts):
                lines.append(f"    return {self.text(values if self.tail is None else self.tail.wanted)}")
                continue
            cut = program.cuts[stage]
            flags: list[Any] = []
            for flag, assertion in zip(flags_at(lowered), lowered.assertions, strict=True):
                # assertions on the result of this cut's call are checked at the next cut
                if assertion.after <= cut.after:
                    new = stages[flag] <= stage and flag not in looked_at
                    flags.append(flag if new else True)
            looked_at.update(flag for flag in flags if flag is not True)
            wanted = given_at(lowered, cut)
            for node in wanted:
                if stages[node] > stage:
                    raise InternalFault(f"{node} is needed at a cut before it can be computed")
            lines.append(f"    inputs, slots = yield {self.text(flags)}, {self.text(wanted)}")
        return "\n".join(lines) + "\n"

    def _place(self, node: Any, stage: int) -> tuple[int, int]:
        """Return the node's stage, and whether it is computed before (0), in (1) or after (2) the graph that is run
        then."""
        middle = self.middles.get(stage)
        if middle is None or node in middle.before or node.op == "placeholder":
            return stage, 0
        return stage, 1 if node in middle.own else 2

    def _computed(self, nodes: Sequence[Any], dying: Mapping[Any, list[str]], shown: set[str]) -> list[str]:
        lines = []
        for node in nodes:
            lines += self.lines(node)
            if gone := [name for name in dying.get(node, ()) if name not in shown]:
                lines.append(f"    del {', '.join(gone)}")
        return lines

    def _run_of(
        self, middle: Middle, known: Sequence[int], dying: Mapping[Any, list[str]], shown: set[str]
    ) -> list[str]:
        """Return the lines that run a graph in the middle, and compute again what others need."""
        count = len(self.lowered.program.inputs)
        given = [*middle.taken, *middle.live]
        slots = [node.name if stage <= middle.stage else "0" for node, stage in zip(self._given, known, strict=True)]
        freed = [node.name for node in given[middle.lowered.lent or 0 :] if node.name not in shown]
        lines = [f"    given = {self.text(given)}"]
        lines += [f"    del {', '.join(freed)}"] if freed else []
        names = "".join(f"{node.name}, " for node in middle.values)
        lines.append(f"    {names}= runs[{middle.stage}](given, [{', '.join(slots[count:])}])")
        lines.append("    del given")
        lines += [line for node in middle.again for line in self.lines(node)]
        there = {node.name for node in (*middle.values, *middle.again, *middle.live)}.difference(freed, shown)
        gone = [name for node in middle.own for name in dying.get(node, ()) if name in there]
        lines += [f"    del {', '.join(gone)}"] if gone else []
        return lines
