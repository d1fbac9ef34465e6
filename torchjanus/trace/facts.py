"""Facts that a watched run relied on: what it read from the heap, and the outcomes of its predicates. Plain data.

Numbers read from the heap and the identity of objects are left out of tokens: generalising decides what to make of
their difference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchjanus.core.access_path import AccessPath, token_of
from torchjanus.core.errors import NOWHERE, Place
from torchjanus.core.kinds import isinstance
from torchjanus.trace.terms import TensorRef, key_token, text_of
from torchjanus.trace.values import Expr, Fetch, Read, depends_on, leaves, where_made

__all__ = [
    "EmptinessTest", "HeapRead", "HostComputation", "IdentityTest", "InstanceTest", "KeyLookup", "KeySetRead",
    "NumberPredicate", "Specialization", "TensorPredicate", "is_chance", "is_question",
]  # fmt: skip


def _without_sizes(detail: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what is known of a tensor but for its sizes: generalising decides what to make of those."""
    cls, dtype, shape, strides, *others = detail
    return (cls, dtype, len(shape), strides if isinstance(strides, str) else None, *others)


@dataclass(frozen=True, slots=True, eq=False)
class HeapRead:
    """A read that saw the heap as it was before the call, or what an extern call gave.

    ``kind``: number (texts that extern calls gave, too), constant, tensor, pinned, object, or foreign: an object that
    only foreign code understands.
    """

    access_path: AccessPath
    value: Any
    kind: str
    detail: Any = None  # tensors: their metadata; objects: their type
    place: Place = NOWHERE

    @property
    def token(self) -> Any:
        match self.kind:
            case "number":
                what: Any = type(self.value).__name__
            case "constant" | "pinned":
                what = token_of(self.value)
            case "tensor":
                what = _without_sizes(self.detail)
            case _:
                what = self.detail
        return ("found", self.access_path.token, self.kind, what)

    def __str__(self) -> str:
        shown = self.detail if self.kind == "tensor" else text_of(self.value)
        return f"read   {self.access_path} -> {shown}"


@dataclass(frozen=True, slots=True, eq=False)
class KeyLookup:
    """``key`` was not (``present`` False) or was in the container at ``base`` before the call."""

    base: AccessPath
    key: Any
    present: bool = False
    place: Place = NOWHERE

    @property
    def token(self) -> Any:
        return ("absent", self.base.token, key_token(self.key), self.present)

    def __str__(self) -> str:
        key = text_of(self.key)
        return f"read   {key} {'in' if self.present else 'not in'} {self.base}"


@dataclass(frozen=True, slots=True, eq=False)
class EmptinessTest:
    """Whether the container at ``access_path`` had any elements."""

    access_path: AccessPath
    filled: bool
    place: Place = NOWHERE

    @property
    def token(self) -> Any:
        return ("filled", self.access_path.token, self.filled)

    def __str__(self) -> str:
        return f"read   {self.access_path} is {'not ' if self.filled else ''}empty"


@dataclass(frozen=True, slots=True, eq=False)
class KeySetRead:
    """The keys of a dictionary (or the elements of a set), in iteration order."""

    access_path: AccessPath
    keys: tuple[Any, ...]
    place: Place = NOWHERE

    @property
    def token(self) -> Any:
        return ("keys", self.access_path.token, *(token_of(k) for k in self.keys))

    def __str__(self) -> str:
        return f"read   keys of {self.access_path}: {text_of(self.keys)}"


@dataclass(frozen=True, slots=True, eq=False)
class IdentityTest:
    """Whether two paths led to one object."""

    first: AccessPath
    second: AccessPath
    same: bool
    place: Place = NOWHERE

    @property
    def token(self) -> Any:
        return ("same", self.first.token, self.second.token, self.same)

    def __str__(self) -> str:
        return f"assume {self.first} is {'' if self.same else 'not '}{self.second}"


@dataclass(frozen=True, slots=True, eq=False)
class InstanceTest:
    """A recursive call asked whether what it found is of one of these classes, or of one derived from them."""

    access_path: AccessPath
    classes: type | tuple[type, ...]
    outcome: bool
    place: Place = NOWHERE

    @property
    def token(self) -> Any:
        return ("instance", self.access_path.token, token_of(self.classes), self.outcome)

    def __str__(self) -> str:
        return f"assume {self.access_path} is {'' if self.outcome else 'not '}of {text_of(self.classes)}"


@dataclass(frozen=True, slots=True, eq=False)
class NumberPredicate:
    """A condition on traced numbers came out as ``outcome``."""

    expr: Expr
    outcome: bool
    place: Place = NOWHERE

    @property
    def token(self) -> Any:
        return ("held", self.expr.token, self.outcome)

    def __str__(self) -> str:
        return f"assume {self.expr} is {self.outcome}{_in_brackets(where_made(self.expr, self.place))}"


@dataclass(frozen=True, slots=True, eq=False)
class Specialization:
    """A traced number went where only its value counts (an index, a size, code that is not watched)."""

    expr: Expr
    value: Any
    place: Place = NOWHERE
    why: str = ""

    @property
    def token(self) -> Any:
        return ("pinned", self.expr.token, token_of(self.value))

    def __str__(self) -> str:
        return f"assume {self.expr} == {self.value!r}{_in_brackets(self.why, where_made(self.expr, self.place))}"


@dataclass(frozen=True, slots=True, eq=False)
class HostComputation:
    """Python computed a number or a text, which might have raised. A graph computes it again, used or not."""

    expr: Expr
    place: Place = NOWHERE

    @property
    def token(self) -> Any:
        return ("computed", self.expr.token)

    def __str__(self) -> str:
        return f"assume {self.expr} does not raise{_in_brackets(where_made(self.expr, self.place))}"


@dataclass(frozen=True, slots=True, eq=False)
class TensorPredicate:
    """``bool(tensor)`` after ``after`` framework calls."""

    ref: TensorRef
    outcome: bool
    after: int
    place: Place = NOWHERE

    @property
    def token(self) -> Any:
        return ("asserted", self.ref.number, self.outcome)

    def __str__(self) -> str:
        return f"assert bool({self.ref}) is {self.outcome}"


def _in_brackets(*remarks: str) -> str:
    structure = "; ".join(filter(None, remarks))
    return f" ({structure})" if structure else ""


def is_question(event: Any) -> bool:
    """Whether a tensor was asked to decide."""
    kind = type(event)
    return kind is TensorPredicate or (kind is NumberPredicate and depends_on(event.expr, Fetch))


def is_chance(event: Any) -> bool:
    """Whether what the host was given by the world decided."""
    return type(event) is NumberPredicate and any(
        isinstance(leaf, Read) and leaf.access_path.waits_for for leaf in leaves(event.expr)
    )
