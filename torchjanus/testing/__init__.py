"""Fault injection: a guard that does not hold, an assertion that fails, an operation that raises.

For tests of the promise that the outcome is eager's whenever anything fails. It knows the entries of a speculated
function, and the parts that several entries share before a tensor's decision, but not the program they were made from.
Nothing in the package uses it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch

from torchjanus.host.assumption import Assumption, waits_for
from torchjanus.host.contrary import contrary, failing
from torchjanus.host.embed import compile_with_constants
from torchjanus.host.journal import Journal
from torchjanus.runtime.entries.entry import Entry
from torchjanus.runtime.entries.path_tree import BranchPoint, PathTree
from torchjanus.runtime.entries.path_tree_build import same_as
from torchjanus.runtime.launch.emit import Emitter
from torchjanus.runtime.launch.launch import Launch, PrefixLaunch, build_beginning, build_launch
from torchjanus.runtime.launch.outcomes import MISS, RAISED, Violation
from torchjanus.testing.failing_executors import (
    Fault,
    Injected,
    Injection,
    operations_of,
    raising,
    undecided,
    violating,
)

__all__ = ["Fault", "Injected", "Injection", "Part", "faults", "injected", "parts", "rehearsed"]

# Code is generated from the objects that are assumed to be there: another object may lack what is read from it.
_NO_CODE = (LookupError, AttributeError, TypeError, AssertionError)


Part = Entry | BranchPoint


def parts(step: Any) -> Iterator[Part]:
    """Yield the entries of a speculated function, and the parts that several of them share."""
    for route in step._learning.routes:
        if isinstance(route, PathTree):
            yield from route.forks()
    yield from step.entries


def faults(entry: Part) -> list[Fault]:
    """Return all faults that can be forced in an entry."""
    found = [
        Fault("guard", number, str(assumption), _sort(entry, assumption)) for number, assumption in enumerate(entry.own)
    ]
    if isinstance(entry, BranchPoint):
        found.append(Fault("assertion", 0, f"a way that is known, at {entry.place}", f"decision at {entry.place}"))
    found += [
        Fault("assertion", number, f"is {assertion.expected}, at {assertion.place}", str(assertion.place))
        for number, assertion in enumerate(entry.lowered.assertions)
    ]
    lines = operations_of(entry.lowered)
    found += [Fault("operation", number, line, "operation") for number, line in enumerate(lines)]
    return found


def _sort(entry: Part, assumption: Assumption) -> str:
    last = next((f" {access_path.step.value}" for access_path in assumption.access_paths()), "")
    waiting = " of an extern call" if waits_for(assumption) else ""
    owner = next(entry.entries()) if isinstance(entry, BranchPoint) else entry
    relaxable = ", relaxable" if owner.relaxable(assumption) else ""
    return f"{type(assumption).__name__}{last}{waiting}{relaxable}"


@contextmanager
def injected(entry: Part, fault: Fault) -> Iterator[Injection]:
    """Force the fault whenever the entry is used in this context. Replay runs the graph.

    A guard is forced by generating the entry's code for the contrary of its assumption, so the code must really check
    it; the entry then treats that assumption as the one that failed, and relaxes it if it can.

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
    if isinstance(entry, BranchPoint):
        with _injected_before(entry, injection):
            yield injection
        return
    launch, assumptions = entry.launch, entry.assumptions
    run = launch.names["run"]
    try:
        entry.launch = _failing_launch(entry, launch, injection)
        if fault.kind == "guard":
            broken = entry.own[fault.number]
            entry.assumptions = tuple(failing(a) if a is broken else a for a in assumptions)
        yield injection
    finally:
        entry.launch, entry.assumptions = launch, assumptions
        launch.use(run)


@contextmanager
def _injected_before(fork: BranchPoint, injection: Injection) -> Iterator[None]:
    """Do the same in a part that several entries share."""
    beginning, fault = fork.beginning, injection.fault
    run = beginning.names["run"]
    below = {id(entry): (entry, entry.assumptions) for entry in fork.entries()}
    try:
        fork.beginning = _failing_beginning(fork, beginning, injection)
        if fault.kind == "guard":
            broken = same_as(fork.own[fault.number])
            for entry, assumptions in below.values():
                entry.assumptions = tuple(failing(a) if same_as(a) == broken else a for a in assumptions)
        yield
    finally:
        for entry, assumptions in below.values():
            entry.assumptions = assumptions
        fork.beginning = beginning
        beginning.use(run)


def _failing_beginning(fork: BranchPoint, sound: PrefixLaunch, injection: Injection) -> PrefixLaunch:
    """Return the code of the part with the fault; it may be the same code with another executor."""
    run = sound.names["run"]
    match injection.fault.kind:
        case "guard":
            built: PrefixLaunch | None = None
            changed = _changed(fork.own, injection.fault.number)
            if changed is not None:
                with suppress(*_NO_CODE):
                    built = build_beginning(fork.plan, fork.lowered, changed, fork.live)
                    built.use(run)

            def begin(args: Any, kwargs: Any, journal: Journal | None, live: Sequence[Any]) -> Any:
                if sound.names["check"](args, kwargs) is MISS:
                    return MISS
                result = MISS if built is None else built.begin(args, kwargs, journal, live)
                injection.struck += result is MISS
                return result

            return dataclasses.replace(sound, begin=begin)
        case "assertion":
            sound.use(undecided(fork.lowered, injection))
        case "operation":
            sound.use(raising(fork.lowered, injection))
    return sound


@contextmanager
def _rehearsed_before(fork: BranchPoint, injections: list[Injection]) -> Iterator[None]:
    beginning = fork.beginning

    def begin(args: Any, kwargs: Any, journal: Journal | None, live: Sequence[Any]) -> Any:
        if beginning.names["check"](args, kwargs) is MISS:
            return MISS
        run, drawn = beginning.names["run"], torch.get_rng_state()
        for injection in injections:
            failing = _failing_beginning(fork, beginning, injection)
            try:
                result = failing.begin(args, kwargs, journal, live)
            except Injected:
                continue
            finally:
                beginning.use(run)
                torch.set_rng_state(drawn)
            undecided = injection.fault.kind == "assertion" and True not in result[0].tolist()
            if not undecided and result is not MISS:
                raise AssertionError(f"{injection.fault} did not come out: {result!r}")
        return beginning.begin(args, kwargs, journal, live)

    fork.beginning = dataclasses.replace(beginning, begin=begin)
    try:
        yield
    finally:
        fork.beginning = beginning


@contextmanager
def rehearsed(entry: Part, which: Sequence[Fault]) -> Iterator[list[Injection]]:
    """Run the entry once with each of the faults, and then as it should, at each use in this context.

    That corresponds to making the call many times, each failing but the last: none of them may leave a trace, and
    extern calls are made in the first of them only. (To let the speculated function see the failure, and eager make the
    call, use ``injected``.)
    """
    injections = [Injection(fault) for fault in which]
    if isinstance(entry, BranchPoint):
        with _rehearsed_before(entry, injections):
            yield injections
        return
    launch = entry.launch

    def call(args: tuple[Any, ...], kwargs: dict[str, Any], journal: Journal | None, live: Sequence[Any] = ()) -> Any:
        if launch.check(args, kwargs) is MISS:
            return MISS
        run = launch.names["run"]
        for injection in injections:
            if _is_missed_at_once(entry, launch, injection.fault, args, kwargs):
                injection.struck += 1
                continue
            failing = _failing_launch(entry, launch, injection)
            try:
                result = failing.call(args, kwargs, journal, live)
            except Injected:
                continue
            finally:
                launch.use(run)
            if _is_expected(result, injection.fault):
                continue
            if result is MISS or result is RAISED or type(result) is Violation:
                return result
            raise AssertionError(f"{injection.fault} did not come out: {result!r}")
        return launch.call(args, kwargs, journal, live)

    entry.launch = dataclasses.replace(launch, call=call)
    try:
        yield injections
    finally:
        entry.launch = launch


def _failing_launch(entry: Entry, launch: Launch, injection: Injection) -> Launch:
    """Return the launch with the fault; it may be the same launch with another executor."""
    fault = injection.fault
    run = launch.names["run"]
    match fault.kind:
        case "guard":
            launch = _with_guard_failing(entry, launch, fault.number, injection)
            launch.use(run)
        case "assertion":
            launch.use(violating(entry.lowered, injection))
        case "operation":
            launch.use(raising(entry.lowered, injection))
    return launch


def _is_expected(result: Any, fault: Fault) -> bool:
    if fault.kind == "guard":
        return result is MISS
    return fault.kind == "assertion" and type(result) is Violation and fault.number in result.violated.assertions


# -- guards that fail -------------------------------------------------------------------------------------------------


def _with_guard_failing(entry: Entry, sound: Launch, number: int, injection: Injection) -> Launch:
    """Return the entry's code for the contrary of one assumption; where there is no such code, one that always
    misses."""
    built: Launch | None = None
    changed = _changed(entry.own, number)
    if changed is not None:
        try:
            built = build_launch(entry.plan, entry.lowered, changed, entry.live)
        except _NO_CODE:
            built = None

    def call(args: tuple[Any, ...], kwargs: dict[str, Any], journal: Journal | None, live: Sequence[Any] = ()) -> Any:
        if sound.check(args, kwargs) is MISS:
            return MISS  # where the guard fails by itself, its contrary holds
        result = MISS if built is None else built.call(args, kwargs, journal, live)
        injection.struck += result is MISS
        return result

    return dataclasses.replace(sound if built is None else built, call=call)


def _changed(assumptions: Sequence[Assumption], number: int) -> list[Assumption] | None:
    """Return the assumptions with the contrary of one; None where there is none."""
    opposite = contrary(assumptions[number])
    if opposite is None:
        return None
    return [opposite if position == number else a for position, a in enumerate(assumptions)]


def _is_missed_at_once(entry: Entry, launch: Launch, fault: Fault, args: Any, kwargs: Any) -> bool:
    """Whether the fault is a guard, and the guards at the beginning of a call, with its contrary, end the call.

    All such code is similar; compiling all of it for each fault would take most of a rehearsal's time.
    """
    changed = _changed(entry.own, fault.number) if fault.kind == "guard" else None
    if changed is None:
        return False
    emitter = Emitter(entry.plan, entry.lowered, changed, entry.live or ())
    emitter.source.indent = "        "
    try:
        emitter.guards.require()
    except _NO_CODE:
        return False
    lines = ["def check(args, kwargs):", "    try:", *emitter.source.lines, "        pass"]
    lines += ["    except BROKEN: return MISS", "    return True", ""]
    scope = dict(launch.names)
    compile_with_constants("\n".join(lines), "<torchjanus check, failing>", emitter.source.names, scope)
    return scope["check"](args, kwargs) is MISS
