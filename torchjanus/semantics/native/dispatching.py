"""Finds the implementation that a function made by ``functools.singledispatch`` calls.

Such functions use a cache of weak references, about which no assumption can be made. The table of implementations
behind the function is read instead. Knows nothing of calls.
"""

from __future__ import annotations

import functools
import types
from typing import Any

from torchjanus.core.access_path import AccessPath
from torchjanus.semantics.native.containers import WatchHooks
from torchjanus.semantics.record.recording import Recording
from torchjanus.trace.values import plain

__all__ = ["dispatched"]


class _Sample:
    @functools.singledispatchmethod
    def method(self, argument: Any) -> None: ...


_FUNCTION = functools.singledispatch(lambda _: None).__code__  # type: ignore[attr-defined]
_METHOD = _Sample().method.__code__


def dispatched(recording: Recording, watch: WatchHooks, at: Any, fn: Any, args: tuple[Any, ...]) -> Any:
    """Return the implementation that ``fn(*args)`` runs, or ``fn`` itself if it is no such function."""
    if type(fn) is not types.FunctionType or fn.__code__ not in (_FUNCTION, _METHOD) or not args:
        return fn
    held = _held(fn)
    if fn.__code__ is _FUNCTION:
        return _implementation(recording, watch, at, watch.load_attr(at, fn, "dispatch"), args[0])
    if recording.owner(held["self"]) is None:
        recording.claim(held["self"], AccessPath.const(held["self"]))
    dispatch = watch.load_attr(at, watch.load_attr(at, held["self"], "dispatcher"), "dispatch")
    return _implementation(recording, watch, at, dispatch, args[0]).__get__(held["obj"], held["cls"])


def _held(fn: types.FunctionType) -> dict[str, Any]:
    cells = (cell.cell_contents for cell in fn.__closure__ or ())
    return dict(zip(fn.__code__.co_freevars, cells, strict=True))


def _implementation(recording: Recording, watch: WatchHooks, at: Any, dispatch: Any, argument: Any) -> Any:
    cls = type(plain(argument))
    place = dispatch.__code__.co_freevars.index("registry")
    cell = watch.load_item(at, watch.load_attr(at, dispatch, "__closure__"), place)
    table = watch.load_attr(at, cell, "cell_contents")
    found = dispatch(cls)
    known = next((known for known in (*cls.__mro__, *table) if table.get(known) is found), None)
    recording.pin(watch.call(at, len, (table,), {}), "the table of implementations has so many")
    return found if known is None else watch.load_item(at, table, known)
