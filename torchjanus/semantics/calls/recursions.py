"""Find the recursive functions of a program and what their calls have in common (InvokeOp of JANUS, section 4.2.1).

``Discovery`` observes one run; ``Recursions`` keeps the results over all runs.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch

from torchjanus.core.errors import Place, Refusal
from torchjanus.core.kinds import getattr, isinstance
from torchjanus.rewrite import code_of
from torchjanus.semantics.calls.method_sets import Member, MethodSets
from torchjanus.semantics.known.trusted import is_installed, is_trusted_module
from torchjanus.trace.actions import InvokeOp
from torchjanus.trace.events import Event, Trace
from torchjanus.trace.values import Traced

__all__ = ["Discovery", "Recursions", "arguments", "bind"]

_MANY: Any = object()
_UNSUITED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_ANY = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
_VALUES = (int, float, complex, str, bytes, type(None), tuple)  # may be one object by chance


def bind(fn: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """Return the function's parameters with their values, defaults included; None if the arguments do not fit.

    Values of ``*args`` and ``**kwargs`` become parameters ``*0`` and ``**name``. A function with no other parameters
    yields None: it wraps another one.
    """
    code = fn.__code__
    names = _names(code)
    further, named = args[code.co_argcount :], dict[str, Any]()
    if _is_unsuited(code) or (further and not code.co_flags & inspect.CO_VARARGS):
        return None
    bound = dict(zip(names, args[: code.co_argcount], strict=False))
    for name, value in kwargs.items():
        if name in bound:
            return None
        if name in names[code.co_posonlyargcount :]:
            bound[name] = value
        elif code.co_flags & inspect.CO_VARKEYWORDS:
            named[f"**{name}"] = value
        else:
            return None
    defaults = fn.__defaults__ or ()
    late = dict(zip(names[code.co_argcount - len(defaults) : code.co_argcount], defaults, strict=True))
    late |= fn.__kwdefaults__ or {}
    for name in names:
        if name not in bound:
            if name not in late:
                return None
            bound[name] = late[name]
    return {name: bound[name] for name in names} | {f"*{n}": value for n, value in enumerate(further)} | named


def arguments(code: types.CodeType, bound: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return the positional and the keyword arguments of a call. ``bound``: see ``bind``."""
    names = _names(code)
    further = [value for name, value in bound.items() if name.startswith("*") and not name.startswith("**")]
    named = {name: bound[name] for name in names[code.co_argcount :]}
    named |= {name.removeprefix("**"): value for name, value in bound.items() if name.startswith("**")}
    return [*(bound[name] for name in names[: code.co_argcount]), *further], named


class VariantMatcher(Protocol):
    """Predicts the variants of calls before they are made."""

    def match(self, callee: Any, step: Any, given: Sequence[Any], room: int) -> tuple[frozenset[int], int, Any] | None:
        """Return the variants of a call and its inner calls, its own variant, and the structure of its result. None if
        one is unknown, or calls would nest deeper than ``room`` frames. ``step``: the arguments of the step."""


class Recursions:
    """What is known of the recursive functions of one speculated function over all its runs."""

    def __init__(self) -> None:
        # Functions whose calls are watched one by one, with the parameters that are the same object in all calls.
        self.known: dict[types.CodeType, frozenset[str]] = {}
        self.refused: set[types.CodeType] = set()  # functions whose calls are unrolled
        self.working: set[types.CodeType] = set()  # functions that have computed with tensors
        self.fresh: list[str] = []  # names of functions found in the current run
        # Receives watched calls; and makes the matcher that predicts variants, whose calls need not be watched.
        self.take: Callable[[InvokeOp], None] = _ignore_call
        self.variant_matcher: Callable[[Mapping[Any, Any]], VariantMatcher | None] = _no_variant_matcher
        # Rewrites the trace of a call so that its lists are rows, given what calls return. Raises Refused.
        self.as_rows: Callable[[Trace, Mapping[Any, Any]], Trace] = _unchanged_trace
        self.made: dict[Any, Any] = {}  # by callee: the structure of its first result
        self.method_sets = MethodSets()
        # Recursive functions that cannot be watched call by call, with the reason.
        self.unsuited: dict[types.CodeType, Refusal] = {}
        self.counted: list[str] = []  # counters and accumulators found in the current run
        self.counts: set[Any] = set()  # shared numbers that calls write (see ``Counts``)
        # Places of accumulators, and whether they sum tensors (see ``Accumulators``).
        self.accumulators: dict[Any, bool] = {}
        self.facts: dict[Any, Event] = {}  # shared values that calls rely on: the step reads them ahead

    def add(self, found: dict[types.CodeType, frozenset[str]]) -> list[str]:
        """Watch calls of these functions one by one from now on. Return the names of the new ones."""
        new = {code: fixed for code, fixed in found.items() if code not in self.known and code not in self.refused}
        self.known.update(new)
        return [code.co_qualname for code in new]

    def unroll(self) -> list[types.CodeType]:
        """Unroll calls from now on, and return the functions concerned. Functions that only compute with numbers go
        first: they alone may be the cause of a refusal."""
        gone = self.unroll_idle() or list(self.known)
        for code in gone:
            self.known.pop(code, None)
        self.refused.update(gone)
        return gone

    def unroll_idle(self) -> list[types.CodeType]:
        """Unroll the functions that only compute with numbers, and return them."""
        idle = [code for code in self.known if code not in self.working]
        for code in idle:
            del self.known[code]
        self.refused.update(idle)
        return idle

    def fixed(self, code: types.CodeType, member: Member | None) -> frozenset[int] | None:
        """Return the positions of the parameters that are the same object in all calls; None if calls are not watched
        one by one. ``member``: the method lookup, if it is a method."""
        alike = () if member is None else (other for other in member.alike if other in self.known)
        known = [code] if code in self.known else list(alike)
        return frozenset(_names(one).index(name) for one in known for name in self.known[one]) if known else None

    def record_unsuitable(self, code: types.CodeType, what: str, remedy: str) -> None:
        """Record why calls of a function are unrolled."""
        place = Place(code.co_filename, code.co_firstlineno, 0, code.co_qualname)
        why = "Calls are followed before any is computed."
        self.unsuited.setdefault(
            code, Refusal("recursion-unsuited", f"{code.co_qualname} calls itself, and {what}", why, remedy, place)
        )

    def record_facts(self, facts: list[Event]) -> None:
        """Record facts that calls rely on."""
        for fact in facts:
            self.facts.setdefault(_place_of(fact), fact)


def _names(code: types.CodeType) -> tuple[str, ...]:
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def _is_unsuited(code: types.CodeType) -> bool:
    return bool(code.co_flags & _UNSUITED or (code.co_flags & _ANY and not code.co_argcount))


def _unsuited(code: types.CodeType) -> tuple[str, str]:
    """Return why calls of a function cannot be watched one by one, and the remedy."""
    if not code.co_flags & _UNSUITED:
        return "takes any arguments (*args, **kwargs)", "Give its parameters names."
    return "is a generator or a coroutine", "Return what it yields, or pass a list along and append to it."


def _ignore_call(event: InvokeOp) -> None:
    """Ignore a watched call."""


def _unchanged_trace(trace: Trace, made: Mapping[Any, Any]) -> Trace:
    """Return the trace unchanged."""
    return trace


def _no_variant_matcher(world: Mapping[Any, Any]) -> VariantMatcher | None:
    return None


def _place_of(fact: Any) -> Any:
    """Return the subject of a fact, independent of its outcome."""
    where = getattr(fact, "access_path", None) or getattr(fact, "base", None) or getattr(fact, "first", None)
    other = getattr(fact, "second", None) or getattr(fact, "key", None)
    return (type(fact).__name__, getattr(where, "token", None), getattr(other, "token", None) or repr(other))


class Discovery:
    """Observes which functions a run enters and leaves. ``operations``: returns the number of operations so far;
    ``working``: receives recursive functions that compute with tensors; ``unsuit``: receives those that cannot be
    watched call by call."""

    def __init__(
        self, operations: Callable[[], int], working: set[types.CodeType], unsuit: Callable[..., None]
    ) -> None:
        self._unsuit = unsuit
        self._operations = operations
        self._begun: list[int] = []  # per active function: operations before it
        self._working = working
        self._computing: set[types.CodeType] = set()  # functions that compute with tensors, inner calls included
        self._stack: list[types.CodeType] = []
        self._active: dict[types.CodeType, int] = {}
        self._given: dict[types.CodeType, dict[str, Any]] = {}
        self._calls: dict[types.CodeType, int] = {}
        self._cyclic: dict[types.CodeType, None] = {}
        self._methods_of_modules: set[types.CodeType] = set()
        self._within: dict[types.CodeType, int] = {}  # calls within the active outermost one
        self._sizes: dict[types.CodeType, int] = {}  # calls within the first outermost one that has ended
        self.varied = False  # whether two outermost calls of a function had different numbers of inner calls

    def enter(self, fn: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record that a function is entered."""
        code = code_of(fn)
        stack, active = self._stack, self._active.get(code, 0)
        bound = None if is_trusted_module(fn.__module__) else bind(fn, args, kwargs)
        if bound is not None:
            self._calls[code] = self._calls.get(code, 0) + 1
            if args and isinstance(args[0], torch.nn.Module):
                self._methods_of_modules.add(code)
            # Ids only: keeping objects alive would delay finalizers.
            marks = {name: _MANY if isinstance(v, (Traced, *_VALUES)) else id(v) for name, v in bound.items()}
            before = self._given.setdefault(code, marks)
            if before is not marks:
                self._given[code] = {name: mark if mark == marks.get(name) else _MANY for name, mark in before.items()}
            if active:
                begun = len(stack) - 1 - stack[::-1].index(code)
                self._cyclic.update(dict.fromkeys(stack[begun:]))
        elif active and _is_unsuited(code) and not is_installed(code.co_filename):
            self._unsuit(code, *_unsuited(code))
        stack.append(code)
        self._begun.append(self._operations())
        self._active[code] = active + 1
        self._within[code] = self._within.get(code, 0) + 1 if active else 1

    def leave(self) -> None:
        """Record that the innermost function has returned or raised."""
        code = self._stack.pop()
        begun = self._begun.pop()
        self._active[code] -= 1
        if self._active[code] and self._operations() > begun:
            self._working.add(code)
        if self._operations() > begun:
            self._computing.add(code)
        if code in self._cyclic and self._is_watchable(code) and not self._active[code]:
            self.varied |= self._sizes.setdefault(code, self._within[code]) != self._within[code]

    def _is_watchable(self, code: types.CodeType) -> bool:
        """Whether calls of a recursive function may be watched one by one: they compute with tensors, or it is the
        program's own and none of its calls does."""
        own = not is_installed(code.co_filename) and not code.co_name.startswith("__")
        return code in self._working or (own and code not in self._computing)

    def recursive(self) -> Iterator[tuple[types.CodeType, frozenset[str]]]:
        """Yield the recursive functions with the parameters that were the same object in all calls.

        Methods of modules that contain modules of their own class are excluded: each has parameters of its own.
        """
        for code in filter(self._is_watchable, self._cyclic):
            given = self._given.get(code)
            if given is None or self._calls[code] < 2:
                continue
            if code in self._methods_of_modules and next(iter(given.values())) is _MANY:
                continue
            yield code, frozenset(name for name in _names(code) if given[name] is not _MANY)
