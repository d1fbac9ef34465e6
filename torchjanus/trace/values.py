"""Traced numbers and texts: Python values with the expression that computes them. Knows nothing of torch.

A traced value is a subclass of int, float or str with its real value, so any code can use it. Its expression ranges
over heap reads and fetches from tensors. Code that does not know traced values drops the expression, so
a value must be specialised on (``pin``) before it is passed to such code.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from torchjanus.core.access_path import AccessPath, Step, token_of
from torchjanus.core.errors import NOWHERE, Place
from torchjanus.core.kinds import getattr, isinstance

__all__ = [
    "DEEP", "ON_DEPTH", "ON_HASH", "Apply", "DisplayedValue", "Expr", "Fetch", "InductionVariable", "Read", "Size",
    "Traced", "TracedFloat", "TracedInt", "TracedObject", "TracedStr", "depends_on", "is_local", "known_by_host",
    "leaves", "plain", "plus", "symbol", "trace_value", "traced_key", "where_made",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Read:
    """A number that was at ``access_path`` when the call began."""

    access_path: AccessPath

    @property
    def token(self) -> Any:
        return ("read", self.access_path.token)

    def read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the value that is there now."""
        return self.access_path.read(args, kwargs)

    def __str__(self) -> str:
        return str(self.access_path)


@dataclass(frozen=True, slots=True)
class Fetch:
    """The result of ``.item()`` of tensor ``ref`` after ``after`` framework calls; ``index`` picks from ``.tolist()``.

    If ``type`` is not int, float or bool it is the tensor's class: a snapshot of the tensor, to be printed. ``each``: a
    list with the item of each row of ``ref``. ``place``: the line that fetches it.
    """

    ref: int
    after: int
    type: type
    index: int | None = None
    each: bool = False
    place: Place = field(default=NOWHERE, compare=False, repr=False)

    @property
    def token(self) -> Any:
        return ("fetch", self.ref, self.after, self.type.__name__, self.index, *(("each",) if self.each else ()))

    def read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Raise ValueError: only the graph computes it."""
        raise ValueError(f"{self} is not known before the graph has run")

    def __str__(self) -> str:
        if self.each:
            return f"each %{self.ref}.item()"
        return f"%{self.ref}.item()" if self.index is None else f"%{self.ref}.tolist()[{self.index}]"


@dataclass(frozen=True, slots=True)
class Size:
    """``tensor.shape[dim]`` after ``after`` framework calls, of a tensor that the call made. (The size of an input is a
    Read.)"""

    ref: int
    dim: int
    after: int

    @property
    def token(self) -> Any:
        return ("size", self.ref, self.dim, self.after)

    def __str__(self) -> str:
        return f"%{self.ref}.shape[{self.dim}]"


@dataclass(frozen=True, slots=True)
class InductionVariable:
    """An affine induction variable: ``first`` in the first iteration, ``step`` more in each (0: a single iteration)."""

    first: int
    step: int = 0

    @property
    def token(self) -> Any:
        return ("index", self.first, self.step)

    def read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """Return its value in the first iteration."""
        return self.first

    def __str__(self) -> str:
        return f"{self.first} + {self.step} * turn" if self.step else str(self.first)


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A placeholder for expression ``number`` of a list, in a process that cannot read it; ``text`` prints it."""

    number: int
    text: str

    @property
    def token(self) -> Any:
        return ("stand", self.number)

    def read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Raise ValueError: it has no value in this process."""
        raise ValueError(f"{self} is not known in this process")

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True, eq=False)
class Apply:
    """``func(*args)`` for a pure function of expressions and constants. ``place``: the line that first computed it."""

    func: Callable[..., Any]
    args: tuple[Any, ...]
    place: Place = field(default=NOWHERE, repr=False)
    depth: int = field(init=False)  # nesting depth of operations

    def __post_init__(self) -> None:
        object.__setattr__(self, "depth", 1 + max((a.depth for a in self.args if isinstance(a, Apply)), default=0))

    @property
    def token(self) -> Any:
        parts = (a.token if isinstance(a, Expr) else token_of(a) for a in self.args)
        return ("apply", token_of(self.func), *parts)

    def read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Evaluate it now. Raises ValueError if it depends on a fetch."""
        read = (Read, Fetch, InductionVariable, Apply)
        return self.func(*(a.read(args, kwargs) if isinstance(a, read) else a for a in self.args))

    def __hash__(self) -> int:
        return hash(self.token)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Apply) and self.token == other.token

    def __str__(self) -> str:
        sign = INFIX.get(self.func)
        texts = [str(a) if isinstance(a, Expr) else repr(a) for a in self.args]
        if sign and len(texts) == 2:
            return f"({texts[0]} {sign} {texts[1]})"
        name = getattr(self.func, "__name__", repr(self.func))
        return f"{name}({', '.join(texts)})"


Expr = Read | Fetch | Size | InductionVariable | Placeholder | Apply

INFIX: dict[Callable[..., Any], str] = {
    operator.add: "+",
    operator.sub: "-",
    operator.mul: "*",
    operator.truediv: "/",
    operator.floordiv: "//",
    operator.mod: "%",
    operator.pow: "**",
    operator.and_: "&",
    operator.or_: "|",
    operator.xor: "^",
    operator.lshift: "<<",
    operator.rshift: ">>",
    operator.lt: "<",
    operator.le: "<=",
    operator.gt: ">",
    operator.ge: ">=",
    operator.eq: "==",
    operator.ne: "!=",
}


# Called when a traced value is hashed: a dictionary or set is about to compare it with its keys, so the run depends on
# the value itself.
ON_HASH: ContextVar[Callable[[Any], None] | None] = ContextVar("torchjanus hashed", default=None)


# Called when an expression gets deeper than DEEP: the value is not traced any further.
ON_DEPTH: ContextVar[Callable[[], None] | None] = ContextVar("torchjanus deep", default=None)
DEEP = 200


def _hashed(value: Any) -> None:
    notify = ON_HASH.get()
    if notify is not None:
        notify(value)


class TracedInt(int):
    """An int with its expression in ``expr``."""

    expr: Expr

    def __hash__(self) -> int:
        _hashed(self)
        return int.__hash__(self)

    def __reduce__(self) -> Any:
        return (int, (int(self),))


class TracedFloat(float):
    """A float with its expression in ``expr``. ``bare``: for a NaN the original object, since NaNs are not equal."""

    expr: Expr
    bare: float | None = None

    def __hash__(self) -> int:
        _hashed(self)
        return float.__hash__(self)

    def __reduce__(self) -> Any:
        return (float, (plain(self),))


class TracedStr(str):
    """A text with its expression in ``expr``."""

    expr: Expr

    def __hash__(self) -> int:
        _hashed(self)
        return str.__hash__(self)

    def __reduce__(self) -> Any:
        return (str, (str.__str__(self),))


@dataclass(frozen=True, slots=True, eq=False)
class TracedObject:
    """An object that is looked up in a container, with the expression that reads it: another object may be there at
    each call. Only keys of events are TracedObjects; the program never gets one."""

    value: Any
    expr: Read


@dataclass(frozen=True, slots=True, eq=False)
class DisplayedValue:
    """Represents a value that is only printed, by a call made at commit."""

    expr: Expr


Traced = TracedInt | TracedFloat | TracedStr | TracedObject
_SUBCLASS: dict[int, Any] = {id(int): TracedInt, id(float): TracedFloat, id(str): TracedStr}
for _plain_class in (int, float, str):
    _SUBCLASS[id(_plain_class)].__name__ = _plain_class.__name__  # error messages of native code name the class


def _bare(value: TracedFloat) -> float:
    return float.__float__(value) if value.bare is None else value.bare


# By the id of the class: a metaclass of the program's may have no hash.
_PLAIN: dict[int, Callable[[Any], Any]] = {
    id(TracedInt): int.__int__,
    id(TracedFloat): _bare,
    id(TracedStr): str.__str__,
    id(TracedObject): operator.attrgetter("value"),
}


def trace_value(value: Any, expr: Expr) -> Any:
    """Return ``value`` with ``expr`` attached. Only exact ints, floats and strings carry one; others are returned as
    they are."""
    cls = _SUBCLASS.get(id(type(value)))
    if cls is None:
        return value
    if isinstance(expr, Apply) and expr.depth > DEEP and (notify := ON_DEPTH.get()) is not None:
        notify()
        return value
    traced = cls(value)
    traced.expr = expr
    if value != value:
        traced.bare = value
    return traced


def traced_key(key: Any, expr: Expr) -> Any:
    """Return a key with its expression: a number or a text, or an object that ``expr`` reads."""
    if id(type(key)) in _SUBCLASS:
        return trace_value(key, expr)
    return TracedObject(key, expr) if isinstance(expr, Read) else key


def plain(value: Any) -> Any:
    """Return the untraced value, which the unwatched program would hold."""
    strip = _PLAIN.get(id(type(value)))
    return value if strip is None else strip(value)


def symbol(value: Any) -> Any:
    """Return the expression of a traced value, and any other value as it is."""
    return value.expr if isinstance(value, Traced) else value


def leaves(expr: Expr) -> Iterator[Read | Fetch | Size | InductionVariable | Placeholder]:
    """Yield the reads, fetches, sizes and induction variables that an expression depends on."""
    if isinstance(expr, Apply):
        for arg in expr.args:
            if isinstance(arg, Expr):
                yield from leaves(arg)
    else:
        yield expr


def depends_on(expr: Any, kinds: Any) -> bool:
    """Whether an expression depends on a read, fetch, size or induction variable of these classes."""
    return isinstance(expr, Expr) and any(isinstance(leaf, kinds) for leaf in leaves(expr))


def plus(count: Expr, more: int) -> Expr:
    """Return ``count + more``."""
    return Apply(operator.add, (count, more)) if more else count


def where_made(expr: Expr, used: Place) -> str:
    """Return in words where the expression was fetched from tensors and computed, "" if on the line where it is
    ``used``."""
    lines = {f"fetched in {_line(leaf.place, used)}": leaf.place for leaf in leaves(expr) if isinstance(leaf, Fetch)}
    if lines and isinstance(expr, Apply):
        lines[f"computed in {_line(expr.place, used)}"] = expr.place
    found = [text for text, place in lines.items() if place != NOWHERE and _line(place, used) != _line(used, used)]
    return ", ".join(found)


def _line(place: Place, used: Place) -> str:
    return f"line {place.line}" if place.file == used.file else str(place)


def known_by_host(expr: Any) -> bool:
    """Whether an expression, or a constant, depends on no tensor."""
    return not isinstance(expr, Read | Fetch | Apply) or all(isinstance(leaf, Read) for leaf in leaves(expr))


def is_local(access_path: AccessPath) -> bool:
    """Whether the path begins at a parameter of a recursive call, or leads through an item chosen by one."""
    for at in access_path.prefixes():
        if at.step is Step.PARAMETER:
            return True
        if at.step is Step.AT and any(isinstance(leaf, Read) and is_local(leaf.access_path) for leaf in leaves(at.key)):
            return True
    return False
