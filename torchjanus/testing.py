"""Fault injection: a guard that does not hold, an assertion that fails, an operation that raises.

For tests of the promise that the outcome is eager's whenever anything fails. It knows the entries of a speculated
function, and the parts that several entries share before a tensor's decision, but not the program they were made from.
Nothing in the package uses it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal

import torch

from torchjanus.execute.replay import Replay
from torchjanus.execute.staged import Staged
from torchjanus.graph.ir.lowered import Lowered
from torchjanus.host.assumption import Assumption, Kept, waits_for
from torchjanus.host.contrary import contrary, failing
from torchjanus.host.embed import compile_with_constants
from torchjanus.host.journal import Journal
from torchjanus.runtime.entries.entry import Entry
from torchjanus.runtime.entries.path_tree import BranchPoint, PathTree
from torchjanus.runtime.entries.path_tree_build import same_as
from torchjanus.runtime.launch.emit import Emitter
from torchjanus.runtime.launch.launch import (
    MISS,
    RAISED,
    Launch,
    PrefixLaunch,
    Violation,
    build_beginning,
    build_launch,
)

__all__ = ["Fault", "Injected", "Injection", "Part", "faults", "injected", "parts", "rehearsed"]

# Code is generated from the objects that are assumed to be there: another object may lack what is read from it.
_NO_CODE = (LookupError, AttributeError, TypeError, AssertionError)


_OPERATION = re.compile(r"(\w+ = )?c\d+\(")  # in generated code


class Injected(RuntimeError):
    """Raised by an operation that is made to fail."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that can go wrong in an entry: its guard, assertion or operation number ``number``. In a part before a
    decision the one assertion is that there is an arm for the outcome.

    ``sort`` is equal for faults with equal consequences: guards of one kind, or all operations.
    """

    kind: Literal["guard", "assertion", "operation"]
    number: int
    what: str
    sort: str

    def __str__(self) -> str:
        return f"{self.kind} {self.number}: {self.what}"


@dataclass(slots=True)
class Injection:
    """A fault that is injected. ``struck`` counts how often it took effect."""

    fault: Fault
    struck: int = 0


Part = Entry | BranchPoint


def parts(step: Any) -> Iterator[Part]:
    """Yield the entries of a speculated function, and the parts that several of them share."""
    for route in step._learning.routes:
        if isinstance(route, PathTree):
            yield from route.forks()
    yield from step.entries


def faults(entry: Part) -> list[Fault]:
    """Return all faults that can be forced in an entry. What is trusted without a check (Kept) cannot fail."""
    found = [
        Fault("guard", number, str(assumption), _sort(entry, assumption))
        for number, assumption in enumerate(entry.own)
        if not isinstance(assumption, Kept)
    ]
    if isinstance(entry, BranchPoint):
        found.append(Fault("assertion", 0, f"a way that is known, at {entry.place}", f"decision at {entry.place}"))
    found += [
        Fault("assertion", number, f"is {assertion.expected}, at {assertion.place}", str(assertion.place))
        for number, assertion in enumerate(entry.lowered.assertions)
    ]
    lines = _operations(_executor(entry.lowered))
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
            sound.use(_undecided(fork.lowered, injection))
        case "operation":
            sound.use(_raising(fork.lowered, injection))
    return sound


def _undecided(lowered: Lowered, injection: Injection) -> Callable[..., Any]:
    """Return a function that runs the part, and finds that there is no arm for the outcome."""
    executor = _AtOnce(lowered)
    compute = executor.generated()
    assert not executor.overwrites  # what comes before a decision commits nothing

    def undecided(inputs: Sequence[torch.Tensor], slots: Sequence[float | int]) -> list[torch.Tensor]:
        injection.struck += 1
        flags, *others = compute(inputs, slots)
        return [torch.zeros_like(flags), *others]

    return executor.exchange(undecided)


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
            launch.use(_violating(entry.lowered, injection))
        case "operation":
            launch.use(_raising(entry.lowered, injection))
    return launch


def _is_expected(result: Any, fault: Fault) -> bool:
    if fault.kind == "guard":
        return result is MISS
    return fault.kind == "assertion" and type(result) is Violation and fault.number in result.violated.assertions


# -- executors that fail --------------------------------------------------------------------------------------------


class _AtOnce(Replay):
    """Replay, with generated code that can be exchanged."""

    @property
    def overwrites(self) -> bool:
        """Whether inputs are overwritten in the run: then the generated code takes a function ``begin``."""
        return self._step is not None

    def generated(self) -> Callable[..., Any]:
        made = self._pure if self._step is None else self._step
        assert made is not None
        return made

    def exchange(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        """Exchange the code, and return what an entry's launch uses from now on."""
        if self._step is None:
            self._pure = compute
        else:
            self._step = compute
        return self.run


class _InParts(Staged):
    """The same for a graph with cuts."""

    def generated(self) -> Callable[..., Any]:
        return self.compute

    def exchange(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        self.compute = compute
        return self.begin


def _executor(lowered: Lowered) -> _AtOnce | _InParts:
    return _InParts(lowered) if lowered.program.cuts else _AtOnce(lowered)


def _violating(lowered: Lowered, injection: Injection) -> Callable[..., Any]:
    """Return a function that runs the graph, and finds that one assertion does not hold."""
    number = injection.fault.number
    executor = _executor(lowered)
    compute, position = executor.generated(), lowered.flags
    assert position is not None

    def put_down(flags: torch.Tensor) -> torch.Tensor:
        injection.struck += 1
        flags = flags.clone()
        flags[number] = False
        return flags

    def at_once(inputs: Sequence[torch.Tensor], slots: Sequence[float | int]) -> list[torch.Tensor]:
        values: list[torch.Tensor] = compute(inputs, slots)
        values[position] = put_down(values[position])
        return values

    def overwriting(
        inputs: Sequence[torch.Tensor], slots: Sequence[float | int], begin: Callable[[torch.Tensor], bool]
    ) -> list[torch.Tensor] | None:
        return compute(inputs, slots, lambda flags: begin(put_down(flags)))  # type: ignore[no-any-return]

    def in_parts(inputs: Sequence[torch.Tensor], slots: Sequence[float | int]) -> Any:
        parts = compute(inputs, slots)
        try:
            flags, wanted = next(parts)
            while True:
                if len(flags) > number:
                    flags = list(put_down(torch.stack(list(flags))))
                flags, wanted = parts.send((yield flags, wanted))
        except StopIteration as end:
            values: list[torch.Tensor] = end.value
            values[position] = put_down(values[position])
            return values
        finally:
            parts.close()

    if isinstance(executor, _InParts):
        return executor.exchange(in_parts)
    return executor.exchange(overwriting if executor.overwrites else at_once)


def _raising(lowered: Lowered, injection: Injection) -> Callable[..., Any]:
    """Return a function that runs the graph up to one operation, and raises in its place."""

    def strike() -> None:
        injection.struck += 1
        raise Injected(str(injection.fault))

    executor = _executor(lowered)
    lines = executor.source.split("\n")
    lines[lines.index(f"    {_operations(executor)[injection.fault.number]}")] = "    injected()"
    scope = {**executor.generated().__globals__, "injected": strike}
    exec(compile("\n".join(lines), "<torchjanus replay, raising>", "exec"), scope)
    return executor.exchange(scope["compute"])


def _operations(executor: _AtOnce | _InParts) -> list[str]:
    """Return the lines of the generated code that call operators, in place or not."""
    lines = (line.strip() for line in executor.source.split("\n"))
    return [line for line in lines if line.endswith(")") and _OPERATION.match(line)]


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
