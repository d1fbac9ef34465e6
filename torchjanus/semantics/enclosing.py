"""The variables that a function made within the step shares with the call in which it was made.

Those that hold the same in all calls tell functions of one code apart: which recursion it is depends on them. Those
that hold numbers and tensors of the step's own are passed with each call, as its arguments are. Knows nothing of how
calls are watched.
"""

from __future__ import annotations

import types
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from torchjanus.origin import Origin, Step, token_of
from torchjanus.rewrite import code_of, is_rewritten
from torchjanus.semantics.recording import CONSTANT_TYPES
from torchjanus.trace.values import is_local

__all__ = ["Enclosing", "cells_within", "enclosing", "holding", "is_named", "values_within"]

_EMPTY = object()
_KNOWN_BY_THEMSELVES = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType)
_CONSTANTS = (*CONSTANT_TYPES, int, float)


@dataclass(slots=True)
class Enclosing:
    """``token``: what is the same in all calls; ``passed``: the variables that are passed with each, by the names of
    parameters that no function of Python has."""

    token: tuple[Any, ...]
    passed: dict[str, types.CellType] = field(default_factory=dict)


class _Unknown(Exception):
    """It is not known what a variable holds."""


def enclosing(fn: types.FunctionType, recording: Any, lists: Any, recursive: Collection[types.CodeType]) -> Any:
    """What the variables of a function are, and those of functions that they hold; None if that is not known.
    ``lists``: those of the step to which calls append; ``recursive``: functions whose defaults are told with each
    call."""
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
            value = _content(cell)
            origin = recording.owner(value)
            grown = lists.origin(value) if origin is None else origin if origin.is_grown else None
            if grown is not None:
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
            elif is_named(origin) and not isinstance(value, torch.Tensor):
                assert origin is not None
                yield name, origin.token
            elif _is_constant(value):
                yield name, token_of(value)
            elif value is _EMPTY:
                raise _Unknown
            else:
                yield name, "passed", named(name, cell)

    try:
        return Enclosing(tuple(told(fn, (code_of(fn),))), passed)
    except _Unknown:
        return None


def _is_constant(value: Any) -> bool:
    return type(value) in _CONSTANTS or (type(value) is tuple and all(map(_is_constant, value)))


def is_named(origin: Origin | None) -> bool:
    """Whether an object of the step is found by names all the way: elements of lists are others for other trees."""
    if origin is None or is_local(origin):
        return False
    while origin is not None:
        if origin.step is Step.ITEM and type(origin.key) is not str:
            return False
        origin = origin.base
    return True


def values_within(fn: types.FunctionType, recording: Any) -> Iterator[Any]:
    """What they hold, and those of functions that they hold."""
    return (_content(cell) for _, cell in cells_within(fn, recording))


def cells_within(
    fn: types.FunctionType, recording: Any, around: tuple[types.CodeType, ...] = ()
) -> Iterator[tuple[str, types.CellType]]:
    """The variables, and those of functions that they hold, by name."""
    for name, cell in _variables(fn, recording):
        yield name, cell
        value = _content(cell)
        if isinstance(value, types.FunctionType) and value.__code__ not in around:
            yield from cells_within(value, recording, (*around, value.__code__))


@contextmanager
def holding(
    passed: Mapping[str, types.CellType],
    values: Mapping[str, Any],
    cells: Iterable[tuple[str, types.CellType]],
    written: list[tuple[str, types.CellType]],
) -> Iterator[None]:
    """Within, the variables that are passed hold these values, and after it what they held before. Those of ``cells``
    that are set meanwhile keep what they were set to, and go into ``written``."""
    given = {id(cell): (cell, values[name], _content(cell)) for name, cell in passed.items()}
    known = {id(cell): (name, cell, _content(cell)) for name, cell in cells}
    for cell, value, _ in given.values():
        cell.cell_contents = value
    try:
        yield
    finally:
        for number, (name, cell, before) in known.items():
            _, value, _ = given.get(number, (cell, before, before))
            if _content(cell) is not value:
                written.append((name, cell))
            elif number in given:
                cell.cell_contents = before


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _EMPTY


def _variables(fn: types.FunctionType, recording: Any) -> Iterator[tuple[str, types.CellType]]:
    """Those that were not there before the function in which this one was made."""
    if not is_rewritten(fn.__code__):
        return  # it was there before the step, and so were they
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        if not recording.holds_cell(fn, cell):
            yield name, cell
