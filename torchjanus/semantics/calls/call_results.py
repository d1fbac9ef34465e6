"""Results of recursive calls: tensors, numbers, None, and tuples, lists, dictionaries and new objects of them.

A *look* describes the structure of a result, so that the caller need not know which call made it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath
from torchjanus.core.errors import Place
from torchjanus.core.kinds import is_one_of, isinstance
from torchjanus.rewrite.hooks.lookup import attributes_of
from torchjanus.semantics.containers.parts import slots_of
from torchjanus.semantics.known.details import tuple_like
from torchjanus.semantics.record.recording import CONSTANT_TYPES
from torchjanus.trace.calls import parts_made
from torchjanus.trace.facts import HeapRead
from torchjanus.trace.recipes import Constant, NewObject, Number, TensorOf
from torchjanus.trace.values import Read, known_by_host, plain, trace_value

__all__ = ["look_of", "number_access_path", "tensors_in", "with_numbers", "with_tensors"]


def tensors_in(value: Any, look: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in a result, in order. ``look``: the structure of the result (see ``look_of``)."""
    if look == "tensor":
        yield value
    for key, inner in parts_made(look):
        yield from tensors_in(_part(value, key), inner)


def number_access_path(call: int, step: bool) -> AccessPath:
    """Return the access path, within the caller, of the numbers that call number ``call`` returns. ``step``: whether
    the caller is the step, which has them once the host has traversed all calls."""
    return AccessPath.grown(("call", call)) if step else AccessPath.parameter(f"call {call}")


def with_numbers(
    value: Any, look: Any, access_path: AccessPath, note: Callable[[HeapRead], object], place: Place
) -> Any:
    """Return a result with traced numbers, and ``note`` their reads. ``access_path``: that of the result."""
    if type(look) is tuple and look[0] == "number":
        bare = plain(value)
        note(HeapRead(access_path, bare, "number", place=place))
        return trace_value(bare, Read(access_path))
    made = {
        key: with_numbers(_part(value, key), inner, access_path.item(key), note, place)
        for key, inner in parts_made(look)
    }
    return _with(value, made)


def with_tensors(value: Any, look: Any, own: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return a result with each tensor replaced by ``own(tensor)``."""
    if look == "tensor":
        return own(value)
    return _with(value, {key: with_tensors(_part(value, key), inner, own) for key, inner in parts_made(look)})


def _part(value: Any, key: Any) -> Any:
    """Return an element of a container or an attribute of an object."""
    if isinstance(value, tuple):
        return tuple.__getitem__(value, key)
    if type(value) is list:
        return value[key]
    if type(value) is dict:
        return value[key]
    held = attributes_of(value) or {}
    return held[key] if key in held else _slot(value, key).__get__(value, type(value))


def _slot(value: Any, name: str) -> Any:
    return next(slot for slot in slots_of(type(value)) if slot.__name__ == name)


def _with(value: Any, parts: dict[Any, Any]) -> Any:
    """Return a result with other parts. Containers are replaced, objects changed in place."""
    if isinstance(value, tuple):
        same = all(_part(value, key) is part for key, part in parts.items())
        return value if same else tuple_like(value, parts.values())
    if type(value) is list:
        return list(parts.values())
    if type(value) is dict:
        return parts
    for key, part in parts.items():
        if part is _part(value, key):
            continue
        held = attributes_of(value) or {}
        if key in held:
            held[key] = part
        else:
            _slot(value, key).__set__(value, part)
    return value


def look_of(recipe: Any, value: Any) -> Any:
    """Return the structure of a result, the same for all calls; None if a caller cannot use it without the values."""
    match recipe:
        case TensorOf():
            return "tensor"
        case Number(expr=expr) if is_one_of(type(plain(value)), (int, float)) and known_by_host(expr):
            return ("number", type(plain(value)).__name__)
        case Constant(value=known) if is_one_of(type(known), (int, float)):
            return ("number", type(known).__name__)
        case Constant(value=value) if is_one_of(type(value), CONSTANT_TYPES):
            return recipe.token
        case NewObject(cls=cls, items=items) if cls in (tuple, list):
            parts = tuple(look_of(part, inner) for part, inner in zip(items, value, strict=True))
            return None if None in parts else (cls.__name__, *parts)
        case NewObject(cls=cls, items=items) if cls is dict:
            # Keys must be strings that are constants of the program.
            words = (key.value if isinstance(key, Constant) else None for key, _ in items)
            keys = tuple(word if type(word) is str else None for word in words)
            looks = tuple(look_of(part, inner) for (_, part), inner in zip(items, value.values(), strict=True))
            return None if None in keys or None in looks else ("dict", *zip(keys, looks, strict=True))
        case NewObject(make=None, maxlen=None) if _is_record(recipe):
            keys = (*range(len(recipe.items)), *(name for name, _ in recipe.named))
            held = (*recipe.items, *(part for _, part in recipe.named))
            looks = tuple(look_of(part, _part(value, key)) for key, part in zip(keys, held, strict=True))
            return None if None in looks else ("object", recipe.cls, *zip(keys, looks, strict=True))
    return None


def _is_record(recipe: NewObject) -> bool:
    """Whether a recipe makes an object that consists of its attributes, or a named tuple."""
    names = [name for name, _ in recipe.named]
    if len(set(names)) < len(names):
        return False
    return not names if issubclass(recipe.cls, tuple) else not recipe.items and _is_bare(recipe.cls)


def _is_bare(cls: type) -> bool:
    return not issubclass(cls, list | dict | set | frozenset | BaseException)
