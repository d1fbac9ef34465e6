"""The variables that a function made within the step shares with the call in which it was made.

They tell functions of one code apart: which recursion it is depends on what they hold. Knows nothing of calls.
"""

from __future__ import annotations

import types
from collections.abc import Collection, Iterator
from typing import Any

import torch

from torchjanus.origin import token_of
from torchjanus.rewrite import code_of, is_rewritten
from torchjanus.semantics.recording import CONSTANT_TYPES
from torchjanus.trace.values import is_local

__all__ = ["values_within", "variables_of"]

_EMPTY = object()
_KNOWN_BY_THEMSELVES = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType)


def variables_of(
    fn: types.FunctionType,
    recording: Any,
    lists: Any,
    recursive: Collection[types.CodeType],
    around: tuple[types.CodeType, ...],
) -> Any:
    """What they are, by name, or None if that is not known. ``lists``: those of the step to which calls append;
    ``recursive``: functions whose defaults are told with each call; ``around``: functions that are asked already."""
    found: list[Any] = []
    for name, value in _variables(fn, recording):
        origin = recording.owner(value)
        grown = lists.origin(value) if origin is None else origin if origin.is_grown else None
        if grown is not None:
            found.append((name, grown.token))
        elif isinstance(value, types.FunctionType) and is_rewritten(value.__code__):
            code = code_of(value)
            if (value.__defaults__ or value.__kwdefaults__) and code not in recursive:
                return None
            own = () if code in around else variables_of(value, recording, lists, recursive, (*around, code))
            if own is None:
                return None
            recording.keep(code)
            found.append((name, id(code), own))
        elif isinstance(value, _KNOWN_BY_THEMSELVES):
            recording.keep(value)
            found.append((name, id(value)))
        elif origin is not None and not is_local(origin) and not isinstance(value, torch.Tensor):
            found.append((name, origin.token))
        elif type(value) in CONSTANT_TYPES:
            found.append((name, token_of(value)))
        else:
            return None
    return tuple(found)


def values_within(fn: types.FunctionType, recording: Any, around: tuple[types.CodeType, ...] = ()) -> Iterator[Any]:
    """What they hold, and those of functions that they hold."""
    for _, value in _variables(fn, recording):
        yield value
        if isinstance(value, types.FunctionType) and value.__code__ not in around:
            yield from values_within(value, recording, (*around, value.__code__))


def _variables(fn: types.FunctionType, recording: Any) -> Iterator[tuple[str, Any]]:
    """What they hold: without those that were there before the function in which this one was made."""
    if not is_rewritten(fn.__code__):
        return  # it was there before the step, and so were they
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        if not recording.holds_cell(fn, cell):
            try:
                yield name, cell.cell_contents
            except ValueError:
                yield name, _EMPTY
