"""Context facts: what recursive calls rely on that is not an argument (a flag, a mode, a function).

The step checks them once for all calls: while they hold, a call may take each variant that was seen with them. Variants
that were seen in other contexts are not its variants. Plain data.
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

__all__ = ["context_facts", "disagree", "fact_of", "holds"]

_OBJECTS = (types.FunctionType, types.CodeType, types.ModuleType, type)


def context_facts(events: Iterable[Event], numbers: bool = True) -> dict[Any, Any]:
    """Return, by place, what was found at places that are the same for all calls. ``numbers``: also numbers."""
    found: dict[Any, Any] = {}
    for event in events:
        match event:
            case HeapRead(access_path=access_path, value=value, kind=kind) if _is_shared(access_path):
                if (numbers or kind != "number") and not _is_grad(access_path):
                    place, what = fact_of(access_path, value)
                    found[place] = what
            case KeyLookup(base=base, key=key, present=present) if _is_shared(base) and not isinstance(key, Traced):
                found["absent", base.token, token_of(key)] = present
            case EmptinessTest(access_path=access_path, filled=filled) if _is_shared(access_path):
                found["filled", access_path.token] = filled
            case KeySetRead(access_path=access_path, keys=keys) if _is_shared(access_path):
                found["keys", access_path.token] = tuple(map(token_of, keys))
    return found


def fact_of(access_path: AccessPath, value: Any) -> tuple[Any, Any]:
    """Return the place and what a call may depend on there.

    That is the class of an object (its attributes have places of their own), dtype and requires_grad of a tensor, the
    value of anything else."""
    value = plain(value)
    if isinstance(value, torch.Tensor):
        with torch._C.DisableTorchFunction():  # the program must not see the query
            return ("found", access_path.token), ("tensor", str(value.dtype), value.requires_grad)
    if isinstance(value, _OBJECTS):
        return ("found", access_path.token), ("id", id(value))
    token = token_of(value)
    return ("found", access_path.token), ("class", id(type(value))) if token[0] == "id" else token


def holds(relied: Mapping[Any, Any], world: Mapping[Any, Any]) -> bool:
    """Whether all facts of ``relied`` are among those of ``world``."""
    missing = object()
    return all(world.get(place, missing) == what for place, what in relied.items())


def disagree(one: Mapping[Any, Any], other: Mapping[Any, Any]) -> bool:
    """Whether both have a fact about one place, and these differ."""
    return any(other.get(place, what) != what for place, what in one.items())


def _is_shared(access_path: AccessPath | None) -> bool:
    """Whether the path leads to the same place in all calls."""
    prefixes = () if access_path is None else access_path.prefixes()
    return not any(isinstance(at.key, Expr) or is_local(at) or at.step is Step.OWN for at in prefixes)


def _is_grad(access_path: AccessPath) -> bool:
    return access_path.step is Step.FIELD and access_path.key == "grad"
