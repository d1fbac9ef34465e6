"""What recursive calls rely on around themselves (a flag, a mode, a function): as long as it says the same, a way that
a call was seen to take is one that calls may take.

The step checks it, for all calls alike; so variants seen in other contexts are not its variants. Plain data.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath, Step, token_of
from torchjanus.core.kinds import isinstance
from torchjanus.trace.events import Event
from torchjanus.trace.facts import EmptinessTest, HeapRead, KeyLookup, KeySetRead
from torchjanus.trace.values import Expr, Traced, is_local, plain

__all__ = ["around", "disagree", "holds", "said_of_value"]

_OBJECTS = (types.FunctionType, types.CodeType, types.ModuleType, type)


def around(events: Iterable[Event], numbers: bool = True) -> dict[Any, Any]:
    """What is said of places that do not depend on what a call is given. ``numbers``: also of numbers."""
    found: dict[Any, Any] = {}
    for event in events:
        match event:
            case HeapRead(access_path=access_path, value=value, kind=kind) if _is_around(access_path):
                if (numbers or kind != "number") and not _is_grad(access_path):
                    place, what = said_of_value(access_path, value)
                    found[place] = what
            case KeyLookup(base=base, key=key, present=present) if _is_around(base) and not isinstance(key, Traced):
                found["absent", base.token, token_of(key)] = present
            case EmptinessTest(access_path=access_path, filled=filled) if _is_around(access_path):
                found["filled", access_path.token] = filled
            case KeySetRead(access_path=access_path, keys=keys) if _is_around(access_path):
                found["keys", access_path.token] = tuple(map(token_of, keys))
    return found


def said_of_value(access_path: AccessPath, value: Any) -> tuple[Any, Any]:
    """What is found at a place, as far as it may decide what a call does: of an object that is its class, for its
    attributes are found at places of their own."""
    value = plain(value)
    if isinstance(value, torch.Tensor):
        with torch._C.DisableTorchFunction():  # nobody is to see that it is asked
            return ("found", access_path.token), ("tensor", str(value.dtype), value.requires_grad)
    if isinstance(value, _OBJECTS):
        return ("found", access_path.token), ("id", id(value))
    token = token_of(value)
    return ("found", access_path.token), ("class", id(type(value))) if token[0] == "id" else token


def holds(relied: Mapping[Any, Any], world: Mapping[Any, Any]) -> bool:
    """Whether all that was relied on is known to be so."""
    missing = object()
    return all(world.get(place, missing) == what for place, what in relied.items())


def disagree(one: Mapping[Any, Any], other: Mapping[Any, Any]) -> bool:
    """Whether the two say different things of a place."""
    return any(other.get(place, what) != what for place, what in one.items())


def _is_around(access_path: AccessPath | None) -> bool:
    """Whether the path leads to the same place for all calls."""
    prefixes = () if access_path is None else access_path.prefixes()
    return not any(isinstance(at.key, Expr) or is_local(at) or at.step is Step.OWN for at in prefixes)


def _is_grad(access_path: AccessPath) -> bool:
    return access_path.step is Step.FIELD and access_path.key == "grad"
