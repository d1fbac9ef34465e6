"""The closed list of hooks, and the base of every semantics. Knows nothing of how rewritten code reaches a hook.

Each method is one hook; its first argument is the site that asks. What the methods do here is what Python does
natively, without looking inside of what they call: a semantics overrides the ones it cares about.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from types import CellType
from typing import Any

from torchjanus.rewrite import Site

__all__ = [
    "BINARY",
    "COMPARE",
    "CURRENT",
    "INPLACE",
    "NOTHING",
    "TEXT",
    "UNARY",
    "Semantics",
    "current",
    "native_unpack",
    "using",
]


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
    """What ``a, b = value`` takes out of the value. A starred target gets its list as one element."""
    return _unpacker(before, star, after)(value)


_unpackers: dict[tuple[int, bool, int], Callable[[Any], tuple[Any, ...]]] = {}


def _unpacker(before: int, star: bool, after: int) -> Callable[[Any], tuple[Any, ...]]:
    # The same instructions as the user's own statement: CPython asks an iterator for one element more than it needs,
    # and words its errors by the number of targets.
    made = _unpackers.get((before, star, after))
    if made is None:
        names = [f"a{number}" for number in range(before + star + after)]
        targets = "".join(f"{'*' if star and number == before else ''}{name}, " for number, name in enumerate(names))
        left = targets or "()"
        right = "".join(f"{name}, " for name in names) or ""
        namespace: dict[str, Any] = {}
        exec(compile(f"def take(value):\n    {left} = value\n    return ({right})", __file__, "exec"), namespace)
        made = _unpackers[before, star, after] = namespace["take"]
    return made


NOTHING: AbstractContextManager[Any, Any] = nullcontext()


class Invocation:
    """A callee as rewritten code sees it: called natively, it asks the semantics. Passes for the callee in errors."""

    __slots__ = ("_at", "_fn", "_semantics")

    def __init__(self, semantics: Semantics, at: Site, fn: Any) -> None:
        self._semantics = semantics
        self._at = at
        self._fn = fn

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._semantics.call(self._at, self._fn, args, kwargs)

    @property
    def __module__(self) -> Any:  # type: ignore[override]
        return self._fn.__module__

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fn, name)  # with __module__, what "f() got multiple values for ..." asks for

    def __str__(self) -> str:
        return str(self._fn)


class Semantics:
    """What each construct means. Stateless between calls as far as this class is concerned."""

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
        """What rewritten code calls, natively and in the user's frame, in the place of ``fn``. Must not raise."""
        return Invocation(self, at, fn)

    def frame_reader(self, at: Site, owner: dict[str, Any], fn: Any) -> Any:
        """What is called in the place of a function that looks at its caller's frame (``locals``, ``eval``,
        ``warnings.warn``). It is called natively, from the user's frame; ``owner`` is the frame's globals."""
        return fn

    def call(self, at: Site, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return fn(*args, **kwargs)

    def star(self, at: Site, iterable: Any) -> Iterable[Any]:
        """``*iterable`` in a call or a display."""
        result: Iterable[Any] = iterable
        return result

    def double_star(self, at: Site, mapping: Any) -> Mapping[Any, Any]:
        """``**mapping`` in a call or a display."""
        result: Mapping[Any, Any] = mapping
        return result

    def returned(self, at: Site, value: Any) -> Any:
        return value

    # ---- truth and operators ----

    def branch(self, at: Site, value: Any) -> bool:
        """The truth of a value that decides which path the program takes; ``at.kind`` says in which construct."""
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
        """What the loop is to iterate over, natively."""
        result: Iterable[Any] = iterable
        return result

    def delegate(self, at: Site, iterable: Any) -> Any:
        """What ``yield from`` is to pass on, natively."""
        return iterable

    def descend(self, at: Site, value: Any, op: str, bound: int) -> Any:
        """What the variable of a ``while`` that counts down becomes before it is asked whether it is ``op`` (">", ">="
        or "!=") the bound."""
        return value

    def hashed(self, at: Site, value: Any) -> Any:
        """What becomes a key of a dictionary, or an element of a set, that is written out or comprehended."""
        return value

    def making(self, at: Site) -> int:
        """A list, set or dictionary is comprehended from here on. Returns what ``made`` is told."""
        return -1

    def gathered(self, at: Site, value: Any) -> Any:
        """What becomes an element of it, a key or a value."""
        return value

    def made(self, at: Site, level: int, container: Any) -> Any:
        """What has been comprehended."""
        return container

    def unpack(self, at: Site, value: Any, before: int, star: bool, after: int) -> tuple[Any, ...]:
        """``before + star + after`` elements; the starred one is a list."""
        return native_unpack(value, before, star, after)

    # ---- blocks and the rest ----

    def context(self, at: Site, manager: Any) -> AbstractContextManager[Any, Any]:
        """What ``with`` is to enter, natively."""
        result: AbstractContextManager[Any, Any] = manager
        return result

    def region(self, at: Site) -> AbstractContextManager[Any, Any]:
        """Entered before an ``if`` statement asks for anything, and left where both of its variants have met again."""
        return NOTHING

    def raised(self, at: Site, exception: Any) -> Any:
        return exception

    def caught(self, at: Site, exception: BaseException) -> None:
        """A handler or a ``finally`` block of user code begins while ``exception`` is being handled."""

    def join(self, at: Site, pieces: tuple[str, ...]) -> str:
        """The pieces of an f-string, formatted and literal, as one text."""
        return "".join(pieces)

    def format(self, at: Site, value: Any, conversion: str, spec: str) -> str:
        """A value in an f-string. ``conversion``: "", "s", "r" or "a"."""
        if conversion:
            value = TEXT[conversion](value)
        return format(value, spec)


CURRENT: ContextVar[Semantics | None] = ContextVar("torchjanus semantics", default=None)


def current() -> Semantics | None:
    """The semantics in force, or None outside of any: then rewritten code does what Python does."""
    return CURRENT.get()


@contextmanager
def using(semantics: Semantics | None) -> Iterator[None]:
    """Rewritten code that runs inside of the block runs under ``semantics``."""
    token = CURRENT.set(semantics)
    try:
        yield
    finally:
        CURRENT.reset(token)
