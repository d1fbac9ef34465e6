"""Negates assumptions, for fault injection: generated code has to find the contrary of an assumption to be wrong.

This module knows neither graphs nor the generated code.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath, Step, native_class
from torchjanus.core.kinds import isinstance
from torchjanus.host.assumption import (
    AmbientState,
    Arguments,
    Assumption,
    Condition,
    ContainerKeys,
    Emptiness,
    Identity,
    InstanceOf,
    KeyPresence,
    SameObject,
    TypeOf,
    ValueOf,
    waits_for,
)
from torchjanus.host.tensor_assumptions import Distinct, TensorKind
from torchjanus.rewrite.hooks.lookup import is_python_class

__all__ = ["contrary", "failing"]

_KEY = "a key that no program has"


def failing(assumption: Assumption) -> Assumption:
    """Return the same assumption with a ``holds`` that is always false."""
    cls = type(assumption)
    made: type[Assumption] = type(cls.__name__, (cls,), {"__slots__": (), "holds": lambda self, args, kwargs: False})
    return made(**{f.name: getattr(assumption, f.name) for f in dataclasses.fields(assumption)})


def contrary(assumption: Assumption) -> Assumption | None:
    """Return an assumption of the same kind that is wrong where this one is right; None where there is none.

    Most are always wrong. The others may be right where ``Launch.check`` finds that this one is not.
    """
    replace: Callable[..., Assumption] = dataclasses.replace
    match assumption:
        case Arguments():
            return replace(assumption, count=assumption.count + 1)
        case AmbientState():
            return replace(assumption, deterministic=not assumption.deterministic)
        case Identity():
            return replace(assumption, value=_another(assumption.value))
        case ValueOf():
            # A length is compared directly; everything else by type and value.
            return replace(assumption, value=-1 if assumption.access_path.step is Step.LEN else _Nowhere())
        case TypeOf(access_path=AccessPath(step=Step.FIELD, key="grad") as access_path):
            # for a gradient, the code only checks whether there is one
            return ValueOf(assumption.place, access_path, None)
        case TypeOf():
            return replace(assumption, cls=_Nowhere)
        case InstanceOf():
            return replace(assumption, outcome=not assumption.outcome)
        case TensorKind():
            other = torch.empty((1, *assumption.example.shape), dtype=assumption.example.dtype)
            cls, dtype, _, _, *rest = assumption.detail
            detail = (cls, dtype, tuple(other.shape), other.stride(), *rest)
            return replace(assumption, example=other, detail=detail, free=(), strides=())
        case ContainerKeys():
            return replace(assumption, keys=(*assumption.keys, _KEY))
        case Condition():
            return replace(assumption, outcome=_Nowhere())
        case KeyPresence() | Emptiness() | SameObject() if waits_for(assumption):
            return None  # the contrary may be right, and ``Launch.check`` cannot decide before the extern call
        case KeyPresence():
            return replace(assumption, present=not assumption.present)
        case Emptiness():
            return replace(assumption, filled=not assumption.filled)
        case SameObject():
            return replace(assumption, same=not assumption.same)
        case Distinct():
            return None
    raise AssertionError(f"no contrary of {type(assumption).__name__}")


class _Nowhere:
    """A class of which the program has no object. An instance is equal to nothing."""


def _another(value: Any) -> Any:
    """Return another object, as similar to this one as possible without running code of the program."""
    cls = type(value)
    if isinstance(value, torch.Tensor):
        with torch._C.DisableTorchFunction():
            return torch.empty_like(value)
    if hasattr(cls, "__del__"):
        return object()
    try:
        if not is_python_class(cls):
            other = copy.copy(value)
            return object() if other is value else other
        native = native_class(cls)
        other = (native or object).__new__(cls)
        if native is not None and issubclass(native, dict):
            for key in native.__iter__(value):
                native.__setitem__(other, key, native.__getitem__(value, key))
        elif native is not None:
            native.__init__(other, native.__iter__(value))
        object.__getattribute__(other, "__dict__").update(object.__getattribute__(value, "__dict__"))
    except (TypeError, AttributeError, copy.Error):
        return object()
    return other
