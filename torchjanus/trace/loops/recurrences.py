"""Recurrences: numbers that each iteration of a loop changes (``t += h``, ``i * h``, ``0.5 ** i``), as formulas.

A form is plain data, so it can be compared, stored and sent:

- ``("index", first, step)``: an affine induction variable; ``("back",)``: the index that counts down to 0
- ``("const", value)``: a constant; ``("given", n, kind)``: the n-th number that the call is given
- ``("made", start, body)``: a first-order recurrence, after the iteration; ``("entering", start, body)``: before it;
  ``("hole",)`` in the body: the number of the previous iteration
- ``(name, *forms)``: a function of ``FUNCTIONS`` and its arguments

Knows numbers, not tensors.
"""

from __future__ import annotations

import ctypes
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchjanus.core.kinds import isinstance
from torchjanus.trace.loops.records import UntracedComputation

__all__ = [
    "BACK", "HOLE", "LEAST", "Form", "Recurrences", "column", "counting_down", "find_recurrences", "kind_of", "name_of",
]  # fmt: skip

Form = tuple[Any, ...]
_Rows = Sequence[tuple[Any, ...]]  # what is given, of each iteration
HOLE: Form = ("hole",)
BACK: Form = ("back",)
LEAST = 3  # iterations from which a recurrence can be found

# Pure functions of numbers, by name.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "neg")},
    **{name: getattr(math, name) for name in ("sqrt", "exp", "log", "cos", "sin", "tanh", "floor", "ceil")},
    **{fn.__name__: fn for fn in (abs, min, max, float, int)},
    "float32": lambda number: ctypes.c_float(number).value,
}
_NAMES = {id(fn): name for name, fn in FUNCTIONS.items()}
_SIGNS = {"+": "add", "-": "sub", "*": "mul", "/": "truediv", "//": "floordiv", "%": "mod", "**": "pow"}
_NUMBERS = {"int": int, "float": float}


def name_of(func: Any) -> str | None:
    """Return the name by which forms call a function; None if they cannot."""
    return _NAMES.get(id(func))


def column(form: Form, count: int, given: Sequence[float] = ()) -> list[Any]:
    """Return the number of each of ``count`` iterations. Raises what Python raises when it computes them."""
    match form:
        case ("index", first, step):
            return [first + step * iteration for iteration in range(count)]
        case ("back",):
            return list(range(count - 1, -1, -1))
        case ("given", number, kind):
            return [_NUMBERS[kind](given[number])] * count
        case ("const", value):
            return [value] * count
        case ("made" | "entering" as which, start, body):
            if not count:
                return []
            made = column(start, 1, given)
            step = _step(body, count, given)
            for iteration in range(count if which == "made" else count - 1):
                made.append(step(made[-1], iteration))
            return made[1:] if which == "made" else made
        case (name, *args):
            rows = [column(arg, count, given) for arg in args]
            return [FUNCTIONS[name](*row) for row in zip(*rows, strict=True)]
    raise AssertionError(form)


def _step(body: Form, count: int, given: Sequence[float]) -> Callable[[Any, int], Any]:
    """Return the function (number of the previous iteration, index) -> number of an iteration."""
    if body == HOLE:
        return lambda before, iteration: before
    if not _has_hole(body):
        known = column(body, count, given)
        return lambda before, iteration: known[iteration]
    func, parts = FUNCTIONS[body[0]], [_step(part, count, given) for part in body[1:]]
    return lambda before, iteration: func(*(part(before, iteration) for part in parts))


def _has_hole(form: Any) -> bool:
    """Whether the form depends on the previous iteration; that within an inner recurrence does not count."""
    if form == HOLE:
        return True
    return isinstance(form, tuple) and form[:1] not in (("made",), ("entering",)) and any(map(_has_hole, form[1:]))


def kind_of(form: Form) -> type | None:
    """Return ``int`` or ``float``, the type of the form's numbers; None if it may be either."""
    match form:
        case ("index" | "back", *_):
            return int
        case ("given", _, kind):
            return _NUMBERS[kind]
        case ("const", value):
            return type(value)
        case ("made" | "entering", start, body):
            kind = kind_of(start)
            return kind if kind is _with_hole(body, kind) else None
    return _with_hole(form, None)


def _with_hole(form: Form, hole: type | None) -> type | None:
    if form == HOLE:
        return hole
    if not _has_hole(form) and form[0] not in FUNCTIONS:
        return kind_of(form)
    name, *args = form
    kinds = {_with_hole(arg, hole) for arg in args}
    if kinds - {int, float}:
        return None
    if name in ("add", "sub", "mul", "floordiv", "mod"):
        return float if float in kinds else int
    if name in ("neg", "abs", "min", "max"):
        return kinds.pop() if len(kinds) == 1 else None
    if name == "pow":
        return float if float in kinds else None  # of integers it may be either
    return int if name in ("int", "floor", "ceil") else float


@dataclass(slots=True)
class Recurrences:
    """What the iterations of a loop computed with untraced numbers, as forms. ``columns``: for each computed number its
    position among the computations of an iteration, its values in all iterations, and its form."""

    count: int  # iterations
    back: bool  # whether the index counts down to 0
    first: int  # untraced computations of the run before the loop
    width: int  # untraced computations of each iteration
    columns: list[tuple[int, list[Any], Form]] = field(default_factory=list)

    def form(self, values: Sequence[Any], before: int) -> Form | None:
        """Return the form of a number with these values, one for each iteration, which is used after ``before``
        computations of the iteration; None if no form is known, or several are."""
        found = set(self._readings(list(map(_known, values)), before))
        return found.pop() if len(found) == 1 else None

    def _readings(self, values: list[Any], before: int) -> Iterator[Form]:
        if all(value == values[0] for value in values):
            yield ("const", values[0][1])
            return
        if (iteration := _affine([value for _, value in values])) is not None:
            if not self.back or iteration[2] > 0:
                yield iteration
            elif iteration[2] == -1:
                yield counting_down(values[-1][1])
        for position, made, form in self.columns:
            if position < before and list(map(_known, made)) == values:
                yield form
            if form[0] == "made" and values[1:] == list(map(_known, made[:-1])) and _known(form[1][1]) == values[0]:
                yield ("entering", *form[1:])

    def passing(self) -> Iterator[Any]:
        """Yield the values of forms that are not known to be strictly monotonic, without those of the first iteration:
        a value of an iteration that was not watched may be equal to one of these by chance."""
        for _, made, form in self.columns:
            if not _is_monotonic(form):
                yield from made[1:]


def counting_down(last: int) -> Form:
    """Return the form of a number that falls by one in each iteration, to ``last`` in the last one."""
    return ("add", BACK, ("const", last)) if last else BACK


def _affine(values: Sequence[Any]) -> Form | None:
    """Return integers as an affine form of the index; None if they are none, or all equal."""
    if any(type(value) is not int for value in values):
        return None
    step = values[1] - values[0]
    is_affine = step and values == [values[0] + step * iteration for iteration in range(len(values))]
    return ("index", values[0], step) if is_affine else None


def _known(value: Any) -> Any:
    return (type(value), value if value != 0 or type(value) is int else repr(value))


def _is_monotonic(form: Form) -> bool:
    """Whether the form is strictly monotonic in the index: then it differs in any two iterations."""
    match form:
        case ("index", _, step):
            return bool(step)
        case ("back",):
            return True
        case ("made" | "entering", _, ("add" | "sub", ("hole",), ("const", step))):
            return bool(step)
        case ("made" | "entering", ("const", start), ("mul", ("hole",), ("const", by))):
            return bool(start) and by not in (0, 1, -1)
        case ("add" | "sub" | "mul" | "truediv", one, ("const", by)):
            return bool(by) and _is_monotonic(one)
        case ("add" | "sub" | "mul" | "truediv", ("const", by), other):
            return bool(by) and _is_monotonic(other)
        case ("pow", ("const", base), other):
            return base > 0 and base != 1 and _is_monotonic(other)
        case ("sqrt" | "exp" | "log" | "neg" | "float", one):
            return _is_monotonic(one)
    return False


def find_recurrences(iterations: Sequence[Sequence[UntracedComputation]], back: bool, first: int) -> Recurrences | None:
    """Return what the iterations computed with untraced numbers, if each computation has one form or the same value in
    all iterations; else None, as where such a number decides something."""
    if len(iterations) < LEAST or len({len(row) for row in iterations}) > 1:
        return None
    known = Recurrences(len(iterations), back, first, len(iterations[0]))
    pending: list[tuple[int, str, _Rows]] = []
    settled: dict[int, tuple[str, _Rows]] = {}
    for position, row in enumerate(zip(*iterations, strict=True)):
        structure = [plain.structure for plain in row]
        if None in structure:
            return None
        if all(one == structure[0] for one in structure):
            continue
        calls = [_called(one) for one in structure]
        names = {None if call is None else call[0] for call in calls}
        name = names.pop()
        if names or name is None:
            return None
        pending.append((position, name, [call[1] for call in calls if call is not None]))
    while pending:
        waiting = len(pending)
        for number, name, given in list(pending):
            found = _column_of(known, number, name, given)
            if found is not None:
                known.columns.append(found)
                pending.remove((number, name, given))
                settled[number] = (name, given)
        if len(pending) == waiting:
            return None
    # The forms that were found first may be ambiguous in view of those that were found later.
    if any(
        _column_of(known, *(number, *settled[number])) != (number, made, form) for number, made, form in known.columns
    ):
        return None
    return known


def _column_of(known: Recurrences, position: int, name: str, given: _Rows) -> tuple[int, list[Any], Form] | None:
    try:
        made = [FUNCTIONS[name](*args) for args in given]
    except (ArithmeticError, ValueError, TypeError):
        return None
    form = _form_of(known, position, name, given, made)
    if form is None or all(_known(one) == _known(made[0]) for one in made):
        return None  # it is not known for how long it stays the same
    iteration = _affine(made) if _is_linear(form) else None
    if iteration is not None and _goes_back(form):
        return (position, made, counting_down(made[-1]) if iteration[2] == -1 else form)
    return (position, made, form if iteration is None else iteration)


def _goes_back(form: Form) -> bool:
    return form == BACK or any(isinstance(part, tuple) and _goes_back(part) for part in form)


def _is_linear(form: Form) -> bool:
    match form:
        case ("index" | "const" | "back", *_) | ("hole",):
            return True
        case ("add" | "sub", one, other):
            return _is_linear(one) and _is_linear(other)
        case ("mul", one, other):
            return _is_linear(one) and _is_linear(other) and "const" in (one[0], other[0])
        case ("neg", one):
            return _is_linear(one)
        case ("made", ("const", _), ("add" | "sub", ("hole",), ("const", _)) | ("add", ("const", _), ("hole",))):
            return True
    return False


def _form_of(known: Recurrences, position: int, name: str, given: _Rows, made: list[Any]) -> Form | None:
    parts: list[Form] = []
    start: Form | None = None
    for values in zip(*given, strict=True):
        changes = any(_known(value) != _known(values[0]) for value in values)
        if changes and list(map(_known, values[1:])) == list(map(_known, made[:-1])):
            start = ("const", values[0])
            parts.append(HOLE)
            continue
        part = known.form(values, position)
        if part is None:
            return None
        parts.append(part)
    form: Form = (name, *parts)
    return form if start is None else ("made", start, form)


def _called(structure: Any) -> tuple[str, tuple[Any, ...]] | None:
    """Return the name of a computed function and its arguments; None if it is none of numbers. For the structure see
    ``semantics.watch.loops.untraced_values``."""
    match structure:
        case ("tuple", ("str", "-"), ("tuple", arg)):
            name, args = "neg", [arg]
        case ("tuple", ("str", sign), ("tuple", *args)) if len(args) == 2 and sign.removesuffix("=") in _SIGNS:
            name = _SIGNS[sign.removesuffix("=")]
        case (str() as name, None, ("call", *args)) if name in FUNCTIONS:
            pass
        case _:
            return None
    numbers = _numbers(args)
    return (name, numbers) if numbers else None


def _numbers(tokens: Sequence[Any]) -> tuple[Any, ...] | None:
    if any(len(token) != 2 or token[0] not in _NUMBERS for token in tokens):
        return None
    return tuple(_NUMBERS[kind](value) for kind, value in tokens)
