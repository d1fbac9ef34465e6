"""Release the memory that a finished run no longer needs: replaced tensors, and the objects that watched it.

A trace keeps the values before the call, to compare them with the next run. For a tensor that the run has replaced (an
old gradient, an old state) its metadata suffices. Without the release, three traces of a training step would hold the
gradients of three steps. Tensors that the run has stored are not kept either: their recipes are known.

The objects that watch a run form reference cycles. They are emptied when the run ends, so that their referents need not
wait for the garbage collector.
"""

from __future__ import annotations

import types
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath
from torchjanus.core.kinds import isinstance, module_of
from torchjanus.semantics.known.details import memory_of
from torchjanus.trace.actions import HeapWrite
from torchjanus.trace.blanks import blank, is_blank
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import HeapRead

__all__ = ["SMALL", "forget", "release"]

SMALL = 1 << 14  # bytes; smaller tensors are kept


def release(trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Replace, by blanks without storage, the tensors that are no longer at their access path and those that the run
    has stored. ``args``, ``kwargs``: those of the run or of a later one. Return whether there may be more to
    release."""
    for number, stored in enumerate(trace.events):
        if type(stored) is HeapWrite and _is_large(stored.value) and id(stored.value) not in trace.owners:
            trace.events[number] = let_go = replace(stored, value=blank(stored.value.detach()))
            if id(stored) in trace.recipes:
                trace.recipes[id(let_go)] = trace.recipes.pop(id(stored))
    trace.alive = [kept for kept in trace.alive if not _is_large(kept) or id(kept) in trace.owners]
    reads = [event for event in trace.events if type(event) is HeapRead and event.kind == "tensor"]
    if not any(_is_large(event.value) for event in reads):
        return False
    found = {event.access_path: event for event in reads}
    tensors = {id(event.value): event.value for event in found.values()}
    sharing = Counter(map(memory_of, tensors.values()))
    gone: dict[int, torch.Tensor] = {}
    for access_path, event in found.items():
        tensor = event.value
        if _is_plain(tensor) and sharing[memory_of(tensor)] == 1 and not _is_at(tensor, access_path, args, kwargs):
            gone[id(tensor)] = tensor
    for one in trace.events:
        if type(one) is HeapRead and one.kind != "tensor":  # other events refer to its identity
            gone.pop(id(one.value), None)
    if not gone:
        return True
    others = {key: blank(tensor) for key, tensor in gone.items()}
    trace.tensors = [others.get(id(tensor), tensor) for tensor in trace.tensors]
    trace.events = [
        replace(event, value=others[id(event.value)])
        if type(event) is HeapRead and id(event.value) in others
        else event
        for event in trace.events
    ]
    trace.alive = [*(kept for kept in trace.alive if id(kept) not in others), *others.values()]
    for key, other in others.items():
        if key in trace.owners:
            trace.owners[id(other)] = trace.owners.pop(key)
    return True


def forget(roots: Iterable[object], lasting: tuple[type, ...]) -> None:
    """Empty the objects that have watched a run: those of ``torchjanus.semantics`` that are reachable from ``roots``.

    Their containers are replaced rather than cleared: a trace or the next watch may share them. Objects of ``lasting``
    classes are kept."""
    waiting, seen = [*roots], set[int]()
    while waiting:
        part = waiting.pop()
        if id(part) in seen or isinstance(part, lasting) or _is_frozen(part):
            continue
        seen.add(id(part))
        for name, value in _fields(part):
            kind = type(value)
            if kind in _CONTAINERS and value:
                setattr(part, name, kind())
            elif issubclass(kind, BaseException | torch.Tensor):  # the traceback of an error holds all its frames
                setattr(part, name, None)
            elif kind is types.MethodType:
                value = value.__self__
            if module_of(type(value)).startswith(_OWN):
                waiting.append(value)


_CONTAINERS = frozenset({dict, list, set})
_OWN = "torchjanus.semantics."


def _is_frozen(part: object) -> bool:
    parameters = getattr(type(part), "__dataclass_params__", None)
    return parameters is not None and bool(parameters.frozen)


def _fields(part: object) -> list[tuple[str, Any]]:
    fields = [*vars(part).items()] if hasattr(part, "__dict__") else []
    for kind in type(part).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        fields += [(name, getattr(part, name)) for name in slots if name != "__dict__" and hasattr(part, name)]
    return fields


def _is_large(tensor: Any) -> bool:
    return (
        type(tensor) is torch.Tensor
        and tensor.layout == torch.strided
        and tensor.nbytes >= SMALL
        and not is_blank(tensor)
    )


def _is_plain(tensor: Any) -> bool:
    return (
        _is_large(tensor)
        and tensor.is_leaf
        and not (tensor.is_inference() or tensor.is_conj() or tensor.is_neg())
        and tensor.storage_offset() == 0
        and tensor._backward_hooks is None
    )


def _is_at(tensor: torch.Tensor, access_path: AccessPath, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a tensor is still at its access path. True if the path cannot be read."""
    try:
        return access_path.read(args, kwargs) is tensor
    except Exception:
        return True
