"""Ends watching within a call: from then on Python carries out each operation, and nothing more is recorded.

Code that is running has hooks in it, which do no more than Python does. Functions that are called from then on run as
they are. Variables of running code may hold traced numbers: an operation is given plain ones.
"""

from __future__ import annotations

import collections
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, FunctionType, GeneratorType
from typing import Any

from torchjanus.core.kinds import is_one_of, isinstance
from torchjanus.rewrite import Site
from torchjanus.rewrite.hooks import Semantics
from torchjanus.semantics.containers.parts import is_rewritten
from torchjanus.semantics.containers.suspended import is_native_iterator
from torchjanus.semantics.protocols.indexed_iterators import WrappedIterable
from torchjanus.semantics.watch.objects.finalization import Finalization
from torchjanus.semantics.watch.objects.state import WatchState
from torchjanus.semantics.watch.watch import Watch

__all__ = ["limit"]

_CONTAINERS = (list, dict, set, collections.deque)
_CHANGING = {"set_item", "del_item", "inplace"}  # hooks that may change a list
_LONG = 64  # a list that was being made when watching ended is a display in the source
_ANSWERED = {"call", "frame_reader"}  # hooks that ``Released`` or ``Watch`` answers


class Released(Watch):
    """The semantics of the rest of a call that is no longer watched."""

    def call(self, at: Site, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = self._given
        try:
            return self.out(self._bare(fn), *map(given, args), **{name: given(value) for name, value in kwargs.items()})
        finally:
            self.natives.shadows.follow()

    def _bare(self, value: Any) -> Any:
        """Return what the program would have in place of a value that this run has made. Iterators stay, since
        variables hold them, too."""
        if isinstance(value, WrappedIterable):
            return value
        return self.recording.bare(value)

    def _given(self, value: Any) -> Any:
        """Return what native code is given, or a place of the heap: new lists hold plain numbers, too."""
        bare = self._bare(value)
        if is_one_of(type(bare), (list, dict)) and len(bare) <= _LONG and self.recording.owner(bare) is None:
            for key, part in [*bare.items()] if type(bare) is dict else enumerate(bare):
                if (plain := self.recording.bare(part)) is not part:
                    bare[key] = plain
        return bare


def _natively(name: str, hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that does what Python does, with plain operands."""
    stores, changes = name.startswith("set_"), name in _CHANGING

    def native(self: Released, at: Site, *operands: Any) -> Any:
        given = tuple(map(self._given if stores else self._bare, operands))
        if stores and (isinstance(given[-1], GeneratorType | WrappedIterable) or is_native_iterator(given[-1])):
            given = (*given[:-1], Finalization(self.recording).bare(given[-1]))
        try:
            return hook(self, at, *given)
        except BaseException as error:
            self.out.note_program_error(error)
            raise
        finally:
            if changes:
                self.natives.shadows.follow()

    native.__name__ = name
    return native


for _name, _hook in vars(Semantics).items():
    if type(_hook) is FunctionType and not _name.startswith("_") and _name not in _ANSWERED:
        setattr(Released, _name, _natively(_name, _hook))


def limit(state: WatchState, seconds: float) -> None:
    """Let the call of this state be watched for no more than ``seconds`` of this thread's processor time."""
    state.limit.thread, state.limit.end = threading.get_ident(), time.thread_time() + seconds
    state.limit.reached = lambda: _release(state, seconds)


def _release(state: WatchState, seconds: float) -> None:
    recording = state.recording
    recording.refuse(
        "watching-too-long",
        f"watching the call has taken more than {seconds:.0f} s of processor time",
        "the rest of the call was made by Python alone.",
        "Speculate on the functions that it calls, or take long loops of Python out of the step.",
    )
    state.framework.released = True
    finalization = Finalization(recording)
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if is_rewritten(frame.f_code):
            for value in list(frame.f_locals.values()):
                held = isinstance(value, _CONTAINERS) or is_native_iterator(value)
                if held and not isinstance(value, WrappedIterable):
                    finalization.bare(value)
        frame = frame.f_back
    for watch in state.limit.watches:
        watch.framework.released = True
        watch.__class__ = Released
