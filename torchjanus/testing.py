"""Faults on purpose: a guard that does not hold, an assertion that fails, an operation that raises.

For tests of the one promise that holds whenever anything fails: the outcome is eager's. Knows the entries of a
speculated function; knows nothing of the program they were made from. Nothing in the package uses it.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch

from torchjanus.assumptions.assumption import (
    AmbientState,
    Arguments,
    Assumption,
    Condition,
    ContainerKeys,
    Distinct,
    Emptiness,
    Identity,
    Kept,
    KeyPresence,
    SameObject,
    TensorKind,
    TypeOf,
    ValueOf,
)
from torchjanus.execute.replay import Replay
from torchjanus.graph.lowered import Lowered
from torchjanus.journal import Journal
from torchjanus.runtime.entry import Entry
from torchjanus.runtime.launch import MISS, Launch, build_launch

__all__ = ["Fault", "Injected", "Injection", "faults", "injected", "rehearsed"]

_KEY = "a key that no program has"


class Injected(RuntimeError):
    """What an operation raises that is made to raise."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that can go wrong in an entry: its guard, assertion or operation number ``number``."""

    kind: Literal["guard", "assertion", "operation"]
    number: int
    what: str

    def __str__(self) -> str:
        return f"{self.kind} {self.number}: {self.what}"


@dataclass(slots=True)
class Injection:
    """``struck`` counts how often the fault came into effect."""

    fault: Fault
    struck: int = 0


def faults(entry: Entry) -> list[Fault]:
    """All faults that can be forced in an entry. What is trusted without a check (Kept) cannot fail."""
    found = [
        Fault("guard", number, str(assumption))
        for number, assumption in enumerate(entry.assumptions)
        if not isinstance(assumption, Kept)
    ]
    found += [
        Fault("assertion", number, f"is {assertion.expected}, at {assertion.place}")
        for number, assertion in enumerate(entry.lowered.assertions)
    ]
    found += [Fault("operation", number, line) for number, line in enumerate(_operations(Replay(entry.lowered)))]
    return found


@contextmanager
def injected(entry: Entry, fault: Fault) -> Iterator[Injection]:
    """Within, the fault strikes whenever the entry is used. It is replay that runs the graph.

    A guard is forced by building the entry's code over the contrary of what it assumes, so the code must really check
    it; the entry then takes that assumption for the one that failed, and relaxes it if it can.

        >>> import torch, torchjanus
        >>> from torchjanus.testing import faults, injected
        >>> step = torchjanus.speculate(lambda x: x * 2, executor="replay")
        >>> for _ in range(4):
        ...     _ = step(torch.ones(2))
        >>> (entry,) = step.entries
        >>> with injected(entry, faults(entry)[-1]) as injection:
        ...     step(torch.ones(2)).tolist()
        [2.0, 2.0]
        >>> injection.struck
        1
    """
    injection = Injection(fault)
    launch, assumptions = entry.launch, entry.assumptions
    run = launch.names["run"]
    try:
        match fault.kind:
            case "guard":
                entry.assumptions = tuple(
                    _failing(a) if number == fault.number else a for number, a in enumerate(assumptions)
                )
                entry.launch = _with_guard_failing(entry, assumptions, fault.number, injection)
                entry.launch.use(run)
            case "assertion":
                launch.use(_Violating(entry.lowered, injection).run)
            case "operation":
                launch.use(_Raising(entry.lowered, injection).run)
        yield injection
    finally:
        entry.launch, entry.assumptions = launch, assumptions
        launch.use(run)


@contextmanager
def rehearsed(entry: Entry, which: Sequence[Fault]) -> Iterator[list[Injection]]:
    """Within, each use of the entry first runs once with each of the operations raising, and then as it should.

    That is as if the call were made many times, each failing but the last: none of them may leave a trace. (To have the
    failure seen by the speculated function, and the call made by eager, use ``injected``.)
    """
    launch = entry.launch
    injections = [Injection(fault) for fault in which]
    raising = [_Raising(entry.lowered, injection) for injection in injections]

    def call(args: tuple[Any, ...], kwargs: dict[str, Any], journal: Journal | None) -> Any:
        run = launch.names["run"]
        try:
            for executor in raising:
                launch.use(executor.run)
                try:
                    result = launch.call(args, kwargs, journal)
                except Injected:
                    continue
                if result is MISS:
                    return MISS
                raise AssertionError(f"{executor.injection.fault} did not come out: {result!r}")
        finally:
            launch.use(run)
        return launch.call(args, kwargs, journal)

    entry.launch = dataclasses.replace(launch, call=call)
    try:
        yield injections
    finally:
        entry.launch = launch


# -- executors that fail --------------------------------------------------------------------------------------------


class _Violating(Replay):
    """Runs the graph, and finds that one assertion does not hold."""

    def __init__(self, lowered: Lowered, injection: Injection) -> None:
        super().__init__(lowered)
        self.injection = injection

    def compute(self, inputs: Sequence[torch.Tensor], slots: Sequence[float | int]) -> list[torch.Tensor]:
        """As ``Replay.compute``, with a flag put down."""
        values = super().compute(inputs, slots)
        flags = self.lowered.flags
        assert flags is not None
        values[flags] = values[flags].clone()
        values[flags][self.injection.fault.number] = False
        self.injection.struck += 1
        return values


class _Raising(Replay):
    """Runs the graph up to one operation, and raises in its place."""

    def __init__(self, lowered: Lowered, injection: Injection) -> None:
        super().__init__(lowered)
        self.injection = injection
        wanted = _operations(self)[injection.fault.number]
        lines = self.source.split("\n")
        place = lines.index(f"    {wanted}")
        lines[place] = "    injected()"
        scope = {**self._compute.__globals__, "injected": self._strike}
        exec(compile("\n".join(lines), "<torchjanus replay, raising>", "exec"), scope)
        self._compute = scope["compute"]

    def _strike(self) -> None:
        self.injection.struck += 1
        raise Injected(str(self.injection.fault))


def _operations(replay: Replay) -> list[str]:
    """The lines of the generated code that call operators."""
    lines = (line.strip() for line in replay.source.split("\n"))
    return [line for line in lines if line.endswith(")") and " = " in line]


# -- guards that fail -------------------------------------------------------------------------------------------------


def _with_guard_failing(entry: Entry, assumptions: Sequence[Assumption], number: int, injection: Injection) -> Launch:
    """The entry's code over the contrary of one assumption; where there is no such code, one that always misses."""
    contrary = _contrary(assumptions[number])
    built: Launch | None = None
    if contrary is not None:
        changed = [contrary if position == number else a for position, a in enumerate(assumptions)]
        try:
            built = build_launch(entry.plan, entry.lowered, changed)
        except (LookupError, AttributeError, TypeError, AssertionError):
            # Code is generated from the objects that are assumed to be there: behind another one there is nothing.
            built = None

    def call(args: tuple[Any, ...], kwargs: dict[str, Any], journal: Journal | None) -> Any:
        result = MISS if built is None else built.call(args, kwargs, journal)
        injection.struck += result is MISS
        return result

    return dataclasses.replace(entry.launch if built is None else built, call=call)


def _failing(assumption: Assumption) -> Assumption:
    """The same assumption, of which it is said that it does not hold."""
    cls = type(assumption)
    failing: type[Assumption] = type(cls.__name__, (cls,), {"__slots__": (), "holds": lambda self, args, kwargs: False})
    return failing(**{f.name: getattr(assumption, f.name) for f in dataclasses.fields(assumption)})


def _contrary(assumption: Assumption) -> Assumption | None:
    """An assumption of the same kind that is wrong where this one is right; None where there is none."""
    replace: Callable[..., Assumption] = dataclasses.replace
    match assumption:
        case Arguments():
            return replace(assumption, count=assumption.count + 1)
        case AmbientState():
            return replace(assumption, deterministic=not assumption.deterministic)
        case Kept():
            return None
        case Identity():
            return replace(assumption, value=_another(assumption.value))
        case ValueOf():
            value = assumption.value
            other = (
                not value
                if isinstance(value, bool)
                else value + 1
                if isinstance(value, int | float)
                else _another(value)
            )
            return replace(assumption, value=other)
        case TypeOf():
            return replace(assumption, cls=_Nowhere)
        case TensorKind():
            example = assumption.example
            return replace(assumption, example=torch.empty((1, *example.shape), dtype=example.dtype))
        case KeyPresence():
            return replace(assumption, present=not assumption.present)
        case Emptiness():
            return replace(assumption, filled=not assumption.filled)
        case ContainerKeys():
            return replace(assumption, keys=(*assumption.keys, _KEY))
        case SameObject():
            return replace(assumption, same=not assumption.same)
        case Condition():
            outcome = assumption.outcome
            return replace(assumption, outcome=not outcome if isinstance(outcome, bool) else outcome + 1)
        case Distinct():
            return None
    raise AssertionError(f"no contrary of {type(assumption).__name__}")


class _Nowhere:
    """A class of which there is no object."""


def _another(value: Any) -> Any:
    """Another object, as much like this one as can be."""
    if isinstance(value, torch.Tensor):
        return torch.empty_like(value)
    try:
        other = copy.copy(value)
    except Exception:  # the program's own classes may refuse in any way
        return object()
    return object() if other is value else other
