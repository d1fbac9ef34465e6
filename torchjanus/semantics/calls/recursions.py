"""Which functions of a program call themselves, and what their calls have in common (JANUS 4.2.1, InvokeOp).

Discovery looks on in a run whose recursive calls are watched like any others; Recursions is what is known over all
runs. Knows nothing of how a recursive call is watched.
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
from torchjanus.semantics.calls.method_sets import Families, Member
from torchjanus.semantics.known.trusted import is_installed, is_trusted_module
from torchjanus.trace.actions import Invoked
from torchjanus.trace.events import Event, Trace
from torchjanus.trace.values import Traced

__all__ = ["Discovery", "Recursions", "arguments", "bind"]

_MANY: Any = object()
_UNSUITED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_ANY = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
_VALUES = (int, float, complex, str, bytes, type(None), tuple)  # may be one object by chance


def bind(fn: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """The function's parameters with what they are given; None where they do not fit. What ``*args`` and ``**kwargs``
    take are parameters ``*0`` and ``**name``, of a function that has others, too: one that has none wraps another."""
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
    """What a function is called with, by position and by name. ``bound``: see ``bind``."""
    names = _names(code)
    further = [value for name, value in bound.items() if name.startswith("*") and not name.startswith("**")]
    named = {name: bound[name] for name in names[code.co_argcount :]}
    named |= {name.removeprefix("**"): value for name, value in bound.items() if name.startswith("**")}
    return [*(bound[name] for name in names[: code.co_argcount]), *further], named


class Recogniser(Protocol):
    """Tells which known paths calls take, before they are made."""

    def recognise(
        self, callee: Any, step: Any, given: Sequence[Any], room: int
    ) -> tuple[frozenset[int], int, Any] | None:
        """The numbers of the paths that a call and those within take, its own, and what its result looks like. None
        where one is unknown, or calls would go deeper than ``room`` frames. ``step``: the arguments of the step."""


class Recursions:
    """What is known of the recursive functions of one speculated function, over all its runs."""

    def __init__(self) -> None:
        # Those whose calls are watched each for itself, and which of their parameters are one object in all calls.
        self.known: dict[types.CodeType, frozenset[str]] = {}
        self.refused: set[types.CodeType] = set()  # those that are unrolled, for some reason
        self.working: set[types.CodeType] = set()  # those that were seen to compute with tensors
        self.fresh: list[str] = []  # the names of those that have become known in a run that is going on
        # Takes in a call that was watched; and tells calls that take known variants, which need not be watched.
        self.take: Callable[[Invoked], None] = _leave
        self.recogniser: Callable[[Mapping[Any, Any]], Recogniser | None] = _nobody
        # The run of a call with its lists as rows, given what calls return. Raises Refused.
        self.as_rows: Callable[[Trace, Mapping[Any, Any]], Trace] = _as_it_is
        self.made: dict[Any, Any] = {}  # what the first call of each function has returned
        self.families = Families()
        # Functions that call themselves and cannot be watched call by call, each with the reason.
        self.unsuited: dict[types.CodeType, Refusal] = {}
        self.counted: list[str] = []  # those found in a run that is going on
        self.counts: set[Any] = set()  # where numbers are found that are the same for all calls, and that calls change
        # Where calls add to what the step sets, or count on; whether it is tensors that they add up.
        self.tallies: dict[Any, bool] = {}
        self.facts: dict[Any, Event] = {}  # what calls have relied on that the step could read before all of them

    def add(self, found: dict[types.CodeType, frozenset[str]]) -> list[str]:
        """From now on, calls of these are watched each for itself. Returns their names."""
        new = {code: fixed for code, fixed in found.items() if code not in self.known and code not in self.refused}
        self.known.update(new)
        return [code.co_qualname for code in new]

    def unroll(self) -> list[types.CodeType]:
        """Watch the calls of these no more for themselves, but as any others. Those that only compute with numbers go
        first: it may be for them alone that a run cannot be told."""
        gone = self.unroll_idle() or list(self.known)
        for code in gone:
            self.known.pop(code, None)
        self.refused.update(gone)
        return gone

    def unroll_idle(self) -> list[types.CodeType]:
        """The same for those that only compute with numbers."""
        idle = [code for code in self.known if code not in self.working]
        for code in idle:
            del self.known[code]
        self.refused.update(idle)
        return idle

    def fixed(self, code: types.CodeType, member: Member | None) -> frozenset[int] | None:
        """Which of the function's parameters, by position, are one object in all calls; None where its calls are not
        watched for themselves. ``member``: how a method was found."""
        alike = () if member is None else (other for other in member.alike if other in self.known)
        known = [code] if code in self.known else list(alike)
        return frozenset(_names(one).index(name) for one in known for name in self.known[one]) if known else None

    def unsuit(self, code: types.CodeType, what: str, remedy: str) -> None:
        """Its calls are unrolled."""
        place = Place(code.co_filename, code.co_firstlineno, 0, code.co_qualname)
        why = "Calls are followed before any is computed."
        self.unsuited.setdefault(
            code, Refusal("recursion-unsuited", f"{code.co_qualname} calls itself, and {what}", why, remedy, place)
        )

    def remember(self, facts: list[Event]) -> None:
        """Calls have relied on these."""
        for fact in facts:
            self.facts.setdefault(_place_of(fact), fact)


def _names(code: types.CodeType) -> tuple[str, ...]:
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def _is_unsuited(code: types.CodeType) -> bool:
    return bool(code.co_flags & _UNSUITED or (code.co_flags & _ANY and not code.co_argcount))


def _unsuited(code: types.CodeType) -> tuple[str, str]:
    """Why calls of a function are not watched each for itself, and the way out."""
    if not code.co_flags & _UNSUITED:
        return "takes any arguments (*args, **kwargs)", "Give its parameters names."
    return "is a generator or a coroutine", "Return what it yields, or pass a list along and append to it."


def _leave(event: Invoked) -> None:
    """Nobody learns of it."""


def _as_it_is(trace: Trace, made: Mapping[Any, Any]) -> Trace:
    """Nobody makes a graph of it."""
    return trace


def _nobody(world: Mapping[Any, Any]) -> Recogniser | None:
    return None


def _place_of(fact: Any) -> Any:
    """What a fact is about, whatever it says."""
    where = getattr(fact, "access_path", None) or getattr(fact, "base", None) or getattr(fact, "first", None)
    other = getattr(fact, "second", None) or getattr(fact, "key", None)
    return (type(fact).__name__, getattr(where, "token", None), getattr(other, "token", None) or repr(other))


class Discovery:
    """Looks on while a run enters and leaves functions. ``operations``: how many the run has made so far; ``working``:
    recursive functions that make some; ``unsuit`` is told of those that call themselves and cannot be watched so."""

    def __init__(
        self, operations: Callable[[], int], working: set[types.CodeType], unsuit: Callable[..., None]
    ) -> None:
        self._unsuit = unsuit
        self._operations = operations
        self._begun: list[int] = []  # operations made when each function that is active was entered
        self._working = working
        self._computing: set[types.CodeType] = set()  # those within which some are made
        self._stack: list[types.CodeType] = []
        self._active: dict[types.CodeType, int] = {}
        self._given: dict[types.CodeType, dict[str, Any]] = {}
        self._calls: dict[types.CodeType, int] = {}
        self._cyclic: dict[types.CodeType, None] = {}
        self._methods_of_modules: set[types.CodeType] = set()
        self._within: dict[types.CodeType, int] = {}  # calls made within the outermost one that is going on
        self._sizes: dict[types.CodeType, int] = {}  # and within the first one that has ended
        self.varied = False  # whether one function called itself in different ways

    def enter(self, fn: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A function begins."""
        code = code_of(fn)
        stack, active = self._stack, self._active.get(code, 0)
        bound = None if is_trusted_module(fn.__module__) else bind(fn, args, kwargs)
        if bound is not None:
            self._calls[code] = self._calls.get(code, 0) + 1
            if args and isinstance(args[0], torch.nn.Module):
                self._methods_of_modules.add(code)
            # No object is kept alive by this: a program may wait for its end.
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
        """It has ended."""
        code = self._stack.pop()
        begun = self._begun.pop()
        self._active[code] -= 1
        if self._active[code] and self._operations() > begun:
            self._working.add(code)
        if self._operations() > begun:
            self._computing.add(code)
        if code in self._cyclic and self._is_told(code) and not self._active[code]:
            self.varied |= self._sizes.setdefault(code, self._within[code]) != self._within[code]

    def _is_told(self, code: types.CodeType) -> bool:
        """Whether calls of it, if it calls itself, may be watched each for itself: they work on tensors, or it is the
        program's own and nothing but numbers can come of it."""
        own = not is_installed(code.co_filename) and not code.co_name.startswith("__")
        return code in self._working or (own and code not in self._computing)

    def recursive(self) -> Iterator[tuple[types.CodeType, frozenset[str]]]:
        """The functions that called themselves, and which of their parameters were one object in all calls.

        Modules that hold others of their own class are none: each is another object, with parameters of its own.
        """
        for code in filter(self._is_told, self._cyclic):
            given = self._given.get(code)
            if given is None or self._calls[code] < 2:
                continue
            if code in self._methods_of_modules and next(iter(given.values())) is _MANY:
                continue
            yield code, frozenset(name for name in _names(code) if given[name] is not _MANY)
