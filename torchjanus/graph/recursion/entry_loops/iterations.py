"""One iteration of a loop over trees as the trace of a call, which reaches its tree through a parameter.

Independent of what replaces the loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath, Step
from torchjanus.core.errors import Place
from torchjanus.core.remarks import NotMergeable
from torchjanus.trace.actions import ContainerMutation, Extern, HeapWrite, InvokeOp, Op
from torchjanus.trace.context_facts import context_facts
from torchjanus.trace.events import Decision, FunctionEntry, FunctionExit, LoopEnd, Trace
from torchjanus.trace.facts import (
    HeapRead,
    HostComputation,
    IdentityTest,
    KeyLookup,
    NumberPredicate,
    Specialization,
    TensorPredicate,
)
from torchjanus.trace.operands import paths_in
from torchjanus.trace.recipes import Constant, ExistingObject, Number, Recipe, TensorOf
from torchjanus.trace.rewriting import TraceRewriter
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import Expr, Fetch, Read, Size, Traced, plain, trace_value

__all__ = ["IterationOfEntryCalls", "IterationRewriter", "calls_in", "items_of", "rebased"]

# Roots and steps of values that may differ in each call: arguments of the step, extern results, and sizes.
_CHANGING = (Step.ARG, Step.KWARG, Step.EXTERN, Step.LEN, Step.SIZE, Step.GROWN, Step.OF)


def items_of(event: Any, over: Mapping[Any, int]) -> set[int]:
    """Return the indices of elements of the lists ``over`` (tokens) to which an event refers."""
    return {at.key for at in _paths(event) if at.step is Step.ITEM and at.base is not None and at.base.token in over}


def calls_in(event: Any) -> set[int]:
    """Return the calls of the step to whose returned numbers an event refers."""
    return {at.key[1] for at in _paths(event) if at.step is Step.GROWN and type(at.key) is tuple}


def _paths(event: Any) -> Iterator[AccessPath]:
    """Yield the access paths in an event, with their prefixes."""
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
            yield from paths_in(getattr(event, field.name))


def rebased(access_path: AccessPath, over: Mapping[Any, int]) -> AccessPath:
    """Return the path from the call: elements of the lists in ``over`` become parameters, and numbers returned by the
    calls in ``over`` those of its own inner calls."""
    if access_path.step is Step.ITEM and access_path.base is not None and access_path.base.token in over:
        return AccessPath.parameter(f"element{over[access_path.base.token]}")
    if access_path.base is None:
        call = over.get(access_path.key) if access_path.step is Step.GROWN else None
        return access_path if call is None else AccessPath.parameter(f"call {call}")
    base = rebased(access_path.base, over)
    if access_path.step is Step.AT:
        key = _PathRewriter(over).expr(access_path.key)
        return access_path if base is access_path.base and key is access_path.key else base.at(key)
    return access_path if base is access_path.base else base.then(access_path.step, access_path.key)


class _PathRewriter(TraceRewriter):
    """Rewrites expressions to access paths from the call."""

    def __init__(self, over: Mapping[Any, int]) -> None:
        super().__init__(Trace())
        self.over = over

    def expr(self, expr: Any) -> Any:
        if isinstance(expr, Read):
            access_path = rebased(expr.access_path, self.over)
            return expr if access_path is expr.access_path else Read(access_path)
        if isinstance(expr, Fetch | Size):
            raise NotMergeable(
                "recursion-entry-loop", "an iteration computes with a number that it fetches from a tensor"
            )
        return super().expr(expr)


@dataclass(slots=True)
class IterationOfEntryCalls:
    """An iteration as a call: its ``trace``, and the step's tensors that it is ``given``, by number. ``fixed``: the
    specializations on numbers that are the same for all trees."""

    trace: Trace
    given: tuple[int, ...]
    fixed: tuple[Specialization, ...] = ()


class IterationRewriter(_PathRewriter):
    """Writes the trace of one iteration. Raises NotMergeable."""

    def __init__(self, step: Trace, over: Mapping[Any, int], inside: frozenset[int]) -> None:
        """``inside``: all tensors that iterations compute."""
        super().__init__(over)
        self.step = step
        self.inside = inside
        self.found = {event.access_path.token: event for event in step.events if isinstance(event, HeapRead)}
        self.numbers: dict[int, int] = {}
        self.given: list[int] = []
        self.fixed: dict[Any, Specialization] = {}
        self.events: list[Any] = []
        self.made_trace = Trace(ambient=step.ambient, alive=[step])

    def merge(self, facts: Sequence[Any], events: Sequence[Any], outs: Sequence[int], lists: Sequence[int]) -> None:
        """Add the iteration. ``facts``: those about its tree; ``events``: its other events; ``outs``: its outputs, each
        appended to one of ``lists``. Its calls append to the same lists as before."""
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
                case Decision() | FunctionEntry() | FunctionExit() | LoopEnd():
                    self.events.append(event)
                case HeapWrite() | ContainerMutation() | Extern() | TensorPredicate():
                    raise NotMergeable("recursion-entry-loop", "an iteration writes, prints or asserts")
        for number, place in zip(outs, lists, strict=True):
            if number not in self.numbers:
                raise NotMergeable("recursion-entry-loop", "a list of an iteration is used by another one")
            at = events[-1].place if events else Place("", 0)
            append = ContainerMutation(AccessPath.grown(place), "append", (), list, at)
            made.recipes[id(append)] = (TensorOf(TensorRef(self.numbers[number])),)
            made.alive.append(append)
            self.events.append(append)
            tensor = self.step.tensors[number]
            known = self.step.kinds.get(number)
            grad = bool(known[-1]) if known is not None else bool(tensor is None or tensor.requires_grad)
            made.appends.add((place, grad))
        made.events = self.events
        made.result = Constant(None)
        tokens = {
            e.access_path.token: rebased(e.access_path, self.over).token for e in facts if isinstance(e, HeapRead)
        }
        made.looked_at = {tokens.get(token, token) for token in self.step.looked_at}
        made.memory = [self.step.memory[number] for number in self.numbers]

    def _fact(self, fact: Any) -> Any:
        """Return the fact with access paths from the call."""
        match fact:
            case HeapRead(kind="tensor"):
                return replace(fact, access_path=rebased(fact.access_path, self.over))
            case IdentityTest():
                return replace(fact, first=rebased(fact.first, self.over), second=rebased(fact.second, self.over))
            case NumberPredicate() | Specialization() | HostComputation():
                return replace(fact, expr=self.expr(fact.expr))
            case KeyLookup(base=base, key=key):
                said = self.expr(key.expr) if isinstance(key, Traced) else None
                new = trace_value(plain(key), said) if isinstance(said, Expr) else plain(key)
                return replace(fact, base=rebased(base, self.over), key=new)
            case _:
                return replace(fact, access_path=rebased(fact.access_path, self.over))

    def _operation(self, op: Op) -> Op:
        """Return the operation with the numbers of the new trace."""
        if op.draws or "backward" in op.name or ".grad." in op.name or op.name == "autograd.grad":
            raise NotMergeable("recursion-entry-loop", "an iteration draws random numbers or computes gradients")
        before = set(self.numbers)
        if isinstance(op, InvokeOp):
            # All calls share these tensors, unless an iteration has computed one.
            if any(ref.number in self.inside for ref in op.kwargs.get("own", ())):
                raise NotMergeable("recursion-entry-loop", "a call uses a tensor that an iteration has made")
            op = replace(op, kwargs={name: refs for name, refs in op.kwargs.items() if name != "own"})
        for ref in op.inputs:
            self._take(ref.number, op.place)
        for ref in op.outs:
            if ref.number not in self.inside or (ref.number in before and not self._is_own(ref.number)):
                raise NotMergeable("recursion-entry-loop", "an iteration changes a tensor in place")
            self._number(ref.number)
        args, kwargs = self.values(op.args, 0), self.values(op.kwargs, 0)
        outs = tuple(TensorRef(self.numbers[ref.number]) for ref in op.outs)
        if not isinstance(op, InvokeOp):
            return replace(op, args=args, kwargs=kwargs, outs=outs)
        given = tuple((name, self.recipe(recipe)) for name, recipe in op.given)
        return replace(op, args=args, kwargs={}, outs=outs, given=given, grown=(), counted=(), own=())

    def _is_own(self, number: int) -> bool:
        return number in self.inside

    def _number(self, number: int) -> int:
        """Return the new number of the tensor."""
        if number not in self.numbers:
            self.numbers[number] = len(self.made_trace.tensors)
            self.made_trace.tensors.append(None)
        return self.numbers[number]

    def _take(self, number: int, place: Place) -> None:
        """Add a tensor that the iteration uses: its own, one shared by all iterations, or one computed before them."""
        if number in self.numbers:
            return
        if number in self.inside:
            raise NotMergeable("recursion-entry-loop", "an iteration uses what another one has made")
        step, made = self.step, self.made_trace
        access_path = step.access_paths.get(number)
        new = self._number(number)
        if access_path is not None:
            made.access_paths[new] = rebased(access_path, self.over)
            made.tensors[new] = step.tensors[number]
            if made.access_paths[new] is access_path:  # a fact about the tree exists already
                self.events.append(self.found[access_path.token])
            return
        kind = step.kinds.get(number)
        if kind is None:
            raise NotMergeable("recursion-entry-loop", "an iteration uses a tensor of unknown kind")
        size, _, dtype, device, _ = kind
        example = torch.empty(size, dtype=dtype, device=device)
        detail: tuple[Any, ...] = ("Tensor", str(dtype).removeprefix("torch."), size, example.stride(), str(device))
        detail = (*detail, dtype.is_floating_point, False)
        made.access_paths[new] = AccessPath.parameter(f"given{len(self.given)}")
        made.tensors[new] = example
        self.given.append(number)
        self.events.append(HeapRead(made.access_paths[new], example, "tensor", detail, place))

    def tensor(self, number: int, after: int) -> int:
        return self.numbers[number]

    def final(self, number: int) -> int:
        return self.numbers[number]

    def recipe(self, recipe: Recipe) -> Any:
        if isinstance(recipe, ExistingObject):
            return ExistingObject(rebased(recipe.access_path, self.over))
        if isinstance(recipe, Number) and not isinstance(said := self.expr(recipe.expr), Expr):
            return Constant(said)
        return super().recipe(recipe)

    def expr(self, expr: Any) -> Any:
        made = super().expr(expr)
        return self._fix(expr) if made is expr and isinstance(expr, Read) else made

    def _fix(self, number: Read) -> Any:
        """Return the value of a number that is the same for all trees. It is pinned, since it may decide sizes."""
        access_path, found = number.access_path, self.found.get(number.access_path.token)
        if access_path.step in _CHANGING or access_path.waits_for or found is None:
            raise NotMergeable("recursion-entry-loop", "an iteration uses a number that may change during the step")
        value = plain(found.value)
        if type(value) not in (int, float, str):
            raise NotMergeable("recursion-entry-loop", "an iteration uses a value that is neither a number nor a text")
        self.fixed.setdefault(
            access_path.token, Specialization(number, value, found.place, "is used in recursive calls")
        )
        self.made_trace.context.update(context_facts([found]))
        return value
