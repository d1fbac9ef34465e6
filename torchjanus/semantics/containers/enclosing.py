"""Describe the variables that a recursive function made within the step shares with its maker (its closure).

Variables with the same value in all calls become part of the callee's identity. Variables that hold numbers and tensors
of the step are passed with each call like arguments. This module does not watch calls.
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
from torchjanus.semantics.record.places import EMPTY, Item, Shape, StateSlot, Variable, native_items
from torchjanus.semantics.record.recording import CONSTANT_TYPES
from torchjanus.trace.values import is_local

__all__ = ["Enclosing", "enclosing", "holding", "is_constant", "is_named", "places_within", "values_within"]

_IDENTIFIED = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType)
_CONSTANTS = (*CONSTANT_TYPES, int, float)


@dataclass(slots=True)
class Enclosing:
    """The shared variables of a function. ``token``: what is common to all calls; ``passed``: the variables to pass
    with each call, by parameter names that Python functions cannot have (``^name``)."""

    token: tuple[Any, ...]
    passed: dict[str, types.CellType] = field(default_factory=dict)


class _Unknown(Exception):
    """The content of a variable cannot be described. ``places``: places that may be accumulators."""

    def __init__(self, *places: StateSlot) -> None:
        super().__init__()
        self.places = places


def enclosing(
    fn: types.FunctionType,
    recording: Any,
    lists: Any,
    recursive: Collection[types.CodeType],
    accumulates: Callable[[StateSlot], bool],
) -> Enclosing | tuple[StateSlot, ...]:
    """Return the shared variables of a function and of the functions that they hold. If they cannot be described,
    return the places that may be accumulators.

    ``lists``: the output lists of the step; ``recursive``: functions whose defaults are inputs of each call;
    ``accumulates``: whether a place is an accumulator.
    """
    passed: dict[str, types.CellType] = {}

    def named(name: str, cell: types.CellType) -> str:
        known = next((key for key, other in passed.items() if other is cell), None)
        if known is None:
            key = f"^{name}"
            known = key if key not in passed else f"{key}.{len(passed)}"
            passed[known] = cell
        return known

    def described(fn: types.FunctionType, around: tuple[types.CodeType, ...]) -> Iterator[Any]:
        for name, cell in _variables(fn, recording):
            variable = Variable(cell, name)
            value = variable.get()
            access_path = recording.owner(value)
            grown = lists.access_path(value) if access_path is None else access_path if access_path.is_grown else None
            if accumulates(variable):
                yield name, "accumulator"
            elif grown is not None:
                yield name, grown.token
            elif isinstance(value, types.FunctionType) and is_rewritten(value.__code__):
                code = code_of(value)
                if (value.__defaults__ or value.__kwdefaults__) and code not in recursive:
                    raise _Unknown
                recording.keep(code)
                yield name, id(code), () if code in around else tuple(described(value, (*around, code)))
            elif isinstance(value, _IDENTIFIED):
                recording.keep(value)
                yield name, id(value)
            elif is_named(access_path) and not isinstance(value, torch.Tensor):
                assert access_path is not None
                yield name, access_path.token
            elif is_constant(value):
                yield name, token_of(value)
            elif (held := _held(value, access_path, name, accumulates)) is not None:
                yield name, type(value).__name__, held
            elif value is EMPTY or type(value) is dict:
                raise _Unknown
            else:
                yield name, "passed", named(name, cell)

    try:
        return Enclosing(tuple(described(fn, (code_of(fn),))), passed)
    except _Unknown as unknown:
        return unknown.places


def is_constant(value: Any) -> bool:
    """Whether a value is an immutable constant, or a tuple of such."""
    return is_one_of(type(value), _CONSTANTS) or (type(value) is tuple and all(map(is_constant, value)))


def _held(value: Any, access_path: AccessPath | None, name: str, accumulates: Callable[[StateSlot], bool]) -> Any:
    """Return the content of a container of the step, if it holds only constants and accumulators; else None. Raises
    _Unknown if it can be neither described nor passed."""
    if access_path is not None or (items := native_items(value)) is None:
        return None
    found = [(key, "accumulator" if accumulates(Item(value, key, name)) else None, item) for key, item in items]
    if all(accumulator or is_constant(item) for _, accumulator, item in found):
        return tuple((token_of(key), accumulator or token_of(item)) for key, accumulator, item in found)
    if type(value) is dict or any(accumulator for _, accumulator, _ in found):
        raise _Unknown(
            *(Item(value, key, name) for key, accumulator, item in found if not accumulator and not is_constant(item))
        )
    return None


def is_named(access_path: AccessPath | None) -> bool:
    """Whether an access path consists of names only. Elements of lists may differ from tree to tree."""
    if access_path is None or is_local(access_path):
        return False
    while access_path is not None:
        if access_path.step is Step.ITEM and type(access_path.key) is not str:
            return False
        access_path = access_path.base
    return True


def values_within(fn: types.FunctionType, recording: Any) -> Iterator[Any]:
    """Yield the contents of a function's shared variables, and of those of functions that they hold."""
    return (variable.get() for variable in dict.fromkeys(_variables_within(fn, recording, ())))


def places_within(fn: types.FunctionType, recording: Any, lists: Any) -> Iterator[StateSlot]:
    """Yield the places of a function's shared variables and of elements of the step's containers in them, without the
    output ``lists``."""
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
    passed: Mapping[str, types.CellType],
    values: Mapping[str, Any],
    places: Iterable[StateSlot],
    written: list[StateSlot],
) -> Iterator[None]:
    """Give passed variables their ``values`` within the context, and restore them after it. Places that the body has
    written keep the new content and are added to ``written``."""
    given: dict[StateSlot, Any] = {Variable(cell, name): values[name] for name, cell in passed.items()}
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
    """Yield (name, cell) of the closure variables that were made during the step."""
    if not is_rewritten(fn.__code__):
        return  # the function and its cells existed before the step
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        if not recording.holds_cell(fn, cell):
            yield name, cell
