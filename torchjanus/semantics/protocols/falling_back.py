"""Recovers from faults of torchjanus in a watched run: Python carries the operation out, and no graph is made of the
run.

The program must not notice a fault, since watching is a real run. A *note* that fails (``noted``) is left out and
returns a default. A *hook* that fails (``falling_back``) is done by Python natively. Calls that the hook has already
made, of the program's code or of native code, are not repeated: their results are used. An error belongs to the program
if one of these calls raised it, or if Python raises it, too. Knows nothing of what is noted.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torchjanus.core.kinds import isinstance
from torchjanus.rewrite.hooks.semantics import Semantics
from torchjanus.trace.values import plain

__all__ = ["CallsOut", "attempt", "call_made_once", "failed", "falling_back", "noted"]

_ENDING = (StopIteration, StopAsyncIteration, GeneratorExit)
_NOTHING: Any = object()
# Modules that only note. Code elsewhere in torchjanus raises an error of its own only where Python would.
_NOTING = (
    "trace/", "semantics/record/", "semantics/calls/", "semantics/known/details.py",
    "semantics/protocols/falling_back.py", "semantics/containers/histories.py",
    "semantics/watch/loops/iteration_values.py", "semantics/watch/objects/finalization.py",
    "semantics/watch/objects/looking.py"
)  # fmt: skip
_OWN = __file__.removesuffix("semantics/protocols/falling_back.py")

# Hooks that return the result of their native part, and hooks that return None.
_RETURNING_RESULT = frozenset({"attr", "item", "call", "binary", "inplace", "unary", "compare", "format", "join"})
_RETURNING_NONE = frozenset({"set_attr", "del_attr", "set_item", "del_item", "del_global", "del_cell", "caught"})


class CallsOut:
    """Counts the calls that a watched run makes of the program's own functions, native code and operations of torch.

    ``begun`` counts the calls. ``ended`` is the value of ``begun`` when the last call ended, and ``made`` its result.
    ``thrown`` is the mark of the last error that came out of a call, and ``threw`` the value of ``begun`` then.
    ``direct`` counts the calls that the innermost watched call has made itself, and ``first`` is the result of the
    first of these. ``within`` counts the hooks other than ``call`` that are in progress since that call. ``forgets``:
    the program sees when objects are gone, so no result is kept beyond its hook.
    """

    __slots__ = ("begun", "direct", "ended", "first", "forgets", "made", "threw", "thrown", "within")

    def __init__(self) -> None:
        self.forgets = False
        self.begun = self.ended = self.threw = self.direct = self.within = 0
        self.thrown: tuple[Any, ...] = ()
        self.first: Any = None
        self.made: Any = None

    def __call__(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call ``fn`` and count the call."""
        self.begun += 1
        number = self.direct = self.direct + 1
        try:
            made = fn(*args, **kwargs)
        except BaseException as error:
            self.direct = number
            self.note_program_error(error)
            raise
        self.direct, self.ended, self.made = number, self.begun, made
        if number == 1:
            self.first = made
        return made

    def forget(self) -> None:
        """Keep no results any more."""
        self.forgets = True
        self.made = self.first = None

    def note_program_error(self, error: BaseException) -> None:
        """Record that the error belongs to the program."""
        self.begun += 1
        self.thrown, self.threw = mark(error), self.begun


def mark(error: BaseException) -> tuple[Any, ...]:
    """Return what identifies an error without keeping it alive: its id and the place where it was raised."""
    step = error.__traceback__
    while step is not None and step.tb_next is not None:
        step = step.tb_next
    return (id(error),) if step is None else (id(error), step.tb_frame.f_code, step.tb_lasti)


def falling_back(hooks: Iterable[str]) -> Callable[[Any], Any]:
    """Return a decorator for classes of watching semantics whose ``hooks`` fall back on Python."""

    def decorate(watch: Any) -> Any:
        for name in hooks:
            setattr(watch, name, _guarded(name, getattr(watch, name)))
        return watch

    return decorate


_GUARDED = """
def guarded(self, {operands}):
    out = self.out
    begun, within = out.begun, out.within
    out.within = within + 1
    try:
        made = HOOK(self, {operands})
    except Exception as error:
        if out.threw > begun and out.thrown == MARK(error):
            raise
        failure = error
    else:
        if not within and (out.forgets or not out.direct):
            out.made = None
        return made
    finally:
        out.within = within
    try:
        return FALLEN(self, NAME, ({operands},), failure, begun)
    finally:
        del failure
"""


def _guarded(name: str, hook: Callable[..., Any]) -> Callable[..., Any]:
    if name == "call":
        return _guarded_call(hook)
    operands = ", ".join([*inspect.signature(getattr(Semantics, name)).parameters][1:])
    scope: dict[str, Any] = {"HOOK": hook, "FALLEN": _recover, "MARK": mark, "NAME": name}
    # Generated with explicit parameters: packing and unpacking them would slow watching.
    exec(compile(_GUARDED.format(operands=operands), __file__, "exec"), scope)
    return functools.wraps(hook)(scope["guarded"])


def _guarded_call(hook: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(hook)
    def guarded(self: Any, at: Any, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = self.out
        begun, outer, within = out.begun, out.direct, out.within
        out.direct = out.within = 0
        try:
            made = hook(self, at, fn, args, kwargs)
        except Exception as error:
            if out.threw > begun and out.thrown == mark(error):
                out.direct = outer + 1
                raise
            failure = error
        else:
            out.direct, out.ended, out.first = outer + 1, out.begun, None
            # A result is kept only for an outer call or hook, so that it lives no longer than in the program.
            out.made = made if within or (outer and not out.forgets) else None
            return made
        finally:
            out.within = within
        done, out.direct = out.direct, outer + 1
        try:
            made = _recover(self, "call", (at, fn, args, kwargs), failure, begun, done)
        finally:
            del failure
        out.first = None
        return made

    return guarded


def _recover(
    self: Any, name: str, operands: tuple[Any, ...], failure: Exception, begun: int, direct: int | None = None
) -> Any:
    """Return the result of the hook by Python. Raise the failure if it is the program's.

    The traceback of an error that is raised again refers to this frame and the hook's. Their references to the error
    are deleted, so that no cycle keeps the run's objects alive.
    """
    try:
        made = _NOTHING
        if not isinstance(failure, _ENDING):
            made = _by_python(self, name, operands, failure, self.out.begun - begun, direct)
        if made is _NOTHING:
            self.out.note_program_error(failure)
            raise failure
        return made
    finally:
        del failure


def _by_python(
    self: Any, name: str, operands: tuple[Any, ...], failure: Exception, done: int, direct: int | None
) -> Any:
    """Return the hook's result by Python after ``done`` calls; _NOTHING if the error is the program's."""
    out = self.out
    if not done:
        bare = tuple(map(plain, operands[1:]))
        if name == "call":
            bare = (operands[1], tuple(map(plain, operands[2])), {k: plain(v) for k, v in operands[3].items()})
        try:
            made = out(getattr(Semantics, name), self, operands[0], *bare)
        except Exception as native:
            if type(native) is type(failure):
                return _NOTHING
            failed(self.recording, f"in '{name}'", failure)
            raise
        failed(self.recording, f"in '{name}'", failure)
        return made
    if out.ended != out.begun or _raised_in_place_of_python(failure):
        return _NOTHING
    failed(self.recording, f"in '{name}'", failure)
    if name in _RETURNING_NONE:
        return None
    if name == "not_":
        return not out.made
    if name == "branch":
        return bool(out.made)
    if name == "call" and isinstance(operands[1], type) and isinstance(out.first, operands[1]):
        if direct == 1 and type(out.first).__init__ is not object.__init__:
            type(out.first).__init__(out.first, *operands[2], **operands[3])
        return out.first
    if name in _RETURNING_RESULT:
        return out.made
    return getattr(Semantics, name)(self, *operands)


def _raised_in_place_of_python(error: Exception) -> bool:
    """Whether the error was raised by code of torchjanus that raises where Python would."""
    step, last = error.__traceback__, ""
    while step is not None:
        name = step.tb_frame.f_code.co_filename
        last = name.removeprefix(_OWN) if name.startswith(_OWN) else last
        step = step.tb_next
    return not isinstance(error, AssertionError) and not last.startswith(_NOTING)


def failed(recording: Any, where: str, error: Exception) -> None:
    """Record that torchjanus failed in this run: no graph is made of it."""
    raised = error.__traceback__
    while raised is not None and raised.tb_next is not None:
        raised = raised.tb_next
    at = "" if raised is None else f" at {raised.tb_frame.f_code.co_name}:{raised.tb_lineno}"
    what = f"torchjanus itself failed {where}: {type(error).__name__}: {error}{at}"
    try:
        recording.refuse("internal-fault", what, "no graph is made of this call.", "Please report this.")
    except Exception:
        recording.give_up()


def attempt(recording: Any, where: str, note: Callable[..., Any], *args: Any) -> Any:
    """Return ``note(*args)``, or None if it fails; then no graph is made of the run. ``where`` describes the place."""
    try:
        return note(*args)
    except Exception as error:
        failed(recording, where, error)
        return None


def noted(instead: Mapping[str, Callable[..., Any]]) -> Callable[[Any], Any]:
    """Return a decorator for recordings: a method that fails returns what its function in ``instead`` returns."""

    def decorate(recording: Any) -> Any:
        for name, otherwise in instead.items():
            setattr(recording, name, _noting(name, getattr(recording, name), otherwise))
        return recording

    return decorate


def _noting(name: str, method: Callable[..., Any], otherwise: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def noting(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            if isinstance(error, _ENDING):
                raise
            failure = error
        if name not in ("refuse", "refused"):
            failed(self, f"in '{name}'", failure)
        else:
            self.give_up()
        return otherwise(*args, **kwargs)

    noting.__noted__ = otherwise  # type: ignore[attr-defined]
    return noting


def call_made_once(call: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate the method that makes a call of torch and records it, so that a failure does not repeat the call.

    The last element of the recorder's ``native_results`` is the result of the innermost call in progress, if torch has
    returned it.
    """

    @functools.wraps(call)
    def guarded(self: Any, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = self.out
        begun = out.begun
        self.native_results.append(_NOTHING)
        made = _NOTHING
        try:
            return call(self, func, args, kwargs)
        except Exception as error:
            if isinstance(error, _ENDING) or (out.threw > begun and out.thrown == mark(error)):
                raise
            failure, made = error, self.native_results[-1]
        finally:
            self.native_results.pop()
        if made is _NOTHING:
            made = _natively(self, func, args, kwargs, failure)
        failed(self.recording, f"on a call of {getattr(func, '__name__', 'torch')}()", failure)
        return made

    return guarded


def _natively(self: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], failure: Exception) -> Any:
    try:
        return self.out(func, *self.bare(args), **self.bare(kwargs))
    except Exception as native:
        if type(native) is not type(failure):
            failed(self.recording, f"on a call of {getattr(func, '__name__', 'torch')}()", failure)
        raise
