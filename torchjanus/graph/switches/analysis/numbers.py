"""Describes the Python numbers that iterations of a switched loop carry: counters, totals, attributes.

A plain number shows its possible sources only by its value: a variable, the iteration index, a constant of the
program's text, a sum that the iteration computed. Comparing iterations resolves that, as for tensors (see ``arms``). An
expression of tensors and heap reads shows how it was computed. Reads the iterations of one run.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torchjanus.core.access_path import AccessPath, Step, token_of
from torchjanus.core.remarks import NotMergeable
from torchjanus.graph.loops.analysis.host_recurrences import entering
from torchjanus.trace.actions import HeapWrite
from torchjanus.trace.events import Trace
from torchjanus.trace.loops.records import LoopSnapshots, UntracedComputation
from torchjanus.trace.recipes import Constant, Number
from torchjanus.trace.values import Apply, Expr, Fetch, InductionVariable, Read, Size, Traced

__all__ = [
    "KINDS", "ArmSelection", "Form", "IterationNumbers", "NumberStates", "Source", "alike", "contents_of", "is_content",
    "is_in_known", "is_safe",
]  # fmt: skip

Form = Any  # ("take", position), ("fetch", variable, type, index) or ("apply", function, *forms)
Source = tuple[Any, ...]  # ("constant", token, value), ("index", offset), ("name", variable), ("made", form)
KINDS = frozenset({"int", "float", "fetched", "number"})  # kinds of states
HEAP = "heap"

# Functions that raise for no number: they may be evaluated for arms that were not taken. ``int`` raises for infinity.
SAFE = (operator.add, operator.sub, operator.mul, operator.neg, operator.pos, abs, float, format, str)


class ArmSelection:
    """``chosen(arm, *values)``: select a value by the arm. ``places``: for each arm, the position of its value."""

    def __init__(self, places: tuple[int, ...]) -> None:
        self.places = places
        self.__name__ = f"chosen {places}"

    def __call__(self, arm: int, *values: Any) -> Any:
        return values[self.places[arm]]


# Functions of plain integers, by operator.
_FUNCTIONS = {
    "+": operator.add, "+=": operator.add, "-": operator.sub, "*": operator.mul, "%": operator.mod,
    "//": operator.floordiv, "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le,
    ">": operator.gt, ">=": operator.ge, "truth": operator.ne,
}  # fmt: skip


def _function_of(plain: UntracedComputation) -> Any:
    """Return the function that was applied to plain integers; None where it is not known."""
    match plain.structure:
        case ("tuple", ("str", str(op)), ("tuple", *operands)):
            integers = [("int", value) for value in plain.operands]
            if op in _FUNCTIONS and operands == integers and len(operands) == 1 + (op != "truth"):
                zero = op in ("%", "//") and plain.operands[1] == 0
                return None if zero else _FUNCTIONS[op]
    return None


def is_safe(expr: Any) -> bool:
    """Whether evaluation cannot raise."""
    if not isinstance(expr, Apply) or isinstance(expr.func, ArmSelection) or expr.func is entering:
        return True
    known = any(expr.func is func for func in SAFE) or getattr(expr.func, "never_raises", False)
    return known and all(is_safe(arg) for arg in expr.args)


def is_content(content: Any, value: Any) -> bool:
    """Whether a variable's content and a number may be the same value."""
    if isinstance(content, Apply) or isinstance(value, Apply):
        return content is value
    if isinstance(content, Expr) or isinstance(value, Expr):
        return isinstance(content, Expr) and isinstance(value, Expr) and bool(content.token == value.token)
    return type(content) is type(value) and bool(token_of(content) == token_of(value))


def contents_of(state: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the variables that hold numbers, except lengths of lists and places that ``WrittenNumbers`` describes."""
    return {
        name: value[1]
        for name, value in state.items()
        if value[0] in KINDS and name[-1] != "length" and not is_in_known(name, state)
    }


def is_in_known(name: Any, state: Mapping[Any, Any]) -> bool:
    """Whether this is a part of an object from before the call, and of no new object stored in it."""
    kinds = (state.get(name[:end], ("",))[0] for end in reversed(range(2, len(name))))
    return next((kind == "known" for kind in kinds if kind in ("known", "new")), False)


def place_of(event: HeapWrite) -> AccessPath | None:
    """Return the access path of a write; None where it may differ between iterations."""
    if isinstance(event.key, Traced) or event.how not in ("item", "field"):
        return None
    return event.base.item(event.key) if event.how == "item" else event.base.then(Step.FIELD, event.key)


@dataclass(slots=True)
class WrittenNumbers:
    """The numbers that a run has written to objects from before the call, by place."""

    contents: dict[Any, Any] = field(default_factory=dict)
    access_paths: dict[Any, Any] = field(default_factory=dict)

    def write(self, trace: Trace, event: HeapWrite) -> None:
        """Record a write."""
        access_path, recipes = place_of(event), trace.recipes.get(id(event), ())
        if access_path is None or not recipes:
            return
        name, value = (HEAP, access_path.token), recipes[0]
        if isinstance(value, Number):
            self.contents[name] = value.expr
        elif isinstance(value, Constant) and type(value.value) in (int, float):
            self.contents[name] = value.value
        else:
            self.contents[name] = None  # not a number
        self.access_paths[name] = access_path


@dataclass(slots=True)
class NumberStates:
    """The numbers that variables and places hold before each iteration and after the last."""

    states: list[dict[Any, Any]]
    access_paths: dict[Any, Any]  # of the places

    @staticmethod
    def of(trace: Trace, frames: LoopSnapshots, places: Mapping[Any, AccessPath]) -> NumberStates:
        """Return the contents for a loop. ``places``: the places that other runs write."""
        heap, states = WrittenNumbers(), list[dict[Any, Any]]()
        limits = frames.limits
        for position, event in enumerate(trace.events[: frames.end + 1]):
            while len(states) < len(limits) and limits[len(states)] <= position:
                states.append(contents_of(frames.states[len(states)]) | heap.contents)
            if isinstance(event, HeapWrite):
                heap.write(trace, event)
        while len(states) < len(limits):
            states.append(contents_of(frames.states[len(states)]) | heap.contents)
        access_paths = {**places, **heap.access_paths}
        for name, access_path in access_paths.items():
            for state in states:
                state.setdefault(name, Read(access_path))
        return NumberStates(states, access_paths)


class IterationNumbers:
    """The numbers of one iteration. ``before``, ``after``: contents of variables; ``shown``: see ``effects``."""

    def __init__(self, iteration: int, before: Mapping[Any, Any], after: Mapping[Any, Any], shown: Mapping[int, Any]):
        self.iteration, self.before, self.after, self.shown = iteration, before, after, shown
        self.takes: dict[Any, frozenset[Source]] = {}
        self.plain: set[Any] = set()  # operands that must be loop-invariant
        self._of: Any = None  # subject of the current operands
        self._count = 0
        self.sums: dict[int, list[Form]] = {}  # computed integers -> the forms that gave them
        self.fetched: dict[Any, Fetch] = {}

    def begin(self, what: Any) -> None:
        """Start the operands of an event or a variable."""
        self._of, self._count = what, 0

    def candidates(self, value: Any) -> frozenset[Source]:
        """Return the possible sources of a number that is no computed expression."""
        found: set[Source] = {("name", name) for name, held in self.before.items() if is_content(held, value)}
        if isinstance(value, InductionVariable):
            value = value.first
        if isinstance(value, Expr):
            found.add(("constant", value.token, value))
        else:
            found.add(("constant", token_of(value), value))
        if type(value) is int:
            found.add(("index", value - self.iteration))
            found.update(("made", form) for form in self.sums.get(value, ()))
        return frozenset(found)

    def take(self, value: Any) -> Form:
        """Record an operand of which only the value is known; return its form."""
        return self._taken(self.candidates(value))

    def _taken(self, candidates: frozenset[Source]) -> Form:
        key = (self._of, self._count)
        self._count += 1
        self.takes[key] = candidates
        return ("take", key)

    def hold(self, values: Iterable[Any]) -> None:
        """Require these numbers to be equal in all iterations of an arm."""
        self.plain.update(self.take(value)[1] for value in values)

    def hold_parts(self, expr: Any) -> None:
        """Require the variables' contents within an expression to be equal in all iterations of an arm."""
        if not isinstance(expr, Expr) or any(is_content(held, expr) for held in self.before.values()):
            if isinstance(expr, Expr) or type(expr) in (int, float):
                self.hold((expr,))
        elif isinstance(expr, Apply):
            for arg in expr.args:
                self.hold_parts(arg)

    def form(self, expr: Any) -> Form:
        """Return how a number is computed from the iteration's operands. Raises NotMergeable."""
        if isinstance(expr, Fetch) and expr.ref in self.shown:
            form = ("fetch", self.shown[expr.ref], expr.type, expr.index)
            self.fetched[form] = expr
            return form
        if isinstance(expr, Apply) and not any(is_content(held, expr) for held in self.before.values()):
            return ("apply", expr.func, *map(self.form, expr.args))
        if isinstance(expr, Apply | Fetch):
            return self._taken(self.candidates(expr))
        if isinstance(expr, Expr) and not isinstance(expr, Read | Size | InductionVariable):
            raise NotMergeable("branch-numbers", "a number of an iteration follows no formula")
        return self.take(expr)

    def compute(self, plain: UntracedComputation) -> tuple[Any, bool | None]:
        """Record a computation with plain numbers; return its form and, for a comparison, the outcome (else None)."""
        func = None if plain.reals else _function_of(plain)
        if func is None:
            self.hold((*plain.operands, *plain.reals))
            return ("plain", plain.structure), None
        parts = [self.take(value) for value in plain.operands]
        if len(parts) == 1:
            parts.append(("literal", 0))
        form, result = ("apply", func, *parts), func(*plain.operands, *(0,) * (2 - len(plain.operands)))
        if type(result) is bool:
            return form, result
        self.sums.setdefault(result, []).append(form)
        return form, None

    def ends(self) -> dict[Any, frozenset[Source]]:
        """Return the possible sources of each variable's number after the iteration."""
        found: dict[Any, frozenset[Source]] = {}
        for name, value in self.after.items():
            kept = any(is_content(held, value) for held in self.before.values())
            if not isinstance(value, Apply | Fetch) or kept:
                found[name] = self.candidates(value)
                continue
            self.begin(("end", name))
            try:
                found[name] = frozenset({("made", self.form(value))})
            except NotMergeable:
                found[name] = frozenset()
        return found


def alike(one: Mapping[Any, frozenset[Source]], other: Mapping[Any, frozenset[Source]]) -> bool:
    """Whether common operands have a common candidate; final values are excluded."""
    return all(candidates & other[key] for key, candidates in one.items() if key[0][0] != "end" and key in other)
