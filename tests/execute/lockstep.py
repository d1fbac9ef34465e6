"""Two copies of one training run, for tests: one steps eagerly, the other through an executor; compared at each step.

The second does what the runtime will do: pass live tensors and slots, run, assign ``.grad``, make the results.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tests.graph.recording import Recording, generalise, record
from torchjanus.execute.running.base import Executable, Violated
from torchjanus.graph.ir.lowered import Fresh, Lowered, NoGradient, Source, ViewOf
from torchjanus.graph.lowering.lower import lower

Step = Callable[..., Any]
FLOOR = 5e-7


def resolve(source: Source, inputs: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> torch.Tensor | None:
    if isinstance(source, NoGradient):
        return None
    if isinstance(source, ViewOf):
        base = resolve(source.base, inputs, values)
        assert base is not None
        return base.detach().as_strided(source.size, source.stride, base.storage_offset() + source.offset)
    return values[source.index] if isinstance(source, Fresh) else inputs[source.index]


class Lockstep:
    """``state`` is whatever the step works on (modules, optimizers, lists); ``step(state, *data)`` is one step."""

    def __init__(
        self,
        state: Any,
        step: Step,
        data: Callable[[int], tuple[Any, ...]],
        executor: Callable[[Lowered], Executable],
        warm: int = 1,
        watch: int = 3,
        before: Callable[[Any, int], None] | None = None,
    ) -> None:
        self.state, self.step, self.data, self.before = state, step, data, before
        self.at = 0
        recordings = [self._eager() for _ in range(warm + watch)][warm:]
        self.program, self.slots_of = generalise(recordings)
        self.lowered = lower(self.program)
        self.executable = executor(self.lowered)
        self._memo: dict[int, Any] = {}
        self.twin = copy.deepcopy(state, self._memo)
        assert len(self._pairs()) > 2, "the copy lost track of its originals"
        for original, twin in self._pairs():
            if original.is_leaf and original.grad is not None:
                twin.grad = original.grad.clone()

    def _pairs(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        kept = {id(part): part for part in self._memo.get(id(self._memo), ())}
        return [
            (kept[key], value)
            for key, value in self._memo.items()
            if key in kept and isinstance(value, torch.Tensor) and isinstance(kept[key], torch.Tensor)
        ]

    def _eager(self) -> Recording:
        if self.before is not None:
            self.before(self.state, self.at)
        self.last_data = self.data(self.at)
        self.at += 1
        self.last = record(self.step, self.state, *self.last_data)
        return self.last

    def inputs_of(self, recording: Recording) -> list[torch.Tensor]:
        """The twin's tensors that stand where the recording's inputs did, as they are now."""
        gradients = {
            entry.grad.index: number for number, entry in enumerate(recording.inputs) if entry.grad is not None
        }
        twins = {id(original): twin for original, twin in self._pairs()}
        found: list[torch.Tensor] = []
        for number, entry in enumerate(recording.inputs):
            # Only originals that the memo keeps alive: another tensor may have got the address of one that is gone.
            twin = twins.get(id(entry.example), entry.example)
            if number in gradients:
                leaf = recording.inputs[gradients[number]].example
                twin = twins[id(leaf)].grad
            found.append(twin)
        return found

    def advance(self, tolerance: float | None = None) -> Recording:
        """One step of both; compares everything. ``tolerance`` None means bitwise."""
        before = torch.get_rng_state()
        recording = self._eager()
        after = torch.get_rng_state()
        torch.set_rng_state(before)
        inputs = self.inputs_of(recording)
        values = self.executable.run(inputs, self.slots_of(recording))
        assert not isinstance(values, Violated), values
        assert torch.equal(torch.get_rng_state(), after), "the generator went another way"
        for leaf in self.lowered.leaves:
            if leaf.changed:
                inputs[leaf.index].grad = resolve(leaf.result.source, inputs, values)
        results = [resolve(result.source, inputs, values) for result in self.lowered.outputs]
        wanted = [recording.tensors[number] for number, _ in recording.outputs]
        for number, (got, expected) in enumerate(zip(results, wanted, strict=True)):
            if recording.outputs[number][1] == len(recording.nodes):
                check(got, expected, tolerance, f"output {number} at step {self.at}")
        for number, (original, twin) in enumerate(self._pairs()):
            check(twin, original, tolerance, f"state tensor {number} {tuple(original.shape)} at step {self.at}")
            if original.is_leaf:
                check(twin.grad, original.grad, tolerance, f"grad {number} at step {self.at}")
        return recording


def check(got: torch.Tensor | None, expected: torch.Tensor | None, tolerance: float | None, what: str) -> None:
    """Equal bit for bit, or within a relative tolerance of the norm."""
    if expected is None or got is None:
        assert got is None and expected is None, f"{what}: {got} for {expected}"
        return
    got, expected = got.detach(), expected.detach()
    assert got.dtype == expected.dtype and got.shape == expected.shape, f"{what}: {got.dtype} {got.shape}"
    if tolerance is None or not expected.dtype.is_floating_point:
        assert torch.equal(got, expected), f"{what}: differs by {(got - expected).abs().max()}"
    else:
        # What is below the floor is rounding: a bias in front of a BatchNorm has no gradient but that.
        scale = expected.double().norm().item() + 1e-12
        error = max(0.0, (got.double() - expected.double()).norm().item() - FLOOR) / scale
        assert error <= tolerance, f"{what}: off by {error:.2e}"
