"""Writes a program anew with some of its segments as loop nodes: a pure rewriting of programs.

Knows what the arguments of the rounds are, not how that was found out.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from torchjanus.graph.loop_fit import Argument, Rolled, Unfit, call_name
from torchjanus.graph.loop_rounds import ARITHMETIC, leaves_of
from torchjanus.graph.loop_uses import (
    as_expected,
    asked_by,
    check_measures,
    count_up,
    is_counting,
    one_later,
    parted,
    simplified,
    stepping,
    unbindings,
    used_of,
)
from torchjanus.graph.loops import Loop, UntilLoop
from torchjanus.graph.program import Assertion, Input, Node, Program, Ref, Slot
from torchjanus.graph.tensorise import beside
from torchjanus.graph.tracing import substitute

__all__ = ["LARGE_TABLE", "rewritten"]

LARGE_TABLE = 1 << 17  # elements: clearing and adding up gradients of that size takes as long as a cell of an LSTM


def rewritten(program: Program, loops: Sequence[Rolled]) -> Program:
    """The program with these loops rolled up. Raises Unfit."""
    return _Rewriting(program, loops).program()


class _Rewriting:
    """The program with some segments replaced."""

    def __init__(self, program: Program, loops: Sequence[Rolled]) -> None:
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
        """These come before the next loop."""
        self.assertions += (replace(assertion, after=self.moved(assertion.after)) for assertion in assertions)

    def moved(self, after: int) -> int:
        """Where a position is now; of one within a loop, where that ends."""
        return self.positions[self.ends.get(after, after)]


class _Emission:
    """Writes one loop: what is stacked before it, its node, and what later nodes take of it."""

    def __init__(
        self,
        work: _Rewriting,
        loop: Rolled,
        used: set[int],
        escaping: set[int],
        stacks: dict[tuple[Ref, ...], Ref],
    ) -> None:
        self.work, self.loop, self.used, self.escaping, self.stacks = work, loop, used, escaping, stacks
        self.modes = replace(loop.nodes[0].modes, grad=any(node.modes.grad for node in loop.nodes))
        marked = loop.segment.marks  # then it is known where the loop is written
        self.place = work.old.nodes[loop.segment.start - 1].place if marked else loop.nodes[0].place
        self.carried: dict[Any, int] = {}  # (node, result) of the round before -> number
        self.starts: list[Ref] = []
        self.stacked: list[Ref] = []
        self._columns: dict[Any, int] = {}
        self._rests: dict[
            int, tuple[Any, ...]
        ] = {}  # of rows that are taken by the round's number, how they are indexed
        self.same: dict[int, int] = {}
        self.loose = False  # whether there may be more rows than rounds
        self.count: Any = loop.segment.count if loop.segment.marks else len(loop.rounds)

    def emit(self, asked: Sequence[Assertion] = ()) -> None:
        """``asked``: what the rounds assert, where that ends them."""
        loop = self.loop
        plans = [self._plan(position) for position in range(loop.segment.length)]
        carried, stacked, same = len(self.starts), len(self.stacked), len(self.same)
        base = {"carried": 0, "stacked": carried, "same": carried + stacked}
        following = carried + stacked + same
        names: dict[tuple[int, int], Ref] = {}
        nodes: list[Node] = []
        hoisted = {position for position, plan in enumerate(plans) if plan is None}
        for position, plan in enumerate(plans):
            node = loop.rounds[-1][position]
            if plan is None:
                names[position, 0] = Ref(base["stacked"] + self._columns["hoisted", position])
                if rest := self._rests.get(position):
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
            for leaf, (column, is_float) in pending:
                out = Ref(following)
                following += 1
                others = [ref for ref in refs if isinstance(ref, Ref)]
                quiet = replace(node.modes, grad=False)
                nodes.append(
                    Node(beside, (Ref(base["stacked"] + column), is_float, *others), {}, (out,), quiet, node.place)
                )
                refs[leaf] = out
            given = iter(refs)
            args, kwargs = _filled(node.args, given), _filled(node.kwargs, given)
            outs = []
            for which, ref in enumerate(node.outs):
                first = loop.made[ref.index][1:]
                if first not in names:
                    names[first] = Ref(following)
                    following += 1
                names[position, which] = names[first]
                outs.append(names[first])
            nodes.append(Node(node.func, args, kwargs, tuple(outs), node.modes, node.place))
        rows = self._rows(hoisted)
        if asked:
            rows.append(loop.made[asked[-1].ref.index][1:])
        outputs = [*(names[key] for key in self.carried), *(names[key] for key in rows)]
        body = Program(
            tuple(Input(torch.empty(0), False, True) for _ in range(carried + stacked + same)),
            (), tuple(nodes), tuple(outputs), (len(nodes),) * len(outputs), (), (),
        )  # fmt: skip
        finals = [self._last(key) if self._last(key).index in self.used else self.work.fresh() for key in self.carried]
        if asked:
            self._until(body, asked[-1], finals, rows)
            return
        stacks = [self.work.fresh() for _ in rows]
        self._node(
            Loop(body, carried, stacked, loose=self.loose),
            (self.count, list(self.starts), list(self.stacked), [Ref(index) for index in self.same]),
            (*finals, *stacks),
        )
        for key, stack in zip(rows, stacks, strict=True):
            self._give(key, stack)

    def _until(self, body: Program, asked: Assertion, finals: list[Ref], rows: list[tuple[int, int]]) -> None:
        """The node of a loop that a tensor ends, and what is asserted of it."""
        work, segment = self.work, self.loop.segment
        assert segment.until is not None
        if (
            self.stacked
            or not (self.starts or self.same)
            or any(ref.index in self.used for key in rows[:-1] for ref in self._all(key)[:-1])
        ):
            raise Unfit  # nobody knows how many rows there will be
        ready: list[Ref] = []
        if work.assertions:
            ready.append(work.fresh())
            refs = tuple(assertion.ref for assertion in work.assertions)
            expected = tuple(assertion.expected for assertion in work.assertions)
            self._node(as_expected, (expected, *refs), (ready[0],), grad=False)
        lasts = [self._last(key) for key in rows[:-1]]
        counted = work.old.nodes[segment.end].outs
        answer, count = work.fresh(), counted[0] if counted else work.fresh()
        self._node(
            UntilLoop(body, len(self.starts), 0, until=segment.until),
            (ready, list(self.starts), [Ref(index) for index in self.same]),
            (*finals, *lasts, answer, count),
        )
        work.assertions.append(replace(asked, ref=answer, after=len(work.nodes)))
        if segment.least > 1:
            enough = work.fresh()
            self._node(torch.ge, (count, segment.least), (enough,), grad=False)
            work.assertions.append(Assertion(enough, True, len(work.nodes), asked.place))

    def _node(self, func: Any, args: tuple[Any, ...], outs: tuple[Ref, ...], grad: bool = True) -> None:
        modes = self.modes if grad else replace(self.modes, grad=False)
        self.work.nodes.append(Node(func, args, {}, outs, modes, self.place))

    def _last(self, key: tuple[int, int]) -> Ref:
        return self.loop.rounds[-1][key[0]].outs[key[1]]

    def _all(self, key: tuple[int, int]) -> tuple[Ref, ...]:
        return tuple(nodes[key[0]].outs[key[1]] for nodes in self.loop.rounds)

    def _rows(self, hoisted: set[int]) -> list[tuple[int, int]]:
        """The results of rounds that are wanted of more rounds than the last, or are not carried."""
        found = []
        for position, node in enumerate(self.loop.rounds[-1]):
            if position in hoisted:
                continue
            for which, ref in enumerate(node.outs):
                key = (position, which)
                if self.loop.made[ref.index][1:] != key:
                    continue
                refs = self._all(key)
                if any(ref.index in self.used for ref in (refs[:-1] if key in self.carried else refs)):
                    found.append(key)
        return found

    def _give(self, key: tuple[int, int], stack: Ref) -> None:
        """Let later nodes find the rows of a stack under their old numbers."""
        refs = self._all(key)
        self.stacks[refs] = stack
        wanted = [ref for ref in refs if ref.index in self.used]
        outside = [ref for ref in wanted if ref.index in self.escaping or not self._only_stacked(ref, refs)]
        if not outside:
            return
        last = refs[-1] if key in self.carried else None
        if self.loop.segment.marks:
            if any(ref != refs[-1] for ref in outside):
                raise Unfit
            if last is None:
                row = self.work.fresh()
                self._node(torch.select, (stack, 0, -1), (row,))
                self._node(torch.clone, (row,), (refs[-1],))
            return
        rows = [self.work.fresh() for _ in refs]
        self._node(torch.unbind, (stack,), tuple(rows))
        for ref, row in zip(refs, rows, strict=True):
            if ref in outside and ref != last:
                self._node(torch.clone, (row,), (ref,))  # a tensor of its own, should it leave the call

    def _only_stacked(self, ref: Ref, refs: tuple[Ref, ...]) -> bool:
        """Whether all that takes the row is a stack of all rows."""
        for node in self.work.old.nodes[self.loop.segment.end :]:
            takes = any(value == ref for value in leaves_of((node.args, node.kwargs)))
            if takes and (call_name(node) != "stack" or tuple(leaves_of(node.args[0])) != refs):
                return False
        return all(assertion.ref != ref for assertion in self.work.old.assertions)

    # what a round is given

    def _plan(self, position: int) -> list[tuple[str, Any]] | None:
        """Where each argument of the node comes from; None if all rounds' calls are made before the loop."""
        found = self.loop.arguments[position]
        nodes = [nodes[position] for nodes in self.loop.rounds]
        if self._looks_up(position, nodes[-1]):
            return None
        numbers = [one for one in found if one.kind == "numbers"]
        if numbers and not self._is_arithmetic(nodes[-1], numbers):
            if any(one.kind in ("own", "carried") for one in found) or len(nodes[-1].outs) != 1:
                raise Unfit
            self._hoist(position, nodes)
            return None
        plan: list[tuple[str, Any]] = []
        for one in found:
            match one.kind:
                case "own":
                    plan.append(("own", one.key))
                case "constant":
                    plan.append(("constant", one.values[-1]))
                case "carried":
                    if one.key not in self.carried:
                        self.carried[one.key] = len(self.starts)
                        self.starts.append(one.values[0])
                    elif self.starts[self.carried[one.key]] != one.values[0]:
                        raise Unfit
                    plan.append(("carried", self.carried[one.key]))
                case "same":
                    plan.append(("same", self.same.setdefault(one.key.index, len(self.same))))
                case "rows":
                    plan.append(("stacked", self._column(tuple(one.values))))
                case _:
                    is_float = type(one.values[-1]) is float
                    plan.append(("number", (self._numbers(one.values), is_float)))
        return plan

    def _looks_up(self, position: int, node: Node) -> bool:
        """Whether this looks a row's words up in a large table. Those of all rows are looked up before the loop, then:
        the table's gradient is one, and not as many as there are rounds, each as large as the table. In eager's order
        those are summed only where they are not one, so that small ones are left as they are."""
        found = self.loop.arguments[position]
        kinds = [one.kind for one in found]
        if call_name(node) != "embedding" or kinds[:2] not in (["own", "same"], ["rows", "same"]):
            return False
        index, table, *others = found
        inputs = self.work.old.inputs
        if table.key.index >= len(inputs) or inputs[table.key.index].example.numel() < LARGE_TABLE:
            return False
        outs = {nodes[position].outs[0].index for nodes in self.loop.rounds}
        if (
            any(one.kind != "constant" for one in others)
            or node.kwargs.get("max_norm") is not None  # changes the table
            or node.kwargs.get("sparse")
            or self.loop.segment.until is not None
            or isinstance(self.count, Slot)  # then there may be more rows than rounds
            or outs & self.used
            or any(one.kind == "carried" and one.key == (position, 0) for all in self.loop.arguments for one in all)
        ):
            return False
        if index.kind == "own":
            column = self._columns.get(("hoisted", index.key[0]))
            if column is None or self._rests.get(index.key[0]):
                return False
        else:
            column = self._column(tuple(index.values))
        out = self.work.fresh()
        given = iter([self.stacked[column], table.key, *(one.values[-1] for one in others)])
        args, kwargs = _filled(node.args, given), _filled(node.kwargs, given)
        self.work.nodes.append(Node(node.func, args, kwargs, (out,), node.modes, node.place))
        self._columns["hoisted", position] = len(self.stacked)
        self.stacked.append(out)
        return True

    @staticmethod
    def _is_arithmetic(node: Node, numbers: list[Argument]) -> bool:
        kinds = {type(value) for one in numbers for value in one.values}
        return call_name(node) in ARITHMETIC and len(kinds) == 1 and kinds <= {int, float} and not node.kwargs

    def _numbers(self, values: list[Any]) -> int:
        out = self.work.fresh()
        if self.loop.segment.marks:
            if self.loop.segment.until is not None or not is_counting(values):
                raise Unfit  # nobody knows how it goes on
            self._node(count_up, (self.count, values[0]), (out,), grad=False)
            self.stacked.append(out)
            return len(self.stacked) - 1
        dtype = torch.float64 if type(values[0]) is float else torch.int64
        modes = replace(self.modes, grad=False)
        self.work.nodes.append(Node(torch.tensor, (list(values),), {"dtype": dtype}, (out,), modes, self.place))
        self.stacked.append(out)
        return len(self.stacked) - 1

    def _column(self, refs: tuple[Ref, ...]) -> int:
        """The number of the stacked input whose rows these are."""
        if refs not in self._columns:
            for ref in refs:
                inputs = self.work.old.inputs
                if ref.index < len(inputs) and inputs[ref.index].requires_grad and inputs[ref.index].is_leaf:
                    raise Unfit  # parameters of layers: stacking them would copy them
            out = self._unbound(refs)
            if out is None and self.loop.segment.marks:
                out = self._one_later(refs)
            if out is None:
                out = self.work.fresh()
                self._node(torch.stack, (list(refs),), (out,))
            self._columns[refs] = len(self.stacked)
            self.stacked.append(out)
        return self._columns[refs]

    def _unbound(self, refs: tuple[Ref, ...]) -> Ref | None:
        """The rows as part of the tensor that was unbound to them."""
        for node in self.work.old.nodes[: self.loop.segment.start]:
            if call_name(node) in ("unbind", "__iter__") and refs[0] in node.outs:
                first = node.outs.index(refs[0])
                source, dim = parted(node)
                if node.outs[first : first + len(refs)] == refs and type(dim) is int and isinstance(source, Ref):
                    return self._part(source, dim, first)
        return None

    def _one_later(self, refs: tuple[Ref, ...]) -> Ref:
        """The rows of the rounds before (``before = row`` at a round's end), and what the first one takes for it."""
        rows = self._unbound(refs[1:])
        if rows is None or self.loose:
            raise Unfit
        out = self.work.fresh()
        self._node(one_later, (refs[0], rows), (out,))
        return out

    def _part(self, source: Ref, dim: int, first: int) -> Ref:
        if self.loop.segment.until is not None:
            raise Unfit
        moved, out = self.work.fresh(), self.work.fresh()
        self._node(torch.movedim, (source, dim, 0), (moved,))
        if isinstance(self.count, Slot) and not first:
            self.loose = True
            return moved
        self._node(torch.narrow, (moved, 0, first, self.count), (out,))
        return out

    def _hoist(self, position: int, nodes: list[Node]) -> None:
        """``x[:, t]`` of all rounds at once."""
        steps = (
            stepping([node.args for node in nodes])
            if call_name(nodes[0]) in ("__getitem__", "_getitem", "select")
            else None
        )
        kinds = {one.kind for one in self.loop.arguments[position]}
        if steps is not None and kinds <= {"same", "constant", "numbers"}:
            out = self._part(steps.source, steps.dim, steps.first)
            self._rests[position] = steps.rest
        elif self.loop.segment.marks:
            raise Unfit
        else:
            rows = []
            for node in nodes:
                rows.append(self.work.fresh())
                self.work.nodes.append(replace(node, outs=(rows[-1],)))
            out = self.work.fresh()
            self._node(torch.stack, (rows,), (out,))
        self._columns["hoisted", position] = len(self.stacked)
        self.stacked.append(out)
        if any(ref.index in self.used for node in nodes for ref in node.outs):
            raise Unfit


def _filled(value: Any, given: Iterator[Any]) -> Any:
    return substitute(value, lambda _: next(given))
