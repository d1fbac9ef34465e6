"""Writes the loop nodes of a program: replaces segments that fit (``RolledSegment``) by one node each.

What the iterations take is computed by ``inputs``.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from torchjanus.core.remarks import NotMergeable
from torchjanus.graph.ir.loop_matching import RolledSegment
from torchjanus.graph.ir.program import Assertion, Input, Node, Program, Ref
from torchjanus.graph.loops.roll.inputs import IterationInputs, filled
from torchjanus.graph.loops.roll.uses import (
    as_expected,
    asked_by,
    check_measures,
    joins,
    simplified,
    unbindings,
    used_of,
)
from torchjanus.graph.operators.tensor_numbers import beside
from torchjanus.graph.regions.loop import Loop, TerminatedLoop

__all__ = ["rewritten"]


def rewritten(program: Program, loops: Sequence[RolledSegment]) -> Program:
    """Return the program with these loops rolled. Raises NotMergeable."""
    return _SegmentRewriter(program, loops).program()


class _SegmentRewriter:
    """Replaces the segments of a program."""

    def __init__(self, program: Program, loops: Sequence[RolledSegment]) -> None:
        self.old = program
        self.loops = loops
        self.next = 1 + max(
            [len(program.inputs) - 1, *(ref.index for node in program.nodes for ref in node.outs)], default=0
        )
        self.nodes: list[Node] = []
        self.assertions: list[Assertion] = []
        self.positions: dict[int, int] = {}
        self.ends = {
            p: loop.segment.end + loop.segment.marks
            for loop in loops
            for p in range(loop.segment.start - loop.segment.marks + 1, loop.segment.end + loop.segment.marks)
        }

    def fresh(self) -> Ref:
        ref = Ref(self.next)
        self.next += 1
        return ref

    def program(self) -> Program:
        old = self.old
        starts = {loop.segment.start - loop.segment.marks: loop for loop in self.loops}
        obsolete = dict(found for loop in self.loops if loop.segment.marks for found in unbindings(old, loop))
        position = 0
        asked = {loop: asked_by(old, loop) for loop in self.loops if loop.segment.until is not None}
        inside = {id(assertion) for found in asked.values() for assertion in found}
        pending = [assertion for assertion in old.assertions if id(assertion) not in inside]
        escaping = {ref.index for ref in old.outputs}
        asserted = {assertion.ref.index for assertion in pending}
        stacks: dict[tuple[Ref, ...], Ref] = {}
        for one in self.loops:
            check_measures(old, one)
        while position < len(old.nodes):
            self.positions[position] = len(self.nodes)
            loop = starts.get(position)
            if loop is None and position in obsolete:
                self.nodes += obsolete[position]
                position += 1
                continue
            if loop is None:
                self.nodes.append(simplified(old.nodes[position], stacks))
                position += 1
                continue
            before = loop.segment.start - loop.segment.marks
            self._assert([assertion for assertion in pending if assertion.after <= before])
            pending = [assertion for assertion in pending if assertion.after > before]
            used = used_of(old, loop)
            _Emission(self, loop, used | asserted, escaping, stacks).emit(asked.get(loop, ()))
            position = loop.segment.end + loop.segment.marks
        self.positions[len(old.nodes)] = len(self.nodes)
        self._assert(pending)
        return replace(
            old,
            nodes=tuple(self.nodes),
            output_after=tuple(self.moved(after) for after in old.output_after),
            assertions=tuple(self.assertions),
            cuts=tuple(replace(cut, after=self.moved(cut.after)) for cut in old.cuts),
            measures=tuple(replace(measure, after=self.moved(measure.after)) for measure in old.measures),
        )

    def _assert(self, assertions: Sequence[Assertion]) -> None:
        """Place these assertions before the next loop."""
        self.assertions += (replace(assertion, after=self.moved(assertion.after)) for assertion in assertions)

    def moved(self, after: int) -> int:
        """Return the new position; the end of the loop for a position within a loop."""
        return self.positions[self.ends.get(after, after)]


class _Emission:
    """Writes one loop: the stacked inputs before it, its node, and the rows that later nodes use."""

    def __init__(
        self,
        work: _SegmentRewriter,
        loop: RolledSegment,
        used: set[int],
        escaping: set[int],
        stacks: dict[tuple[Ref, ...], Ref],
    ) -> None:
        self.work, self.loop, self.used, self.escaping, self.stacks = work, loop, used, escaping, stacks
        self.given = IterationInputs(work, loop, used)

    def emit(self, asked: Sequence[Assertion] = ()) -> None:
        """Write the loop. ``asked``: the assertions of the iterations, if they end the loop."""
        loop = self.loop
        inputs = self.given
        plans = [inputs.plan(position) for position in range(loop.segment.length)]
        carried, stacked, same = len(inputs.starts), len(inputs.stacked), len(inputs.same)
        base = {"carried": 0, "stacked": carried, "same": carried + stacked}
        following = carried + stacked + same
        names: dict[tuple[int, int], Ref] = {}
        nodes: list[Node] = []
        hoisted = {position for position, plan in enumerate(plans) if plan is None}
        for position, plan in enumerate(plans):
            node = loop.iterations[-1][position]
            if plan is None:
                names[position, 0] = Ref(base["stacked"] + inputs.columns["hoisted", position])
                if rest := inputs.rests.get(position):
                    out, following = Ref(following), following + 1
                    nodes.append(Node(operator.getitem, (names[position, 0], rest), {}, (out,), node.modes, node.place))
                    names[position, 0] = out
                continue
            refs: list[Any] = []
            pending: list[tuple[int, Any]] = []
            for leaf, (kind, what) in enumerate(plan):
                if kind == "own":
                    refs.append(names[what])
                elif kind == "constant":
                    refs.append(what)
                elif kind == "number":
                    refs.append(None)
                    pending.append((leaf, what))
                else:
                    refs.append(Ref(base[kind] + what))
            for leaf, (source, number, is_float) in pending:
                out = Ref(following)
                following += 1
                others = [ref for ref in refs if isinstance(ref, Ref)]
                quiet = replace(node.modes, grad=False)
                nodes.append(
                    Node(beside, (Ref(base[source] + number), is_float, *others), {}, (out,), quiet, node.place)
                )
                refs[leaf] = out
            given = iter(refs)
            args, kwargs = filled(node.args, given), filled(node.kwargs, given)
            outs = []
            for which, ref in enumerate(node.outs):
                first = loop.made[ref.index][1:]
                if first not in names:
                    names[first] = Ref(following)
                    following += 1
                names[position, which] = names[first]
                outs.append(names[first])
            func = inputs.taking.get(position, node.func)
            nodes.append(Node(func, args, kwargs, tuple(outs), node.modes, node.place))
        rows = self._rows(hoisted)
        if asked:
            rows.append(loop.made[asked[-1].ref.index][1:])
        outputs = [*(names[key] for key in inputs.carried), *(names[key] for key in rows)]
        body = Program(
            tuple(Input(torch.empty(0), False, True) for _ in range(carried + stacked + same)),
            (), tuple(nodes), tuple(outputs), (len(nodes),) * len(outputs), (), (),
        )  # fmt: skip
        finals = [
            self._last(key) if self._last(key).index in self.used else self.work.fresh() for key in inputs.carried
        ]
        unseen = frozenset(i for i, key in enumerate(inputs.carried) if self._last(key).index not in self.used)
        if asked:
            self._until(body, asked[-1], finals, rows)
            return
        stacks = [self.work.fresh() for _ in rows]
        self.given.node(
            Loop(body, carried, stacked, loose=inputs.loose, unseen=unseen, trains=loop.trains),
            (inputs.count, inputs.starts, inputs.stacked, [Ref(index) for index in inputs.same], inputs.sizes),
            (*finals, *stacks),
            grad=not loop.trains,
        )
        for key, stack in zip(rows, stacks, strict=True):
            self._give(key, stack)

    def _until(self, body: Program, asked: Assertion, finals: list[Ref], rows: list[tuple[int, int]]) -> None:
        """Write the node of a tensor-terminated loop, and its assertions."""
        work, segment, inputs = self.work, self.loop.segment, self.given
        assert segment.until is not None
        if not (inputs.starts or inputs.stacked or inputs.same) or any(
            ref.index in self.used for key in rows[:-1] for ref in self._all(key)[:-1]
        ):
            raise NotMergeable(
                "loop-results", "what all iterations gave is used, and a tensor decides how many there are"
            )
        ready: list[Ref] = []
        if work.assertions:
            ready.append(work.fresh())
            refs = tuple(assertion.ref for assertion in work.assertions)
            expected = tuple(assertion.expected for assertion in work.assertions)
            self.given.node(as_expected, (expected, *refs), (ready[0],), grad=False)
        lasts = [self._last(key) for key in rows[:-1]]
        counted = work.old.nodes[segment.end].outs
        answer, count = work.fresh(), counted[0] if counted else work.fresh()
        limit = -1 if segment.until.limit is None else segment.until.limit
        same = [Ref(index) for index in inputs.same]
        self.given.node(
            TerminatedLoop(body, len(inputs.starts), len(inputs.stacked), go=segment.until.go),
            (limit, ready, inputs.starts, inputs.stacked, same, inputs.sizes),
            (*finals, *lasts, answer, count),
        )
        work.assertions.append(replace(asked, ref=answer, after=len(work.nodes)))
        if segment.least > 1:
            enough = work.fresh()
            self.given.node(torch.ge, (count, segment.least), (enough,), grad=False)
            work.assertions.append(Assertion(enough, True, len(work.nodes), asked.place))

    def _last(self, key: tuple[int, int]) -> Ref:
        return self.loop.iterations[-1][key[0]].outs[key[1]]

    def _all(self, key: tuple[int, int]) -> tuple[Ref, ...]:
        return tuple(nodes[key[0]].outs[key[1]] for nodes in self.loop.iterations)

    def _rows(self, hoisted: set[int]) -> list[tuple[int, int]]:
        """Return the outputs whose rows are stacked: those used of more iterations than the last, or not
        loop-carried."""
        found = []
        for position, node in enumerate(self.loop.iterations[-1]):
            if position in hoisted:
                continue
            for which, ref in enumerate(node.outs):
                key = (position, which)
                if self.loop.made[ref.index][1:] != key:
                    continue
                refs = self._all(key)
                if any(ref.index in self.used for ref in (refs[:-1] if key in self.given.carried else refs)):
                    found.append(key)
        return found

    def _give(self, key: tuple[int, int], stack: Ref) -> None:
        """Write the nodes that give later nodes the rows of a stack under their old numbers."""
        refs = self._all(key)
        self.stacks[refs] = stack
        wanted = [ref for ref in refs if ref.index in self.used]
        outside = [ref for ref in wanted if ref.index in self.escaping or not self._only_stacked(ref, refs)]
        if not outside:
            return
        last = refs[-1] if key in self.given.carried else None
        if self.loop.segment.marks:
            if any(ref != refs[-1] for ref in outside):
                raise NotMergeable("loop-body", "an argument from before the loop is another one in each iteration")
            if last is None:
                row = self.work.fresh()
                self.given.node(torch.select, (stack, 0, -1), (row,))
                self.given.node(torch.clone, (row,), (refs[-1],))
            return
        rows = [self.work.fresh() for _ in refs]
        self.given.node(torch.unbind, (stack,), tuple(rows))
        for ref, row in zip(refs, rows, strict=True):
            if ref in outside and ref != last:
                self.given.node(torch.clone, (row,), (ref,))  # not a view, since it may leave the call

    def _only_stacked(self, ref: Ref, refs: tuple[Ref, ...]) -> bool:
        """Whether each use of the row takes all rows, as one sequence."""
        for node in self.work.old.nodes[self.loop.segment.end :]:
            takes = ref in node.inputs
            if takes and not joins(node, refs):
                return False
        return all(assertion.ref != ref for assertion in self.work.old.assertions)
