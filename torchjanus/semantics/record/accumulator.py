"""Record an accumulator of a step that recursive calls update: ``self.loss = self.loss + loss``, ``count += 1``.

For a sum of tensors, each call is recorded as appending its terms to a hidden output list (see ``output_lists``), and
the step as adding up the list. For a number, each call is recorded as a function of the current number; the host
computes it while it traverses the calls, so a call may branch on the number that it finds when it begins. Calls may
use the accumulator for nothing else. This module knows no hooks.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath, Step
from torchjanus.core.kinds import getattr, isinstance
from torchjanus.semantics.record.call_writes import share_memory
from torchjanus.trace.actions import HeapWrite, InvokeOp, Op
from torchjanus.trace.calls import entered_at
from torchjanus.trace.expressions import map_expr
from torchjanus.trace.facts import HeapRead, NumberPredicate, TensorPredicate
from torchjanus.trace.functions import added_up
from torchjanus.trace.operands import expressions_in
from torchjanus.trace.recipes import parts_of
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import Apply, Fetch, Read, Size, Traced, depends_on, is_local, leaves, plain, trace_value

__all__ = ["AFTER", "Accumulator", "LocalAccumulator", "ObjectAccumulator", "only_accumulated"]

_ADDITIONS = ("Tensor.add", "Tensor.__add__", "Tensor.__radd__", "torch.add")
_IN_PLACE = ("Tensor.__iadd__", "Tensor.add_")
AFTER = "after call"  # key of the number that the step reads after its n-th call


@dataclass(eq=False, slots=True)
class Accumulator:
    """One accumulator. ``key``: its place; ``start``: the step's value; ``now``: the current one; ``tensors``: whether
    it sums tensors; ``terms``: the tensors that calls have added; ``version``: the number of writes by calls;
    ``modes``: torch's modes of these additions; ``in_place``: whether they change the tensor itself; ``begun``: the
    number of events before it."""

    key: Any
    start: Any
    now: Any
    tensors: bool
    terms: list[torch.Tensor] = field(default_factory=list)
    version: int = 0
    modes: Any = None
    in_place: bool | None = None
    begun: int = 0

    def access_path(self, recording: Any) -> AccessPath:
        """Return the access path of the accumulator within calls."""
        access_path: AccessPath = recording.step.lists.access_path(self.terms)
        return access_path

    def read(self, recording: Any) -> Any:
        """Return the value that a call reads."""
        if isinstance(self.now, torch.Tensor):
            number = recording.number(self.now)
            if number is None:
                number = recording.new_tensor(self.now).number
            recording.accumulated.add(number)
            return self.now
        access_path = self._known_now(recording)
        return (
            recording.found(access_path, self.now)
            if is_local(access_path)
            else trace_value(self.now, Read(access_path))
        )

    def _known_now(self, recording: Any) -> AccessPath:
        """Return the access path of the current number: each version has its own. The host knows the number with which
        a call begins when it traverses the call, so a call may use that one freely."""
        if recording.entered.get(id(self)) == self.version:
            return self._at_entry(recording)
        return self.access_path(recording).item(self.version)

    def _at_entry(self, recording: Any) -> AccessPath:
        return entered_at(self.access_path(recording).key)

    def write(self, recording: Any, value: Any) -> bool:
        """Record the write of a call. Return False if it is no addition or update of the current value."""
        done = self._add(recording, value) if self.tensors else self._count(recording, value)
        if done:
            self.now = value if self.tensors else plain(value)
        return done

    def _add(self, recording: Any, value: Any) -> bool:
        if type(value) is not torch.Tensor or value.dtype is torch.bool:
            return False
        made = list(self._made_of(recording, value))
        if not made:
            return value is self.now
        in_place = value is self.now
        known = self.in_place if isinstance(self.start, torch.Tensor) else None
        modes = {recording.trace.events[at].modes for at, _ in made} | {recording.trace.ambient}
        modes |= set() if self.modes is None else {self.modes}
        if len(modes) > 1 or known not in (None, in_place) or value.layout is not torch.strided:
            return False
        self.in_place, (self.modes,) = in_place, modes
        for at, term in made:
            events = recording.trace.events
            recording.accumulated.add(events[at].outs[0].number)
            tensor = recording.trace.tensors[term.number]
            with torch._C.DisableTorchFunction():
                row = tensor.clone()
            out = recording.new_tensor(row)
            events[at] = replace(events[at], func=torch.clone, name="torch.clone", args=(term,), kwargs={}, outs=(out,))
            recording.mutate(list, "append", (row,), self.access_path(recording))
            self.terms.append(row)
        self.version += 1
        return True

    def _made_of(self, recording: Any, value: torch.Tensor) -> Iterator[tuple[int, TensorRef]]:
        """Yield (event index, term) of the additions that lead from the current value to ``value``; nothing if other
        operations are involved."""
        events, wanted, found = recording.trace.events, recording.number(value), list[tuple[int, TensorRef]]()
        last = len(events)
        while wanted is not None:
            last = next((n for n in reversed(range(last)) if _makes(events[n], wanted)), -1)
            if last < 0:
                return
            op: Op = events[last]
            names = _IN_PLACE if value is self.now else _ADDITIONS
            if type(op) is not Op or op.name not in names or op.kwargs or len(op.args) != 2:
                return
            carried = [which for which, arg in enumerate(op.args) if self._is_now(recording, arg)]
            terms = [arg for arg in op.args if isinstance(arg, TensorRef)]
            if carried:
                term = op.args[1 - carried[0]]
                if len(carried) == 1 and isinstance(term, TensorRef):
                    yield from reversed([*found, (last, term)])
                return
            if len(terms) < 2:
                return
            # A chain of several additions is followed through left operands only: there the sum usually is.
            found.append((last, terms[1]))
            wanted = terms[0].number

    def _is_now(self, recording: Any, arg: Any) -> bool:
        if isinstance(self.now, torch.Tensor):
            return isinstance(arg, TensorRef) and arg.number == recording.number(self.now)
        return isinstance(arg, Read) and arg.access_path == self._known_now(recording)

    def _count(self, recording: Any, value: Any) -> bool:
        if type(plain(value)) is not type(plain(self.start)):
            return False
        expr = value.expr if isinstance(value, Traced) else None
        if expr is not None:
            here = self._known_now(recording)
            if depends_on(expr, Fetch | Size):
                return False
            now = Read(self.access_path(recording))
            expr = map_expr(expr, lambda part: now if isinstance(part, Read) and part.access_path == here else part)
            reads = [leaf.access_path for leaf in leaves(expr) if isinstance(leaf, Read)]
            if any(
                (access_path.is_grown and access_path.base) or access_path == self._at_entry(recording)
                for access_path in reads
            ):
                return False  # it depends on an earlier version
        made = plain(value) if expr is None else trace_value(plain(value), expr)
        recording.mutate(list, "count", (made,), self.access_path(recording))
        self.version += 1
        return True


@dataclass(eq=False, slots=True)
class ObjectAccumulator(Accumulator):
    """An accumulator in an object. ``stored``: the step's write."""

    container: Any = None
    stored: Any = None

    def close(self, recording: Any) -> None:
        """Record its final value as a write of the step, since the step reads or replaces it. A number is recorded
        even if none of these calls has updated it: other calls may."""
        if self.version or not self.tensors:
            stored: HeapWrite = self.stored
            made = _added(self, recording) if self.tensors else _counted(self, recording)
            recording.store(stored.how, self.container, stored.key, made, stored.base, field=stored.key)


@dataclass(eq=False, slots=True)
class LocalAccumulator(Accumulator):
    """An accumulator in a variable or container of the step, whose reads are not observed. ``given``: the value put
    there last; ``seen``: the number of calls of the step that have ended; ``number``: the index of its output list."""

    place: Any = None
    given: Any = None
    seen: int = 0
    number: int = -1

    def give(self, recording: Any) -> None:
        """Put the current value in place, since a call begins or resumes."""
        self.given = self.read(recording)
        self.place.set(self.given)

    def take(self, recording: Any) -> bool:
        """Record what a call has put there, since it pauses or has ended. Return False if that is no addition or
        update."""
        value = self.place.get()
        same = value is self.given and not isinstance(value, torch.Tensor)  # that may have been changed in place
        return same or self.write(recording, value)

    def after(self, recording: Any) -> None:
        """Put in place what the step sees after one of its calls. A number is an unresolved read until the run ends."""
        if self.tensors:
            self.given = self.now if self.version else self.start
        else:
            self.number = recording.lists.number_of(self.terms)
            self.seen += 1
            self.given = trace_value(self.now, Read(self.seen_at(self.seen)))
        self.place.set(self.given)

    def seen_at(self, call: int) -> AccessPath:
        """Return the access path of the number that the step reads after its ``call``-th call."""
        return AccessPath.grown(self.number).item(f"{AFTER} {call}")

    def leave(self) -> None:
        """Put the untraced value in place, since no graph will be made."""
        self.place.set(plain(self.place.get()))

    def close(self, recording: Any) -> None:
        """Record the sum, since the step uses it."""
        if self.version and self.tensors:
            _added(self, recording)


def _makes(event: Any, number: int) -> bool:
    return isinstance(event, Op) and any(ref.number == number for ref in event.outs)


def _added(accumulator: Accumulator, recording: Any) -> Any:
    """Record, in the step, the sum of the terms that calls have added. Return the value."""
    trace, number = recording.trace, recording.lists.number_of(accumulator.terms)
    rows = [TensorRef(recording.number(row)) for row in accumulator.terms]

    def note(func: Any, args: tuple[Any, ...], out: TensorRef) -> None:
        recording.note(Op(func, func.__name__, args, {}, (out,), accumulator.modes, recording.place))
        recording.ops += 1

    if not isinstance(accumulator.start, torch.Tensor):
        # Without any term the number stays in place.
        size = Read(AccessPath.grown(number).then(Step.SIZE, 0))
        recording.note(NumberPredicate(Apply(operator.gt, (size, 0)), True, recording.place))
        start = accumulator.start.expr if isinstance(accumulator.start, Traced) else accumulator.start
        note(added_up, (rows, start), recording.new_tensor(accumulator.now))
        return accumulator.now
    start = TensorRef(recording.number(accumulator.start))
    if not accumulator.in_place or _is_alone(accumulator, start.number, recording):
        note(added_up, (rows, start), recording.new_tensor(accumulator.now))
        return accumulator.now
    for event in trace.events[accumulator.begun :]:
        refs = event.inputs if isinstance(event, Op) else ()
        used = [trace.tensors[ref.number] for ref in refs]
        if share_memory(used, [accumulator.start]):
            what = "the step uses a tensor in place of which recursive calls add up, and not where they do"
            recording.refuse(
                "recursion-accumulator",
                what,
                "calls are run many at a time.",
                "Read it where the calls have written it.",
            )
    with torch._C.DisableTorchFunction():
        total = torch.stack([row.detach() for row in accumulator.terms]).sum(0)
    out = recording.new_tensor(total)
    note(added_up, (rows,), out)
    recording.note(Op(torch.Tensor.add_, "Tensor.add_", (start, out), {}, (start,), accumulator.modes, recording.place))
    recording.ops += 1
    return accumulator.now


def _is_alone(accumulator: Accumulator, number: int, recording: Any) -> bool:
    """Whether replacing the tensor is indistinguishable from changing it in place: the step has made it and has no
    alias of it."""
    trace, start = recording.trace, accumulator.start
    others = (tensor for n, tensor in enumerate(trace.tensors) if n != number and tensor is not None)
    return (
        number not in trace.access_paths
        and not share_memory(others, [start])
        and all((term.dtype, term.shape) == (start.dtype, start.shape) for term in accumulator.terms)
    )


def _counted(accumulator: Accumulator, recording: Any) -> Any:
    """Record the number as a read of the step after the calls. Return it traced."""
    access_path = AccessPath.grown(recording.lists.number_of(accumulator.terms))
    recording.note(HeapRead(access_path, accumulator.now, "number", place=recording.place))
    return trace_value(accumulator.now, Read(access_path))


def only_accumulated(trace: Any, accumulated: set[int]) -> bool:
    """Whether a call uses accumulators, and values derived from them, for nothing else. ``accumulated``: the numbers of
    those tensors."""
    exprs = list(expressions_in(trace.result))
    for event in trace.events:
        for name in ("expr", "count"):
            exprs += expressions_in(getattr(event, name, None))
        for name in ("access_path", "base", "first", "second"):
            access_path = getattr(event, name, None)
            exprs += expressions_in([at.key for at in access_path.prefixes()] if access_path is not None else ())
        if isinstance(event, Op):
            if any(ref.number in accumulated for ref in event.inputs):
                return False
            exprs += expressions_in((event.args, event.kwargs))
        if isinstance(event, InvokeOp):
            exprs += expressions_in([recipe for _, recipe in event.given])
        if isinstance(event, TensorPredicate) and event.ref.number in accumulated:
            return False
    for recipe in trace.all_recipes():
        exprs += expressions_in(recipe)
        if any(getattr(getattr(part, "ref", None), "number", None) in accumulated for part in parts_of(recipe)):
            return False
    for leaf in (leaf for expr in exprs for leaf in leaves(expr)):
        if isinstance(leaf, Read) and leaf.access_path.is_grown and leaf.access_path.base is not None:
            return False
        if isinstance(leaf, Fetch | Size) and leaf.ref in accumulated:
            return False
    return True
