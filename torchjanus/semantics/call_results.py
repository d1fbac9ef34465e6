"""What recursive calls return: tensors, None, and tuples, lists and dicts of them.

Knows nothing of how calls are watched.
"""

from __future__ import annotations

from typing import Any

import torch

from torchjanus.semantics.recording import CONSTANT_TYPES
from torchjanus.trace.recipes import Build, Constant, TensorOf

__all__ = ["look_of", "tensors_in"]


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors in what a call returns, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, tuple | list | dict):
        parts = value.values() if isinstance(value, dict) else value
        return [tensor for part in parts for tensor in tensors_in(part)]
    return []


def look_of(recipe: Any) -> Any:
    """What a result looks like, whichever call made it; None where no caller could go on with it."""
    match recipe:
        case TensorOf():
            return "tensor"
        case Constant(value=value) if type(value) in CONSTANT_TYPES:
            return recipe.token
        case Build(cls=cls, items=items) if cls in (tuple, list):
            parts = tuple(look_of(part) for part in items)
            return None if None in parts else (cls.__name__, *parts)
        case Build(cls=cls, items=items) if cls is dict:
            # Keys are the program's own words.
            words = (key.value if isinstance(key, Constant) else None for key, _ in items)
            keys = tuple(word if type(word) is str else None for word in words)
            looks = tuple(look_of(part) for _, part in items)
            return None if None in keys or None in looks else ("dict", *zip(keys, looks, strict=True))
    return None
