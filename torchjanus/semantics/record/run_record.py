"""Record the events of one watched run in program order: refusals, numbered tensors, traced numbers.

Holds the ``Trace`` under construction. It does not model the heap: ``recording`` keeps access paths and
``write_record`` keeps writes.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath
from torchjanus.core.errors import LINES, NOWHERE, Place, Refusal
from torchjanus.core.kinds import isinstance
from torchjanus.rewrite import Site
from torchjanus.semantics.known.called_back import CallbackEffects
from torchjanus.semantics.known.details import tuple_like, version_of
from torchjanus.semantics.protocols.indexed_iterators import WrappedIterable
from torchjanus.semantics.record.context_variables import ContextVariables
from torchjanus.semantics.record.letting_go import Lifetimes, holds_objects, starts_at_object
from torchjanus.semantics.record.library_writes import LibraryWrites
from torchjanus.semantics.record.rebinding import VariableChanges
from torchjanus.trace.events import Event, Trace
from torchjanus.trace.facts import (
    HeapRead,
    HostComputation,
    NumberPredicate,
    Specialization,
    TensorPredicate,
    is_chance,
    is_question,
)
from torchjanus.trace.hazards import is_hazardous
from torchjanus.trace.loops.outline import IterationStart, Outline, Written, is_outlined
from torchjanus.trace.modes import WarningFilters
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import (
    DEEP,
    Apply,
    Expr,
    Fetch,
    Read,
    Size,
    Traced,
    TracedFloat,
    TracedInt,
    TracedStr,
    plain,
    trace_value,
)

__all__ = ["RunRecord"]

_PREDICATES = frozenset({NumberPredicate, TensorPredicate})
_LOOPS = frozenset({"for", "comprehension", "while"})

_REPEATED = 64  # times that one refusal is met again, of which the lines are kept


class RunRecord(Lifetimes, ContextVariables, LibraryWrites):
    """The events of one watched run. ``trace.alive`` keeps every object alive whose ``id`` is used as a key."""

    def __init__(self) -> None:
        super().__init__()
        self.trace = Trace(outline=Outline() if is_outlined() else None)
        self._path: Any = None  # the regions around the site of the last entry of the outline
        self.filters = WarningFilters.now()
        self.streams = sys.stdout, sys.stderr  # when the call began
        self.place: Place = NOWHERE
        self.ops = 0
        self.externs = 0  # number of extern calls so far
        self.variable_changes = VariableChanges()
        self.called_back = CallbackEffects(self.refuse)
        self._noted: set[Any] = set()
        self._texts: set[int] = set()  # ids of the strings that were read from the heap
        self._owners: dict[int, AccessPath] = self.trace.owners
        self._numbers: dict[int, int] = {}
        self.over = False  # whether the run has ended; generators of the program may still go on
        self.opened = False  # whether the next framework call has read lists that existed before the call
        self.unfinished: list[Callable[[], None]] = []  # notes to make when the run ends
        self.loops = 0  # active loops whose ends the run will see
        self.behind_loops: list[Callable[[], None]] = []  # notes to make when the run is in no loop, or ends
        self.made_at: list[int] = []  # per tensor number: the number of events before it
        self.identities: dict[int, Expr] = {}  # by id of an object that is a key of the run's own containers
        self.new_ids: set[int] = set()  # ids of objects that this run has made
        self._views: dict[int, tuple[Any, Any]] = {}  # see ``views``
        # By id of a view: the view, and the tensor that it represents.
        self._result_views: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        # By id of a tuple with traced numbers: the tuple, and the tuple of bare values that the heap gets.
        self._bare_tuples: dict[int, tuple[Any, Any]] = {}
        self.holders.append(self._bare_tuples.clear)
        # By id: expressions whose reads are noted as inspected. A sum over a list has an expression for each element,
        # and each contains all earlier ones.
        self._inspected: dict[int, Expr] = {}
        self._refused: dict[int, int] = {}  # how often each refusal of the run was met again

    # -- events ---------------------------------------------------------------------------------------------------

    def record_inspection(self, expr: Expr) -> None:
        """Record that the program inspects a number with this expression, and so all that it was read from."""
        found, pending = self.trace.looked_at, [expr]
        while pending:
            one = pending.pop()
            if isinstance(one, Read):
                found.add(one.access_path.token)
            elif isinstance(one, Apply) and id(one) not in self._inspected:
                self._inspected[id(one)] = one
                pending += [arg for arg in one.args if isinstance(arg, Expr)]

    def note(self, event: Event) -> None:
        if type(event) is HeapRead:
            if type(event.value) is str:
                self._texts.add(id(event.value))
        elif type(event) in _PREDICATES and (is_question(event) or is_chance(event)):
            self.trace.changed[len(self.trace.events)] = self.variable_changes.since(event.place)
        if not (self.ending and holds_objects(event)):
            self.trace.events.append(event)

    def require(self, condition: TensorRef) -> None:
        """Record that a tensor of one element is true, on which the graph relies and which the program has not asked:
        it decides nothing, so that a loop around it has no arms."""
        if not self.ending:
            self.trace.events.append(TensorPredicate(condition, True, self.ops, self.place))

    def note_behind_loops(self, ended: bool = False) -> None:
        """Make the notes that wait for the end of loops, if the run is in none, or has ``ended``."""
        if ended or not self.loops:
            notes, self.behind_loops = self.behind_loops, []
            for note in notes:
                note()

    def rely_on_filters(self) -> None:
        """A warning has been given: the graph assumes the filters that there were when the call began."""
        self.trace.ambient = (*self.trace.ambient[:3], self.filters)

    def at_site(self, site: Site) -> None:
        """A hook is called at this site."""
        if self.trace.outline is not None and site.path is not self._path:
            self._path = site.path
            self.trace.outline.entries.append((len(self.trace.events), site))

    def turn(self, site: Site | None) -> None:
        """An iteration of the loop at this site begins, or the test of this ``while`` has come out."""
        if self.trace.outline is not None and site is not None and site.kind in _LOOPS:
            self._path = None
            self.trace.outline.entries.append((len(self.trace.events), IterationStart(site)))

    def change_frame(self) -> None:
        """Another function runs from here on."""
        self._path = None

    def fetch(self, number: Fetch | Size, value: Any) -> None:
        """Python is given a number of a tensor."""
        self.trace.fetched[number.token] = value
        if self.trace.outline is not None:
            self.trace.outline.entries.append((len(self.trace.events), number))

    def versions(self, parts: Iterable[Any]) -> list[tuple[torch.Tensor, int]]:
        """Return the tensors among the arguments of an operation that is about to be made, and how often each was
        written."""
        return [(part, version_of(part)) for part in parts if isinstance(part, torch.Tensor)]

    def note_writes(self, before: list[tuple[torch.Tensor, int]]) -> None:
        """The operation that is noted next was made when these tensors had these versions."""
        changed = [self.number(tensor) for tensor, version in before if version_of(tensor) != version]
        numbers = tuple(number for number in dict.fromkeys(changed) if number is not None)
        if numbers and self.trace.outline is not None:
            self.trace.outline.entries.append((len(self.trace.events), Written(numbers)))

    def has_found_text(self, text: str) -> bool:
        """Whether this string object was read from the heap."""
        return id(text) in self._texts

    def note_once(self, event: Event) -> None:
        """Record a fact about the heap before the call, unless it is recorded already."""
        token = event.token
        if token not in self._noted:
            self._noted.add(token)
            self.note(event)

    def refuse(
        self, reason: str, what: str, why: str, remedy: str = "", place: Place | None = None, of_lifetimes: bool = False
    ) -> None:
        """Record why no graph can be made of this run. The run itself continues."""
        if self.ending and reason == "tensor-unknown-origin":
            return  # the record has let go of it: that is no fault of the line, which may be in a part with a graph
        place = place or self.place
        refusal = Refusal(reason, what, why, remedy, place, _caller() if place.is_library else NOWHERE, of_lifetimes)
        self._note_refusal(refusal)
        self.refused()
        if of_lifetimes and not self.ending:
            self.let_go()

    def _note_refusal(self, refusal: Refusal) -> None:
        """Record a refusal with the lines that are being run: what is refused once may be called from several lines."""
        refusals = self.trace.refusals
        if refusal not in refusals:
            refusals.append(dataclasses.replace(refusal, within=tuple(itertools.islice(_running(), LINES))))
            return
        number = refusals.index(refusal)
        self._refused[number] = met = self._refused.get(number, 0) + 1
        if met <= _REPEATED:
            lines = dict.fromkeys((*refusals[number].again, *itertools.islice(_running(), LINES)))
            refusals[number] = dataclasses.replace(refusals[number], again=tuple(lines))

    def refused(self) -> None:
        """Called after each refusal; subclasses drop what only a graph needs."""

    def give_up(self) -> None:
        """Record an internal fault without reading any state. Used where ``refuse`` itself has failed."""
        self.trace.refusals.append(
            Refusal("internal-fault", "torchjanus itself failed", "no graph is made of this call.")
        )

    @property
    def lost(self) -> bool:
        """Whether the run has a refusal: unwatched code may have changed anything. From then on reads return what the
        heap holds, not what is recorded."""
        return bool(self.trace.refusals)

    def keep(self, value: Any) -> None:
        if not self.ending:
            self.trace.alive.append(value)

    # -- objects --------------------------------------------------------------------------------------------------

    def owner(self, value: Any) -> AccessPath | None:
        """Return the access path of an object, or None if this run has made it."""
        return self._owners.get(id(value))

    def claim(self, value: Any, access_path: AccessPath) -> None:
        """Record ``access_path`` as the access path of ``value``, unless it has one already."""
        if id(value) not in self._owners and not self.refuse_view((value,)):
            if self.ending:
                if not starts_at_object(access_path):
                    self.weak.add(self._owners, value, access_path)
                return
            self._owners[id(value)] = access_path
            self.keep(value)

    # -- tensors --------------------------------------------------------------------------------------------------

    def number(self, tensor: torch.Tensor) -> int | None:
        return self._numbers.get(id(tensor))

    def new_tensor(self, tensor: torch.Tensor) -> TensorRef:
        """Number a tensor that a framework call has just returned."""
        number = len(self.trace.tensors)
        if self.ending:
            self.weak.add(self._numbers, tensor, number)
        else:
            self._numbers[id(tensor)] = number
        self.trace.tensors.append(None if self.ending else tensor)
        self.made_at.append(len(self.trace.events))
        return TensorRef(number)

    def input_tensor(self, tensor: torch.Tensor, access_path: AccessPath) -> TensorRef:
        """Number a tensor that existed before the call."""
        ref = self.new_tensor(tensor)
        self.trace.access_paths[ref.number] = access_path
        return ref

    # -- numbers --------------------------------------------------------------------------------------------------

    def private(self, value: Any) -> Any:
        """Return the value to store in an object without an access path. In a refused run the object may be an old one,
        so it gets the untraced value."""
        return self.bare(value) if self.lost else value

    def bare(self, value: Any) -> Any:
        """Return what the heap gets for ``value``: untraced numbers and native iterators, also within tuples.

        Tuples cannot be finalised later, so they are replaced at once.
        """
        if isinstance(value, Traced):
            return plain(value)
        if isinstance(value, torch.Tensor):
            return self._result_views.get(id(value), (value, value))[1]
        if isinstance(value, WrappedIterable):
            return value.native()
        if id(value) in self._views:
            return self._views[id(value)][1]
        if not isinstance(value, tuple | slice) or self.owner(value) is not None:
            return value
        known, made = self._bare_tuples.get(id(value)), value
        if isinstance(value, slice):
            if known is None and any(isinstance(part, Traced) for part in (value.start, value.stop, value.step)):
                made = slice(plain(value.start), plain(value.stop), plain(value.step))
                known = self._bare_tuples[id(value)] = (value, made)
            return value if known is None else known[1]
        if known is None:
            parts = [self.bare(part) for part in value]
            same = all(part is old for part, old in zip(parts, value, strict=True))
            if same and self.ending:
                return value  # nothing that it holds may be kept alive
            made = value if same else tuple_like(value, parts)
            known = self._bare_tuples[id(value)] = (value, made)
        return known[1]

    def note_result_view(self, view: torch.Tensor, meant: torch.Tensor) -> None:
        """Record that ``view``, returned by a recursive call, represents ``meant``, which the call did not make."""
        self._result_views[id(view)] = (view, self.bare(meant))

    def is_result_view(self, value: Any) -> bool:
        """Whether this tensor represents another one (see ``note_result_view``)."""
        return id(value) in self._result_views

    def views(self, view: Any, real: Any) -> Any:
        """Return ``view``, which shows to the watched program what ``real`` shows of a dictionary from before the
        call. The heap gets ``real``."""
        self._views[id(view)] = (view, real)
        return view

    def view_in_heap(self, view: Any) -> Any:
        """Return the view that the heap gets in place of ``view`` (see ``views``)."""
        return self._views.get(id(view), (view, view))[1]

    def pin(self, value: Any, why: str) -> Any:
        """Return the untraced value, and record a specialisation on it. ``why`` goes into the report."""
        if isinstance(value, TracedInt | TracedFloat | TracedStr):
            bare = plain(value)
            token = value.expr.token
            self.trace.pins[token] = self.trace.pins.get(token, 0) + 1
            self.note_once(Specialization(value.expr, bare, self.place, why))
            if bare != bare:
                self.refuse_nan()
            return bare
        return value

    def refuse_nan(self) -> None:
        """Refuse a lookup of NaN: containers find it by identity, not by equality."""
        self.refuse(
            "number-nan-key",
            "looks up NaN, or compares what holds it",
            "two of them are equal to a container if they are one object, which depends on how Python came by them.",
            "Ask math.isnan().",
        )

    def computed(self, value: Any, func: Callable[..., Any], *args: Any, risky: bool = False) -> Any:
        """Return ``value`` traced as ``func(*args)`` of expressions and constants. ``risky``: ``func`` may raise."""
        expr = Apply(func, args, self.place)
        if risky or is_hazardous(expr):
            self.note_once(HostComputation(expr, self.place))
        return trace_value(value, expr)

    def deep(self) -> None:
        """Refuse a number whose expression is deeper than ``DEEP`` operations."""
        self.refuse(
            "number-too-long",
            f"computes a number by more than {DEEP} operations of Python, each on the result of the one before",
            "so long an expression cannot be recomputed at each call.",
            "Compute it with torch, by sum(), or outside of the step.",
        )

    def hold(self, expr: Expr, outcome: bool) -> bool:
        event = NumberPredicate(expr, outcome, self.place)
        token = (
            self.place,
            event.token,
        )  # the place is part of it: the same predicate in another loop belongs to that loop's iterations
        if token not in self._noted:
            self._noted.add(token)
            self.note(event)
        return outcome


def _caller() -> Place:
    """Return the line of the program that called the running library, or ``NOWHERE``."""
    return next(_running(), NOWHERE)


def _running() -> Iterator[Place]:
    """Yield the lines of the program that are being run, the innermost first."""
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        name, code = frame.f_globals.get("__name__", ""), frame.f_code
        if name.startswith("torchjanus.runtime"):  # frames further out belong to the caller of the step
            return
        if not name.startswith("torchjanus."):
            positions = next(itertools.islice(code.co_positions(), frame.f_lasti // 2, None), (None, None, None, None))
            place = Place(code.co_filename, frame.f_lineno, positions[2] or 0, code.co_name)
            if not place.is_library:
                yield place
        frame = frame.f_back
