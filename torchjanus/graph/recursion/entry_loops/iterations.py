"""One iteration of a loop over trees, told as a call of its own: what it finds of its tree is found by way of a
parameter.

Knows nothing of what becomes of the loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath, Step
from torchjanus.core.errors import Place
from torchjanus.trace.actions import Extern, Invoked, Mutation, Op, Stored
from torchjanus.trace.around import around
from torchjanus.trace.events import Decision, Entered, Left, Trace, Trips
from torchjanus.trace.facts import Absent, Asserted, Computed, Found, Held, Pinned, Same
from torchjanus.trace.operands import refs_in
from torchjanus.trace.recipes import Build, Constant, FoundAt, Number, Recipe, TensorOf
from torchjanus.trace.rewriting import Rewriting
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import Expr, Fetch, Read, Size, Traced, leaves, plain, trace_value

__all__ = ["IterationOfEntryCalls", "Telling", "UnlikeRoots", "calls_in", "items_of", "rebased"]

# Where numbers are found that may be others in each call: what the step is given, how many there are of something.
_CHANGING = (Step.ARG, Step.KWARG, Step.EXTERN, Step.LEN, Step.SIZE, Step.GROWN, Step.OF)
_FACTS = (Found, Absent, Same, Held, Pinned, Computed)


class UnlikeRoots(Exception):
    """The iterations of a loop over trees cannot be told as calls of one function."""


def items_of(event: Any, over: Mapping[Any, int]) -> set[int]:
    """The elements of the lists ``over`` (by the tokens of their paths) of which an event speaks."""
    return {at.key for at in _paths(event) if at.step is Step.ITEM and at.base is not None and at.base.token in over}


def calls_in(event: Any) -> set[int]:
    """The calls of the step of which an event speaks of the numbers that they return."""
    return {at.key[1] for at in _paths(event) if at.step is Step.GROWN and type(at.key) is tuple}


def _paths(event: Any) -> Iterator[AccessPath]:
    """The paths of which an event speaks, and those that lead to them."""
    for field in fields(event):
        if field.name in (
            "access_path",
            "base",
            "first",
            "second",
            "expr",
            "key",
            "args",
            "kwargs",
            "given",
            "counted",
        ):
            yield from _within(getattr(event, field.name))


def _within(value: Any) -> Iterator[AccessPath]:
    if isinstance(value, AccessPath):
        at: AccessPath | None = value
        while at is not None:
            yield at
            if isinstance(at.key, Expr):
                yield from _within(at.key)
            at = at.base
    elif isinstance(value, Expr):
        for leaf in leaves(value):
            if isinstance(leaf, Read):
                yield from _within(leaf.access_path)
    elif isinstance(value, Traced | Number):
        yield from _within(value.expr)
    elif isinstance(value, FoundAt):
        yield from _within(value.access_path)
    elif isinstance(value, Build):
        yield from _within(value.items)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _within(part)
    elif isinstance(value, dict):
        yield from _within(list(value.values()))
    elif isinstance(value, slice):
        yield from _within((value.start, value.stop, value.step))


def rebased(access_path: AccessPath, over: Mapping[Any, int]) -> AccessPath:
    """The path as the call knows it: elements of the lists ``over`` are what it is given, and calls of the step that
    are among those are its own."""
    if access_path.step is Step.ITEM and access_path.base is not None and access_path.base.token in over:
        return AccessPath.parameter(f"element{over[access_path.base.token]}")
    if access_path.base is None:
        call = over.get(access_path.key) if access_path.step is Step.GROWN else None
        return access_path if call is None else AccessPath.parameter(f"call {call}")
    base = rebased(access_path.base, over)
    if access_path.step is Step.AT:
        key = _Paths(over).expr(access_path.key)
        return access_path if base is access_path.base and key is access_path.key else base.at(key)
    return access_path if base is access_path.base else base.then(access_path.step, access_path.key)


class _Paths(Rewriting):
    """Expressions as the call knows them."""

    def __init__(self, over: Mapping[Any, int]) -> None:
        super().__init__(Trace())
        self.over = over

    def expr(self, expr: Any) -> Any:
        if isinstance(expr, Read):
            access_path = rebased(expr.access_path, self.over)
            return expr if access_path is expr.access_path else Read(access_path)
        if isinstance(expr, Fetch | Size):
            raise UnlikeRoots
        return super().expr(expr)


@dataclass(slots=True)
class IterationOfEntryCalls:
    """What an iteration is as a call: ``trace``, with what it is ``given`` of the step's own tensors, by their numbers,
    and the facts of the step by which it relies on numbers that are the same for all trees."""

    trace: Trace
    given: tuple[int, ...]
    fixed: tuple[Pinned, ...] = ()


class Telling(_Paths):
    """Makes the trace of one iteration. Raises UnlikeRoots."""

    def __init__(self, step: Trace, over: Mapping[Any, int], inside: frozenset[int]) -> None:
        """``inside``: all tensors that are made in iterations."""
        super().__init__(over)
        self.step = step
        self.inside = inside
        self.found = {event.access_path.token: event for event in step.events if isinstance(event, Found)}
        self.numbers: dict[int, int] = {}
        self.given: list[int] = []
        self.fixed: dict[Any, Pinned] = {}
        self.events: list[Any] = []
        self.made_trace = Trace(ambient=step.ambient, alive=[step])

    def merge(self, facts: Sequence[Any], events: Sequence[Any], outs: Sequence[int], lists: Sequence[int]) -> None:
        """``facts``: what is found of its tree; ``events``: what it does; ``outs``: what it gives, each to a list. Its
        calls append to the lists to which they have appended."""
        made = self.made_trace
        for fact in facts:
            self.events.append(self._fact(fact))
        mapped = {}
        for event in events:
            match event:
                case Op():
                    done = self._operation(event)
                    mapped[id(event)] = len(self.events)
                    self.events.append(done)
                case Decision() | Entered() | Left() | Trips():
                    self.events.append(event)
                case Stored() | Mutation() | Extern() | Asserted():
                    raise UnlikeRoots
        for number, place in zip(outs, lists, strict=True):
            if number not in self.numbers:
                raise UnlikeRoots
            at = events[-1].place if events else Place("", 0)
            append = Mutation(AccessPath.grown(place), "append", (), list, at)
            made.recipes[id(append)] = (TensorOf(TensorRef(self.numbers[number])),)
            made.alive.append(append)
            self.events.append(append)
            tensor = self.step.tensors[number]
            known = self.step.kinds.get(number)
            grad = bool(known[-1]) if known is not None else bool(tensor is None or tensor.requires_grad)
            made.appends.add((place, grad))
        made.events = self.events
        made.result = Constant(None)
        tokens = {e.access_path.token: rebased(e.access_path, self.over).token for e in facts if isinstance(e, Found)}
        made.looked_at = {tokens.get(token, token) for token in self.step.looked_at}
        made.memory = [self.step.memory[number] for number in self.numbers]

    def _fact(self, fact: Any) -> Any:
        match fact:
            case Found(kind="tensor"):
                return replace(fact, access_path=rebased(fact.access_path, self.over))
            case Same():
                return replace(fact, first=rebased(fact.first, self.over), second=rebased(fact.second, self.over))
            case Held() | Pinned() | Computed():
                return replace(fact, expr=self.expr(fact.expr))
            case Absent(base=base, key=key):
                said = self.expr(key.expr) if isinstance(key, Traced) else None
                new = trace_value(plain(key), said) if isinstance(said, Expr) else plain(key)
                return replace(fact, base=rebased(base, self.over), key=new)
            case _:
                return replace(fact, access_path=rebased(fact.access_path, self.over))

    def _operation(self, op: Op) -> Op:
        if op.draws or "backward" in op.name or ".grad." in op.name or op.name == "autograd.grad":
            raise UnlikeRoots
        before = set(self.numbers)
        if isinstance(op, Invoked):
            # What all calls share is not the iteration's affair, as long as no iteration has made it.
            if any(ref.number in self.inside for ref in op.kwargs.get("own", ())):
                raise UnlikeRoots
            op = replace(op, kwargs={name: refs for name, refs in op.kwargs.items() if name != "own"})
        for ref in refs_in((op.args, op.kwargs)):
            self._take(ref.number, op.place)
        for ref in op.outs:
            if ref.number not in self.inside or (ref.number in before and not self._is_own(ref.number)):
                raise UnlikeRoots
            self._number(ref.number)
        args, kwargs = self.values(op.args, 0), self.values(op.kwargs, 0)
        outs = tuple(TensorRef(self.numbers[ref.number]) for ref in op.outs)
        if not isinstance(op, Invoked):
            return replace(op, args=args, kwargs=kwargs, outs=outs)
        given = tuple((name, self.recipe(recipe)) for name, recipe in op.given)
        return replace(op, args=args, kwargs={}, outs=outs, given=given, grown=(), counted=(), own=())

    def _is_own(self, number: int) -> bool:
        return number in self.inside

    def _number(self, number: int) -> int:
        if number not in self.numbers:
            self.numbers[number] = len(self.made_trace.tensors)
            self.made_trace.tensors.append(None)
        return self.numbers[number]

    def _take(self, number: int, place: Place) -> None:
        """A tensor that the iteration uses: one of its own, one that all iterations share, or one that is made before
        them."""
        if number in self.numbers:
            return
        if number in self.inside:
            raise UnlikeRoots  # another iteration has made it
        step, made = self.step, self.made_trace
        access_path = step.access_paths.get(number)
        new = self._number(number)
        if access_path is not None:
            made.access_paths[new] = rebased(access_path, self.over)
            made.tensors[new] = step.tensors[number]
            if made.access_paths[new] is access_path:  # what is found of the tree is said already
                self.events.append(self.found[access_path.token])
            return
        kind = step.kinds.get(number)
        if kind is None:
            raise UnlikeRoots
        size, _, dtype, device, _ = kind
        example = torch.empty(size, dtype=dtype, device=device)
        detail: tuple[Any, ...] = ("Tensor", str(dtype).removeprefix("torch."), size, example.stride(), str(device))
        detail = (*detail, dtype.is_floating_point, False)
        made.access_paths[new] = AccessPath.parameter(f"given{len(self.given)}")
        made.tensors[new] = example
        self.given.append(number)
        self.events.append(Found(made.access_paths[new], example, "tensor", detail, False, place))

    def tensor(self, number: int, after: int) -> int:
        return self.numbers[number]

    def final(self, number: int) -> int:
        return self.numbers[number]

    def recipe(self, recipe: Recipe) -> Any:
        if isinstance(recipe, FoundAt):
            return FoundAt(rebased(recipe.access_path, self.over))
        if isinstance(recipe, Number) and not isinstance(said := self.expr(recipe.expr), Expr):
            return Constant(said)
        return super().recipe(recipe)

    def expr(self, expr: Any) -> Any:
        made = super().expr(expr)
        return self._fix(expr) if made is expr and isinstance(expr, Read) else made

    def _fix(self, number: Read) -> Any:
        """A number that is the same for all trees: it may decide sizes, so only its value will do."""
        access_path, found = number.access_path, self.found.get(number.access_path.token)
        if access_path.step in _CHANGING or access_path.waits_for or found is None:
            raise UnlikeRoots
        value = plain(found.value)
        if type(value) not in (int, float, str):
            raise UnlikeRoots
        self.fixed.setdefault(access_path.token, Pinned(number, value, found.place, "is used in recursive calls"))
        self.made_trace.around.update(around([found]))
        return value
