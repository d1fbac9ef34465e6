"""One round of a loop over trees, told as a call of its own: what it finds of its tree is found by way of a parameter.

Knows nothing of what becomes of the loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from torchjanus.core.access_path import Origin, Step
from torchjanus.core.errors import Place
from torchjanus.graph.ir.numbers import refs_in
from torchjanus.graph.ir.rewriting import Rewriting
from torchjanus.trace.actions import Extern, Invoked, Mutation, Op, Stored
from torchjanus.trace.around import around
from torchjanus.trace.events import Decision, Entered, Left, Trace, Trips
from torchjanus.trace.facts import Absent, Asserted, Computed, Found, Held, Pinned, Same
from torchjanus.trace.recipes import Build, Constant, FoundAt, Number, Recipe, TensorOf
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import Expr, Fetch, Read, Size, Traced, leaves, plain, trace_value

__all__ = ["RoundOfRoots", "Telling", "UnlikeRoots", "calls_in", "items_of", "rebased"]

# Where numbers are found that may be others in each call: what the step is given, how many there are of something.
_CHANGING = (Step.ARG, Step.KWARG, Step.EXTERN, Step.LEN, Step.SIZE, Step.GROWN, Step.OF)
_FACTS = (Found, Absent, Same, Held, Pinned, Computed)


class UnlikeRoots(Exception):
    """The rounds of a loop over trees cannot be told as calls of one function."""


def items_of(event: Any, over: Mapping[Any, int]) -> set[int]:
    """The elements of the lists ``over`` (by the tokens of their paths) of which an event speaks."""
    return {at.key for at in _paths(event) if at.step is Step.ITEM and at.base is not None and at.base.token in over}


def calls_in(event: Any) -> set[int]:
    """The calls of the step of which an event speaks of the numbers that they return."""
    return {at.key[1] for at in _paths(event) if at.step is Step.GROWN and type(at.key) is tuple}


def _paths(event: Any) -> Iterator[Origin]:
    """The paths of which an event speaks, and those that lead to them."""
    for field in fields(event):
        if field.name in ("origin", "base", "first", "second", "expr", "key", "args", "kwargs", "given", "counted"):
            yield from _within(getattr(event, field.name))


def _within(value: Any) -> Iterator[Origin]:
    if isinstance(value, Origin):
        at: Origin | None = value
        while at is not None:
            yield at
            if isinstance(at.key, Expr):
                yield from _within(at.key)
            at = at.base
    elif isinstance(value, Expr):
        for leaf in leaves(value):
            if isinstance(leaf, Read):
                yield from _within(leaf.origin)
    elif isinstance(value, Traced | Number):
        yield from _within(value.expr)
    elif isinstance(value, FoundAt):
        yield from _within(value.origin)
    elif isinstance(value, Build):
        yield from _within(value.items)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _within(part)
    elif isinstance(value, dict):
        yield from _within(list(value.values()))
    elif isinstance(value, slice):
        yield from _within((value.start, value.stop, value.step))


def rebased(origin: Origin, over: Mapping[Any, int]) -> Origin:
    """The path as the call knows it: elements of the lists ``over`` are what it is given, and calls of the step that
    are among those are its own."""
    if origin.step is Step.ITEM and origin.base is not None and origin.base.token in over:
        return Origin.parameter(f"element{over[origin.base.token]}")
    if origin.base is None:
        call = over.get(origin.key) if origin.step is Step.GROWN else None
        return origin if call is None else Origin.parameter(f"call {call}")
    base = rebased(origin.base, over)
    if origin.step is Step.AT:
        key = _Paths(over).expr(origin.key)
        return origin if base is origin.base and key is origin.key else base.at(key)
    return origin if base is origin.base else base.then(origin.step, origin.key)


class _Paths(Rewriting):
    """Expressions as the call knows them."""

    def __init__(self, over: Mapping[Any, int]) -> None:
        super().__init__(Trace())
        self.over = over

    def expr(self, expr: Any) -> Any:
        if isinstance(expr, Read):
            origin = rebased(expr.origin, self.over)
            return expr if origin is expr.origin else Read(origin)
        if isinstance(expr, Fetch | Size):
            raise UnlikeRoots
        return super().expr(expr)


@dataclass(slots=True)
class RoundOfRoots:
    """What a round is as a call: ``trace``, with what it is ``given`` of the step's own tensors, by their numbers, and
    the facts of the step by which it relies on numbers that are the same for all trees."""

    trace: Trace
    given: tuple[int, ...]
    fixed: tuple[Pinned, ...] = ()


class Telling(_Paths):
    """Makes the trace of one round. Raises UnlikeRoots."""

    def __init__(self, step: Trace, over: Mapping[Any, int], inside: frozenset[int]) -> None:
        """``inside``: all tensors that are made in rounds."""
        super().__init__(over)
        self.step = step
        self.inside = inside
        self.found = {event.origin.token: event for event in step.events if isinstance(event, Found)}
        self.numbers: dict[int, int] = {}
        self.given: list[int] = []
        self.fixed: dict[Any, Pinned] = {}
        self.events: list[Any] = []
        self.made_trace = Trace(ambient=step.ambient, alive=[step])

    def tell(self, facts: Sequence[Any], events: Sequence[Any], outs: Sequence[int], lists: Sequence[int]) -> None:
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
            append = Mutation(Origin.grown(place), "append", (), list, at)
            made.recipes[id(append)] = (TensorOf(TensorRef(self.numbers[number])),)
            made.alive.append(append)
            self.events.append(append)
            tensor = self.step.tensors[number]
            known = self.step.kinds.get(number)
            grad = bool(known[-1]) if known is not None else bool(tensor is None or tensor.requires_grad)
            made.appends.add((place, grad))
        made.events = self.events
        made.result = Constant(None)
        tokens = {e.origin.token: rebased(e.origin, self.over).token for e in facts if isinstance(e, Found)}
        made.looked_at = {tokens.get(token, token) for token in self.step.looked_at}
        made.memory = [self.step.memory[number] for number in self.numbers]

    def _fact(self, fact: Any) -> Any:
        match fact:
            case Found(kind="tensor"):
                return replace(fact, origin=rebased(fact.origin, self.over))
            case Same():
                return replace(fact, first=rebased(fact.first, self.over), second=rebased(fact.second, self.over))
            case Held() | Pinned() | Computed():
                return replace(fact, expr=self.expr(fact.expr))
            case Absent(base=base, key=key):
                said = self.expr(key.expr) if isinstance(key, Traced) else None
                new = trace_value(plain(key), said) if isinstance(said, Expr) else plain(key)
                return replace(fact, base=rebased(base, self.over), key=new)
            case _:
                return replace(fact, origin=rebased(fact.origin, self.over))

    def _operation(self, op: Op) -> Op:
        if op.draws or "backward" in op.name or ".grad." in op.name or op.name == "autograd.grad":
            raise UnlikeRoots
        before = set(self.numbers)
        if isinstance(op, Invoked):
            # What all calls share is not the round's affair, as long as no round has made it.
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
        """A tensor that the round uses: one of its own, one that all rounds share, or one that is made before them."""
        if number in self.numbers:
            return
        if number in self.inside:
            raise UnlikeRoots  # another round has made it
        step, made = self.step, self.made_trace
        origin = step.origins.get(number)
        new = self._number(number)
        if origin is not None:
            made.origins[new] = rebased(origin, self.over)
            made.tensors[new] = step.tensors[number]
            if made.origins[new] is origin:  # what is found of the tree is said already
                self.events.append(self.found[origin.token])
            return
        kind = step.kinds.get(number)
        if kind is None:
            raise UnlikeRoots
        size, _, dtype, device, _ = kind
        example = torch.empty(size, dtype=dtype, device=device)
        detail: tuple[Any, ...] = ("Tensor", str(dtype).removeprefix("torch."), size, example.stride(), str(device))
        detail = (*detail, dtype.is_floating_point, False)
        made.origins[new] = Origin.parameter(f"given{len(self.given)}")
        made.tensors[new] = example
        self.given.append(number)
        self.events.append(Found(made.origins[new], example, "tensor", detail, False, place))

    def tensor(self, number: int, after: int) -> int:
        return self.numbers[number]

    def final(self, number: int) -> int:
        return self.numbers[number]

    def recipe(self, recipe: Recipe) -> Any:
        if isinstance(recipe, FoundAt):
            return FoundAt(rebased(recipe.origin, self.over))
        if isinstance(recipe, Number) and not isinstance(said := self.expr(recipe.expr), Expr):
            return Constant(said)
        return super().recipe(recipe)

    def expr(self, expr: Any) -> Any:
        made = super().expr(expr)
        return self._fix(expr) if made is expr and isinstance(expr, Read) else made

    def _fix(self, number: Read) -> Any:
        """A number that is the same for all trees: it may decide sizes, so only its value will do."""
        origin, found = number.origin, self.found.get(number.origin.token)
        if origin.step in _CHANGING or origin.waits_for or found is None:
            raise UnlikeRoots
        value = plain(found.value)
        if type(value) not in (int, float, str):
            raise UnlikeRoots
        self.fixed.setdefault(origin.token, Pinned(number, value, found.place, "is used in recursive calls"))
        self.made_trace.around.update(around([found]))
        return value
