"""The CUDA-graph executor: a whole step as one launch, in memory that stays where it is.

A capture belongs to the sizes of its inputs. Until the executor is trusted all its memory is its own; then inputs that
lie at the same address in each call (parameters, states of optimizers) are used where they are. Where a call does not
fit, or results of the last one are still held, the call is made by what the captures are made of. This module does not
know how work is captured.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.autograd.graph import increment_version

from torchjanus.core.errors import refused
from torchjanus.core.logs import logger
from torchjanus.execute.compiled.inductor import Inductor
from torchjanus.execute.cuda_graph.body import Body, aten_body, inductor_body
from torchjanus.execute.cuda_graph.device import Captured, Device
from torchjanus.execute.cuda_graph.static_memory import Inputs, Results
from torchjanus.execute.replay import measured
from torchjanus.execute.running.base import Numbers, Updating, Violated
from torchjanus.execute.running.gate import Ambience, Generators, failed
from torchjanus.graph.ir.lowered import Lowered

__all__ = ["CudaGraph"]

log = logger("executors")

_SIZES = 8  # captures of different sizes that one executor keeps
_MOVES = 3  # how often memory may have moved before inputs are copied for good


@dataclass(slots=True)
class _Capture:
    """One capture. ``numbers``: the host's numbers on the device."""

    inputs: Inputs
    numbers: list[torch.Tensor]
    work: Captured
    results: Results
    flags: torch.Tensor | None
    final: bool = False  # whether it is known which inputs stay where they are


class CudaGraph:
    """See Executable. Results have replay's bits, except where a number of the host is data: there a kernel may
    give other last digits."""

    def __init__(self, lowered: Lowered, body: Body, device: Device) -> None:
        self.lowered, self.name = lowered, body.name
        self._body, self._device = body, device
        self._generators = Generators(lowered)
        self._measured = measured(lowered)
        self._captures: dict[tuple[int, ...], _Capture | None] = {}
        self._trusted = False
        self._seen: list[torch.Tensor] | None = None  # the inputs of the call before, while addresses are observed
        self._adopted: frozenset[int] | None = None
        self._odd = False  # whether inputs lay elsewhere in the call before
        self._moves = 0
        self._lending = True  # whether large values are handed out without a copy
        self._pool = device.pool()
        self._one = threading.Lock()

    @classmethod
    def of(cls, lowered: Lowered, device: Device | None) -> CudaGraph:
        """Return an executor whose captures call ATen. Raises Refused where they could not be made."""
        if device is None:
            what = "no tensor of the step is on a CUDA device, or several devices are used"
            raise refused("graph-not-captured", what, "There is nothing to capture.", "Replay is used.")
        return cls(lowered, aten_body(lowered), device)

    @classmethod
    def around(cls, artifact: Inductor, device: Device) -> CudaGraph:
        """Return an executor whose captures call an artifact. Raises Refused likewise."""
        return cls(artifact.lowered, inductor_body(artifact), device)

    def trust(self) -> None:
        """From now on the program's own memory is used where it stays: the trial, with its copies, is over."""
        self._trusted = True

    def fits(self, inputs: Sequence[torch.Tensor]) -> bool:
        """See Executable.fits."""
        return self._body.otherwise.fits(inputs)

    def run(self, inputs: Sequence[torch.Tensor], slots: Numbers) -> list[torch.Tensor] | Violated:
        """See Executable.run."""
        if not self._one.acquire(blocking=False):  # calls may come from several threads
            return self._body.otherwise.run(inputs, slots)
        try:
            capture = self._capture_for(inputs, slots) if self._device.free() and self.fits(inputs) else None
            if capture is not None and self._may_launch():
                return self._launch(capture, inputs, slots)
        finally:
            self._one.release()
        return self._body.otherwise.run(inputs, slots)

    def _may_launch(self) -> bool:
        """Whether no value is held that a launch could overwrite: all captures share memory. If one is, there are other
        captures from the next call on, in other memory, and all values are copied."""
        if not any(one is not None and one.results.held for one in self._captures.values()):
            return True
        self._begin_again()
        self._lending = False
        return False

    def _begin_again(self) -> None:
        """Drop all captures. What the program holds keeps its memory, in which nothing else may work."""
        self._captures.clear()
        self._pool = self._device.pool()

    def _drop(self, key: tuple[int, ...]) -> None:
        """Drop one capture."""
        dropped = self._captures.pop(key, None)
        if dropped is not None and dropped.results.held:
            self._begin_again()

    def _launch(
        self, capture: _Capture, inputs: Sequence[torch.Tensor], slots: Numbers
    ) -> list[torch.Tensor] | Violated:
        lowered, states = self.lowered, self._generators.save()
        with Ambience(lowered):
            capture.inputs.take(inputs)
            self._write_numbers(capture, slots)
            capture.work.launch()
            try:
                # All that is left is asked of the device before the host waits for the flags.
                fetched = None if capture.flags is None else self._device.fetch([capture.flags])
                values = capture.results.hand_out()
                violated = None if fetched is None else failed(fetched.wait()[0])
                if violated is not None:
                    self._generators.restore(states)
                    return violated
                capture.inputs.give_back(inputs, lowered.mutated)
                written = (inputs[n] for n in lowered.mutated if n in capture.inputs.adopted)
                increment_version([tensor for tensor in written if not tensor.is_inference()])
            except Exception as error:
                raise Updating(error) from None
        return values

    def _write_numbers(self, capture: _Capture, slots: Numbers) -> None:
        """Write the host's numbers to the device."""
        if capture.numbers:
            for target, source in zip(capture.numbers, self._body.pack(slots), strict=True):
                target.copy_(source, non_blocking=True)

    # -- captures ---------------------------------------------------------------------------------------------------

    def _capture_for(self, inputs: Sequence[torch.Tensor], slots: Numbers) -> _Capture | None:
        """Return the capture for this call, which may have to be made; None where there is none."""
        key = tuple(inputs[number].size(dim) for number, dim in self._measured)
        known = self._captures.get(key)
        if known is None and key in self._captures:
            return None
        if self._trusted and self._adopted is None:
            self._observe(inputs)
        if known is not None:
            if moved := known.inputs.elsewhere(inputs):
                if not self._odd:  # a call on copies, perhaps: the next one may be as before
                    self._odd = True
                    return None
                self._odd, self._moves = False, self._moves + 1
                self._adopted = frozenset() if self._moves > _MOVES else (self._adopted or frozenset()) - moved
            elif known.final or self._adopted is None:
                self._odd = False
                return known
        if known is None and len(self._captures) >= _SIZES:
            self._drop(next(iter(self._captures)))
        known = None  # its memory is free before the next one is made
        self._drop(key)
        self._captures[key] = None
        try:
            self._captures[key] = known = self._captured(inputs, slots)
        except Exception as error:
            if not self._trusted:
                del self._captures[key]
                raise
            log.warning("not captured: %s: %s", type(error).__name__, error)
        return known

    def _observe(self, inputs: Sequence[torch.Tensor]) -> None:
        """Find the inputs that lie where they lay in the call before. Those of one call are kept until the next one,
        so that no other tensor can lie there meanwhile."""
        now, before = [tensor.detach() for tensor in inputs], self._seen
        self._seen = now if before is None else None
        if before is not None:
            pairs = enumerate(zip(now, before, strict=True))
            self._adopted = frozenset(n for n, (one, other) in pairs if one.data_ptr() == other.data_ptr() != 0)

    def _captured(self, inputs: Sequence[torch.Tensor], slots: Numbers) -> _Capture:
        memory = Inputs(inputs, self._adopted or ())
        numbers = [one.to(self._body.place, copy=True) for one in self._body.pack(slots)]
        states = self._generators.save()

        def work() -> list[torch.Tensor]:
            return [*self._body.call(*memory.tensors, *numbers, *self._body.constants)]

        try:
            with Ambience(self.lowered):
                if not self._trusted:
                    work()  # libraries and kernels are loaded, in memory of our own, outside of a capture
                    self._generators.restore(states)
                captured, values = self._device.capture(work, self._pool)
        finally:
            self._generators.restore(states)
        for position, source in self._body.copies:
            values.insert(position, values[source])
        flags = None if self.lowered.flags is None else values[self.lowered.flags]
        results = Results(values[: self.lowered.fresh], memory.tensors, lending=self._trusted and self._lending)
        del values
        return _Capture(memory, numbers, captured, results, flags, final=self._adopted is not None)
