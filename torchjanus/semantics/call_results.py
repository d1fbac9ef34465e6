"""What recursive calls return: tensors, numbers, None, and tuples, lists and dicts of them.

Knows nothing of how calls are watched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchjanus.errors import Place
from torchjanus.origin import Origin
from torchjanus.semantics.recording import CONSTANT_TYPES
from torchjanus.trace.events import Found
from torchjanus.trace.recipes import Build, Constant, Number, TensorOf
from torchjanus.trace.values import Read, known_by_host, plain, trace_value

__all__ = ["look_of", "number_origin", "tensors_in", "with_numbers"]


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors in what a call returns, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, tuple | list | dict):
        parts = value.values() if isinstance(value, dict) else value
        return [tensor for part in parts for tensor in tensors_in(part)]
    return []


def number_origin(call: int, step: bool) -> Origin:
    """Where the run that made a call finds what that has returned beside tensors: the step once calls have been
    followed, a call while it is followed itself."""
    return Origin.grown(("call", call)) if step else Origin.parameter(f"call {call}")


def with_numbers(value: Any, origin: Origin, note: Callable[[Found], object], place: Place) -> Any:
    """What a call has returned, with numbers that remember where they were found."""
    bare = plain(value)
    if type(bare) in (int, float):
        note(Found(origin, bare, "number", place=place))
        return trace_value(bare, Read(origin))
    if type(value) in (tuple, list):
        return type(value)(with_numbers(part, origin.item(n), note, place) for n, part in enumerate(value))
    if type(value) is dict:
        return {key: with_numbers(part, origin.item(key), note, place) for key, part in value.items()}
    return value


def look_of(recipe: Any, value: Any) -> Any:
    """What a result looks like, whichever call made it; None where no caller could go on with it."""
    match recipe:
        case TensorOf():
            return "tensor"
        case Number(expr=expr) if type(plain(value)) in (int, float) and known_by_host(expr):
            return ("number", type(plain(value)).__name__)
        case Constant(value=known) if type(known) in (int, float):
            return ("number", type(known).__name__)
        case Constant(value=value) if type(value) in CONSTANT_TYPES:
            return recipe.token
        case Build(cls=cls, items=items) if cls in (tuple, list):
            parts = tuple(look_of(part, inner) for part, inner in zip(items, value, strict=True))
            return None if None in parts else (cls.__name__, *parts)
        case Build(cls=cls, items=items) if cls is dict:
            # Keys are the program's own words.
            words = (key.value if isinstance(key, Constant) else None for key, _ in items)
            keys = tuple(word if type(word) is str else None for word in words)
            looks = tuple(look_of(part, inner) for (_, part), inner in zip(items, value.values(), strict=True))
            return None if None in keys or None in looks else ("dict", *zip(keys, looks, strict=True))
    return None
