"""Watch operations on values: decisions, arithmetic and text propagate the expressions of traced numbers."""

from __future__ import annotations

import collections
import operator
from collections.abc import Callable
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath
from torchjanus.core.kinds import hasattr, is_one_of, isinstance
from torchjanus.rewrite import Site
from torchjanus.semantics.native.containers import CONTAINERS, as_given
from torchjanus.semantics.native.identities import compared
from torchjanus.semantics.native.number_classes import hold_class
from torchjanus.semantics.record.write_record import ABSENT
from torchjanus.semantics.torch.sizes import holds_traced
from torchjanus.semantics.watch.objects.errors import Errors, specialising_on_error
from torchjanus.semantics.watch.objects.state import Part, WatchState
from torchjanus.semantics.watch.objects.truths import is_counted, truth_of
from torchjanus.trace.events import Decision
from torchjanus.trace.facts import IdentityTest, NumberPredicate
from torchjanus.trace.values import (
    Apply,
    Read,
    Traced,
    TracedFloat,
    TracedInt,
    TracedStr,
    known_by_host,
    plain,
    symbol,
    trace_value,
)

__all__ = ["INPLACE", "OPERATORS", "UNARY", "Values"]

_ONE_OF_EACH = range(-5, 257)  # CPython's cached small integers

OPERATORS: dict[str, Callable[..., Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
    "@": operator.matmul,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<<": operator.lshift,
    ">>": operator.rshift,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
UNARY: dict[str, Callable[..., Any]] = {"-": operator.neg, "+": operator.pos, "~": operator.invert}
INPLACE = {
    "+": "iadd", "-": "isub", "*": "imul", "/": "itruediv", "//": "ifloordiv", "%": "imod", "**": "ipow",
    "@": "imatmul", "&": "iand", "|": "ior", "^": "ixor", "<<": "ilshift", ">>": "irshift",
}  # fmt: skip


class Values(Part):
    """Operators, truth values and formatting."""

    def __init__(self, state: WatchState, errors: Errors) -> None:
        super().__init__(state)
        self.errors = errors

    # -- decisions ------------------------------------------------------------------------------------------------

    @specialising_on_error
    def truth(self, at: Site, value: Any) -> bool:
        self.at(at)
        recording = self.recording
        if type(value) is not bool:
            value = self.natives.behind(value)
        if type(value) is bool:
            outcome = value
        elif isinstance(value, TracedInt | TracedFloat):
            outcome = recording.hold(Apply(bool, (value.expr,)), bool(plain(value)))
        elif isinstance(value, TracedStr) and known_by_host(value.expr):
            outcome = recording.hold(Apply(bool, (value.expr,)), bool(plain(value)))
        elif isinstance(value, TracedStr):
            outcome = bool(recording.pin(value, "decides a branch"))
        elif isinstance(value, CONTAINERS) and (access_path := recording.owner(value)) is not None:
            outcome = self.natives.filled(value, access_path)
        else:
            if recording.owner(value) is not None and not isinstance(value, torch.Tensor) and _native_length(value):
                self.state.refuse_container(value, "truth value")
            outcome = bool(value)
        recording.note(Decision(outcome, recording.place))
        if at is not None and at.kind == "while":
            recording.turn(at)
        return outcome

    @specialising_on_error
    def native_compare(self, at: Site, op: str, a: Any, b: Any) -> Any:
        self.at(at)
        recording = self.recording
        if op in ("is", "is not"):
            if isinstance(a, Traced) or isinstance(b, Traced):
                return self._is_one_number(a, b) is (op == "is")
            same = plain(a) is plain(b)
            first, second = recording.owner(a), recording.owner(b)
            if a is None or b is None:  # a result of native code may be None at the next call
                given = second if a is None else first
                if given is not None and given.waits_for:
                    recording.note_once(IdentityTest(given, AccessPath.const(None), same, recording.place))
            if first is not None and second is not None and first != second:
                recording.note_once(IdentityTest(first, second, same, recording.place))
            return same if op == "is" else not same
        if op in ("in", "not in"):
            found = self.natives.contains(b, a)
            return found if op == "in" else not found
        a, b = self.natives.shown(a), self.natives.shown(b)
        function = OPERATORS[op]
        if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
            return function(a, b)
        if isinstance(a, Traced) or isinstance(b, Traced):
            asked, outcome = Apply(function, (symbol(a), symbol(b))), function(plain(a), plain(b))
            truth = truth_of(NumberPredicate(asked, outcome, recording.place)) if is_counted(at) else None
            return recording.hold(asked, outcome) if truth is None else truth
        if (
            op in ("==", "!=")
            and is_one_of(type(a), _SIZES)
            and is_one_of(type(b), _SIZES)
            and (holds_traced(a) or holds_traced(b))
        ):
            pairs = zip(self.natives.consumed(a), self.natives.consumed(b), strict=False)
            # Sizes that are the same object need no assumption: the guards on tensor sizes imply equality.
            equal = self.natives.equal
            same = len(a) == len(b) and all(plain(one) is plain(other) or equal(one, other) for one, other in pairs)
            return same is (op == "==")
        if (by_parts := self.natives.by_parts(op, a, b)) is not ABSENT:
            return by_parts
        compared(recording, a, b)
        self.natives.expose(a, pin=True)
        self.natives.expose(b, pin=True)
        return function(_with_bare(a), _with_bare(b))

    def one_nan(self, a: Any, b: Any) -> bool:
        """Whether two unequal values are the same NaN. If they are not, record the assumption."""
        if not all(isinstance(one, TracedFloat) and isinstance(one.expr, Read) for one in (a, b)):
            return False  # a computed float is a new object
        for one in (a, b):
            if plain(one) == plain(one):
                self.recording.hold(Apply(operator.eq, (one.expr, one.expr)), True)
                return False
        self.recording.refuse_nan()
        return plain(a) is plain(b)

    def _is_one_number(self, a: Any, b: Any) -> bool:
        """Whether two values, at least one of them traced, are the same object. Small integers are unique objects. For
        other numbers the answer is refused, unless both were read from one place."""
        recording, now = self.recording, (plain(a), plain(b))
        if a is b or type(now[0]) is not type(now[1]):
            return a is b
        first, second = symbol(a), symbol(b)
        if isinstance(a, Traced) and isinstance(b, Traced) and isinstance(first, Read) and first.token == second.token:
            return True
        if not recording.hold(Apply(operator.eq, (first, second)), now[0] == now[1]):
            return self.one_nan(a, b)
        if type(now[0]) is int and now[0] in _ONE_OF_EACH:
            for limit, function in ((_ONE_OF_EACH.start, operator.ge), (_ONE_OF_EACH.stop, operator.lt)):
                recording.hold(Apply(function, (first, limit)), True)
            return True
        recording.refuse(
            "number-identity",
            "compares two equal numbers or texts by identity",
            "whether they are one object depends on how Python came by them.",
            "Compare them with ==.",
        )
        return self._as_found(a) is self._as_found(b)

    def _as_found(self, value: Any) -> Any:
        """Return the object that is at the access path of a traced value."""
        if isinstance(value, Traced) and isinstance(value.expr, Read):
            try:
                return value.expr.access_path.read(*self.state.step.given)
            except (LookupError, AttributeError):
                pass  # the place is gone
        return plain(value)

    def kind_of(self, value: Any) -> type:
        return type(plain(value))

    def same_number(self, answer: Any, number: Any) -> Any:
        return answer if isinstance(answer, TracedInt) and plain(answer) == number else number

    # -- arithmetic -----------------------------------------------------------------------------------------------

    @specialising_on_error
    def native_binary(self, at: Site, op: str, a: Any, b: Any) -> Any:
        self.at(at)
        return self._apply(OPERATORS[op], a, b)

    def _apply(self, function: Callable[..., Any], a: Any, b: Any) -> Any:
        if function is operator.mod and isinstance(a, str) and not isinstance(a, Traced):
            return self.natives.percent(a, b)
        if not (isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor)):
            if isinstance(a, Traced) or isinstance(b, Traced):
                if isinstance(a, CONTAINERS) or isinstance(b, CONTAINERS):
                    return function(self.recording.pin(a, "repeats a list"), self.recording.pin(b, "repeats a list"))
                if _arithmetic(a) and _arithmetic(b):
                    value = function(plain(a), plain(b))
                    if hold_class(self.recording, function, (a, b), value):
                        return self.recording.computed(value, function, symbol(a), symbol(b))
                return function(self.recording.pin(a, "operand"), self.recording.pin(b, "operand"))
            copies = tuple(self.natives.consumed(self.natives.shown(one)) for one in (a, b))
            if function is operator.mul and any(isinstance(one, _REPEATED) for one in (a, b)):
                counts = (one for one in (a, b) if not isinstance(one, _REPEATED))
                self.natives.refuse_python_methods(function, *counts)  # repeated as often as an object says
            self.natives.runs_unwatched_methods(*copies)
            return as_given(function(*copies), (a, b), copies)
        return function(a, b)

    @specialising_on_error
    def native_inplace(self, at: Site, op: str, a: Any, b: Any) -> Any:
        self.at(at)
        b = self.natives.shown(b)
        access_path = self.recording.owner(a)
        if access_path is not None and isinstance(a, list | dict | set | collections.deque):
            known, result = self.natives.container_method(a, access_path, f"__{INPLACE[op]}__", (b,), {})
            if known and result is not NotImplemented:
                return result
            return getattr(operator, INPLACE[op])(a, b)  # TypeError
        if isinstance(a, torch.Tensor) or (self.recording.owner(a) is None and not isinstance(a, Traced)):
            if isinstance(a, torch.Tensor) or not isinstance(b, Traced):
                function = getattr(operator, INPLACE[op])
                if not isinstance(a, torch.Tensor):
                    self.natives.runs_unwatched_methods(a, b)
                return function(a, b if isinstance(a, torch.Tensor) else self.natives.consumed(b))
        return self._apply(OPERATORS[op], a, b)

    @specialising_on_error
    def native_unary(self, at: Site, op: str, a: Any) -> Any:
        self.at(at)
        function = UNARY[op]
        if isinstance(a, TracedInt | TracedFloat):
            return self.recording.computed(function(plain(a)), function, a.expr)
        return function(a)

    # -- text -----------------------------------------------------------------------------------------------------

    @specialising_on_error
    def native_format(self, at: Site, value: Any, spec: str) -> str:
        self.at(at)
        return self.natives.formatted(value, spec)

    def native_text(self, at: Site, value: Any, conversion: str) -> str:
        self.at(at)
        return self.natives.as_text(value, conversion)

    def join(self, at: Site, pieces: tuple[str, ...]) -> str:
        self.at(at)
        text = "".join(plain(p) for p in pieces)
        if any(isinstance(p, TracedStr) for p in pieces):
            result: str = trace_value(text, Apply(join_parts, tuple(symbol(p) for p in pieces)))
            return result
        return text


_SIZES = (tuple, torch.Size)
_REPEATED = (list, tuple, str, bytes, bytearray, collections.deque)


def join_parts(*parts: str) -> str:
    """Join the formatted pieces of an f-string."""
    return "".join(parts)


join_parts.never_raises = True  # type: ignore[attr-defined]


def _arithmetic(value: Any) -> bool:
    return isinstance(value, int | float | str)


def _native_length(value: Any) -> bool:
    return hasattr(type(value), "__len__") or hasattr(type(value), "__bool__")


def _with_bare(value: Any) -> Any:
    """Return a list or tuple with NaNs replaced by the original objects, which native comparison finds by identity."""
    if not is_one_of(type(value), (list, tuple)) or not any(
        isinstance(part, TracedFloat) and part.bare for part in value
    ):
        return value
    return type(value)(map(plain, value))
