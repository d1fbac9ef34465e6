"""The variables that a function made within the step shares with the call in which it was made.

Those that hold the same in all calls tell functions of one code apart: which recursion it is depends on them. Those
that hold numbers and tensors of the step's own are passed with each call, as its arguments are. Knows nothing of how
calls are watched.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath, Step, token_of
from torchjanus.core.kinds import is_one_of, isinstance
from torchjanus.rewrite import code_of, is_rewritten
from torchjanus.semantics.record.places import EMPTY, Item, Shape, Spot, Variable, native_items
from torchjanus.semantics.record.recording import CONSTANT_TYPES
from torchjanus.trace.values import is_local

__all__ = ["Enclosing", "enclosing", "holding", "is_constant", "is_named", "places_within", "values_within"]

_KNOWN_BY_THEMSELVES = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType)
_CONSTANTS = (*CONSTANT_TYPES, int, float)


@dataclass(slots=True)
class Enclosing:
    """``token``: what is the same in all calls; ``passed``: the variables that are passed with each, by the names of
    parameters that no function of Python has."""

    token: tuple[Any, ...]
    passed: dict[str, types.CellType] = field(default_factory=dict)


class _Unknown(Exception):
    """It is not known what a variable holds. ``places``: where there may be something to which calls add."""

    def __init__(self, *places: Spot) -> None:
        super().__init__()
        self.places = places


def enclosing(
    fn: types.FunctionType,
    recording: Any,
    lists: Any,
    recursive: Collection[types.CodeType],
    tallied: Callable[[Spot], bool],
) -> Enclosing | tuple[Spot, ...]:
    """What the variables of a function are, and those of functions that they hold. If that is not known, the places to
    which calls may add.
    ``lists``: those of the step to which calls append; ``recursive``: functions whose defaults are told with each call;
    ``tallied``: whether calls add to what is held somewhere, or count."""
    passed: dict[str, types.CellType] = {}

    def named(name: str, cell: types.CellType) -> str:
        known = next((key for key, other in passed.items() if other is cell), None)
        if known is None:
            key = f"^{name}"
            known = key if key not in passed else f"{key}.{len(passed)}"
            passed[known] = cell
        return known

    def told(fn: types.FunctionType, around: tuple[types.CodeType, ...]) -> Iterator[Any]:
        for name, cell in _variables(fn, recording):
            variable = Variable(cell, name)
            value = variable.get()
            access_path = recording.owner(value)
            grown = lists.access_path(value) if access_path is None else access_path if access_path.is_grown else None
            if tallied(variable):
                yield name, "tally"
            elif grown is not None:
                yield name, grown.token
            elif isinstance(value, types.FunctionType) and is_rewritten(value.__code__):
                code = code_of(value)
                if (value.__defaults__ or value.__kwdefaults__) and code not in recursive:
                    raise _Unknown
                recording.keep(code)
                yield name, id(code), () if code in around else tuple(told(value, (*around, code)))
            elif isinstance(value, _KNOWN_BY_THEMSELVES):
                recording.keep(value)
                yield name, id(value)
            elif is_named(access_path) and not isinstance(value, torch.Tensor):
                assert access_path is not None
                yield name, access_path.token
            elif is_constant(value):
                yield name, token_of(value)
            elif (held := _held(value, access_path, name, tallied)) is not None:
                yield name, type(value).__name__, held
            elif value is EMPTY or type(value) is dict:
                raise _Unknown
            else:
                yield name, "passed", named(name, cell)

    try:
        return Enclosing(tuple(told(fn, (code_of(fn),))), passed)
    except _Unknown as unknown:
        return unknown.places


def is_constant(value: Any) -> bool:
    """Whether it is the same wherever it stands, and holds nothing that could change."""
    return is_one_of(type(value), _CONSTANTS) or (type(value) is tuple and all(map(is_constant, value)))


def _held(value: Any, access_path: AccessPath | None, name: str, tallied: Callable[[Spot], bool]) -> Any:
    """What a container of the step's own holds, if that is nothing but constants, and what calls add to. Raises
    _Unknown."""
    if access_path is not None or (items := native_items(value)) is None:
        return None
    found = [(key, "tally" if tallied(Item(value, key, name)) else None, item) for key, item in items]
    if all(tally or is_constant(item) for _, tally, item in found):
        return tuple((token_of(key), tally or token_of(item)) for key, tally, item in found)
    if type(value) is dict or any(tally for _, tally, _ in found):
        raise _Unknown(*(Item(value, key, name) for key, tally, item in found if not tally and not is_constant(item)))
    return None


def is_named(access_path: AccessPath | None) -> bool:
    """Whether an object of the step is found by names all the way: elements of lists are others for other trees."""
    if access_path is None or is_local(access_path):
        return False
    while access_path is not None:
        if access_path.step is Step.ITEM and type(access_path.key) is not str:
            return False
        access_path = access_path.base
    return True


def values_within(fn: types.FunctionType, recording: Any) -> Iterator[Any]:
    """What they hold, and those of functions that they hold."""
    return (variable.get() for variable in dict.fromkeys(_variables_within(fn, recording, ())))


def places_within(fn: types.FunctionType, recording: Any, lists: Any) -> Iterator[Spot]:
    """Those variables, and what is in containers of the step's own that they hold, but for ``lists`` to which calls
    append."""
    named: dict[str, int] = {}
    for variable in dict.fromkeys(_variables_within(fn, recording, ())):
        named[variable.name] = named.get(variable.name, 0) + 1
        yield (variable := Variable(variable.cell, variable.name, named[variable.name]))
        value = variable.get()
        if (
            recording.owner(value) is None
            and lists.access_path(value) is None
            and (items := native_items(value)) is not None
        ):
            yield Shape(value, variable.name)
            yield from (Item(value, key, variable.name, variable.which) for key, _ in items)


def _variables_within(fn: types.FunctionType, recording: Any, around: tuple[types.CodeType, ...]) -> Iterator[Variable]:
    for name, cell in _variables(fn, recording):
        variable = Variable(cell, name)
        yield variable
        value = variable.get()
        if isinstance(value, types.FunctionType) and value.__code__ not in around:
            yield from _variables_within(value, recording, (*around, value.__code__))


@contextmanager
def holding(
    passed: Mapping[str, types.CellType], values: Mapping[str, Any], places: Iterable[Spot], written: list[Spot]
) -> Iterator[None]:
    """Within, the variables that are passed hold these values, and after it what they held before. Those ``places``
    that hold something else by then keep it, and go into ``written``."""
    given: dict[Spot, Any] = {Variable(cell, name): values[name] for name, cell in passed.items()}
    before = {place: place.get() for place in (*places, *given)}
    for variable, value in given.items():
        variable.set(value)
    try:
        yield
    finally:
        for place, known in before.items():
            if not place.holds(given.get(place, known)):
                written.append(place)
            elif place in given:
                place.set(known)


def _variables(fn: types.FunctionType, recording: Any) -> Iterator[tuple[str, types.CellType]]:
    """Those that were not there before the function in which this one was made."""
    if not is_rewritten(fn.__code__):
        return  # it was there before the step, and so were they
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        if not recording.holds_cell(fn, cell):
            yield name, cell
