"""Watch calls of Python functions: each is entered, recorded as a recursive call, or made as an extern call."""

from __future__ import annotations

import inspect
import types
from typing import Any

from torchjanus.core.access_path import Step
from torchjanus.core.errors import Place
from torchjanus.core.kinds import isinstance
from torchjanus.rewrite import Site, code_of
from torchjanus.rewrite.hooks import rewritten
from torchjanus.semantics.calls.method_sets import Lookups, Member
from torchjanus.semantics.known.foreign import is_left_to_host
from torchjanus.semantics.protocols.leaves import MISSING, on_type
from torchjanus.semantics.watch.calls.handing_over import hand_over_from_now_on
from torchjanus.semantics.watch.calls.recursion import RecursiveCalls
from torchjanus.semantics.watch.objects.heap import Heap
from torchjanus.semantics.watch.objects.state import Part, WatchState
from torchjanus.trace.events import FunctionEntry, FunctionExit

__all__ = ["PythonCalls"]


class PythonCalls(Part):
    """Calls of Python functions, and the lookups of the methods among them."""

    def __init__(self, state: WatchState, heap: Heap, recursion: RecursiveCalls) -> None:
        super().__init__(state)
        self.heap = heap
        self.recursion = recursion
        self.lookups = Lookups()
        self.member: Member | None = None  # the method that was looked up to be called next
        self.recording.holders += [lambda: hand_over_from_now_on(state), self.lookups.clear]

    def enter(self, at: Site, fn: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        state, recording = self.state, self.recording
        self.at(at)
        member, self.member = self.member, None
        known = state.recursions.fixed(code_of(fn), member) is not None
        if member is not None and not (known and args and member.receiver is args[0]):
            self.recursion.looked_at(member.receiver)
            member = None
        if args and self._is_foreign_method(fn, args[0]):
            self.natives.externs.dropped = at is not None and at.kind == "procedure"
            return self.natives.foreign_method(fn, args[0], fn.__name__, args[1:], kwargs)
        self.heap.claim_defaults(fn)
        if (effects := self.natives.host_effects_of(fn, args, kwargs)) is not None:
            self.natives.externs.dropped = at is not None and at.kind == "procedure"
            return self.natives.extern(fn, args, kwargs, effects)
        code = fn.__code__
        name = fn.__qualname__
        state.depth.enter()
        try:
            if (call := self.recursion.inputs.recursive_call(fn, args, kwargs, member)) is not None:
                return self.recursion.make_call(at, call)
            if member is not None:  # the method was selected by the receiver's class
                self.recursion.looked_at(member.receiver)
            recording.note(FunctionEntry(name, recording.place))
            recording.change_frame()
            state.discovery.enter(fn, args, kwargs)
            try:
                return state.out(rewritten(fn), *args, **kwargs)
            finally:
                state.discovery.leave()
                if state.discovery.varied and not state.recursions.fresh:
                    # No graph is made of this run, so the rest of it is watched call by call.
                    state.recursions.fresh = state.recursions.add(dict(state.discovery.recursive()))
                recording.note(FunctionExit(name, Place(code.co_filename, code.co_firstlineno)))
                recording.change_frame()
        finally:
            state.depth.leave()
            self.at(at)

    def _is_foreign_method(self, fn: types.FunctionType, obj: Any) -> bool:
        """Whether this is a Python method of a foreign object's class, like ``os.environ.get``."""
        foreign = self.natives.is_foreign(obj) or is_left_to_host(obj, fn)
        return foreign and inspect.getattr_static(type(obj), fn.__name__, None) is fn

    def enter_first(self, fn: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the speculated function itself and return its result."""
        self.natives.externs.outermost = self.enter_first.__code__
        code = fn.__code__
        self.recording.place = Place(code.co_filename, code.co_firstlineno, 0, fn.__qualname__)
        self.heap.claim_defaults(fn, first=True)
        return rewritten(fn)(*args, **kwargs)

    def _find_receiver(self, fn: Any) -> None:
        """Record the receiver of a bound method that was read from the heap: it is found through it."""
        if isinstance(fn, types.MethodType) and (access_path := self.recording.owner(fn)) is not None:
            self.recording.found(access_path.then(Step.FIELD, "__self__"), fn.__self__)
            self.recording.found(access_path.then(Step.FIELD, "__func__"), fn.__func__)

    def target(self, fn: Any, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        """Return what is called, with its arguments: a speculated function that another one calls belongs to the
        caller's trace."""
        self._find_receiver(fn)
        if isinstance(fn, types.MethodType) and on_type(type(fn.__func__), "__janus_target__") is not MISSING:
            fn, args = fn.__func__, (fn.__self__, *args)
        if on_type(type(fn), "__janus_target__") is not MISSING:
            access_path, fn = self.recording.owner(fn), fn.__janus_target__
            if access_path is not None and type(fn) is not types.FunctionType:
                self.recording.found(access_path.then(Step.FIELD, "fn"), fn)
                self._find_receiver(fn)
        return fn, args
