"""Rewrites the events after a switched loop so that they use the results of the switch operations.

It runs twice: first to collect the loop's live-outs, then with the tensors that the switch operations give. How
iterations are written is not known here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torchjanus.core.errors import Place
from torchjanus.core.remarks import NotMergeable
from torchjanus.core.trees import map_leaves
from torchjanus.graph.regions.switch_gradients import Flow
from torchjanus.graph.switches.analysis.after_loop import LiveOutUses
from torchjanus.graph.switches.analysis.arm_effects import ArmEffects
from torchjanus.graph.switches.analysis.arms import Arm, SwitchSites
from torchjanus.graph.switches.analysis.before_loop import NamesBeforeLoop
from torchjanus.trace.actions import HeapWrite, Op
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import HeapRead, KeyLookup, NumberPredicate, Specialization
from torchjanus.trace.loops.records import LoopSnapshots, UntracedComputation
from torchjanus.trace.operations import op_count, ops_of
from torchjanus.trace.recipes import CollectedItems, Constant, ExistingObject, NewObject, Number, RowOf
from torchjanus.trace.rewriting import TraceRewriter
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import Apply, Expr, Fetch, Size

__all__ = ["LiveOutRewriter", "distinct_place"]


def distinct_place(place: Place, number: int) -> Place:
    """Return a distinct place for one of several assertions: repeated assertions at one place look like a loop."""
    return replace(place, column=-1 - number)


class LiveOutRewriter(TraceRewriter):
    """Rewrites the uses of live-outs. Raises NotMergeable where it is not known which variable is meant."""

    def __init__(
        self,
        old: Trace,
        frames: LoopSnapshots,
        switches: SwitchSites,
        after: LiveOutUses,
        taken: list[Arm],
        acting: ArmEffects,
    ) -> None:
        super().__init__(old)
        self.acting = acting
        self.frames, self.switches, self.after, self.taken = frames, switches, after, taken
        self.start, self.end = frames.starts[0], frames.end
        self.known = NamesBeforeLoop(old, frames)
        self.wanted: dict[Any, None] = {}
        self.columns: dict[Any, None] = {}  # variables whose values of all iterations are used
        self.lasts: dict[Any, None] = {}  # variables whose final value is used
        self.results: list[dict[Any, int]] | None = None  # per iteration, carried variable -> tensor
        self.graded: set[Any] = set()  # variables that gradients may reach
        self.grading = False  # whether gradients may reach the operands of the current event
        self.marked: dict[int, int] = {}  # tensor made of a column -> the marked tensor that replaces it
        self.flow: Flow | None = None
        self._marks = 0
        self.fetched = dict[Any, Any]()
        self.shown: dict[int, tuple[Any, ...]] = {}  # id of an effect -> its recipes
        self.counted: dict[Any, None] = {}  # numbers that are used after the loop
        self.renamed = dict[int, int]()
        self.stacked: list[Any] = []  # the columns that the current operation uses
        self.last: Mapping[Any, int] = {}  # final values of the variables
        self.seen_at: dict[int, Any] = {}  # by position: see ``LiveOutUses.at``
        self.shift = 0  # operations that the rewrite adds to those of the loop
        self.marks_behind: list[tuple[int, int]] = []  # (operation, event) after which a mark is inserted
        found = (event for event in old.events if isinstance(event, HeapRead) and event.kind == "tensor")
        # Tensors from before the call, by access path.
        self._found = {event.access_path.token: -1 for event in found}
        self._found |= {access_path.token: number for number, access_path in old.access_paths.items()}
        self.access_paths = dict(old.access_paths)
        self.tensors = list(old.tensors)
        self.memory = list(old.memory)
        self.kinds = dict(old.kinds)
        self.before = op_count(old.events[: self.start])
        self.inside = op_count(old.events[self.start : self.end])

    # -- tensors --------------------------------------------------------------------------------------------------

    def new(self, like: int | None = None) -> int:
        self.tensors.append(None)
        self.memory.append(-(10**6) - len(self.memory))
        if like in self.kinds:
            self.kinds[len(self.tensors) - 1] = self.kinds[like]
        return len(self.tensors) - 1

    def tensor(self, number: int, after: int) -> int:
        variable = self.after.variable(number)
        if variable is None:
            return self.marked.get(number, number)
        self.wanted[variable] = self.lasts[variable] = None
        if self.grading:
            self.graded.add(variable)
        found = number if self.results is None else self.last[variable]
        self.renamed[number] = found
        return found

    def operation(self, op: Op, after: int) -> Op:
        self.renamed, self.stacked = {}, []
        self.grading = op.modes.grad and op.name != "Tensor.detach"
        map_leaves((op.args, op.kwargs), self._constant)
        made = super().operation(op, after)
        if any(ref.number in self.after.made and ref.number not in self.renamed for ref in op.outs):
            raise NotMergeable("branch-in-place", "a result of the loop is changed in place after it")
        return replace(made, outs=tuple(TensorRef(self.renamed.get(ref.number, ref.number)) for ref in op.outs))

    def final(self, number: int) -> int:
        self.grading = True
        return self.tensor(number, 0)

    def values(self, value: Any, after: int) -> Any:
        if isinstance(value, list | tuple) and len(value) > 1 and all(isinstance(part, TensorRef) for part in value):
            variable = self.after.column([part.number for part in value])
            if variable is not None:
                self.wanted[variable] = self.columns[variable] = None
                self.stacked.append(variable)
                if self.results is not None:
                    return type(value)(TensorRef(results[variable]) for results in self.results)
                return value
        return super().values(value, after)

    def position(self, after: int) -> int:
        if after <= self.before:
            return after
        if after < self.before + self.inside:
            raise NotMergeable("branch-results", "what an iteration was asked is used after the loop")
        return after + self.shift + sum(operation <= after for operation, _ in self.marks_behind)

    def number(self, value: Any, name: Any) -> Any:
        """Return what stands after the loop for a number that this variable holds; ``value`` if it is None."""
        if name is None:
            return value
        self.counted[name] = None
        if self.results is None:
            return value
        if name not in self.acting.values:  # only a state of a later loop has it
            raise NotMergeable("branch-numbers", "a number that no use after the loop needs is not computed")
        return self.acting.values[name]

    def expr(self, expr: Any) -> Any:
        made: Any
        if isinstance(expr, Expr) and self.after.is_held(expr) and (name := self.after.number(expr)) is not None:
            return self.number(expr, name)
        if isinstance(expr, Fetch | Size):
            if expr.after <= self.before and expr.ref not in self.after.made:
                made = expr
            else:
                made = replace(expr, ref=self.tensor(expr.ref, 0), after=self.position(expr.after))
            if expr.token in self.old.fetched:
                self.fetched[made.token] = self.old.fetched[expr.token]
            return made
        if isinstance(expr, Apply):  # a number that the loop has changed stands as it is among the arguments
            args = tuple(map(self._operand, expr.args))
            same = all(new is old for new, old in zip(args, expr.args, strict=True))
            return expr if same else self.applied(expr, args)
        return super().expr(expr)

    def _operand(self, value: Any) -> Any:
        """Return an operand of an expression rewritten."""
        return self.number(value, self.after.number(value)) if type(value) in (int, float) else self.expr(value)

    def recipe(self, recipe: Any) -> Any:
        if isinstance(recipe, CollectedItems | RowOf):
            raise NotMergeable("branch-results", "what all iterations gave leaves the step")
        if isinstance(recipe, ExistingObject) and (number := self._found.get(recipe.access_path.token)) is not None:
            if self.after.variable(number) is not None:
                raise NotMergeable("branch-results", "a result of the loop may be a tensor from before it")
            return recipe
        if isinstance(recipe, Constant) and type(recipe.value) in (int, float):
            made = self._operand(recipe.value)
            return recipe if made is recipe.value else Number(made)
        if isinstance(recipe, NewObject) and recipe.number in self.acting.filled:
            lengths = next(one.lengths for one in self.acting.lists.values() if one.number == recipe.number)
            first, last = recipe.items[: lengths[0]], recipe.items[lengths[-1] :]
            rows = () if self.results is None else self.acting.filled[recipe.number]
            return replace(recipe, items=(*map(self.recipe, first), *rows, *map(self.recipe, last)))
        return super().recipe(recipe)

    # -- what comes after the loop ----------------------------------------------------------------------------------

    def rest(self) -> tuple[list[Any], Any]:
        """Return the events after the loop and the result, rewritten."""
        self.restart()  # the first pass did not know the number of operations in the iterations
        self.marks_behind = []
        old, operations, found = self.old, self.before + self.inside, []
        for number, event in enumerate(old.events[: self.start]):
            if id(event) in old.recipes:  # containers from before the loop may hold its results
                self.after.begin(("before", number), aside=True)
                self.recipes[id(event)] = tuple(map(self.recipe, old.recipes[id(event)]))
        computations = [*old.plain[self.frames.untraced_counts[-1] :], *old.given[self.frames.given[-1] :]]
        regions = [one for one in old.frames if one.region and one.starts[0] >= self.end]
        computed = defaultdict(list)  # by the position of the event before which Python computes
        for plain in computations:
            if self.end < len(old.events) or plain.position >= len(old.events):
                computed[max(plain.position, self.end)].append(plain)
        begun: list[tuple[LoopSnapshots, Any]] = []
        for position, event in enumerate(old.events[self.end :], self.end):
            while begun and begun[-1][0].end <= position:
                frames, context = begun.pop()
                self.after.leave(context, frames.place)
            begun += [(one, self.after.context) for one in regions if one.starts[0] == position]
            self.seen_at[position] = self.after.at
            for plain in computed.pop(position, ()):
                self._compute(plain)
            self.after.begin_event(event)
            self.stacked = []
            found.append(self.event(event, operations))
            if isinstance(event, Op):
                operations += 1
                if self.stacked and self.flow is not None and self.results is not None:
                    for ref in event.outs:
                        found.append(self.mark(ref.number))
                        self.marked[ref.number] = found[-1].outs[0].number
                        self.marks_behind.append((operations, position + 1))
        self.seen_at[len(old.events)] = self.after.at
        for left in computed.values():
            for plain in left:
                self._compute(plain)
        self.after.begin("result")
        result = None if old.result is None else self.recipe(old.result)
        if self.after.unclear:
            raise NotMergeable("branch-results", "it is not known which result of the loop leaves the step")
        return found, result

    def _constant(self, value: Any) -> None:
        """Check that an operand or condition is not loop-carried. Raises NotMergeable."""
        if type(value) in (int, float) or (isinstance(value, Expr) and self.after.is_held(value)):
            if self.after.number(value) is not None:
                raise NotMergeable("branch-numbers", "a number that the loop has changed is used after it")
        elif isinstance(value, Apply):
            for arg in value.args:
                self._constant(arg)

    def event(self, event: Any, after: int) -> Any:
        if isinstance(event, NumberPredicate | Specialization):
            self._constant(event.expr)
        if isinstance(event, HeapWrite | KeyLookup):
            map_leaves(event.key, self._constant)
        return super().event(event, after)

    def _compute(self, plain: UntracedComputation) -> None:
        """Check that plain numbers that Python computes with are not loop-carried: they might decide anything."""
        self.after.begin("plain")
        if any(self.after.number(value) is not None for value in (*plain.operands, *plain.reals)):
            raise NotMergeable("branch-numbers", "Python computes with a number that the loop has changed")

    def check_leaving(self) -> None:
        """Check that tensors that leave the call or change in place are the loop's own, whichever arms are taken."""
        old, end = self.old, self.end
        leaving = set(old.leaving())
        earlier = self.after.made | set(self.known.made) | set(old.access_paths) | set(self.known.rows)
        for event in old.events[end:]:
            if isinstance(event, Op):
                leaving.update(ref.number for ref in event.outs if ref.number in earlier)
        memory = {old.memory[number] for number in leaving}
        given = {old.memory[number] for number in old.access_paths}
        taken: set[Any] = set()
        for name in self.lasts:
            held = self.frames.states[-1][name][1]
            if old.memory[held] and old.memory[held] not in memory:
                continue
            roots = self.after.resolving.roots(name)
            for root in [root for root in roots if root[0] == "initial"]:
                roots.discard(root)
                if root[1] is not None and root[1][0] == "tensor":
                    place = old.memory[root[1][1]]
                    roots.add("given" if not place or place in given or root[1][1] in leaving else place)
            if "given" in roots or roots & taken:
                raise NotMergeable(
                    "branch-results", "a result of the loop may be a tensor from before it, and leaves the step"
                )
            taken |= roots

    def modes(self) -> Any:
        operations = ops_of(self.old.events[self.start : self.end])
        operations = operations or ops_of(self.old.events[: self.start])[-1:]
        if not operations:
            raise NotMergeable("loop-small", "nothing is computed before the decision")
        return replace(operations[0].modes, grad=any(op.modes.grad for op in operations))

    def mark(self, tensor: int) -> Op:
        """Return the operation that records whether a gradient reaches this tensor."""
        assert self.flow is not None
        number, modes = self.new(tensor), self.modes()
        func = self.flow.mark(self._marks)
        self._marks += 1
        return Op(func, "used", (TensorRef(tensor),), {}, (TensorRef(number),), modes, self.frames.place)
