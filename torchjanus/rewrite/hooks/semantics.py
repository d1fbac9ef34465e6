"""The closed list of hooks, and the base class of every semantics. Knows nothing of how rewritten code reaches a hook.

Each method is one hook. Its first argument is the site that asks. The methods here do what Python does natively,
without looking into what they call. A semantics overrides the hooks that it needs.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from types import CellType, MethodType
from typing import Any

from torchjanus.rewrite import Site

__all__ = [
    "BINARY", "COMPARE", "CURRENT", "INPLACE", "NOTHING", "TEXT", "UNARY", "Invocation", "PendingCall", "Semantics",
    "called_back", "current", "invoked", "make_calls_by", "native_unpack", "using",
]  # fmt: skip


def _not_in(a: Any, b: Any) -> bool:
    return a not in b


def _in(a: Any, b: Any) -> bool:
    return a in b


BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "@": operator.matmul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
    "<<": operator.lshift,
    ">>": operator.rshift,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
}
INPLACE: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.iadd,
    "-": operator.isub,
    "*": operator.imul,
    "@": operator.imatmul,
    "/": operator.itruediv,
    "//": operator.ifloordiv,
    "%": operator.imod,
    "**": operator.ipow,
    "<<": operator.ilshift,
    ">>": operator.irshift,
    "&": operator.iand,
    "|": operator.ior,
    "^": operator.ixor,
}
UNARY: dict[str, Callable[[Any], Any]] = {"+": operator.pos, "-": operator.neg, "~": operator.invert}
COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "is": operator.is_,
    "is not": operator.is_not,
    "in": _in,
    "not in": _not_in,
}
TEXT: dict[str, Callable[[Any], str]] = {"s": str, "r": repr, "a": ascii}  # by the letter of the conversion


def native_unpack(value: Any, before: int, star: bool, after: int) -> tuple[Any, ...]:
    """Return the elements that ``a, b = value`` takes from the value. A starred target is one element, a list."""
    return _unpacker(before, star, after)(value)


@functools.lru_cache(256)
def _unpacker(before: int, star: bool, after: int) -> Callable[[Any], tuple[Any, ...]]:
    # Compiled code has the same instructions as the user's statement: CPython asks an iterator for one element more
    # than it needs, and words its errors by the number of targets.
    names = [f"a{number}" for number in range(before + star + after)]
    targets = "".join(f"{'*' if star and number == before else ''}{name}, " for number, name in enumerate(names))
    left = targets or "()"
    right = "".join(f"{name}, " for name in names) or ""
    namespace: dict[str, Any] = {}
    exec(compile(f"def take(value):\n    {left} = value\n    return ({right})", __file__, "exec"), namespace)
    taking: Callable[[Any], tuple[Any, ...]] = namespace["take"]
    return taking


NOTHING: AbstractContextManager[Any, Any] = nullcontext()


class PendingCall:
    """A call that has not begun yet. To make it, take the arguments out of the list and the dictionary."""

    __slots__ = ("args", "fn", "kwargs")

    def __init__(self, fn: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
        self.fn = fn
        self.args = args
        self.kwargs = kwargs


class Invocation:
    """A callee that asks the semantics to make the call. It looks like the callee in error messages.

    The interpreter holds the arguments of a call of an object until the call ends; those of a function or a bound
    method belong to the callee. So rewritten code calls the bound ``__call__``, but for starred arguments, whose error
    messages name the callee.
    """

    __slots__ = ("_at", "_fn", "_semantics")

    def __init__(self, semantics: Semantics, at: Site, fn: Any) -> None:
        self._semantics = semantics
        self._at = at
        self._fn = fn

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        hand_over = self._semantics._hand_over
        if hand_over is None:
            return self._semantics.call(self._at, self._fn, args, kwargs)
        call = PendingCall(self._fn, [*args], kwargs)
        self._fn = args = None  # type: ignore[assignment]
        return hand_over(self._at, call)

    @property
    def __module__(self) -> Any:  # type: ignore[override]
        return self._fn.__module__

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fn, name)  # read, with __module__, for the text of "f() got multiple values for ..."

    def __str__(self) -> str:
        return str(self._fn)


class Callback(Invocation):
    """A function of the program that native code is given to call: any number of times, also after the run, when the
    program's own function is called."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if CURRENT.get() is not self._semantics:
            return self._fn(*args, **kwargs)
        return self._semantics.call(self._at, self._fn, args, kwargs)


_invoke = Invocation.__call__
_call_back = Callback.__call__


def invoked(callee: Any) -> Any:
    """Return the Invocation that rewritten code is to call, and what else it calls as it is."""
    is_ours = type(callee) is MethodType and type(callee.__self__) in (Invocation, Callback)
    return callee.__self__ if is_ours else callee


def called_back(semantics: Semantics, at: Site, fn: Any) -> Any:
    """Return what native code is given to call in place of a function of the program."""
    return MethodType(_call_back, Callback(semantics, at, fn))


def make_calls_by(semantics: Semantics, make: Callable[[Site, PendingCall], Any]) -> None:
    """Let ``make`` make calls in place of ``semantics.call``: only the callee may hold the arguments."""
    semantics._hand_over = make


class Semantics:
    """The meaning of each construct of Python. This class keeps no state between calls."""

    _hand_over: Callable[[Site, PendingCall], Any] | None = None  # see ``make_calls_by``

    # ---- attributes and items ----

    def attr(self, at: Site, obj: Any, name: str) -> Any:
        return getattr(obj, name)

    def set_attr(self, at: Site, obj: Any, name: str, value: Any) -> None:
        setattr(obj, name, value)

    def del_attr(self, at: Site, obj: Any, name: str) -> None:
        delattr(obj, name)

    def item(self, at: Site, obj: Any, key: Any) -> Any:
        return obj[key]

    def set_item(self, at: Site, obj: Any, key: Any, value: Any) -> None:
        obj[key] = value

    def del_item(self, at: Site, obj: Any, key: Any) -> None:
        del obj[key]

    # ---- variables: ``value`` was loaded natively, or is stored natively right after ----

    def get_global(self, at: Site, owner: dict[str, Any], name: str, value: Any) -> Any:
        return value

    def set_global(self, at: Site, owner: dict[str, Any], name: str, value: Any) -> Any:
        return value

    def del_global(self, at: Site, owner: dict[str, Any], name: str) -> None:
        """Called after the variable has been deleted."""

    def get_cell(self, at: Site, cell: CellType, name: str, value: Any) -> Any:
        return value

    def set_cell(self, at: Site, cell: CellType, name: str, value: Any) -> Any:
        return value

    def del_cell(self, at: Site, cell: CellType, name: str) -> None:
        """Called after the variable has been deleted."""

    # ---- calls ----

    def callee(self, at: Site, fn: Any) -> Any:
        """Return what rewritten code calls in place of ``fn``, natively and in the user's frame. Must not raise."""
        return MethodType(_invoke, Invocation(self, at, fn))

    def frame_reader(self, at: Site, owner: dict[str, Any], fn: Any) -> Any:
        """Return what is called in place of a function that looks at its caller's frame (``locals``, ``eval``,
        ``warnings.warn``). The call is native, from the user's frame. ``owner`` is the frame's globals."""
        return fn

    def call(self, at: Site, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return fn(*args, **kwargs)

    def star(self, at: Site, iterable: Any) -> Iterable[Any]:
        """Return what ``*iterable`` unpacks in a call or a display."""
        result: Iterable[Any] = iterable
        return result

    def double_star(self, at: Site, mapping: Any) -> Mapping[Any, Any]:
        """Return what ``**mapping`` unpacks in a call or a display."""
        result: Mapping[Any, Any] = mapping
        return result

    def returned(self, at: Site, value: Any) -> Any:
        return value

    # ---- truth and operators ----

    def branch(self, at: Site, value: Any) -> bool:
        """Return the truth of a value that decides which path the program takes. ``at.kind`` names the construct."""
        return bool(value)

    def not_(self, at: Site, value: Any) -> bool:
        return not value

    def compare(self, at: Site, op: str, a: Any, b: Any) -> Any:
        return COMPARE[op](a, b)

    def binary(self, at: Site, op: str, a: Any, b: Any) -> Any:
        return BINARY[op](a, b)

    def inplace(self, at: Site, op: str, a: Any, b: Any) -> Any:
        return INPLACE[op](a, b)

    def unary(self, at: Site, op: str, a: Any) -> Any:
        return UNARY[op](a)

    # ---- iteration ----

    def iterate(self, at: Site, iterable: Any) -> Iterable[Any]:
        """Return what the loop iterates over natively."""
        result: Iterable[Any] = iterable
        return result

    def delegate(self, at: Site, iterable: Any) -> Any:
        """Return what ``yield from`` delegates to natively."""
        return iterable

    def descend(self, at: Site, value: Any, op: str, bound: int) -> Any:
        """Return the value of the induction variable of a ``while`` that counts down, before it is compared with the
        bound by ``op`` (">", ">=" or "!=")."""
        return value

    def hashed(self, at: Site, value: Any) -> Any:
        """Return what becomes a key of a dictionary, or an element of a set, in a display or comprehension."""
        return value

    def making(self, at: Site) -> int:
        """A comprehension of a list, set or dictionary begins. Return the ``level`` that ``made`` is given."""
        return -1

    def gathered(self, at: Site, value: Any) -> Any:
        """Return what becomes an element, a key or a value of a comprehension."""
        return value

    def made(self, at: Site, level: int, container: Any) -> Any:
        """Return the container that a comprehension has made."""
        return container

    def unpack(self, at: Site, value: Any, before: int, star: bool, after: int) -> tuple[Any, ...]:
        """Return ``before + star + after`` elements of the value. The starred one is a list."""
        return native_unpack(value, before, star, after)

    # ---- blocks and the rest ----

    def context(self, at: Site, manager: Any) -> AbstractContextManager[Any, Any]:
        """Return what ``with`` enters natively."""
        result: AbstractContextManager[Any, Any] = manager
        return result

    def region(self, at: Site) -> AbstractContextManager[Any, Any]:
        """Return a context that is entered before an ``if`` statement's condition and left where its arms join."""
        return NOTHING

    def raised(self, at: Site, exception: Any) -> Any:
        return exception

    def caught(self, at: Site, exception: BaseException) -> None:
        """A handler or a ``finally`` block of user code begins while ``exception`` is handled."""

    def join(self, at: Site, pieces: tuple[str, ...]) -> str:
        """Return an f-string made of its formatted and literal pieces."""
        return "".join(pieces)

    def format(self, at: Site, value: Any, conversion: str, spec: str) -> str:
        """Return a value of an f-string as text. ``conversion`` is "", "s", "r" or "a"."""
        if conversion:
            value = TEXT[conversion](value)
        return format(value, spec)


CURRENT: ContextVar[Semantics | None] = ContextVar("torchjanus semantics", default=None)


def current() -> Semantics | None:
    """Return the current semantics, or None: then rewritten code does what Python does."""
    return CURRENT.get()


@contextmanager
def using(semantics: Semantics | None) -> Iterator[None]:
    """Make ``semantics`` current for rewritten code that runs inside the block."""
    token = CURRENT.set(semantics)
    try:
        yield
    finally:
        CURRENT.reset(token)
