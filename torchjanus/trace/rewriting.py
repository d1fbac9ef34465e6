"""The base of all rewritings of traces: a run with other tensor numbers and other positions of events.

Knows nothing of why a run is rewritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from torchjanus.core.kinds import isinstance
from torchjanus.core.trees import map_parts
from torchjanus.trace.actions import Extern, HeapWrite, HostLoop, Op
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import HostComputation, NumberPredicate, Specialization, TensorPredicate
from torchjanus.trace.loops.records import LoopInstance, LoopRecord, LoopSnapshots, TensorTermination
from torchjanus.trace.recipes import CollectedItems, Number, RowOf, TensorAt, TensorOf, map_recipe
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import Apply, Fetch, Size, Traced, plain, traced_key

__all__ = ["AddingRewriter", "Renumbering", "TraceRewriter"]


class TraceRewriter:
    """Rewrites a run with other numbers of tensors and other positions of events."""

    def __init__(self, old: Trace) -> None:
        self.old = old
        self.recipes: dict[int, tuple[Any, ...]] = {}
        self._applied: dict[int, Apply] = {}

    def tensor(self, number: int, after: int) -> int:
        """Return the new number of a tensor, as used after so many operations of the old run."""
        return number

    def final(self, number: int) -> int:
        """Return the new number of a tensor at the end of the run."""
        return number

    def position(self, after: int) -> int:
        """Return how many operations of the new run correspond to so many of the old one."""
        return after

    def operation(self, op: Op, after: int) -> Op:
        """Return the operation rewritten. ``after``: the number of operations before it."""
        return replace(op, args=self.values(op.args, after), kwargs=self.values(op.kwargs, after))

    def event(self, event: Any, after: int) -> Any:
        """Return the event rewritten, and rewrite its recipes."""
        made = event
        if isinstance(event, Op):
            made = self.operation(event, after)
        elif isinstance(event, TensorPredicate):
            ref = TensorRef(self.tensor(event.ref.number, event.after))
            made = replace(event, ref=ref, after=self.position(event.after))
        elif isinstance(event, NumberPredicate | Specialization | HostComputation):
            made = replace(event, expr=self.expr(event.expr))
        elif isinstance(event, HeapWrite) and isinstance(event.key, Traced):
            made = replace(event, key=traced_key(plain(event.key), self.expr(event.key.expr)))
        elif isinstance(event, HostLoop):
            made = replace(
                event, count=self.expr(event.count), events=tuple(self.event(one, after) for one in event.events)
            )
        elif isinstance(event, Extern):
            made = replace(event, after=self.position(event.after))
        if id(event) in self.old.recipes:
            self.recipes[id(made)] = tuple(map(self.recipe, self.old.recipes[id(event)]))
        return made

    def values(self, value: Any, after: int) -> Any:
        """Return the arguments of an operation, rewritten."""
        if isinstance(value, TensorRef):
            return TensorRef(self.tensor(value.number, after))
        made = map_parts(value, lambda part: self.values(part, after))
        return self.expr(value) if made is value else made

    def expr(self, expr: Any) -> Any:
        """Return the expression rewritten; the same object if nothing changes."""
        if isinstance(expr, Fetch | Size):
            ref, after = self.tensor(expr.ref, expr.after), self.position(expr.after)
            return expr if (ref, after) == (expr.ref, expr.after) else replace(expr, ref=ref, after=after)
        if isinstance(expr, Apply):
            args = tuple(map(self.expr, expr.args))
            same = all(new is old for new, old in zip(args, expr.args, strict=True))
            return expr if same else self.applied(expr, args)
        return expr

    def applied(self, expr: Apply, args: tuple[Any, ...]) -> Apply:
        """Return ``expr`` with other arguments, one object for each old one: expressions are compared by identity."""
        if id(expr) not in self._applied:
            self._applied[id(expr)] = Apply(expr.func, args)
        return self._applied[id(expr)]

    def restart(self) -> None:
        """Forget the expressions made so far, before the run is rewritten once more."""
        self._applied = {}

    def held(self, value: Any) -> Any:
        """Return the description of a variable (see ``LoopSnapshots.states``) rewritten; a tensor is left as it is."""
        return (value[0], self.expr(value[1])) if value[0] in ("fetched", "number") else value

    def token(self, token: Any) -> Any:
        """Return the token of a fetch or a size, rewritten."""
        if token[0] == "fetch":
            return (token[0], self.tensor(token[1], token[2]), self.position(token[2]), *token[3:])
        if token[0] == "size":
            return (token[0], self.tensor(token[1], token[3]), token[2], self.position(token[3]))
        return token

    def _pinned(self, token: Any) -> Any:
        """Return the token of a specialised expression, rewritten."""
        if not isinstance(token, tuple):
            return token
        is_size = len(token) == 4 and token[0] == "size" and all(isinstance(part, int) for part in token[1:])
        return self.token(token) if is_size else tuple(map(self._pinned, token))

    def recipe(self, recipe: Any) -> Any:
        """Return the recipe rewritten."""
        if isinstance(recipe, TensorOf):
            return replace(recipe, ref=TensorRef(self.final(recipe.ref.number)))
        if isinstance(recipe, TensorAt):
            ref = TensorRef(self.tensor(recipe.ref.number, recipe.after))
            return TensorAt(ref, self.position(recipe.after))
        if isinstance(recipe, RowOf):
            return replace(recipe, ref=TensorRef(self.final(recipe.ref.number)))
        if isinstance(recipe, Number):
            return Number(self.expr(recipe.expr))
        made = map_recipe(recipe, self.recipe)
        return replace(made, count=self.expr(made.count)) if isinstance(made, CollectedItems) else made

    def moved(
        self, begins: Sequence[int] | Callable[[int, int], int], ends: Sequence[int] | None = None
    ) -> dict[str, Any]:
        """Return the fields of the trace that refer to positions of events, with the new positions, for ``made``.
        ``begins``: old position -> new position of what begins or happens there; as a function, also of the end of the
        loop that begins there. ``ends``: old position -> new position of a loop's end, if it differs."""
        if not callable(begins):
            table, ends = begins, begins if ends is None else ends
            return self.moved(lambda position, end: table[position], ends)
        assert ends is not None
        old, whole, ended = self.old, len(self.old.events), ends.__getitem__

        def spanned(one: Any) -> Any:
            return replace(one, starts=tuple(begins(at, one.end) for at in one.starts), end=ended(one.end))

        def counted(one: LoopInstance) -> Any:
            assert not isinstance(one.count, TensorTermination)  # those are found when all has been rewritten
            return replace(spanned(one), count=self.expr(one.count), asked=tuple(map(self.expr, one.asked)))

        def recorded(one: LoopRecord) -> LoopRecord:
            starts = [begins(at, whole if one.end is None else one.end) for at in one.starts]
            count = None if one.count is None else self.expr(one.count)
            return replace(one, starts=starts, end=None if one.end is None else ended(one.end), count=count)

        def framed(one: LoopSnapshots) -> LoopSnapshots:
            states = tuple({name: self.held(value) for name, value in state.items()} for state in one.states)
            starts = tuple(begins(at, one.end) for at in one.starts)
            count = None if one.count is None else self.expr(one.count)
            return replace(one, starts=starts, end=ended(one.end), states=states, count=count)

        return {
            "loop_instances": [counted(one) for one in old.loop_instances],
            "loops": [spanned(one) for one in old.loops],
            "loop_records": [recorded(one) for one in old.loop_records],
            "frames": [framed(one) for one in old.frames],
            "plain": [replace(one, position=begins(one.position, -1)) for one in old.plain],
            "given": [replace(one, position=begins(one.position, -1)) for one in old.given],
            "peeked": [(begins(position, -1), number) for position, number in old.peeked],
            "reread": [(begins(position, -1), where) for position, where in old.reread],
            "counted": [(begins(position, -1), *rest) for position, *rest in old.counted],
            "changed": {begins(position, -1): names for position, names in old.changed.items()},
            "measured": old.measured if old.measured < 0 else ended(old.measured),
        }

    def walk(
        self,
        step: Callable[[int, Any, int], Iterable[Any]],
        ahead: Callable[[int], Iterable[Any]] = lambda position: (),
    ) -> tuple[list[Any], list[int], list[int]]:
        """Return the events of the new run, and two tables by position in the old run (its end included): where what is
        inserted before the event begins, and where the event itself begins. ``step(position, event, after)`` returns
        the events in place of one, ``ahead(position)`` those that are inserted before it."""
        events: list[Any] = []
        inserted: list[int] = []
        begins: list[int] = []
        after = 0
        for position, event in enumerate([*self.old.events, None]):
            inserted.append(len(events))
            events += ahead(position)
            begins.append(len(events))
            if position < len(self.old.events):
                events += step(position, event, after)
                after += isinstance(event, Op)
        return events, inserted, begins

    def made(self, events: list[Any], **changes: Any) -> Trace:
        """Return the new run."""
        old = self.old
        fetched = {self.token(token): value for token, value in old.fetched.items()}
        changes.setdefault("outline", None)  # it refers to the events as they were
        changes.setdefault("pins", {self._pinned(token): times for token, times in old.pins.items()})
        result = None if old.result is None else self.recipe(old.result)
        # Keep the old run: tokens of events refer to objects by their ids.
        alive = [*old.alive, old]
        return replace(old, events=events, result=result, recipes=self.recipes, fetched=fetched, alive=alive, **changes)


class AddingRewriter(TraceRewriter):
    """A rewriting that adds tensors, which only operations that it adds have made."""

    def __init__(self, old: Trace) -> None:
        super().__init__(old)
        self.tensors, self.kinds = list(old.tensors), dict(old.kinds)

    def new(self, size: tuple[int, ...], dtype: torch.dtype) -> int:
        """Return the number of one more tensor, of at most one dimension."""
        self.tensors.append(None)
        self.kinds[len(self.tensors) - 1] = (size, (1,) * len(size), dtype, torch.device("cpu"), False)
        return len(self.tensors) - 1

    def new_like(self, tensor: int) -> int:
        """Return the number of one more tensor, of the kind of a tensor of the old run."""
        number = self.new((), self.old.kinds[tensor][2])
        self.kinds[number] = self.old.kinds[tensor]
        return number

    def made(self, events: list[Any], **changes: Any) -> Trace:
        """Return the new run, in which each tensor that was added has memory of its own."""
        old = self.old
        memory, new = max(old.memory, default=0) + 1, len(self.tensors) - len(old.tensors)
        whole = [*old.memory, *(memory + n for n in range(new))] if old.memory else []
        return super().made(events, tensors=self.tensors, memory=whole, kinds=self.kinds, **changes)


class Renumbering(TraceRewriter):
    """A rewriting in which tensors and positions have new numbers, by tables."""

    numbers: dict[int, int]  # old tensor number -> new
    after: list[int]  # how many operations of the new run there are after so many of the old one

    def tensor(self, number: int, after: int) -> int:
        return self.numbers[number]

    def final(self, number: int) -> int:
        return self.numbers[number]

    def position(self, after: int) -> int:
        return self.after[after]

    def operation(self, op: Op, after: int) -> Op:
        return replace(super().operation(op, after), outs=tuple(TensorRef(self.numbers[ref.number]) for ref in op.outs))
