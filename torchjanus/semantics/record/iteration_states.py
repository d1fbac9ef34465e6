"""Describe the program's variables between two iterations of a loop: tensors by number, all else by comparable tokens.

The loop analysis compares these states to find loop-carried values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath, token_of
from torchjanus.core.kinds import is_one_of, isinstance
from torchjanus.semantics.record.marks import ContentMarks
from torchjanus.semantics.record.variables import UNBOUND
from torchjanus.semantics.record.write_record import WriteRecord
from torchjanus.trace.actions import InvokeOp
from torchjanus.trace.events import Trace
from torchjanus.trace.values import Fetch, Traced, depends_on

__all__ = ["note_kinds", "state_of", "with_numbers"]


def state_of(recording: WriteRecord, escaped: int) -> dict[Any, Any]:
    """Return the variables by name: tensors as they are, all else as a comparable description. ``escaped``: how many
    elements of ``recording.escaped`` existed when the loop began."""
    found = recording.variable_changes.state(recording.escaped[:escaped], recording.trace.owners)
    return {name: _described(value) for name, value in found.items()}


def _described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, Traced):
        fetched = depends_on(value.expr, Fetch)
        return ("fetched" if fetched else "number", value.expr)
    if is_one_of(type(value), (int, float)):
        return (type(value).__name__, value)
    if isinstance(value, int | float | str | type(None)):
        return ("value", token_of(value))
    if value is UNBOUND:
        return ("unbound", None)
    if isinstance(value, ContentMarks):
        return ("marks", value.token)
    return ("object", value.kind, value.number)


def with_numbers(
    trace: Trace, numbers: Mapping[int, int], owners: Mapping[int, AccessPath], made: Mapping[int, int]
) -> None:
    """Replace, in all loop states, tensors by their numbers and objects by their access paths.

    ``numbers``: tensor numbers by id; ``made``: by id of a comprehension's partial list, the id of the finished list.
    """
    for frames in trace.frames:
        for state in frames.states:
            for name, value in state.items():
                if isinstance(value, torch.Tensor):
                    state[name] = ("tensor", numbers.get(id(value), -1))
                elif value[0] == "object":
                    known, number = owners.get(value[2]), made.get(value[2], value[2])
                    state[name] = ("new", value[1], number) if known is None else ("known", known.token)


def note_kinds(trace: Trace) -> None:
    """Record size, stride, dtype, device and ``requires_grad`` of each strided tensor of a run with loops or calls."""
    if trace.outline is not None:
        trace.outline.kinds = _kinds_of(trace.tensors)
    has_loops = trace.frames or trace.loop_instances or trace.loop_records or trace.changed
    if not has_loops and not any(isinstance(event, InvokeOp) for event in trace.events):
        return
    trace.kinds |= _kinds_of(trace.tensors)


def _kinds_of(tensors: list[Any]) -> dict[int, tuple[Any, ...]]:
    kinds: dict[int, tuple[Any, ...]] = {}
    with torch._C.DisableTorchFunction():
        for number, tensor in enumerate(tensors):
            plain = is_one_of(type(tensor), (torch.Tensor, torch.nn.Parameter)) and not tensor.is_nested
            if plain and tensor.layout == torch.strided:
                size, stride = tuple(tensor.size()), tuple(tensor.stride())
                kinds[number] = (size, stride, tensor.dtype, tensor.device, tensor.requires_grad)
    return kinds
