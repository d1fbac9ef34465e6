"""Check the memory that host arrays share with tensors: reads and writes of both must keep program order.

Extern calls change an array before the graph runs or at commit; the graph changes its tensors at commit. A graph is
made only if neither sees a write of the other too early or too late. An array is any object that exposes its memory
(``host_memory``): of NumPy, of the module ``array``, a ``bytearray``, and views of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchjanus.core.errors import Place
from torchjanus.semantics.known.details import version_of
from torchjanus.semantics.known.host_memory import Bounds, memory_within, tensors_within
from torchjanus.semantics.record.recording import Recording
from torchjanus.trace.actions import Extern
from torchjanus.trace.operations import ops_of

__all__ = ["SharedArrays"]


@dataclass(frozen=True, slots=True)
class _ArrayAccess:
    """One extern call that accesses arrays. ``given``: the memory of its array arguments."""

    event: Extern
    given: Sequence[Bounds]
    taken: Sequence[torch.Tensor]  # tensors in its result that share this memory
    looks: bool  # whether it may read the contents; making a view does not


class SharedArrays:
    """The accesses of one run to shared memory."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._given: list[_ArrayAccess] = []

    def are_read(self, arrays: Sequence[Bounds]) -> bool:
        """Whether tensors of the run so far use this memory."""
        return bool(arrays) and any(
            _overlap(arrays, _of_tensor(t)) for t in self._recording.trace.tensors if t is not None
        )

    def are_accessed(self, arrays: Sequence[Bounds]) -> bool:
        """Whether an earlier extern call has accessed this memory."""
        return any(_overlap(arrays, bounds) for one in self._given for bounds in one.given)

    def note(self, event: Extern, values: Iterable[Any], result: Any) -> None:
        """Record an extern call with its callee and arguments (``values``) and its result."""
        given = list(memory_within(values))
        if not given:
            return
        if not self._given:
            self._recording.unfinished.append(self._check)
        found = [*tensors_within(result)]
        taken = [tensor for tensor in found if _overlap(given, _of_tensor(tensor))]
        view = any(_overlap(given, bounds) for bounds in memory_within((result,)))
        self._given.append(_ArrayAccess(event, given, taken, event.effects.world or not (taken or view)))

    def _check(self) -> None:
        trace = self._recording.trace
        for number in trace.access_paths:
            tensor = trace.tensors[number]
            if tensor is None or not (bounds := _of_tensor(tensor))[1]:
                continue
            near = [one for one in self._given if _overlap(one.given, bounds)]
            if near:
                self._check_reads(bounds, near)
                if version_of(tensor) != self._recording.version_before(tensor):
                    self._check_native_reads(bounds, near)

    def _check_reads(self, bounds: Bounds, near: Sequence[_ArrayAccess]) -> None:
        """Refuse if the graph reads memory after the host may have changed it, except by tensors made afterwards."""
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
        """Return the place of an operation after ``after`` that uses this memory through a tensor that is not derived
        from ``anew``; None if there is none."""
        trace = self._recording.trace
        ops = ops_of(trace.events)
        fresh = {self._recording.number(tensor) for tensor in anew}
        for op in ops[after:]:
            for ref in op.inputs:
                tensor = trace.tensors[ref.number]
                if tensor is not None and ref.number not in fresh and _overlap([bounds], _of_tensor(tensor)):
                    return op.place
            fresh.update(out.number for out in op.outs)
        return None

    def _check_native_reads(self, bounds: Bounds, near: Sequence[_ArrayAccess]) -> None:
        """Refuse if native code may read memory that the graph changes, except in calls that precede the graph."""
        takes = [any(_overlap([bounds], _of_tensor(tensor)) for tensor in one.taken) for one in near]
        taken = max((place for place, one in enumerate(takes) if one), default=-1)
        # A call with arbitrary effects keeps its order: it and earlier calls run before the graph.
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


def _overlap(some: Iterable[Bounds], other: Bounds) -> bool:
    return any(low < other[1] and other[0] < high for low, high in some)


def _of_tensor(tensor: torch.Tensor) -> Bounds:
    with torch._C.DisableTorchFunction():
        if tensor.layout != torch.strided or tensor.device.type != "cpu":
            return 0, 0
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            return 0, 0
        memory = tensor.untyped_storage()
        return memory.data_ptr(), memory.data_ptr() + memory.nbytes()
