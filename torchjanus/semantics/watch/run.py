"""Watch a call: run the rewritten program on real values and record a ``Trace`` (the profiler of JANUS, section 4.1).

Watching does not change what the program computes: an operation that cannot be modelled runs natively, and the trace
gets a refusal.
"""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Collection, Iterator
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath
from torchjanus.core.default_device import default_device
from torchjanus.core.dynamo import leave_alone
from torchjanus.core.kinds import isinstance
from torchjanus.core.logs import logger
from torchjanus.host.journal import Journal
from torchjanus.rewrite import Site
from torchjanus.rewrite.hooks import using
from torchjanus.semantics.calls.recursions import Recursions
from torchjanus.semantics.containers.number_rows import Columns
from torchjanus.semantics.containers.releasing import forget, release
from torchjanus.semantics.external.plain_parts import ARGS
from torchjanus.semantics.known.closed import cudnn_settings
from torchjanus.semantics.native.identities import hashed
from torchjanus.semantics.protocols.depth import room
from torchjanus.semantics.record.recording import Recording
from torchjanus.semantics.torch.backward_code import BackwardCode
from torchjanus.semantics.torch.torch_state import ambient_modes, hindrance
from torchjanus.semantics.watch.objects.finalization import Finalization
from torchjanus.semantics.watch.objects.state import WatchState
from torchjanus.semantics.watch.released import limit
from torchjanus.semantics.watch.watch import Watch
from torchjanus.trace.events import Trace
from torchjanus.trace.modes import Modes
from torchjanus.trace.values import ON_DEPTH, ON_HASH

__all__ = ["ambient_state", "watch_call"]

log = logger("faults")


def ambient_state() -> tuple[Modes, bool, torch.device | None]:
    """Return torch's modes, whether deterministic algorithms are requested, and the default device."""
    return ambient_modes(), torch.are_deterministic_algorithms_enabled(), default_device()


def _finalize_after_error(error: BaseException, recording: Recording, code: BackwardCode) -> None:
    """Remove traced numbers from the error and from what the call stored in the heap before it raised."""
    finalization = Finalization(recording)
    try:
        finalization.settle(None)
        for one in _linked(error):
            given = ARGS.__get__(one)
            bare = finalization.bare(given)
            if bare is not given:
                ARGS.__set__(one, bare)
            for name, value in vars(one).items():
                vars(one)[name] = finalization.bare(value)
        code.leave(finalization.bare)
    except Exception:
        # The program's own error is on its way, and must not be replaced by ours.
        log.warning("internal fault in torchjanus after a call that raised", exc_info=True)


def _linked(error: BaseException) -> Iterator[BaseException]:
    """Yield the error with its causes, contexts and group members."""
    waiting, seen = [error], set()
    while waiting:
        one = waiting.pop()
        if id(one) not in seen:
            seen.add(id(one))
            yield one
            waiting.extend(other for other in (one.__cause__, one.__context__) if other is not None)
            if isinstance(one, BaseExceptionGroup):
                waiting.extend(one.exceptions)


def watch_call(
    fn: types.FunctionType,
    leading: tuple[Any, ...],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    journal: Journal | None = None,
    loose: Collection[AccessPath] = (),
    recursions: Recursions | None = None,
    columns: Columns | None = None,
    deciding: set[Site] | None = None,
    lifetimes: bool = False,
    seconds: float = math.inf,
) -> tuple[Any, Trace]:
    """Run one call under watch. Return its result and the trace. Exceptions of the program propagate.

    ``leading``: arguments bound beforehand (a method's self), the same at every call. ``journal``: extern calls that
    were made for this call already and are not repeated. ``loose``: see ``Recording``. ``recursions``: the recursive
    functions known so far. ``columns``: the lists of numbers that are rows of tensors. ``deciding``: see WatchState.
    ``lifetimes``: no object is to be held of which the program sees the end. ``seconds``: after them the rest of the
    call is not watched, unless calls of the journal may be left in it.
    """
    watch = Watch(WatchState(journal, loose, recursions, None, columns, deciding))
    if journal is None or not journal.records:
        limit(watch.state, seconds)
    watch.recording.lifetimes = lifetimes
    with room():
        try:
            return _watched(watch, fn, leading, args, kwargs)
        finally:
            _forget(watch)


def _forget(ended: Watch) -> None:
    """Release everything but the trace, since the run has ended."""
    inner: list[Any] = [code.watch for code in ended.framework.code.inner]
    forget([ended, *inner], (Recursions, Columns))
    ended.state.limit.reached, ended.state.limit.watches = list, []
    for watch in (ended, *inner):
        watch.state.given = (), {}
        watch.calls.member = None
        watch.recording.trace = Trace()
        watch.recording.over = True
    ended.recording.called_back.any = False
    ended.out.made = ended.out.first = None


def _watched(
    watch: Watch, fn: types.FunctionType, leading: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, Trace]:
    recording = watch.recording
    watch.state.given = args, kwargs
    leave_alone()
    recording.trace.ambient = before, _, device = ambient_state()
    cudnn = cudnn_settings()
    for value in leading:
        recording.claim(value, AccessPath.const(value, "self"))
    code = fn.__code__
    names = (*code.co_varnames[len(leading) : code.co_argcount], *(f"args[{i}]" for i in range(len(args))))
    given = tuple(recording.found(AccessPath.arg(i, names[i]), value) for i, value in enumerate(args))
    named = {name: recording.found(AccessPath.kwarg(name), value) for name, value in kwargs.items()}
    if hindered := hindrance():
        recording.refuse("torch-mode", f"the step runs under {hindered}", "a graph does not obey it.", "Switch it off.")
    recording.settling = lambda: Finalization(recording).settle_running()
    listening, deep = ON_HASH.set(functools.partial(hashed, recording)), ON_DEPTH.set(recording.deep)
    try:
        with using(watch), watch.framework:
            result = watch.calls.enter_first(fn, (*leading, *given), named)
            recording.note_behind_loops(ended=True)
    except BaseException as error:
        _finalize_after_error(error, recording, watch.framework.code)
        raise
    finally:
        ON_HASH.reset(listening)
        ON_DEPTH.reset(deep)
    if ambient_modes() != before or default_device() != device or cudnn_settings() != cudnn:
        recording.refuse(
            "mode-left-changed", "the call leaves a torch mode changed", "a graph restores the modes it found.", ""
        )
    if any(cached for _, _, cached in before.autocast) and watch.framework.gradients.changed:
        recording.refuse(
            "autocast-cache",
            "changes a parameter under an autocast that was entered before the call",
            "torch goes on using the parameter as it was cast first until autocast is left.",
            "Enter autocast inside the step.",
        )
    with torch._C.DisableTorchFunction():  # classes of the program must see only the calls of the program
        result, trace = _finalized(watch, result, args, kwargs)
    recording.accumulators.give_up()
    return result, trace


def _finalized(watch: Watch, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Trace]:
    """Return what the call returns, without traced numbers, and the trace of the call, which is over."""
    recording = watch.recording
    try:
        recording.accumulators.close_all(recording)
        finalization = Finalization(recording)
        result = finalization.settle(result)
        watch.framework.code.leave(finalization.bare)
    except Exception as error:
        # The call has taken effect and must not be repeated. Only its trace is lost.
        _failed(recording, "on what leaves the step", error)
        result = recording.bare(result)
    try:
        watch.framework.code.finish()
        recording.finish()
        release(recording.trace, args, kwargs)
    except Exception as error:
        _failed(recording, "when the step was over", error)
        recording.trace.tensors = []
    trace = recording.trace
    trace.recursive = dict(watch.state.discovery.recursive())
    watch.state.recursions.counted += [*recording.counts.new, *recording.accumulators.new]
    try:
        trace = recording.accumulators.settled(trace)
    except Exception as error:
        _failed(recording, "on what recursive calls have counted", error)
    return result, trace


def _failed(recording: Recording, when: str, error: Exception) -> None:
    what = f"torchjanus itself failed {when}: {type(error).__name__}: {error}"
    recording.refuse("internal-fault", what, "no graph is made of this call.", "Please report this.")
