"""Memory that arrays of the host share with tensors of the graph: who writes to it, and who reads it.

The host changes an array at once or at commit, and the graph changes its tensors at commit. Where both have to do with
one piece of memory, a graph is only made if neither can see what the other does too early or too late. An array is
whatever shows its memory (``host_memory``): NumPy's, Python's own, a ``bytearray``, and a view of any of these.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchjanus.core.errors import Place
from torchjanus.core.kinds import isinstance
from torchjanus.semantics.known.details import version_of
from torchjanus.semantics.known.host_memory import Bounds, memory_within, tensors_within
from torchjanus.semantics.record.recording import Recording
from torchjanus.trace.actions import Extern, Op
from torchjanus.trace.terms import TensorRef

__all__ = ["SharedArrays"]


@dataclass(frozen=True, slots=True)
class _Given:
    """One extern call that reaches arrays."""

    event: Extern
    given: Sequence[Bounds]
    taken: Sequence[torch.Tensor]  # what it gave back that lies there
    looks: bool  # whether it may read what lies in the arrays: a view of one is made without


class SharedArrays:
    """Of one run."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._given: list[_Given] = []

    def are_read(self, arrays: Sequence[Bounds]) -> bool:
        """Whether the graph has read this memory so far."""
        return bool(arrays) and any(
            _meet(arrays, _of_tensor(t)) for t in self._recording.trace.tensors if t is not None
        )

    def are_met(self, arrays: Sequence[Bounds]) -> bool:
        """Whether an extern call before has reached this memory."""
        return any(_meet(arrays, bounds) for one in self._given for bounds in one.given)

    def note(self, event: Extern, values: Iterable[Any], result: Any) -> None:
        """An extern call was made: of one of these, and given the others."""
        given = list(memory_within(values))
        if not given:
            return
        if not self._given:
            self._recording.unfinished.append(self._check)
        found = [*tensors_within(result)]
        taken = [tensor for tensor in found if _meet(given, _of_tensor(tensor))]
        view = any(_meet(given, bounds) for bounds in memory_within((result,)))
        self._given.append(_Given(event, given, taken, event.effects.world or not (taken or view)))

    def _check(self) -> None:
        trace = self._recording.trace
        for number in trace.access_paths:
            tensor = trace.tensors[number]
            if tensor is None or not (bounds := _of_tensor(tensor))[1]:
                continue
            near = [one for one in self._given if _meet(one.given, bounds)]
            if near:
                self._check_reads(bounds, near)
                if version_of(tensor) != self._recording.version_before(tensor):
                    self._check_looks(bounds, near)

    def _check_reads(self, bounds: Bounds, near: Sequence[_Given]) -> None:
        """What the host has changed the graph must not read afterwards, unless it takes it in anew."""
        read: Place | None = None
        for place, one in enumerate(near):
            if read is None and one.event.effects.world:
                anew = [tensor for later in near[place:] for tensor in later.taken]
                read = self._read_after(bounds, one.event.after, anew)
        if read is not None:
            self._recording.refuse(
                "array-shares-memory",
                "an array is changed in the step, and a tensor that shares its memory is used after that",
                "the host changes arrays when the graph has run, or before it.",
                "Make the tensor of the array after the change (torch.from_numpy), or give it a copy (torch.tensor).",
                read,
            )

    def _read_after(self, bounds: Bounds, after: int, anew: Sequence[torch.Tensor]) -> Place | None:
        """Where an operation uses this memory through another tensor than these, or than views of these."""
        trace = self._recording.trace
        ops = [event for event in trace.events if isinstance(event, Op)]
        fresh = {self._recording.number(tensor) for tensor in anew}
        for op in ops[after:]:
            for ref in pytree.tree_leaves((op.args, op.kwargs)):
                tensor = trace.tensors[ref.number] if isinstance(ref, TensorRef) else None
                if tensor is not None and ref.number not in fresh and _meet([bounds], _of_tensor(tensor)):
                    return op.place
            fresh.update(out.number for out in op.outs)
        return None

    def _check_looks(self, bounds: Bounds, near: Sequence[_Given]) -> None:
        """What the graph changes the host must not look at in the same step, unless that is over by then."""
        takes = [any(_meet([bounds], _of_tensor(tensor)) for tensor in one.taken) for one in near]
        taken = max((place for place, one in enumerate(takes) if one), default=-1)
        # A call that may do anything keeps its order: it, and what was called before it, come before the graph.
        over = max((place for place, one in enumerate(near[: taken + 1]) if one.event.effects.world), default=-1)
        for one in near[over + 1 :]:
            if one.looks:
                self._recording.refuse(
                    "array-shares-memory",
                    "a tensor that shares memory with an array is changed in the step, and native code is given it",
                    "the graph's changes are held back, and native code would see the array without them.",
                    "Change the array itself before a tensor is made of it, or make the tensor by torch.tensor().",
                    one.event.place,
                )
                return


def _meet(some: Iterable[Bounds], other: Bounds) -> bool:
    return any(low < other[1] and other[0] < high for low, high in some)


def _of_tensor(tensor: torch.Tensor) -> Bounds:
    with torch._C.DisableTorchFunction():
        if tensor.layout != torch.strided or tensor.device.type != "cpu":
            return 0, 0
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            return 0, 0
        memory = tensor.untyped_storage()
        return memory.data_ptr(), memory.data_ptr() + memory.nbytes()
