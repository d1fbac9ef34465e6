"""Build the tensor program of one path: renumber the tensors; make each expression a constant, a slot or a tensor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch

from torchjanus.core.errors import NOWHERE, Place, Refused, refused
from torchjanus.core.trees import leaves_of, map_leaves
from torchjanus.graph.generalize.selections import finds
from torchjanus.graph.ir.inputs import Inputs
from torchjanus.graph.ir.number_sizes import carrier_of, is_shaping
from torchjanus.graph.ir.numbers import HostBatch, Numbers, counting_step, need, taken_by, tensors_in, value_of, varies
from torchjanus.graph.ir.program import Assertion, Dimension, Measure, Node, Program, Ref, Slot, SlotKind, Symbol
from torchjanus.graph.ir.repetition import begin_iterations
from torchjanus.graph.ir.size_formulas import Formulas
from torchjanus.graph.operators.number_operands import taking
from torchjanus.graph.operators.stand_ins import OF_NUMBERS, stand_in, tensor_given
from torchjanus.graph.operators.tensor_numbers import HostNumber, Tensorised, as_operand, snapshot, tensorise
from torchjanus.trace.actions import Extern, Op
from torchjanus.trace.events import Trace
from torchjanus.trace.expressions import applications
from torchjanus.trace.facts import HostComputation, NumberPredicate, Specialization, TensorPredicate
from torchjanus.trace.hazards import hazard, may_raise
from torchjanus.trace.operands import expressions_in
from torchjanus.trace.recipes import RowOf, TensorAt, parts_of
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import Apply, Expr, Fetch, Read, leaves

__all__ = ["Builder"]


class Builder:
    """Renumbers the tensors, decides what each expression becomes, and makes the nodes."""

    def __init__(self, work: Numbers, trace: Trace, ops: list[Op]) -> None:
        self.work = work
        self.trace = trace
        self.ops = ops
        self.slots: list[Expr] = []
        self.outputs: dict[Any, int] = {}
        self.risky: list[Expr] = []
        self.sizes = Formulas(work, trace, ops)
        self.inputs = Inputs(work, trace, ops, self.sizes)
        self._slot_numbers: dict[Any, int] = {}
        self._refs = dict(self.inputs.refs)
        self._nodes: list[Node] = []
        self._assertions: list[Assertion] = []
        self._next = len(self.inputs.entries)
        self._position: dict[int, int] = {}  # op index -> nodes before it
        self._snapshots: dict[Any, Tensorised] = {}
        self._leasts = iter(trace.leasts)

    def build(self) -> Program:
        """Return the program. Raises Refused where a fetched number has no exact form in a graph."""
        for read in self.work.dimensions.counts:
            self._slot(read)
        in_graph = self._fetches_in_graph()
        op_index = 0
        for number, event in enumerate(self.trace.events):
            self._snap(op_index, in_graph)
            if isinstance(event, Op):
                self._position[op_index] = len(self._nodes)
                self._node(event)
                op_index += 1
            elif isinstance(event, TensorPredicate):
                ref = self._ref(event.ref.number)
                self._assertions.append(Assertion(ref, event.outcome, len(self._nodes), event.place, number))
            elif isinstance(event, NumberPredicate | Specialization) and self.decided_in_graph(event.expr):
                self._assert_in_graph(event, number)
        self._snap(op_index, in_graph)
        self._assert_hazards()
        self._position[op_index] = len(self._nodes)
        outputs, after = self._collect_outputs()
        self.sizes.measure_all()
        kinds = tuple(
            SlotKind(
                type(value_of(self.work, e)),
                tuple(value_of(self.work, e, r) for r in range(len(self.work.traces))),
                str(e),
            )
            for e in self.slots
        )
        sizes = self.work.dimensions
        return Program(
            self.inputs.entries,
            kinds,
            tuple(self._nodes),
            outputs,
            after,
            tuple(self._assertions),
            self.inputs.leaves(),
            dimensions=(
                *(Dimension(sizes.read(k), size, few=sizes.may_be_few(k)) for k, size in enumerate(sizes.examples())),
                *(Dimension(read, value_of(self.work, read), self._slot(read).index) for read in sizes.counts),
                *(Dimension(one, max(2, value_of(self.work, one)), few=True, made=True) for one in sizes.made),
            ),
            measures=tuple(Measure(self._ref(m.ref), m.dim, self.position(m.after)) for m in self.sizes.measures),
            fetched=tuple(place for key, place in self.outputs.items() if isinstance(key[0], int)),
            escaping=tuple(place for key, place in self.outputs.items() if key[0] == "tensor"),
        )

    def _ref(self, number: int) -> Ref:
        ref = self._refs.get(number)
        if ref is None:
            ref = self._refs[number] = Ref(self._next)
            self._next += 1
        return ref

    def new_ref(self) -> Ref:
        """Return a Ref with a number that no tensor has yet."""
        ref = Ref(self._next)
        self._next += 1
        return ref

    # nodes

    def _node(self, op: Op) -> None:
        """Append the node of an operation; its function may become a variant that takes tensors for numbers."""
        args = self._symbols(op.args, op)
        kwargs = self._symbols(op.kwargs, op)
        if op.func is begin_iterations and args[0] is None:
            args = (*args, next(self._leasts))
        if finds(op):
            args = (*args, Symbol(self.work.dimensions.selected(op.outs[0].number)))
        outs = tuple(self._ref(out.number) for out in op.outs)
        func = stand_in(op.func, bool(self.work.dimensions))
        fetched = func in OF_NUMBERS and any(map(self._in_graph, expressions_in((op.args, op.kwargs))))
        if func is torch.tensor and op.inputs:
            func = tensor_given
            if fetched:
                kwargs["fetched"] = tuple(not isinstance(n, TensorRef) for n in leaves_of(op.args[0]))
        elif fetched:
            func = OF_NUMBERS[func]
        elif func is op.func:
            func = self._taking(op)
        self._nodes.append(Node(func, args, kwargs, outs, op.modes, op.place, op.layouts))

    def _taking(self, op: Op) -> Any:
        """Return the function that is called, or its variant that takes a tensor in place of a number."""
        paths: list[Any] = [((1, name), op.kwargs[name]) for name in ("alpha", "value") if name in op.kwargs]
        paths += [((0, 2), weight) for weight in op.args[2:3] if isinstance(weight, Expr)]
        for path, number in paths:
            if isinstance(number, TensorRef) or (isinstance(number, Expr) and self.decided_in_graph(number)):
                return taking(op.name, path) or op.func
        return op.func

    def _symbols(self, value: Any, op: Op) -> Any:
        def leaf(part: Any) -> Any:
            if isinstance(part, TensorRef):
                return self._ref(part.number)
            return self._operand(part, op) if isinstance(part, Expr) else part

        return map_leaves(value, leaf)

    def _operand(self, expr: Expr, op: Op) -> Any:
        """Return an expression as an operand: constant, tensor, size formula or slot, in this order of preference."""
        if not varies(self.work, expr):
            return value_of(self.work, expr)
        if self.decided_in_graph(expr):
            others = [self._ref(ref.number) for ref in op.inputs]
            ref, node = as_operand(self._tensorised(expr, op.place), others, op.modes, self.new_ref, op.place)
            self._nodes.append(node)
            return ref
        if type(value_of(self.work, expr)) is int and (is_shaping(op) or not self._carried(expr)):
            formula = self.sizes.formula(expr)
            if formula is not None:
                return formula
        return self._slot(expr)

    def _carried(self, expr: Expr) -> bool:
        number = self.work.dimensions.number
        return any(
            isinstance(leaf, Read) and number(carrier_of(leaf.access_path), 0) is not None for leaf in leaves(expr)
        )

    def _slot(self, expr: Expr) -> Slot:
        number = self._slot_numbers.get(expr.token)
        if number is None:
            number = self._slot_numbers[expr.token] = len(self.slots)
            self.slots.append(expr)
        return Slot(number)

    def _in_graph(self, expr: Expr) -> bool:
        """Whether the graph computes the number itself: from fetches or from sizes."""
        return self.decided_in_graph(expr) or (varies(self.work, expr) and self.sizes.formula(expr) is not None)

    # fetched numbers that the graph uses

    def decided_in_graph(self, expr: Expr) -> bool:
        """Whether the expression depends on a fetch that the graph makes."""
        return any(True for _ in self._fetched(expr))

    def _fetched(self, expr: Expr) -> Iterator[Fetch]:
        """Yield the fetches in the expression that the graph makes, as opposed to the host before the graph runs."""
        return (leaf for leaf in leaves(expr) if isinstance(leaf, Fetch) and leaf.token not in self.work.host)

    def _fetches_in_graph(self) -> dict[int, list[Fetch]]:
        """Return the fetches whose value the graph itself needs, by the position at which they are made."""
        wanted: dict[Any, Fetch] = {}
        for event in self.trace.events:
            expressions: Iterator[Expr] = iter(())
            if isinstance(event, Op):
                expressions = expressions_in((event.args, event.kwargs))
            elif isinstance(event, NumberPredicate | Specialization):
                expressions = iter((event.expr,))
            for expr in expressions:
                wanted.update((leaf.token, leaf) for leaf in self._fetched(expr))
        for _, condition in self._hazards():
            if condition is not None:
                wanted.update((leaf.token, leaf) for leaf in self._fetched(condition))
        by_position: dict[int, list[Fetch]] = {}
        for fetch in wanted.values():
            by_position.setdefault(fetch.after, []).append(fetch)
        return by_position

    def _snap(self, op_index: int, in_graph: dict[int, list[Fetch]]) -> None:
        for fetch in in_graph.pop(op_index, ()):
            taken, nodes = snapshot(self._ref(fetch.ref), fetch, self.new_ref)
            self._extend(nodes)
            self._snapshots[fetch.token] = taken

    def _tensorised(self, expr: Expr, place: Place) -> Tensorised:
        def given(part: Any) -> HostNumber:
            value = value_of(self.work, part)
            if varies(self.work, part) and type(value) in (int, float):
                formula = self.sizes.formula(part) if type(value) is int else None
                return HostNumber(self._slot(part) if formula is None else formula, type(value))
            if isinstance(part, Expr):
                need(self.work, part)  # it is a constant of the graph
            return HostNumber(value, type(value))

        result, nodes = tensorise(expr, self._snapshots, given, self.new_ref, place)
        self._extend(nodes)
        return result

    def _extend(self, nodes: Iterable[Node]) -> None:
        """Add operations on numbers. Each names its dtype; the default dtype is that of the program."""
        dtype = self.ops[0].modes.default_dtype if self.ops else torch.get_default_dtype()
        self._nodes.extend(replace(node, modes=replace(node.modes, default_dtype=dtype)) for node in nodes)

    def _assert_in_graph(self, event: NumberPredicate | Specialization, number: int) -> None:
        if isinstance(event, Specialization):
            pinned, value = self._pinned_number(event)
            expr: Expr = Apply(_equal, (pinned, value))
            outcome = True
        else:
            expr, outcome = event.expr, event.outcome
        condition = self._tensorised(expr, event.place)
        self._assertions.append(Assertion(condition.ref, outcome, len(self._nodes), event.place, number))

    def _pinned_number(self, event: Specialization) -> tuple[Expr, Any]:
        """Return what has to equal what for a pinned value to be the same; for a text, the integer that it shows."""
        if not isinstance(event.value, str):
            return event.expr, event.value
        shown = {leaf.token: leaf for leaf in leaves(event.expr)}
        fetch = next(iter(shown.values()))
        if len(shown) > 1 or not isinstance(fetch, Fetch) or fetch.type not in (int, bool):
            what = f"text made of {event.expr} is {event.why}"
            raise refused("text-of-tensor", what, "it differs at each call.", place=event.place)
        return fetch, self.trace.fetched[fetch.token]

    def _hazards(self) -> Iterator[tuple[Apply, Apply | None]]:
        """Yield Python arithmetic on fetches that may raise, and the condition (or None) under which it does not."""
        made = [e for recipe in self.trace.all_recipes() for e in expressions_in(recipe)]
        made += [event.expr for event in self.trace.events if isinstance(event, HostComputation)]
        parts = {part.token: part for e in made for part in applications(e)}
        for part in parts.values():
            condition = hazard(part)
            if condition is None:
                if may_raise(part) and self.decided_in_graph(part):
                    yield part, None
            elif self.decided_in_graph(condition):
                yield part, condition

    def _assert_hazards(self) -> None:
        """Assert that Python arithmetic on fetched numbers will not raise. It runs after the graph, when the tensors
        have been updated; eager would raise before that. What cannot be asserted is ``risky``."""
        asserted: set[Any] = set()
        for part, condition in self._hazards():
            if condition is None:
                self.risky.append(part)
            elif condition.token not in asserted:
                asserted.add(condition.token)
                try:
                    tested = self._tensorised(condition, NOWHERE)
                except Refused:
                    self.risky.append(part)  # the condition has no exact form in a graph
                else:
                    self._assertions.append(Assertion(tested.ref, True, len(self._nodes), NOWHERE))

    # outputs

    def _collect_outputs(self) -> tuple[tuple[Ref, ...], tuple[int, ...]]:
        refs: list[Ref] = []
        after: list[int] = []

        def want(key: Any, ref: Ref, position: int) -> None:
            if key not in self.outputs:
                self.outputs[key] = len(refs)
                refs.append(ref)
                after.append(position)

        for expr in self.risky:
            for fetch in self._fetched(expr):
                want((fetch.ref, fetch.after), self._ref(fetch.ref), self.position(fetch.after))
        for recipe in self.trace.all_recipes():
            for ref in tensors_in(recipe):
                want(("tensor", ref.number), self._ref(ref.number), len(self._nodes))
            for part in parts_of(recipe):
                if isinstance(part, TensorAt):
                    want(("at", part.ref.number, part.after), self._ref(part.ref.number), self.position(part.after))
                elif isinstance(part, RowOf):
                    want(("tensor", part.ref.number), self._ref(part.ref.number), len(self._nodes))
            for expr in expressions_in(recipe):
                for fetch in self._fetched(expr):
                    want((fetch.ref, fetch.after), self._ref(fetch.ref), self.position(fetch.after))
        return tuple(refs), tuple(after)

    def position(self, after: int) -> int:
        """Return the number of nodes before the framework call with this number."""
        return self._position.get(after, len(self._nodes))

    def outputs_of(self, event: Extern) -> Iterator[int]:
        """Yield the outputs that an extern call takes."""
        for recipe in self.trace.recipes.get(id(event), ()):
            for part in parts_of(recipe):
                if isinstance(part, TensorAt):
                    yield self.outputs["at", part.ref.number, part.after]
            for expr in expressions_in(recipe):
                for fetch in self._fetched(expr):
                    yield self.outputs[fetch.ref, fetch.after]

    def batches(self) -> Iterator[HostBatch]:
        """Yield the host's fetches in groups, each of which is one tensor operation."""
        groups: dict[Any, list[Fetch]] = {}
        consumers = taken_by(self.ops)
        for fetch in self.work.host.values():
            tensor = self.trace.tensors[fetch.ref]
            steps = tuple(
                step
                for index, op in consumers.get(fetch.ref, ())
                if index < fetch.after and (step := counting_step(self.work, op)) is not None
            )
            groups.setdefault((tensor.dtype, steps), []).append(fetch)
        for (_, steps), fetches in groups.items():
            yield HostBatch(tuple(self._refs[f.ref].index for f in fetches), steps, tuple(fetches))


def _equal(a: Any, b: Any) -> bool:
    return bool(a == b)
