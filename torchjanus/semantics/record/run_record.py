"""What one watched run has met, in order: events, refusals, tensors by number, numbers and what became of them.

Knows nothing of the heap: where things were found, and what was written, is kept by ``recording``.
"""

from __future__ import annotations

import contextvars
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath
from torchjanus.core.errors import NOWHERE, Place, Refusal
from torchjanus.core.kinds import isinstance
from torchjanus.semantics.known.called_back import CalledBack
from torchjanus.semantics.protocols.iteration import WrappedIterable
from torchjanus.semantics.record.rebinding import Rebinding
from torchjanus.trace.events import Event, Trace
from torchjanus.trace.facts import Computed, Found, Held, Pinned, is_chance, is_question
from torchjanus.trace.hazards import is_hazardous
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import (
    DEEP,
    Apply,
    Expr,
    Traced,
    TracedFloat,
    TracedInt,
    TracedStr,
    plain,
    trace_value,
)

__all__ = ["RunRecord"]


class RunRecord:
    """State of one watched run. Every object whose ``id`` is used as a key is kept alive by ``trace.alive``."""

    def __init__(self) -> None:
        self.trace = Trace()
        self.place: Place = NOWHERE
        self.ops = 0
        self.externs = 0  # extern calls so far
        self.rebinding = Rebinding()
        self.called_back = CalledBack(self.refuse)
        self._noted: set[Any] = set()
        self._texts: set[int] = set()  # that were found
        self._owners: dict[int, AccessPath] = self.trace.owners
        self._numbers: dict[int, int] = {}
        self.opened = False  # whether the framework call that is about to be made has read lists from before the call
        self.unfinished: list[Callable[[], None]] = []  # what may still have to be noted when the run is over
        self.made_at: list[int] = []  # of each tensor, how many events there were before it
        self.identities: dict[int, Expr] = {}  # the ids of the objects that are keys of containers of its own
        self.new_ids: set[int] = set()  # of objects that are none from before the call
        self._contexts: dict[int, tuple[contextvars.ContextVar[Any], list[contextvars.Token[Any]]]] = {}
        # Iterators over what was known of a list, and those over the list itself that the heap holds in their place.
        self._iterators: dict[int, tuple[Iterator[Any], Iterator[Any]]] = {}
        self._reaching: dict[int, WrappedIterable] = {}  # whose likes of Python's own lie in the heap
        self._meant: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # views, and what they stand for
        # Tuples that hold traced numbers, and what the heap holds in their place.
        self._bare_tuples: dict[int, tuple[tuple[Any, ...], tuple[Any, ...]]] = {}

    # -- events ---------------------------------------------------------------------------------------------------

    def note(self, event: Event) -> None:
        if is_question(event) or is_chance(event):
            self.trace.changed[len(self.trace.events)] = self.rebinding.since(event.place)
        elif type(event) is Found and type(event.value) is str:
            self._texts.add(id(event.value))
        self.trace.events.append(event)

    def has_found_text(self, text: str) -> bool:
        """Whether this very text was found somewhere."""
        return id(text) in self._texts

    def note_once(self, event: Event) -> None:
        """Record a fact about the heap as it was; facts that are known already are not repeated."""
        token = event.token
        if token not in self._noted:
            self._noted.add(token)
            self.note(event)

    def refuse(
        self, reason: str, what: str, why: str, remedy: str = "", place: Place | None = None, of_lifetimes: bool = False
    ) -> None:
        """The run goes on for real, but no graph will be made of it."""
        place = place or self.place
        refusal = Refusal(reason, what, why, remedy, place, _caller() if place.is_library else NOWHERE, of_lifetimes)
        if refusal not in self.trace.refusals:
            self.trace.refusals.append(refusal)
        self.refused()

    def refused(self) -> None:
        """No graph will be made of the run."""

    def give_up(self) -> None:
        """No graph will be made of the run, in which even saying so has failed."""
        self.trace.refusals.append(
            Refusal("internal-fault", "torchjanus itself failed", "no graph is made of this call.")
        )

    def refuse_weak(self, what: str) -> None:
        """Refuse a use of a weak reference."""
        self.refuse(
            "weak-reference",
            what,
            "weak references tell when an object is gone, and a graph keeps the objects that it uses.",
            "Follow the weak reference outside of the step and pass the object in.",
            of_lifetimes=True,
        )

    @property
    def lost(self) -> bool:
        """Whether code that is not watched may have changed anything: no graph is made of this run, and from now on
        reads take what the heap holds, not what is known of it."""
        return bool(self.trace.refusals)

    def keep(self, value: Any) -> None:
        self.trace.alive.append(value)

    def context_set(self, variable: contextvars.ContextVar[Any], token: contextvars.Token[Any]) -> None:
        """The call has set a context variable: it has to be set back."""
        self._contexts.setdefault(id(variable), (variable, []))[1].append(token)

    def context_reset(self, variable: contextvars.ContextVar[Any], token: contextvars.Token[Any]) -> None:
        """The call has set a context variable back to what it was before ``token`` was made."""
        _, tokens = self._contexts.get(id(variable), (variable, []))
        if token in tokens:
            del tokens[tokens.index(token) :]
        else:
            self._left_changed(variable)

    def context_is_set(self, variable: contextvars.ContextVar[Any]) -> bool:
        """Whether a context variable has what this call has set it to."""
        return bool(self._contexts.get(id(variable), (variable, []))[1])

    def _left_changed(self, variable: contextvars.ContextVar[Any]) -> None:
        self.refuse(
            "context-variable",
            f"the call leaves the context variable '{variable.name}' changed",
            "that cannot be held back.",
            "Set it back with reset(), or set it outside of the step.",
        )

    def check_contexts(self) -> None:
        """Refuse what the call leaves changed."""
        for variable, tokens in self._contexts.values():
            if tokens:
                self._left_changed(variable)

    # -- objects --------------------------------------------------------------------------------------------------

    def owner(self, value: Any) -> AccessPath | None:
        """The path on which this object was found, or None for one made in this run."""
        return self._owners.get(id(value))

    def claim(self, value: Any, access_path: AccessPath) -> None:
        """From now on, ``value`` is the object at ``access_path``."""
        if id(value) not in self._owners:
            self._owners[id(value)] = access_path
            self.keep(value)

    # -- tensors --------------------------------------------------------------------------------------------------

    def number(self, tensor: torch.Tensor) -> int | None:
        return self._numbers.get(id(tensor))

    def new_tensor(self, tensor: torch.Tensor) -> TensorRef:
        """Number a tensor that a framework call has just made."""
        number = len(self.trace.tensors)
        self._numbers[id(tensor)] = number
        self.trace.tensors.append(tensor)
        self.made_at.append(len(self.trace.events))
        return TensorRef(number)

    def input_tensor(self, tensor: torch.Tensor, access_path: AccessPath) -> TensorRef:
        """Number a tensor that was there before the call."""
        ref = self.new_tensor(tensor)
        self.trace.access_paths[ref.number] = access_path
        return ref

    # -- numbers --------------------------------------------------------------------------------------------------

    def bare(self, value: Any) -> Any:
        """What the real heap gets for ``value``: plain numbers, also in tuples, since those cannot be settled later."""
        if isinstance(value, Traced):
            return plain(value)
        if isinstance(value, torch.Tensor):
            return self._meant.get(id(value), (value, value))[1]
        if isinstance(value, WrappedIterable):
            self._reaching[id(value)] = value
            made = value.native()
            value.advance()
            return made
        if id(value) in self._iterators:
            return self._iterators[id(value)][1]
        if not isinstance(value, tuple) or self.owner(value) is not None:
            return value
        known = self._bare_tuples.get(id(value))
        if known is None:
            parts = [self.bare(part) for part in value]
            same = all(part is old for part, old in zip(parts, value, strict=True))
            made = value
            if not same:
                made = torch.Size(parts) if type(value) is torch.Size else tuple.__new__(type(value), parts)
            known = self._bare_tuples[id(value)] = (value, made)
        return known[1]

    def stands_for(self, view: torch.Tensor, meant: torch.Tensor) -> None:
        """A recursive call has returned a tensor that it did not make: to the trace it is another one."""
        self._meant[id(view)] = (view, self.bare(meant))

    def is_stand_in(self, value: Any) -> bool:
        """Whether the program takes this to be another tensor."""
        return id(value) in self._meant

    def iterates(self, iterator: Iterator[Any], original: list[Any]) -> None:
        """The program goes through a list from before the call, and reads what is known of its elements."""
        self._iterators[id(iterator)] = (iterator, iter(original))

    def advance_iterators(self) -> None:
        """Bring the real iterators to where the program's are."""
        for reaching in self._reaching.values():
            reaching.advance()
        for known, real in self._iterators.values():
            index = known.__reduce__()[2:]
            real.__setstate__(index[0] if index else sys.maxsize)  # type: ignore[attr-defined]
            if not index:
                next(real, None)  # it has ended, and does so whatever is added to the list

    def pin(self, value: Any, why: str) -> Any:
        """The bare value of a traced one; the trace remembers that only this value will do."""
        if isinstance(value, TracedInt | TracedFloat | TracedStr):
            bare = plain(value)
            token = value.expr.token
            self.trace.pins[token] = self.trace.pins.get(token, 0) + 1
            self.note_once(Pinned(value.expr, bare, self.place, why))
            if bare != bare:
                self.refuse_nan()
            return bare
        return value

    def refuse_nan(self) -> None:
        """NaN is one of those values that are equal where they are one object."""
        self.refuse(
            "number-nan-key",
            "looks up NaN, or compares what holds it",
            "two of them are equal to a container if they are one object, which depends on how Python came by them.",
            "Ask math.isnan().",
        )

    def computed(self, value: Any, func: Callable[..., Any], *args: Any, risky: bool = False) -> Any:
        """``value``, which is ``func(*args)`` of expressions and constants, traced. ``risky``: it may raise on some."""
        expr = Apply(func, args, self.place)
        if risky or is_hazardous(expr):
            self.note_once(Computed(expr, self.place))
        return trace_value(value, expr)

    def deep(self) -> None:
        """A number has come of a long row of operations."""
        self.refuse(
            "number-too-long",
            f"computes a number by more than {DEEP} operations of Python, each on the result of the one before",
            "so long an expression cannot be computed anew at each call.",
            "Compute it with torch, by sum(), or outside of the step.",
        )

    def hold(self, expr: Expr, outcome: bool) -> bool:
        event = Held(expr, outcome, self.place)
        token = (
            self.place,
            event.token,
        )  # what is asked again in another loop is a question of that loop's iterations, too
        if token not in self._noted:
            self._noted.add(token)
            self.note(event)
        return outcome


def _caller() -> Place:
    """The line of the program from which the library is called that is running."""
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        place = Place(frame.f_code.co_filename, frame.f_lineno, function=frame.f_code.co_name)
        if name.startswith("torchjanus.runtime"):  # what is further out has called the step
            return NOWHERE
        if not place.is_library and not name.startswith("torchjanus."):
            return place
        frame = frame.f_back
    return NOWHERE
