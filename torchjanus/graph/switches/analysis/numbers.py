"""Numbers that iterations of a loop hand on in Python, in which tensors decide: counters, totals, what attributes hold.

A plain number says only by its value where it may have come from: a variable, the number of the iteration, the
program's text, a sum that the iteration made. That is settled by comparing iterations, as it is for tensors (see
``switches``). Numbers made of tensors and of the heap say how they were made. Knows the iterations of one run.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torchjanus.core.access_path import AccessPath, Step, token_of
from torchjanus.graph.loops.analysis.host_recurrences import NotMergeable, entering
from torchjanus.trace.actions import Stored
from torchjanus.trace.events import Trace
from torchjanus.trace.loop_records import Frames, Plain
from torchjanus.trace.recipes import Constant, Number
from torchjanus.trace.values import Apply, Expr, Fetch, InductionVariable, Read, Size, Traced

__all__ = [
    "KINDS",
    "Chosen",
    "Form",
    "Held",
    "IterationNumbers",
    "Source",
    "alike",
    "contents_of",
    "is_content",
    "is_in_known",
    "is_safe",
]

Form = Any  # ("take", position), ("fetch", variable, type, index) or ("apply", function, *forms)
Source = tuple[Any, ...]  # ("constant", token, value), ("turn", offset), ("name", variable), ("made", form)
KINDS = frozenset({"int", "float", "fetched", "number"})  # of states, see semantics.round_states
HEAP = "heap"

# Functions that raise on no number: they may be computed for ways that were not taken, too.
SAFE = (operator.add, operator.sub, operator.mul, operator.neg, operator.pos, abs, int, float, format, str)


class Chosen:
    """``chosen(arm, *values)``: what this arm makes of a number. ``places``: of each arm, which of the values."""

    def __init__(self, places: tuple[int, ...]) -> None:
        self.places = places
        self.__name__ = f"chosen {places}"

    def __call__(self, arm: int, *values: Any) -> Any:
        return values[self.places[arm]]


# What is computed with plain integers, by how it is written.
_FUNCTIONS = {
    "+": operator.add, "+=": operator.add, "-": operator.sub, "*": operator.mul, "%": operator.mod,
    "//": operator.floordiv, "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le,
    ">": operator.gt, ">=": operator.ge, "truth": operator.ne,
}  # fmt: skip


def _function_of(plain: Plain) -> Any:
    """What was done with integers, and nothing but integers; None where that is not known."""
    match plain.structure:
        case ("tuple", ("str", str(op)), ("tuple", *operands)):
            integers = [("int", value) for value in plain.operands]
            if op in _FUNCTIONS and operands == integers and len(operands) == 1 + (op != "truth"):
                zero = op in ("%", "//") and plain.operands[1] == 0
                return None if zero else _FUNCTIONS[op]
    return None


def is_safe(expr: Any) -> bool:
    """Whether no number can make it raise."""
    if not isinstance(expr, Apply) or isinstance(expr.func, Chosen) or expr.func is entering:
        return True
    known = any(expr.func is func for func in SAFE) or getattr(expr.func, "never_raises", False)
    return known and all(is_safe(arg) for arg in expr.args)


def is_content(content: Any, value: Any) -> bool:
    """Whether a number may be what a variable holds."""
    if isinstance(content, Apply) or isinstance(value, Apply):
        return content is value
    if isinstance(content, Expr) or isinstance(value, Expr):
        return isinstance(content, Expr) and isinstance(value, Expr) and bool(content.token == value.token)
    return type(content) is type(value) and bool(token_of(content) == token_of(value))


def contents_of(state: Mapping[Any, Any]) -> dict[Any, Any]:
    """The variables that hold numbers, but for how long lists are. What is in objects from before
    the call is found in the heap."""
    return {
        name: value[1]
        for name, value in state.items()
        if value[0] in KINDS and name[-1] != "length" and not is_in_known(name, state)
    }


def is_in_known(name: Any, state: Mapping[Any, Any]) -> bool:
    """Whether this is a part of an object from before the call, and not of one that the call has put into such."""
    kinds = (state.get(name[:end], ("",))[0] for end in reversed(range(2, len(name))))
    return next((kind == "known" for kind in kinds if kind in ("known", "new")), False)


def place_of(event: Stored) -> AccessPath | None:
    """Where something is written; None where that may be another place in each iteration."""
    if isinstance(event.key, Traced) or event.how not in ("item", "field"):
        return None
    return event.base.item(event.key) if event.how == "item" else event.base.then(Step.FIELD, event.key)


@dataclass(slots=True)
class Heap:
    """What places in objects from before the call hold, as a run goes on: those to which it has written numbers."""

    contents: dict[Any, Any] = field(default_factory=dict)
    access_paths: dict[Any, Any] = field(default_factory=dict)

    def write(self, trace: Trace, event: Stored) -> None:
        """Take a write into account."""
        access_path, recipes = place_of(event), trace.recipes.get(id(event), ())
        if access_path is None or not recipes:
            return
        name, value = (HEAP, access_path.token), recipes[0]
        if isinstance(value, Number):
            self.contents[name] = value.expr
        elif isinstance(value, Constant) and type(value.value) in (int, float):
            self.contents[name] = value.value
        else:
            self.contents[name] = None  # no number
        self.access_paths[name] = access_path


@dataclass(slots=True)
class Held:
    """What variables and places hold before each iteration, and after the last."""

    states: list[dict[Any, Any]]
    access_paths: dict[Any, Any]  # of places

    @staticmethod
    def of(trace: Trace, frames: Frames, places: Mapping[Any, AccessPath]) -> Held:
        """``places``: where other runs have written."""
        heap, states = Heap(), list[dict[Any, Any]]()
        limits = (*frames.starts, frames.end)
        for position, event in enumerate(trace.events[: frames.end + 1]):
            while len(states) < len(limits) and limits[len(states)] <= position:
                states.append(contents_of(frames.states[len(states)]) | heap.contents)
            if isinstance(event, Stored):
                heap.write(trace, event)
        while len(states) < len(limits):
            states.append(contents_of(frames.states[len(states)]) | heap.contents)
        access_paths = {**places, **heap.access_paths}
        for name, access_path in access_paths.items():
            for state in states:
                state.setdefault(name, Read(access_path))
        return Held(states, access_paths)


class IterationNumbers:
    """The numbers of one iteration. ``before``, ``after``: what variables hold; ``shown``: tensors of the iteration by
    the variables that stand for them."""

    def __init__(self, iteration: int, before: Mapping[Any, Any], after: Mapping[Any, Any], shown: Mapping[int, Any]):
        self.iteration, self.before, self.after, self.shown = iteration, before, after, shown
        self.takes: dict[Any, frozenset[Source]] = {}
        self.plain: set[Any] = set()  # those takes that have to be the same in all iterations
        self._of: Any = None  # what is spoken of
        self._count = 0
        self.sums: dict[int, list[Form]] = {}  # what the iteration computed, by what came out
        self.fetched: dict[Any, Fetch] = {}

    def begin(self, what: Any) -> None:
        """Speak of an event, or a variable, from now on."""
        self._of, self._count = what, 0

    def candidates(self, value: Any) -> frozenset[Source]:
        """Where a number may come from that is not computed of others."""
        found: set[Source] = {("name", name) for name, held in self.before.items() if is_content(held, value)}
        if isinstance(value, InductionVariable):
            value = value.first
        if isinstance(value, Expr):
            found.add(("constant", value.token, value))
        else:
            found.add(("constant", token_of(value), value))
        if type(value) is int:
            found.add(("turn", value - self.iteration))
            found.update(("made", form) for form in self.sums.get(value, ()))
        return frozenset(found)

    def take(self, value: Any) -> Form:
        """A number of which only the value is known."""
        return self._taken(self.candidates(value))

    def _taken(self, candidates: frozenset[Source]) -> Form:
        key = (self._of, self._count)
        self._count += 1
        self.takes[key] = candidates
        return ("take", key)

    def hold(self, values: Iterable[Any]) -> None:
        """These numbers have to be the same in all iterations that go this arm."""
        self.plain.update(self.take(value)[1] for value in values)

    def hold_parts(self, expr: Any) -> None:
        """What is in an expression of what variables hold has to be the same in all iterations."""
        if not isinstance(expr, Expr) or any(is_content(held, expr) for held in self.before.values()):
            if isinstance(expr, Expr) or type(expr) in (int, float):
                self.hold((expr,))
        elif isinstance(expr, Apply):
            for arg in expr.args:
                self.hold_parts(arg)

    def form(self, expr: Any) -> Form:
        """How a number is made of what the iteration was given. Raises NotMergeable."""
        if isinstance(expr, Fetch) and expr.ref in self.shown:
            form = ("fetch", self.shown[expr.ref], expr.type, expr.index)
            self.fetched[form] = expr
            return form
        if isinstance(expr, Apply) and not any(is_content(held, expr) for held in self.before.values()):
            return ("apply", expr.func, *map(self.form, expr.args))
        if isinstance(expr, Apply | Fetch):
            return self._taken(self.candidates(expr))
        if isinstance(expr, Expr) and not isinstance(expr, Read | Size | InductionVariable):
            raise NotMergeable
        return self.take(expr)

    def compute(self, plain: Plain) -> tuple[Any, bool | None]:
        """Something computed with plain numbers; what is said of it, equal in all iterations that go this arm, and what
        came out where numbers were compared."""
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
        """Where what variables hold after the iteration may come from."""
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
    """Whether what is taken may be the same."""
    return all(candidates & other[key] for key, candidates in one.items() if key[0][0] != "end" and key in other)
