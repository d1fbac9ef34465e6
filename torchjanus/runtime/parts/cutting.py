"""Cuts a function whose runs differ in its first or last statements: Python makes those in each call, and the
statements between them are speculated on (Terra's co-execution, for whole statements).

An example of the first kind is a batch that Python draws, filters and collates: lists of changing lengths, flags and
``None`` in samples. An example of the second is a search for the best sequence after the training. This module does not
decide when a cut is worth it.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from torchjanus.core.access_path import Step
from torchjanus.core.errors import NOWHERE, Place, Refusal, Unsupported
from torchjanus.core.kinds import isinstance
from torchjanus.rewrite import Span, cut, spans_of
from torchjanus.semantics.known.trusted import is_installed, is_trusted_module
from torchjanus.semantics.protocols.virtualize import underlying
from torchjanus.trace.actions import Extern, Op
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import NumberPredicate, TensorPredicate
from torchjanus.trace.values import Read, leaves

__all__ = ["OF_THE_WHOLE", "Cut"]

_ASKING = ("backward", "grad")  # Tensor.backward, torch.autograd.grad
FEWER = 8  # tensors that a later cut must pass on less to be preferred
SHARE = 0.1  # of the operations on tensors that a cut must leave where something is refused
MOST = 5  # times that one function is cut, each time to fewer statements
_UP_TO = "Python makes the statements up to line {}, graphs the rest"
_FROM = "Python makes the statements from line {} on, graphs the rest"


@dataclass(frozen=True, slots=True)
class Cut:
    """A function in up to three parts, of which ``part`` is speculated on.

    ``before`` takes the function's arguments; the first ``taken`` values that it returns are the arguments of ``part``
    (the other values only stay alive until the call is over). ``part`` returns the arguments of ``after``. A list that
    holds one result means that the function has returned. ``begin``, ``end``: the statements of the function in
    ``part``.
    """

    before: Callable[..., tuple[Any, ...] | list[Any]] | None
    part: Callable[..., Any]
    after: Callable[..., Any] | None
    taken: int
    begin: int
    end: int
    times: int
    description: str
    place: Place

    @staticmethod
    def between(fn: Callable[..., Any], traces: Sequence[Trace], known: Cut | None) -> Cut | None:
        """Return a cut after the statement in which the last runs differ or the last one is refused, or else before it;
        None if there is none. ``traces``: of the function, or of the part of it that the cut ``known`` has left."""
        cuttable = _cuttable(fn)
        if cuttable is None:
            return None
        target, leading = cuttable
        file, spans = target.__code__.co_filename, spans_of(target)
        met = [found for pair in pairwise(traces) if (found := _parting(*pair, file, spans)) is not None]
        refused = [found for refusal in traces[-1].refusals for found in _refused(refusal, file, spans)]
        met += refused
        if not met or (known is not None and known.times >= MOST):
            return None
        if any(refusal.of_lifetimes or refusal.reason in OF_THE_WHOLE for one in traces for refusal in one.refusals):
            return None  # values passed between the parts would live longer, or shorter
        begin, end, times = (0, len(spans), 1) if known is None else (known.begin, known.end, known.times + 1)
        met = sorted((found for found in met if begin <= found[0] < end), key=lambda found: found[0])

        def trains(number: int) -> bool:
            return any(_trains(one, file, spans, number) for one in traces)

        def ends_training(number: int) -> bool:
            return trains(number - 1) and not any(_trains_across(one, file, spans, number) for one in traces)

        if first := [found for found in met if found[0] + 1 < end and not trains(found[0])]:
            number, why, place = first[-1]
            again = [found[0] for found in met if found[0] > number and found[1:] == (why, place)]
            if not all(map(ends_training, again)):
                return None  # what would be left cannot have a graph either
            later = (begin for begin in range(number + 2, end) if not trains(begin - 1))
            begin = _narrowest(traces[-1], file, spans, number + 1, later)
            number = begin - 1
            whose = _UP_TO.format(spans[number][1][0])
        elif met and ends_training(met[0][0]):
            end, why, place = met[0]
            whose = _FROM.format(spans[end][0][0])
        else:
            return None
        within = [begin <= number < end for one in traces for number in _computing(one, file, spans)]
        least = SHARE * len(within) if any(found[1:] == (why, place) for found in refused) else 1
        if within and sum(within) < least:
            return None  # graphs of the statements and calls that can have one are of more use, and learn more
        return _made(target, leading, begin, end, len(spans), times, f"{whose}: {why}", place)

    @staticmethod
    def of_schedule(fn: Callable[..., Any], trace: Trace) -> Cut | None:
        """Return a cut after the first statements, if they only compute with numbers, and decide by one that is likely
        to be another in later calls: a variable of the program, as in a schedule of learning rates. None if not.

        Each arm of such a decision would need a graph of its own, while for Python these statements are cheap."""
        found = _cuttable(fn)
        if found is None:
            return None
        target, leading = found
        file, spans = target.__code__.co_filename, spans_of(target)
        deciding: tuple[int, NumberPredicate] | None = None
        for number, event in _placed(trace, file, spans):
            if isinstance(event, Op | Extern | TensorPredicate):
                if deciding is None or not 0 <= deciding[0] < number:
                    return None
                begin, decision = deciding[0] + 1, deciding[1]
                whose = _UP_TO.format(spans[begin - 1][1][0])
                why = f"({decision.expr}) decides, and may be another in later calls"
                return _made(target, leading, begin, len(spans), len(spans), 1, f"{whose}: {why}", decision.place)
            if isinstance(event, NumberPredicate) and any(map(_is_variable, leaves(event.expr))):
                deciding = number, event
        return None


def _cuttable(fn: Callable[..., Any]) -> tuple[types.FunctionType, Sequence[Any]] | None:
    """Return the Python function to cut, and the instance it is bound to, if any; None if it cannot be cut."""
    try:
        target, leading = underlying(fn)
    except Unsupported:
        return None
    other = len(leading) > 1 or is_trusted_module(target.__module__) or is_installed(target.__code__.co_filename)
    return None if other else (target, leading)


def _made(
    target: types.FunctionType,
    leading: Sequence[Any],
    begin: int,
    end: int,
    count: int,
    times: int,
    description: str,
    place: Place,
) -> Cut | None:
    """Return the cut that leaves the statements from ``begin`` up to ``end``, of ``count``; None where there is
    none."""
    parts = _parts(target, begin, end, count, len(leading))
    if parts is None:
        return None
    before, part, after = (_bound(one, leading) for one in parts)
    assert part is not None
    taken = parts[1].__code__.co_argcount - len(leading)
    return Cut(before, part, after, taken, begin, end, times, description, place)


def _is_variable(leaf: Any) -> bool:
    """Whether a number is a variable of the program: an argument, or a variable of a module or function around it."""
    if not isinstance(leaf, Read):
        return False
    path = leaf.access_path
    if path.step is Step.ITEM:
        return path.base is not None and path.base.step is Step.CONST
    return path.step in (Step.ARG, Step.KWARG, Step.CELL)


def _bound(fn: types.FunctionType | None, leading: Sequence[Any]) -> Callable[..., Any] | None:
    """Return ``fn`` bound to the instance in ``leading``, if there is one."""
    return types.MethodType(fn, leading[0]) if fn is not None and leading else fn


def _parts(
    fn: types.FunctionType, begin: int, end: int, count: int, leading: int
) -> tuple[types.FunctionType | None, types.FunctionType, types.FunctionType | None] | None:
    """Return the statements before ``begin``, those from there up to ``end``, and those after it; None where there is
    no cut."""
    before, part, after = None, fn, None
    if begin:
        pair = cut(part, begin, leading)
        if pair is None:
            return None
        before, part = pair
    if end < count:
        pair = cut(part, end - begin, leading, only_used=True)
        if pair is None:
            return None
        part, after = pair
    return before, part, after


# Reasons that hold for each part of a step, though a part by itself shows none of it: casts of parameters that outlive
# the calls are stale in a part that does not change the parameters, too.
OF_THE_WHOLE = frozenset({"autocast-cache"})


def _refused(refusal: Refusal, file: str, spans: Sequence[Span]) -> Iterator[tuple[int, str, Place]]:
    """Yield the statements that were refused, or called what was refused: the number of each, the reason and the
    place."""
    places = (refusal.place, refusal.caller, *refusal.within, *refusal.again)
    numbers = {_statement(place, spans) for place in places if place.file == file}
    shown = refusal.place if refusal.caller == NOWHERE else refusal.caller
    why = f"{refusal.what}: {refusal.why}".rstrip(".")
    return ((number, why, shown) for number in numbers if number is not None)


def _parting(one: Trace, other: Trace, file: str, spans: Sequence[Span]) -> tuple[int, str, Place] | None:
    """Return the statement in which two runs take different paths: its number, the difference and the place."""
    for (_, before), (number, event) in zip(_placed(one, file, spans), _placed(other, file, spans), strict=False):
        if before.token != event.token:
            return None if number < 0 else (number, f"most runs part here: {before} / {event}", event.place)
    return None


def _placed(trace: Trace, file: str, spans: Sequence[Span]) -> Iterator[tuple[int, Any]]:
    """Yield each event of a run, with the number of the statement in the function's body that it belongs to."""
    number = -1
    for event in trace.events:
        place = getattr(event, "place", NOWHERE)
        if place.file == file:
            found = _statement(place, spans)
            number = number if found is None else found
        yield number, event


def _statement(place: Place, spans: Sequence[Span]) -> int | None:
    """Return the number of the statement at ``place``, or None."""
    at = place.line, place.column
    return next((number for number, (low, high) in enumerate(spans) if low <= at <= high), None)


def _trains(trace: Trace, file: str, spans: Sequence[Span], last: int) -> bool:
    """Whether the statements up to number ``last`` compute values that require gradients."""
    for number, event in _placed(trace, file, spans):
        if number > last:
            return False
        if isinstance(event, Op) and event.modes.grad:
            given = [trace.tensors[ref.number] for ref in event.inputs]
            with torch._C.DisableTorchFunction():  # a class of the program must not see the query
                if any(isinstance(tensor, torch.Tensor) and tensor.requires_grad for tensor in given):
                    return True
    return False


def _computing(trace: Trace, file: str, spans: Sequence[Span]) -> Iterator[int]:
    """Yield the number of the statement that each operation on tensors belongs to. Setting an attribute, such as a
    gradient, is none."""
    ops = ((number, event) for number, event in _placed(trace, file, spans) if isinstance(event, Op))
    return (number for number, op in ops if not op.name.endswith(".__set__"))


def _narrowest(trace: Trace, file: str, spans: Sequence[Span], first: int, later: Iterable[int]) -> int:
    """Return the statement before which to cut: ``first``, or the first of ``later`` that fewer tensors are passed to.

    An example is a batch that is drawn as a list of samples, and made a few tensors some statements later: what reads
    the samples differs in each run.
    """
    used: dict[int, int] = {}  # tensor -> the last statement that uses it
    made: dict[int, int] = {}  # tensor -> the statement that makes it; -1 if it was there
    for number, event in _placed(trace, file, spans):
        if isinstance(event, Op):
            used.update((ref.number, number) for ref in event.inputs)
            made.update((ref.number, number) for ref in event.outs)
    kinds = trace.kinds
    for ref in trace.access_paths:
        if ref not in made and (kind := kinds.get(ref)) is not None and not kind[4]:  # parameters are reached anyway
            made[ref] = -1

    def passed(begin: int) -> int:
        return sum(number < begin <= used.get(ref, -1) for ref, number in made.items())

    best = min(later, key=passed, default=first)
    return best if passed(best) + FEWER <= passed(first) else first


def _trains_across(trace: Trace, file: str, spans: Sequence[Span], low: int) -> bool:
    """Whether from statement ``low`` on gradients are computed with respect to values computed before it."""
    made: set[int] = set()
    for number, event in _placed(trace, file, spans):
        if not isinstance(event, Op):
            continue
        if number < low or any(ref.number in made for ref in event.inputs):
            if number >= low and event.name.rpartition(".")[2] in _ASKING:
                return True
            # Only tensors with strides have a kind: no graph takes others.
            kinds = {ref.number: trace.kinds.get(ref.number) for ref in event.outs}
            made.update(ref for ref, kind in kinds.items() if kind is not None and kind[4])
    return False
