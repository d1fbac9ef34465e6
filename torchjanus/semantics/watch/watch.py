"""Watch a call: run the rewritten program on real values and record a ``Trace`` (the profiler of JANUS, section 4.1).

``Watch`` is the semantics that answers the hooks. It knows what a Python operation reads and writes. ``framework``
records calls of torch; ``natives`` models native callees. Watching does not change what the program computes: an
operation that cannot be modelled runs natively, and the trace gets a refusal.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
import types
import warnings
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from torchjanus.core.access_path import AccessPath, Step
from torchjanus.core.default_device import default_device
from torchjanus.core.dynamo import leave_alone
from torchjanus.core.errors import Place
from torchjanus.core.kinds import getattr, isinstance
from torchjanus.core.logs import logger
from torchjanus.host.journal import Journal
from torchjanus.rewrite import Site, code_of
from torchjanus.rewrite.hooks import Semantics, class_keyword, made_class, program_frames, rewritten, using
from torchjanus.semantics.calls.recursions import Recursions
from torchjanus.semantics.containers.number_rows import Columns
from torchjanus.semantics.containers.releasing import release
from torchjanus.semantics.external.logs import warnings_shown
from torchjanus.semantics.known.closed import has_own_compiler, is_refused_code
from torchjanus.semantics.known.trusted import IGNORED, SETTING_UP
from torchjanus.semantics.native.containers import CONTAINERS
from torchjanus.semantics.native.dispatching import dispatched
from torchjanus.semantics.native.identities import hashed
from torchjanus.semantics.protocols.depth import room
from torchjanus.semantics.protocols.falling_back import falling_back
from torchjanus.semantics.protocols.leaves import MISSING, mro_of, namespace_of, on_type
from torchjanus.semantics.protocols.stand_ins import stand_in_for
from torchjanus.semantics.record.recording import Recording
from torchjanus.semantics.torch.backward_code import BackwardCode
from torchjanus.semantics.torch.checkpoints import is_checkpoint
from torchjanus.semantics.torch.torch_state import ambient_modes, hindrance
from torchjanus.semantics.watch.calls.passed_on import PassThroughWatch
from torchjanus.semantics.watch.calls.recursion import RecursionWatch
from torchjanus.semantics.watch.loops.columns import ColumnWatch
from torchjanus.semantics.watch.loops.comprehensions import ComprehensionWatch
from torchjanus.semantics.watch.loops.if_regions import RegionWatch
from torchjanus.semantics.watch.objects.classes import hook_may_change
from torchjanus.semantics.watch.objects.errors import ErrorWatch
from torchjanus.semantics.watch.objects.finalization import ARGS, Finalization
from torchjanus.semantics.watch.objects.indices import IndexWatch
from torchjanus.semantics.watch.objects.looking import records_inspection
from torchjanus.semantics.watch.objects.made_classes import unwatched_code
from torchjanus.semantics.watch.objects.truths import TruthWatch
from torchjanus.trace.events import FunctionEntry, FunctionExit, Trace
from torchjanus.trace.modes import Modes
from torchjanus.trace.values import ON_DEPTH, ON_HASH

__all__ = ["Watch", "ambient_state", "watch_call"]

log = logger("faults")

_HIGHER_ORDER = torch._ops.HigherOrderOperator
_DYNAMO_WRAPPERS = frozenset({"torch._compile", "torch._dynamo.eval_frame", "torch._dynamo.external_utils"})
# Methods that total_ordering adds to classes: each calls a method of the program.
_ORDERINGS = frozenset(
    value for name, value in vars(functools).items() if isinstance(value, types.FunctionType) and "_from_" in name
)


# All hooks: where torchjanus fails in one, Python carries out the operation (see ``falling_back``).
_HOOKS = [name for name, hook in vars(Semantics).items() if isinstance(hook, types.FunctionType)]


@falling_back(_HOOKS)
@records_inspection
class Watch(
    TruthWatch, PassThroughWatch, RecursionWatch, RegionWatch, ComprehensionWatch, IndexWatch, ColumnWatch, ErrorWatch
):
    """The semantics that watches one call."""

    # -- functions entered ------------------------------------------------------------------------------------------

    def leave_native(self, fn: Any) -> str | None:
        """Return why a Python function is called natively instead of being entered, or None."""
        module = fn.__globals__.get("__name__")
        if module in _DYNAMO_WRAPPERS:
            return "a wrapper of torch.compile's: what it wraps is called"
        if isinstance(module, str) and fn not in _ORDERINGS:
            for name in IGNORED:
                if module == name or module.startswith(name + "."):
                    return f"{name} is left out of graphs"
        if self.natives.is_framework(fn):
            return "recorded as one framework call"
        if is_refused_code(fn):
            return "refused: processes communicate in it, or it calls functions of the program's"
        if fn in SETTING_UP:
            return "fills tables of torch's own"
        if is_checkpoint(fn):
            return "its function is called"
        if fn is RemovableHandle.remove:
            return "depends on whose handle it is"
        if self.natives.is_deferred(fn) or self.natives.is_foreign_function(fn):
            return "left to the host: an extern call"
        return super().leave_native(fn)

    def enter(self, at: Site, fn: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        recording = self.recording
        self.at(at)
        member, self.member = self.member, None
        known = self.recursions.fixed(code_of(fn), member) is not None
        if member is not None and not (known and args and member.receiver is args[0]):
            self.looked_at(member.receiver)
            member = None
        if args and self._is_foreign_method(fn, args[0]):
            self.natives.externs.dropped = at is not None and at.kind == "procedure"
            return self.natives.foreign_method(fn, args[0], fn.__name__, args[1:], kwargs)
        self.claim_defaults(fn)
        if (effects := self.natives.host_effects_of(fn, args, kwargs)) is not None:
            self.natives.externs.dropped = at is not None and at.kind == "procedure"
            return self.natives.extern(fn, args, kwargs, effects)
        code = fn.__code__
        name = fn.__qualname__
        self.depth.enter()
        try:
            if (call := self.recursive_call(fn, args, kwargs, member)) is not None:
                return self.make_call(at, call)
            if member is not None:  # the method was selected by the receiver's class
                self.looked_at(member.receiver)
            recording.note(FunctionEntry(name, recording.place))
            recording.change_frame()
            self.discovery.enter(fn, args, kwargs)
            try:
                return super().enter(at, fn, args, kwargs)
            finally:
                self.discovery.leave()
                if self.discovery.varied and not self.recursions.fresh:
                    # No graph is made of this run, so the rest of it is watched call by call.
                    self.recursions.fresh = self.recursions.add(dict(self.discovery.recursive()))
                recording.note(FunctionExit(name, Place(code.co_filename, code.co_firstlineno)))
                recording.change_frame()
        finally:
            self.depth.leave()
            self.at(at)

    def _is_foreign_method(self, fn: types.FunctionType, obj: Any) -> bool:
        """Whether this is a Python method of a foreign object's class, like ``os.environ.get``."""
        return self.natives.is_foreign(obj) and inspect.getattr_static(type(obj), fn.__name__, None) is fn

    def enter_first(self, fn: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the speculated function itself and return its result."""
        self.natives.externs.outermost = _ENTRY_CODE
        code = fn.__code__
        self.recording.place = Place(code.co_filename, code.co_firstlineno, 0, fn.__qualname__)
        self.claim_defaults(fn, first=True)
        return rewritten(fn)(*args, **kwargs)

    # -- loops ----------------------------------------------------------------------------------------------------

    def star(self, at: Site, iterable: Any) -> Any:
        several = self._starred(at, iterable)
        # Without a site these are the starred arguments of a ``partial``.
        return several if at is None or at.kind != "elements" else map(self._put_together, several)

    def _put_together(self, key: Any) -> Any:
        self.natives.note_new_keys(key)
        return key

    def _starred(self, at: Site, iterable: Any) -> Any:
        self.at(at)
        iterable = self.natives.live(iterable)
        if self._is_found(iterable) and not self.reaches(iterable):
            return tuple(self.natives.iterable(iterable))
        if self.natives.is_foreign(iterable):
            return tuple(self.natives.iterable(iterable))
        return super().star(at, self.recording.pin(iterable, "its characters are taken"))

    def _is_found(self, value: Any) -> bool:
        """Whether this is a container that existed before the call."""
        return self.recording.owner(value) is not None and isinstance(value, CONTAINERS)

    def double_star(self, at: Site, mapping: Any) -> Any:
        self.at(at)
        mapping = self.natives.live(mapping)
        if self.recording.owner(mapping) is not None and isinstance(mapping, dict):
            mapping = self.natives.consumed(mapping)
        else:
            mapping = super().double_star(at, mapping)
        if type(mapping) is dict:
            self.natives.note_new_keys(*mapping)
        return mapping

    def unpack(self, at: Site, value: Any, before: int, star: bool, after: int) -> Any:
        self.at(at)
        value = self.natives.live(value)
        if self._is_found(value) and not self.reaches(value):
            value = tuple(self.natives.iterable(value))
        elif self.natives.is_foreign(value):
            value = iter(self.natives.iterable(value))
        return super().unpack(at, self.recording.pin(value, "its characters are taken"), before, star, after)

    # -- calls ----------------------------------------------------------------------------------------------------

    def call(self, at: Site, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if fn is made_class:
            return self._made_class(at, *args)
        if fn is class_keyword:
            return self.recording.pin(args[0], "is given to a class statement")
        self._find_receiver(fn)
        # A speculated function that another one calls belongs to the caller's trace.
        if isinstance(fn, types.MethodType) and on_type(type(fn.__func__), "__janus_target__") is not MISSING:
            fn, args = fn.__func__, (fn.__self__, *args)
        if on_type(type(fn), "__janus_target__") is not MISSING:
            access_path, fn = self.recording.owner(fn), fn.__janus_target__
            if access_path is not None and type(fn) is not types.FunctionType:
                self.recording.found(access_path.then(Step.FIELD, "fn"), fn)
                self._find_receiver(fn)
        # The class is abstract: isinstance() would hash the program's class by way of its metaclass.
        if type(fn) is not types.FunctionType and any(one is _HIGHER_ORDER for one in mro_of(type(fn))):
            self.at(at)
            return self.natives.unknown(fn, args, kwargs)
        fn = dispatched(self.recording, self, at, stand_in_for(fn, args, kwargs), args)
        result = super().call(at, fn, args, kwargs)
        return _in_its_module(result) if issubclass(type(result), type) else result

    def _find_receiver(self, fn: Any) -> None:
        """Record the receiver of a bound method that was read from the heap: it is found through it."""
        if isinstance(fn, types.MethodType) and (access_path := self.recording.owner(fn)) is not None:
            self.recording.found(access_path.then(Step.FIELD, "__self__"), fn.__self__)
            self.recording.found(access_path.then(Step.FIELD, "__func__"), fn.__func__)

    def instantiate(self, at: Site, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        made = super().instantiate(at, cls, args, kwargs)
        if issubclass(cls, type) and isinstance(made, type) and len(args) > 1:
            self.recording.made_classes.append(made)
        return made

    def _made_class(self, at: Site, made: Any) -> Any:
        self.at(at)
        if isinstance(made, type):
            self.recording.made_classes.append(made)
        if (called := unwatched_code(made)) is not None:
            self.recording.refuse(
                "class-creation-hook",
                f"makes the class {made.__name__}, whereby {called} is called",
                "native code calls it in the middle of its own work: what it does is not watched.",
                "Make the class outside of the step.",
            )
        elif isinstance(made, type) and hook_may_change(made):
            self.recording.refuse(
                "subclass-hook",
                f"makes the class {made.__name__}, which is asked for by a __subclasshook__ that may change something",
                "how often it is asked depends on which classes are still alive.",
                "Make the class outside of the step, or let the hook only read.",
            )
        return made

    def frame_reader(self, at: Site, owner: dict[str, Any], fn: Any) -> Any:
        self.at(at)
        if fn is warnings.warn:
            return functools.partial(self._warn, at, owner)
        if fn is not inspect.currentframe:
            self.recording.refuse(
                "frame-inspection",
                f"calls {getattr(fn, '__name__', fn)}()",
                "it looks at variables behind the back of the watch.",
                "Name the variables instead.",
            )
        if fn is getattr(sys, "_getframemodulename", None):  # since Python 3.12
            return program_module
        return program_frame if fn is sys._getframe else fn

    def _warn(
        self,
        at: Site,
        owner: dict[str, Any],
        message: Warning | str,
        category: type[Warning] | None = None,
        stacklevel: int = 1,
        source: Any = None,
        **options: Any,
    ) -> None:
        """Record ``warnings.warn`` with an explicit location: at commit the frame of the user's line is gone."""
        frames = _of_eager(program_frames(_ENTRY_CODE))
        caller = next(itertools.islice(frames, stacklevel - 1, None), None) if stacklevel > 1 else None
        if options or (stacklevel > 1 and caller is None):
            # The next call of the step may come from another place.
            self.recording.refuse(
                "caller-of-log", "warns in its caller's name", "the caller is not there at commit.", ""
            )
            warnings.warn(message, category, stacklevel + 1, source, **options)
            return
        if warnings_shown() != self.step.warnings:
            what = "warns under filters that the step has set"
            self.recording.refuse(
                "warning-filters", what, "at commit they are no longer in force.", "Set them before the step."
            )
        file, line = at.file, at.line
        if caller is not None:
            owner, file, line = caller.f_globals, caller.f_code.co_filename, caller.f_lineno
        kind = type(message) if isinstance(message, Warning) else category or UserWarning
        registry = owner.setdefault("__warningregistry__", {})
        self.recording.claim(registry, AccessPath.const(registry))
        module = owner.get("__name__") or "<unknown>"
        self.natives.externs.dropped = True  # it returns nothing
        self.natives.extern(warnings.warn_explicit, (message, kind, file, line, module, registry), {})

    def call_native(self, at: Site, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        try:
            result = self._call_native(at, fn, args, kwargs)
        finally:
            # Applies to this call only: a later extern call may use its result.
            self.natives.externs.dropped = False
        self.note_call(at, fn, args, kwargs, result)
        return result

    def _call_native(self, at: Site, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        self.at(at)
        self.natives.externs.dropped = fn if at is not None and at.kind == "procedure" else False
        if self.natives.is_foreign_function(fn):
            return self.natives.call(fn, args, dict(kwargs))
        if isinstance(fn, types.FunctionType) and (inner := _without_dynamo(fn)) is not fn:
            return self.call(at, inner, args, dict(kwargs))
        if isinstance(fn, types.FunctionType) and has_own_compiler(fn):
            return self.natives.unknown(fn, args, dict(kwargs))
        try:
            return self.counted(at, fn, self.natives.call(fn, args, dict(kwargs)))
        except Exception as error:
            self.call_failed(error, fn, args, dict(kwargs))
            raise


_ENTRY_CODE = Watch.enter_first.__code__


def _in_its_module(cls: type) -> type:
    """Correct ``__module__`` of a class that native code has just made: it reads the calling frame, which is ours."""
    module = namespace_of(cls).get("__module__")
    if isinstance(module, str) and module.startswith("torchjanus.semantics."):
        if vars(sys.modules[module]).get(cls.__name__) is not cls:
            type.__setattr__(cls, "__module__", program_module())
    return cls


def program_frame(depth: int = 0) -> types.FrameType:
    """Return ``sys._getframe(depth)`` without the frames of torchjanus. Raises ValueError if there is none."""
    for frame in itertools.islice(program_frames(), depth, None):
        return frame
    raise ValueError("call stack is not deep enough")


def _of_eager(frames: Iterator[types.FrameType]) -> Iterator[types.FrameType]:
    """Yield frames without those of torch function dispatch: eager execution does not have them."""
    for frame in frames:
        if frame.f_code is _DISPATCH_CODE:
            next(frames, None)
        else:
            yield frame


_DISPATCH_CODE = torch.overrides.handle_torch_function.__code__


def program_module(depth: int = 0) -> str | None:
    """Return ``sys._getframemodulename(depth)`` without the frames of torchjanus."""
    try:
        name: str | None = program_frame(depth).f_globals.get("__name__")
    except ValueError:
        return None
    return name


def _without_dynamo(fn: types.FunctionType) -> Any:
    """Return the function or method under Dynamo's enable and disable wrappers; stop at one with its own compiler."""
    found: Any = fn
    while isinstance(found, types.FunctionType) and found.__globals__.get("__name__") in _DYNAMO_WRAPPERS:
        inner = found.__dict__.get("_torchdynamo_orig_callable") or found.__dict__.get("__wrapped__")
        if not isinstance(inner, types.FunctionType | types.MethodType) or has_own_compiler(found):
            break
        found = inner
    return found


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
) -> tuple[Any, Trace]:
    """Run one call under watch. Return its result and the trace. Exceptions of the program propagate.

    ``leading``: arguments bound beforehand (a method's self), the same at every call. ``journal``: extern calls that
    were made for this call already and are not repeated. ``loose``: access paths of strings that vary from call to
    call; they are traced like numbers. ``recursions``: the recursive functions known so far. ``columns``: the lists of
    numbers that are rows of tensors. ``deciding``: see WatchBase.
    """
    watch = Watch(journal, loose, recursions, columns=columns, deciding=deciding)
    with room():
        try:
            return _watched(watch, fn, leading, args, kwargs)
        finally:
            watch.forget()


def _watched(
    watch: Watch, fn: types.FunctionType, leading: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, Trace]:
    recording = watch.recording
    watch.given = args, kwargs
    leave_alone()
    recording.trace.ambient = before, _, device = ambient_state()
    for value in leading:
        recording.claim(value, AccessPath.const(value, "self"))
    code = fn.__code__
    names = (*code.co_varnames[len(leading) : code.co_argcount], *(f"args[{i}]" for i in range(len(args))))
    given = tuple(recording.found(AccessPath.arg(i, names[i]), value) for i, value in enumerate(args))
    named = {name: recording.found(AccessPath.kwarg(name), value) for name, value in kwargs.items()}
    if hindered := hindrance():
        recording.refuse("torch-mode", f"the step runs under {hindered}", "a graph does not obey it.", "Switch it off.")
    listening, deep = ON_HASH.set(functools.partial(hashed, recording)), ON_DEPTH.set(recording.deep)
    try:
        with using(watch), watch.framework:
            result = watch.enter_first(fn, (*leading, *given), named)
    except BaseException as error:
        _finalize_after_error(error, recording, watch.framework.code)
        raise
    finally:
        ON_HASH.reset(listening)
        ON_DEPTH.reset(deep)
    if ambient_modes() != before or default_device() != device:
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
    trace.recursive = dict(watch.discovery.recursive())
    watch.recursions.counted += [*recording.counts.new, *recording.accumulators.new]
    try:
        trace = recording.accumulators.settled(trace)
    except Exception as error:
        _failed(recording, "on what recursive calls have counted", error)
    recording.accumulators.give_up()
    return result, trace


def _failed(recording: Recording, when: str, error: Exception) -> None:
    what = f"torchjanus itself failed {when}: {type(error).__name__}: {error}"
    recording.refuse("internal-fault", what, "no graph is made of this call.", "Please report this.")
