"""Python's form of a function that is not speculated on as a whole: a variant of it in which parts are called.

Parts are calls and runs of statements. Functions of the program that contain what is refused are not parts; they have a
variant of their own, which is called in their place. Variants are made between two calls of the step, and only the step
calls them.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from time import thread_time
from types import CodeType, FunctionType
from typing import Any

from torchjanus.core.errors import Place, Refusal
from torchjanus.core.kinds import isinstance
from torchjanus.rewrite import Location, Run, asks_for_callers, call_sites, runs_of, variant
from torchjanus.rewrite.hooks import hide_frames
from torchjanus.runtime.learning.learning import Learning
from torchjanus.runtime.parts.call_sites import CallSite, Handing, Met, call_given
from torchjanus.runtime.parts.candidates import bound_outside, is_entered, is_program, is_update, releases
from torchjanus.runtime.parts.region import Options, Region, Timing
from torchjanus.semantics.known.callers import calls_given, is_search
from torchjanus.semantics.protocols.virtualize import underlying

__all__ = ["Parts"]

MOST_CALLEES = 1000  # no more functions than these are remembered


class Skeleton:
    """The variant of one function. ``refusals``: what cannot be speculated on, in it or elsewhere; ``divide``: its
    loops are no parts, but their bodies may be; ``anew``: whether the step creates the function in each call. Runs of
    statements of such a function share its variables, so they are created in each call, too."""

    def __init__(
        self, parts: Parts, fn: FunctionType, refusals: Iterable[Refusal], *, divide: bool, anew: bool = False
    ) -> None:
        self.fn = fn
        self.function = fn
        self.stale = True
        self._parts = parts
        self._divide = divide
        self._anew = anew
        self._failed: set[Location] = set()  # statements of runs that are Python's
        self._refused: set[tuple[int, int]] = set()
        file = fn.__code__.co_filename
        self._sites: dict[Location, CallSite] = {
            at: CallSite(parts, label, Place(file, at[0], at[1], fn.__qualname__))
            for at, label in call_sites(fn).items()
        }
        self._runs: dict[Run, Region] = {}  # in the variant
        self._known: dict[tuple[Location, ...], tuple[Run, Region]] = {}  # all, larger ones before those within them
        self._refuse(refusals)

    @property
    def is_wasteful(self) -> bool:
        """Whether call sites are asked that call no part."""
        return any(site.asked and not site.useful for site in self._sites.values())

    def renew(self) -> FunctionType:
        """Make the variant again, without sites that have turned out to call nothing that is a part."""
        self.stale = False
        self._sites = {at: site for at, site in self._sites.items() if site.useful or not site.asked}
        found = [] if self._anew or is_entered(self.fn) else runs_of(self.fn, self._breaks, divide=self._divide)
        opened = [run for run, region in self._known.values() if region.opened and region.is_active]
        if self._parts.sees_ends:
            found = [run for run in found if not self._releases(run)]
        found = [run for run in found if not any(_holds(one, run.statements[0]) for one in opened)]
        self._runs = dict(self._remembered(run) for run in (*opened, *found))
        runs = {run: region.call for run, region in self._runs.items()}
        made = variant(self.fn, self._sites, runs, _show_as_eager)
        self.function = self.fn if made is None else made
        return self.function

    def left_open(self) -> Iterator[tuple[Run, Region]]:
        """Yield the runs that were left because they are open, unless they are within one that is learnt."""
        for run, region in [*self._known.values()]:
            if region.is_open and not self._is_taken(run.statements[0]):
                yield run, region

    def callees(self, run: Run | None = None) -> Iterator[Met]:
        """Yield the functions that call sites have met, within ``run`` only, or outside of all runs that are learnt."""
        for at, site in self._sites.items():
            if _holds(run, at) if run is not None else not self._is_taken(at):
                yield from site.met

    def take(self, run: Run, region: Region) -> None:
        """Put a run in place of those within it."""
        inner = [one for one in self._runs if _holds(run, one.statements[0])]
        for one in inner:
            del self._runs[one]
        self._runs[run] = region

    def has_parts(self, run: Run | None) -> bool:
        """Whether a run within ``run``, or any, is learnt."""
        inner = (region for one, region in self._runs.items() if run is None or _holds(run, one.statements[0]))
        return any(region.is_active for region in inner)

    def _releases(self, run: Run) -> bool:
        """Whether a run lets go what a variable of the function may hold."""
        return releases(run.function, bound_outside(self.fn.__code__, run.lines).union(run.inputs))

    def _is_taken(self, at: Location) -> bool:
        return any(region.is_active and _holds(run, at) for run, region in self._runs.items())

    def _remembered(self, run: Run) -> tuple[Run, Region]:
        known = self._known.get(run.statements)
        if known is None:
            known = self._known[run.statements] = run, self._region(run)
        return known

    def _region(self, run: Run) -> Region:
        begin, end = run.lines
        label = f"lines {begin} to {end}" if begin < end else f"line {begin}"
        place = Place(self.fn.__code__.co_filename, begin, run.statements[0][1], self.fn.__qualname__)
        return self._parts.region(run.function, label, place, partial(self._left, run))

    def _left(self, run: Run, region: Region) -> None:
        """Look for smaller runs in one that is Python's."""
        if not self._refuse(region.refusals):
            self._failed.update(run.statements)
        self.stale = self._parts.stale = self._parts.changed = True

    def _refuse(self, refusals: Iterable[Refusal]) -> bool:
        """Take in what is refused. Returns whether any of it is new and in this function."""
        met = {(place.line, place.column) for place in places_in(self.fn.__code__, refusals)} - self._refused
        self._refused |= met
        return bool(met)

    def _breaks(self, at: Location) -> bool:
        """Whether a statement cannot be in a run."""
        return at in self._failed or any(at[:2] <= position <= at[2:] for position in self._refused)


class Parts:
    """The parts of the step ``fn``, which is Python's by what ``learning`` found. ``account``: of the step."""

    def __init__(self, fn: Callable[..., Any], options: Options, learning: Learning) -> None:
        self.regions: list[Region] = []
        # What is called in place of a function: a region, a variant, or None for the function itself. What the
        # step creates in each call is known by its code: a region is given the function, too.
        self.callees: dict[Met, Callable[..., Any] | None] = {}
        self.stale = True  # whether a variant has to be made again
        self.changed = False  # whether regions were made or left since open ones were last looked at
        self._calls: dict[Met, Region] = {}  # the regions that are functions
        self._looking = 0.0  # seconds in which call sites have been looked for: sources are parsed
        self._timing = Timing()
        self._fn = fn
        self._options = options
        self._learning = learning
        # Functions that may be created in each call, and the call of the step in which they were first met.
        self._met: dict[CodeType, tuple[weakref.ref[FunctionType], int]] = {}
        self._skeletons: dict[Met, Skeleton] = {}
        target, self._leading = underlying(fn)
        self._main = self._skeleton(target, target, learning.event_log.refusals)

    @property
    def sees_ends(self) -> bool:
        """Whether the program sees when objects are gone: a part must not hold them."""
        return any(refusal.of_lifetimes for refusal in self._learning.event_log.refusals)

    @property
    def is_superseded(self) -> bool:
        """Whether there are graphs of the whole step after all."""
        return bool(self._learning.routes.entries) and not self._learning.policy.given_up

    def call(self, /, *args: Any, **kwargs: Any) -> Any:
        """Make a call of the step by Python, with its parts."""
        if self.is_superseded:
            return self._fn(*args, **kwargs)
        if self.stale:
            self.stale = False
            for function, skeleton in [*self._skeletons.items()]:
                if skeleton.stale:
                    skeleton.renew()
                    self._call(function)
        served = sum(region.served for region in self.regions)
        result = (
            self._timed(args, kwargs) if self._timing.begins() else self._main.function(*self._leading, *args, **kwargs)
        )
        self._learning.counts.partly += sum(region.served for region in self.regions) > served
        if self.changed and not self.stale:
            self.changed = False
            self._open(self._main, set())
        for skeleton in self._skeletons.values():
            if skeleton.is_wasteful:
                skeleton.stale = self.stale = True
        return result

    def _timed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call, and see what share of the step each new part has."""
        aside, begun = self._aside, thread_time()
        result = self._main.function(*self._leading, *args, **kwargs)
        # The time of the step itself, of which those of its parts are shares.
        seconds = thread_time() - begun - (self._aside - aside)
        for region in self.regions:
            if region.is_measured:
                region.choose(seconds)
        return result

    @property
    def serve(self) -> bool:
        """Whether any part is made by graphs."""
        return any(region.served and not region.why for region in self.regions)

    @property
    def are_learnt(self) -> bool:
        """Whether any part is made by graphs, or may be."""
        return any(not region.why for region in self.regions)

    @property
    def progress(self) -> Sequence[object]:
        """What changes when another part, or another executor, begins to serve."""
        return [region.executors for region in self.regions if region.served and not region.why]

    def _open(self, skeleton: Skeleton, seen: set[Skeleton]) -> None:
        """Learn the largest regions that were left because they are open, and hold nothing that is learnt: they are
        differentiable functions, with a graph for their backward pass."""
        seen.add(skeleton)
        for run, region in skeleton.left_open():
            if not self._has_parts(skeleton, run, set()):
                region.open()
                skeleton.stale = self.stale = True
                skeleton.take(run, region)
        for function in [*skeleton.callees()]:
            inner, called = self._skeletons.get(function), self._calls.get(function)
            if called is not None and called.is_open and not (inner and self._has_parts(inner, None, set())):
                called.open()
                self._call(function)
            elif inner is not None and inner not in seen and not (called is not None and called.is_active):
                self._open(inner, seen)

    def _has_parts(self, skeleton: Skeleton, run: Run | None, seen: set[Met]) -> bool:
        """Whether anything that ``run``, or the whole function, holds or calls is learnt."""
        if skeleton.has_parts(run):
            return True
        for function in skeleton.callees(run) if run is not None else skeleton.callees():
            called, inner = self._calls.get(function), self._skeletons.get(function)
            if called is not None and called.is_active:
                return True
            if inner is not None and function not in seen:
                seen.add(function)
                if self._has_parts(inner, None, seen):
                    return True
        return False

    def _call(self, function: Met) -> None:
        """Call the region that a function is, if it is learnt, and else its variant."""
        region = self._calls.get(function)
        if region is not None and region.is_active:
            self.callees[function] = region.call
        else:
            self.callees[function] = self._skeletons[function].function

    @property
    def _aside(self) -> float:
        """Seconds that calls have taken for what eager does not do."""
        return self._looking + sum(region.learning for region in self.regions)

    def region(
        self,
        fn: Callable[..., Any],
        label: str,
        place: Place,
        leave: Callable[[Region], None],
        *,
        update: bool = False,
        anew: bool = False,
    ) -> Region:
        """Return a new part of the step, which ``fn`` computes. ``label``: its name in the report; ``leave`` is
        called when it is left to Python; ``update``: it updates parameters; ``anew``: the step makes its function in
        each call."""
        made = Region(
            fn,
            self._options,
            self._learning.budget,
            label,
            place,
            self._timing,
            update=update,
            kept=self._leading if self.sees_ends else None,
            anew=anew,
            leave=leave,
        )
        self.regions.append(made)
        self.changed = True
        return made

    def meet(self, function: FunctionType, site: CallSite) -> Callable[..., Any] | None:
        """Return what is called in place of a function that no site has called before; None for itself."""
        if not self._is_kept(function):
            site.asked = False  # a later call tells more
            return None
        known: Callable[..., Any] | None = None
        if is_entered(function):
            known = self._enter(function, function, ())
        elif is_search(function):
            known = Handing(function, site).call
        elif is_update(function) or is_program(function):
            known = self._candidate(function, function, function, site)
        elif calls_given(function):
            known = Handing(function, site).call
        self.callees[function] = known
        return known

    def meet_anew(self, function: FunctionType, site: CallSite) -> Callable[..., Any] | None:
        """Return what is called in place of a function that the step creates in each call, by its code; None for
        itself."""
        known = self._candidate(function.__code__, function, call_given, site) if is_program(function) else None
        self.callees[function.__code__] = known
        return known

    def _candidate(
        self, key: Met, function: FunctionType, fn: Callable[..., Any], site: CallSite
    ) -> Callable[..., Any]:
        """Return a part, or the variant of a function that contains something refused. ``fn``: what the part calls."""
        refusals = self._learning.event_log.refusals
        # What a library calls has been native in the watched runs of the step: what was refused then says little of it.
        refused = not site.hands and places_in(function.__code__, refusals)
        if refused or (is_program(function) and (asks_for_callers(function.__code__) or self._sees_end_in(function))):
            return self._enter(key, function, refusals)
        label, place = site.named(function)
        leave = partial(self._left, key, function, site)
        called = self.region(fn, label, place, leave, update=is_update(function), anew=key is not function)
        self._calls[key] = called
        return called.call

    def _sees_end_in(self, function: FunctionType) -> bool:
        return self.sees_ends and releases(function)

    def is_made_anew(self, function: FunctionType) -> bool:
        """Whether the step makes a function of this code in each call, as far as is known."""
        if "<locals>" not in function.__qualname__ or len(self.callees) >= MOST_CALLEES:
            return False
        before = self._met.get(function.__code__)
        return before is not None and before[0]() is not function

    def _is_kept(self, function: FunctionType) -> bool:
        """Whether the function is not one that the step creates in each call, as far as is known."""
        if "<locals>" not in function.__qualname__:
            return len(self.callees) < MOST_CALLEES
        before = self._met.setdefault(function.__code__, (weakref.ref(function), self._timing.number))
        return before[1] < self._timing.number and len(self.callees) < MOST_CALLEES

    def _left(self, key: Met, function: FunctionType, site: CallSite, region: Region) -> None:
        """Look for parts in a function that is no part, or in those that it is given to call."""
        self.changed = True
        if region.is_small:
            self.callees[key] = None
        elif calls_given(function):
            self.callees[key] = Handing(function, site).call
        else:
            self.callees[key] = self._enter(key, function, region.refusals)

    def _enter(self, key: Met, function: FunctionType, refusals: Sequence[Refusal]) -> FunctionType:
        self.stale = True
        return self._skeleton(key, function, refusals).function

    def _skeleton(self, key: Met, function: FunctionType, refusals: Sequence[Refusal]) -> Skeleton:
        known = self._skeletons.get(key)
        if known is None:
            begun = thread_time()
            divide = not places_in(function.__code__, refusals)
            anew = isinstance(key, CodeType)
            known = self._skeletons[key] = Skeleton(self, function, refusals, divide=divide, anew=anew)
            self._looking += thread_time() - begun
        return known

    def end(self) -> None:
        """Drop the graphs of all parts."""
        for region in self.regions:
            region.end()


def _holds(run: Run, at: Location) -> bool:
    """Whether what is at a location is within a run."""
    return run.statements[0][:2] <= at[:2] and at[2:] <= run.statements[-1][2:]


def places_in(code: CodeType, refusals: Iterable[Refusal]) -> set[Place]:
    """Return where in a function's code something was refused."""
    lines = [line for _, _, line in code.co_lines() if line is not None]
    span = range(min(lines, default=0), max(lines, default=0) + 1)
    found = {place for one in refusals for place in (one.place, one.caller, *one.within)}
    return {place for place in found if place.file == code.co_filename and place.line in span}


def _show_as_eager() -> None:
    """Remove what parts have put into the traceback of the exception that the calling function handles."""
    error = sys.exception()
    if error is not None:
        hide_frames(error)
