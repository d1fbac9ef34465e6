"""Calls whose arguments only the callee holds: of runs of which the program sees when objects are gone.

A watched call passes its arguments from function to function, each of which holds them until the callee returns. In the
program it is the callee alone that holds a temporary: it is gone as soon as the callee drops it. No graph is made of
such a run, so a function of the program is called at once, and nothing is recorded of the call itself.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from torchjanus.core.errors import Place
from torchjanus.core.kinds import is_one_of
from torchjanus.rewrite import Site
from torchjanus.rewrite.hooks import PendingCall, make_calls_by, rewritten
from torchjanus.semantics.watch.objects.state import WatchState

__all__ = ["hand_over_from_now_on"]


def hand_over_from_now_on(state: WatchState) -> None:
    """Let calls of the program's functions hold nothing of what they pass on."""
    for watch in state.limit.watches:
        make_calls_by(watch, functools.partial(_hand_over, state, watch))


def _hand_over(state: WatchState, watch: Any, at: Site, call: PendingCall) -> Any:
    fn = call.fn
    if type(fn) is types.MethodType:
        fn = fn.__func__
    if not _is_entered(watch, fn):
        return watch.call(at, call.fn, tuple(call.args), call.kwargs)
    if type(call.fn) is types.MethodType:
        call.args.insert(0, call.fn.__self__)
    call.fn = watch.calls.member = None  # a bound method and its lookup hold the object
    out = state.out
    direct, within = out.direct, out.within
    out.direct = out.within = 0
    out.begun += 1
    state.at(at)
    state.depth.enter()
    try:
        made = _caller(len(call.args), tuple(call.kwargs))(rewritten(fn), call.args, call.kwargs)
        out.ended, out.made = out.begun, made if within else None
        return made
    except BaseException as error:
        out.note_program_error(error)
        raise
    finally:
        state.depth.leave()
        out.direct, out.within = direct + 1, within
        state.at(at)


def _is_entered(watch: Any, fn: Any) -> bool:
    """Whether a call of ``fn`` is nothing but its code, which is the program's own."""
    if not is_one_of(type(fn), (types.FunctionType,)) or watch.native_reason(fn) is not None:
        return False
    return not Place(fn.__code__.co_filename, fn.__code__.co_firstlineno).is_library


@functools.lru_cache(maxsize=256)
def _caller(count: int, names: tuple[str, ...]) -> Callable[[Any, list[Any], dict[str, Any]], Any]:
    """Return a function that calls ``fn`` with what it takes out of a list of ``count`` arguments and a dictionary with
    these ``names``. A starred argument would be held by the interpreter during the call."""
    if not all(name.isidentifier() for name in names):
        return lambda fn, args, kwargs: fn(*args, **kwargs)
    given = ", ".join(["args.pop(0)"] * count + [f"{name}=kwargs.pop({name!r})" for name in names])
    text = f"lambda fn, args, kwargs: fn({given})"
    caller: Callable[..., Any] = eval(compile(text, __file__, "eval"))  # a frame of ours, which tracebacks leave out
    return caller
