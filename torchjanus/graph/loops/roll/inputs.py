"""Computes the inputs of a loop node: loop-carried values, stacked rows, loop-invariant tensors and hoisted calls.

How the arguments of the iterations correspond is found out by ``graph.ir.loop_matching``.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Protocol

import torch

from torchjanus.core.remarks import NotMergeable
from torchjanus.core.trees import map_leaves
from torchjanus.graph.ir.loop_matching import Argument, RolledSegment, call_name
from torchjanus.graph.ir.program import Formula, Measured, Node, Program, Ref, Slot, Symbol
from torchjanus.graph.loops.roll.reversal import SELECT_BACK
from torchjanus.graph.loops.roll.uses import (
    SlidingWindow,
    count_up,
    is_counting,
    one_later,
    parts_of,
    stepping,
    windows,
)
from torchjanus.graph.operators.number_operands import is_arithmetic, taking

__all__ = ["LARGE_TABLE", "IterationInputs", "filled"]

LARGE_TABLE = 1 << 17  # elements: to clear and add such gradients takes as long as an LSTM cell


class Work(Protocol):
    """The program that is being written."""

    old: Program
    nodes: list[Node]

    def fresh(self) -> Ref:
        """Return the number of a new tensor."""
        ...


class IterationInputs:
    """The inputs of one loop node. Writes the nodes that compute them."""

    def __init__(self, work: Work, loop: RolledSegment, used: set[int]) -> None:
        self.work, self.loop, self.used = work, loop, used
        self.modes = replace(loop.nodes[0].modes, grad=any(node.modes.grad for node in loop.nodes))
        marked = loop.segment.marks  # then the location of the loop is known
        self.place = work.old.nodes[loop.segment.start - 1].place if marked else loop.nodes[0].place
        self.carried: dict[Any, int] = {}  # (node, output) of the iteration before -> index
        self.starts: list[Ref] = []
        self.stacked: list[Ref] = []
        self.columns: dict[Any, int] = {}
        # How rows that are selected by the induction variable are indexed further.
        self.rests: dict[int, tuple[Any, ...]] = {}
        self.same: dict[int, int] = {}
        self.slots: dict[Slot, Ref] = {}  # loop-invariant numbers, as tensors
        self.taking: dict[int, Any] = {}  # node -> the call that takes such a tensor as an operand
        self.sizes: list[Symbol | Measured] = []  # that the body computes with
        self.loose = False  # there may be more rows than iterations
        self.count: Any = loop.segment.count if loop.segment.marks else len(loop.iterations)

    def node(self, func: Any, args: tuple[Any, ...], outs: tuple[Ref, ...], grad: bool = True) -> None:
        """Write a call."""
        modes = self.modes if grad else replace(self.modes, grad=False)
        self.work.nodes.append(Node(func, args, {}, outs, modes, self.place))

    def plan(self, position: int) -> list[tuple[str, Any]] | None:
        """Return where each argument of the node comes from, as (kind, detail); None if the node is hoisted: the calls
        of all iterations are made before the loop."""
        found = self.loop.arguments[position]
        nodes = [nodes[position] for nodes in self.loop.iterations]
        if self._looks_up(position, nodes[-1]):
            return None
        numbers = [one for one in found if one.kind in ("numbers", "slot")]
        taken = [self._taking(nodes[-1], one) for one in numbers]
        if len(taken) == 1 and taken[0] is not None:
            self.taking[position] = taken[0]
        elif numbers and not self._is_arithmetic(nodes[-1], numbers):
            if any(one.kind in ("own", "carried") for one in found) or len(nodes[-1].outs) != 1:
                raise NotMergeable(
                    "loop-numbers",
                    "a number that changes in each iteration is given to a call that takes no tensor for it",
                )
            self._hoist(position, nodes)
            return None
        plan: list[tuple[str, Any]] = []
        for one in found:
            match one.kind:
                case "own":
                    plan.append(("own", one.key))
                case "constant":
                    plan.append(("constant", self._own(one.values[-1])))
                case "carried":
                    if one.key not in self.carried:
                        self.carried[one.key] = len(self.starts)
                        self.starts.append(one.values[0])
                    elif self.starts[self.carried[one.key]] != one.values[0]:
                        raise NotMergeable("loop-carried", "what is carried begins with two different values")
                    plan.append(("carried", self.carried[one.key]))
                case "same":
                    plan.append(("same", self.same.setdefault(one.key.index, len(self.same))))
                case "rows":
                    plan.append(("stacked", self._column(tuple(one.values))))
                case "slot" if position in self.taking:
                    plan.append(("same", self._slot(one.key)))
                case "slot":
                    plan.append(("number", ("same", self._slot(one.key), self._type(one.key) is float)))
                case _:
                    is_float = type(one.values[-1]) is float
                    plan.append(("number", ("stacked", self._numbers(one.values), is_float)))
        return plan

    def _looks_up(self, position: int, node: Node) -> bool:
        """Whether the node looks rows up in a large embedding table, which is then hoisted: one call before the loop.
        The gradient of the table is then computed once, and not once in each iteration, each as large as the table.
        This changes the order in which these gradients are summed, so small tables are left in the loop."""
        found = self.loop.arguments[position]
        kinds = [one.kind for one in found]
        if call_name(node) != "embedding" or kinds[:2] not in (["own", "same"], ["rows", "same"]):
            return False
        index, table, *others = found
        inputs = self.work.old.inputs
        if table.key.index >= len(inputs) or inputs[table.key.index].example.numel() < LARGE_TABLE:
            return False
        outs = {nodes[position].outs[0].index for nodes in self.loop.iterations}
        if (
            any(one.kind != "constant" for one in others)
            or node.kwargs.get("max_norm") is not None  # modifies the table
            or node.kwargs.get("sparse")
            or self.loop.segment.until is not None
            or isinstance(self.count, Slot)  # there may be more rows than iterations then
            or outs & self.used
            or any(one.kind == "carried" and one.key == (position, 0) for all in self.loop.arguments for one in all)
        ):
            return False
        if index.kind == "own":
            column = self.columns.get(("hoisted", index.key[0]))
            if column is None or self.rests.get(index.key[0]):
                return False
        else:
            column = self._column(tuple(index.values))
        out = self.work.fresh()
        given = iter([self.stacked[column], table.key, *(one.values[-1] for one in others)])
        args, kwargs = filled(node.args, given), filled(node.kwargs, given)
        self.work.nodes.append(Node(node.func, args, kwargs, (out,), node.modes, node.place))
        self.columns["hoisted", position] = len(self.stacked)
        self.stacked.append(out)
        return True

    def _is_arithmetic(self, node: Node, numbers: list[Argument]) -> bool:
        kinds = {self._type(value) for one in numbers for value in one.values}
        return is_arithmetic(call_name(node)) and len(kinds) == 1 and kinds <= {int, float} and not node.kwargs

    def _taking(self, node: Node, number: Argument) -> Any:
        """Return the call that takes a tensor in place of a number that changes from call to call; None if there is
        none."""
        if number.kind != "slot":
            return None
        places: list[tuple[Any, Any]] = [((0, at), value) for at, value in enumerate(node.args)]
        places += [((1, key), value) for key, value in node.kwargs.items()]
        name = getattr(node.func, "__name__", "")
        return next((taking(name, path) for path, value in places if value == number.key), None)

    def _type(self, value: Any) -> type:
        return self.work.old.slots[value.index].type if isinstance(value, Slot) else type(value)

    def _slot(self, slot: Slot) -> int:
        """Return the index of the loop-invariant tensor that holds this number."""
        if slot not in self.slots:
            self.slots[slot] = out = self.work.fresh()
            dtype = torch.float64 if self._type(slot) is float else torch.int64
            modes = replace(self.modes, grad=False)
            self.work.nodes.append(Node(torch.full, ((), slot), {"dtype": dtype}, (out,), modes, self.place))
        return self.same.setdefault(self.slots[slot].index, len(self.same))

    def _numbers(self, values: list[Any]) -> int:
        out = self.work.fresh()
        if self.loop.segment.marks:
            if self.loop.segment.until is not None or not is_counting(values):
                raise NotMergeable("loop-numbers", "a number follows no formula")
            self.node(count_up, (self.count, values[0]), (out,), grad=False)
            self.stacked.append(out)
            return len(self.stacked) - 1
        dtype = torch.float64 if type(values[0]) is float else torch.int64
        modes = replace(self.modes, grad=False)
        self.work.nodes.append(Node(torch.tensor, (list(values),), {"dtype": dtype}, (out,), modes, self.place))
        self.stacked.append(out)
        return len(self.stacked) - 1

    def _column(self, refs: tuple[Ref, ...]) -> int:
        """Return the index of the stacked input with these rows."""
        if refs not in self.columns:
            for ref in refs:
                inputs = self.work.old.inputs
                if ref.index < len(inputs) and inputs[ref.index].requires_grad and inputs[ref.index].is_leaf:
                    raise NotMergeable("loop-parameters", "each iteration takes a parameter of its own")
            out = self._unbound(refs)
            if out is None and self.loop.segment.marks:
                out = self._one_later(refs)
            if out is None:
                out = self.work.fresh()
                self.node(torch.stack, (list(refs),), (out,))
            self.columns[refs] = len(self.stacked)
            self.stacked.append(out)
        return self.columns[refs]

    def _unbound(self, refs: tuple[Ref, ...]) -> Ref | None:
        """Return the tensor that was unbound into these rows, narrowed to them; None if there is none."""
        for node in self.work.old.nodes[: self.loop.segment.start]:
            if refs[0] in node.outs and (found := parts_of(node)) is not None:
                first = node.outs.index(refs[0])
                source, dim, back = found
                if node.outs[first : first + len(refs)] == refs and type(dim) is int and isinstance(source, Ref):
                    return self._part(source, dim, first, back)
        return None

    def _one_later(self, refs: tuple[Ref, ...]) -> Ref:
        """Return the rows of the preceding iterations (``before = row`` at an iteration's end), after the value that
        the first iteration takes."""
        rows = self._unbound(refs[1:])
        if rows is None or self.loose:
            raise NotMergeable("loop-sources", "iterations take rows of something that is not one tensor")
        out = self.work.fresh()
        self.node(one_later, (refs[0], rows), (out,))
        return out

    def _part(self, source: Ref, dim: int, first: int, back: bool = False) -> Ref:
        until = self.loop.segment.until is not None
        if until and back:
            raise NotMergeable("loop-sources", "a loop that a tensor ends goes over rows backwards")
        if back:
            whole, source = source, self.work.fresh()
            self.node(torch.flip, (whole, (dim,)), (source,))
        moved, out = self.work.fresh(), self.work.fresh()
        self.node(torch.movedim, (source, dim, 0), (moved,))
        if until:  # the number of rows used is unknown
            if not first:
                return moved
            self.node(operator.getitem, (moved, slice(first, None)), (out,))
            return out
        if isinstance(self.count, Slot) and not first:
            self.loose = True
            return moved
        self.node(torch.narrow, (moved, 0, first, self.count), (out,))
        return out

    def _windows(self, steps: SlidingWindow) -> Ref:
        until = self.loop.segment.until
        if until is not None and (until.limit is None or isinstance(until.limit, Slot)):
            raise NotMergeable("loop-sources", "a loop that a tensor ends takes rows behind the last one")
        out = self.work.fresh()
        self.loose |= isinstance(self.count, Slot)
        count = None if isinstance(self.count, Slot) else self.count if until is None else until.limit
        self.node(windows, (steps.source, steps.dim, steps.first, count, steps.width, steps.step), (out,))
        return out

    def _hoist(self, position: int, nodes: list[Node]) -> None:
        """Make the calls of all iterations before the loop: one call if they are like ``x[:, t]``."""
        steps = (
            stepping([node.args for node in nodes])
            if call_name(nodes[0]) in ("__getitem__", "_getitem", "select", SELECT_BACK)
            else None
        )
        kinds = {one.kind for one in self.loop.arguments[position]}
        if steps is not None and kinds <= {"same", "constant", "numbers"}:
            if steps.width:
                out = self._windows(steps)
            else:
                out = self._part(steps.source, steps.dim, steps.first, call_name(nodes[0]) == SELECT_BACK)
            self.rests[position] = steps.rest
        elif self.loop.segment.marks:
            raise NotMergeable("loop-sources", "a slice by the index cannot be taken before the loop")
        else:
            rows = []
            for node in nodes:
                rows.append(self.work.fresh())
                self.work.nodes.append(replace(node, outs=(rows[-1],)))
            out = self.work.fresh()
            self.node(torch.stack, (rows,), (out,))
        self.columns["hoisted", position] = len(self.stacked)
        self.stacked.append(out)
        if any(ref.index in self.used for node in nodes for ref in node.outs):
            raise NotMergeable("loop-results", "what an iteration has picked is used after the loop")

    def _own(self, value: Any) -> Any:
        """Return a constant of the body; a size as one of the sizes that the loop node is given."""
        if isinstance(value, Formula):
            return Formula(value.func, tuple(map(self._own, value.args)))
        if not isinstance(value, Symbol | Measured):
            return value
        if value not in self.sizes:
            self.sizes.append(value)
        return Symbol(self.sizes.index(value))


def filled(value: Any, given: Iterator[Any]) -> Any:
    """Return the structure with its leaves replaced, in order."""
    return map_leaves(value, lambda _: next(given))
