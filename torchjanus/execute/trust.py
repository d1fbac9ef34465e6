"""Trust: an artifact is used only after its results and state updates agreed with replay on live calls.

A Trial runs both, on the live tensors (replay) and on copies (the artifact), compares, and commits replay's results: a
call under trial is as right as replay. Knows nothing of how artifacts are made.

What counts as agreement. Numbers are compared by norm and by largest element. A state update is compared as an update,
new minus old, so that one which is wrong or missing cannot hide behind a large old value; only the rounding of storing
it is allowed for. Relative tolerances: float64 1e-9, float32 1e-4, half precisions 3e-2 (ten times that for the largest
element). Everything else, and the generators, must be equal. Where numbers disagree, replay is asked how well
determined they are: it is run a few times more on inputs changed in their last bits, and what varies as much as that
under replay alone (the gradient of a bias in front of a BatchNorm is nothing but rounding, and Adam blows it up to full
size) is no disagreement. The first changes are of the size of rounding; then some that are eight times as large, for a
jump that only few changes bring about: one of many activations next to zero that comes out on the other side of a ReLU
takes a step of a thousandth in the gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from torchjanus.execute.base import Executable, Numbers, Violated
from torchjanus.execute.gate import Generators, State
from torchjanus.execute.memory import give_back
from torchjanus.execute.replay import Replay

__all__ = ["Disagreement", "Trial", "duplicate", "same_bits"]

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 3e-2, torch.bfloat16: 3e-2}
LARGEST_ELEMENT = 10.0  # how much more the largest element may be off than the norm
# Changes of the inputs (units in the last place), and how many times the difference that they make is still rounding.
NUDGES = ((2, 16.0), (2, 16.0), (16, 4.0), (16, 4.0), (16, 4.0), (16, 4.0))

# What it is, replay's tensor, the candidate's, and for an update the old contents.
Pair = tuple[str, torch.Tensor, torch.Tensor, torch.Tensor | None]


@dataclass(frozen=True, slots=True)
class Disagreement:
    """One way in which an artifact differed from replay. ``error`` and ``allowed`` are relative; 0 where exact."""

    artifact: str
    what: str
    error: float
    allowed: float

    def __str__(self) -> str:
        size = f" by {self.error:.2e}, where {self.allowed:.0e} is allowed" if self.allowed else ""
        return f"{self.artifact} disagrees with replay: {self.what}{size}"


class Trial:
    """Runs a lowered graph by replay while a candidate is tried beside it. Is itself an Executable."""

    def __init__(self, candidate: Executable, replay: Replay | None = None, needed: int = 2) -> None:
        """``needed``: on how many calls the candidate has to agree before it is trusted."""
        self.candidate = candidate
        self.lowered = candidate.lowered
        self.name = f"trial of {candidate.name}"
        self.disagreements: tuple[Disagreement, ...] = ()
        self.agreed = 0
        self.needed = needed
        self._replay = replay or Replay(candidate.lowered)
        self._generators = Generators(candidate.lowered)

    @property
    def trusted(self) -> bool:
        """Whether the candidate may be used from now on."""
        return not self.disagreements and self.agreed >= self.needed

    @property
    def decided(self) -> bool:
        """Whether the trial is over."""
        return bool(self.disagreements) or self.trusted

    def fits(self, inputs: Sequence[torch.Tensor]) -> bool:
        """See Executable.fits: whether the candidate is tried on this call."""
        return self.candidate.fits(inputs)

    def run(self, inputs: Sequence[torch.Tensor], slots: Numbers) -> list[torch.Tensor] | Violated:
        """See Executable.run. The results are replay's; the candidate's are compared and dropped."""
        lowered = self.lowered
        if self.decided or not self.candidate.fits(inputs):
            return self._replay.run(inputs, slots)
        generators = self._generators
        before = generators.save()
        copies = [duplicate(tensor) for tensor in inputs]
        try:
            values = self._replay.compute([*inputs], slots)
        except BaseException:
            generators.restore(before)
            raise
        after = generators.save()
        generators.restore(before)
        give_back()
        expected = None
        if lowered.flags is not None and not bool(values[lowered.flags].all()):
            flags = values[lowered.flags].tolist()
            expected = Violated(tuple(number for number, holds in enumerate(flags) if not holds))
        found = self._try(inputs, copies, slots, values, expected, before, after)
        if found:
            self.disagreements = tuple(found)
        else:
            self.agreed += 1
        if expected is not None:
            generators.restore(before)
            return expected
        generators.restore(after)
        self._replay.commit(inputs, values)
        del values[lowered.fresh :], copies
        give_back()
        return values

    def _try(
        self,
        inputs: Sequence[torch.Tensor],
        copies: Sequence[torch.Tensor],
        slots: Numbers,
        values: Sequence[torch.Tensor],
        expected: Violated | None,
        before: State,
        after: State,
    ) -> list[Disagreement]:
        """Run the candidate on the copies and say where it differs."""
        try:
            made = self.candidate.run(copies, slots)
        except Exception as error:
            return [self._exact(f"it raised {type(error).__name__}: {error}")]
        if isinstance(made, Violated) or expected is not None:
            if made != expected:
                return [
                    self._exact(f"assertions: {made if isinstance(made, Violated) else 'all hold'}, not {expected}")
                ]
            return self._untouched(inputs, copies, range(len(inputs)))
        lowered = self.lowered
        same = all(torch.equal(mine, theirs) for mine, theirs in zip(self._generators.save(), after, strict=True))
        found = [] if same else [self._exact("it drew other random numbers")]
        found += self._untouched(inputs, copies, [i for i in range(len(inputs)) if i not in lowered.mutated])
        found += self._aliases(copies, made)
        pairs: list[Pair] = []
        for number, (value, other) in enumerate(zip(values[: lowered.fresh], made, strict=True)):
            pairs.append((f"value {number}", value, other, None))
        for index, value in zip(lowered.mutated, values[lowered.updates :], strict=True):
            name = lowered.program.inputs[index].name
            what = f"the update of input {index}{f' ({name})' if name else ''}"
            pairs.append((what, value, copies[index], inputs[index]))
        suspects = []
        for position, (what, value, other, old) in enumerate(pairs):
            if (unlike := self._unlike(what, value, other, old)) is not None:
                found.append(unlike)
            elif (judged := self._judge(what, value, other, old)) is not None:
                suspects.append((position, judged))
        if suspects:
            found += self._determined(inputs, slots, pairs, suspects, before)
        return found

    def _exact(self, what: str) -> Disagreement:
        return Disagreement(self.candidate.name, what, 0.0, 0.0)

    def _untouched(
        self, inputs: Sequence[torch.Tensor], copies: Sequence[torch.Tensor], which: Sequence[int]
    ) -> list[Disagreement]:
        return [
            self._exact(f"it changed input {index}, which must stay as it is")
            for index in which
            if not same_bits(inputs[index], copies[index])
        ]

    def _aliases(self, copies: Sequence[torch.Tensor], made: Sequence[torch.Tensor]) -> list[Disagreement]:
        inputs = {tensor.untyped_storage().data_ptr() for tensor in copies if tensor.numel()}
        first: dict[int, int] = {}
        found = []
        for number, value in enumerate(made):
            if not value.numel():
                continue
            if value.untyped_storage().data_ptr() in inputs:
                found.append(self._exact(f"value {number} shares memory with an input"))
            elif first.setdefault(value.data_ptr(), number) != number:
                found.append(self._exact(f"value {number} shares memory with value {first[value.data_ptr()]}"))
        return found

    def _unlike(
        self, what: str, expected: torch.Tensor, met: torch.Tensor, old: torch.Tensor | None
    ) -> Disagreement | None:
        """What no rounding explains: another form."""
        if met.shape != expected.shape or met.dtype != expected.dtype:
            return self._exact(f"{what} is {met.dtype}{list(met.shape)}, not {expected.dtype}{list(expected.shape)}")
        numbers = expected.dtype.is_floating_point or expected.dtype.is_complex
        if numbers and old is None and met.stride() != expected.stride() and expected.numel() > 1:
            return self._exact(f"{what} has strides {met.stride()}, not {expected.stride()}")
        return None

    def _judge(
        self, what: str, expected: torch.Tensor, met: torch.Tensor, old: torch.Tensor | None
    ) -> Disagreement | None:
        if not (expected.dtype.is_floating_point or expected.dtype.is_complex):
            return None if torch.equal(expected, met) else self._exact(f"{what} is not equal")
        tolerance = TOLERANCE.get(expected.dtype, 1e-4)
        error = _error(expected, met, old)
        return Disagreement(self.candidate.name, what, error, tolerance) if error > tolerance else None

    def _determined(
        self,
        inputs: Sequence[torch.Tensor],
        slots: Numbers,
        pairs: Sequence[Pair],
        suspects: Sequence[tuple[int, Disagreement]],
        before: State,
    ) -> list[Disagreement]:
        """Those of the suspects that rounding does not explain."""
        left = list(suspects)
        for seed, (units, times) in enumerate(NUDGES):
            self._generators.restore(before)
            spreads = self._spreads(inputs, slots, pairs, [position for position, _ in left], units, seed)
            give_back()
            left = [
                suspect for suspect, spread in zip(left, spreads, strict=True) if suspect[1].error >= times * spread
            ]
            if not left:
                break
        return [judged for _, judged in left]

    def _spreads(
        self,
        inputs: Sequence[torch.Tensor],
        slots: Numbers,
        pairs: Sequence[Pair],
        positions: Sequence[int],
        units: int,
        seed: int,
    ) -> list[float]:
        """How far replay's own values are off when its inputs are nudged."""
        lowered, found = self.lowered, []
        nudged = [_nudge(tensor, units, seed * len(inputs) + number) for number, tensor in enumerate(inputs)]
        values = self._replay.compute(nudged, slots)
        for position in positions:
            _, value, _, old = pairs[position]
            update = position - lowered.fresh
            met = values[position] if update < 0 else values[lowered.updates + update]
            if value.dtype.is_floating_point or value.dtype.is_complex:
                start = None if old is None else nudged[lowered.mutated[update]]
                found.append(_error(value, met, old, start))
            else:
                found.append(float(not torch.equal(value, met)))
        return found


def duplicate(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same geometry on memory of its own, and the same requires_grad."""
    source = tensor.detach()
    made = torch.empty_strided(source.size(), source.stride(), dtype=source.dtype, device=source.device)
    if any(size > 1 and stride == 0 for size, stride in zip(source.size(), source.stride(), strict=True)):
        for axis, stride in enumerate(source.stride()):  # an expanded tensor: write each element once
            if stride == 0:
                source = source.narrow(axis, 0, min(1, source.size(axis)))
        made.as_strided(source.size(), made.stride()).copy_(source)
    else:
        made.copy_(source)
    return made.requires_grad_(tensor.requires_grad)


def _nudge(tensor: torch.Tensor, units: int, seed: int) -> torch.Tensor:
    """The tensor with every element moved by up to so many units in its last place. Exact zeros stay, and integers."""
    source = tensor.detach()
    if not source.dtype.is_floating_point:
        return source
    draw = torch.Generator(device=source.device).manual_seed(seed)
    noise = torch.rand(source.shape, generator=draw, device=source.device, dtype=torch.float64) - 0.5
    moved = duplicate(source)
    if any(size > 1 and stride == 0 for size, stride in zip(source.size(), source.stride(), strict=True)):
        return moved
    return moved.copy_(source.double() * (1 + 2 * units * torch.finfo(source.dtype).eps * noise))


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal contents; a NaN is itself, whatever its payload, and the zeros are two."""
    one, other = one.detach(), other.detach()
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.dtype.is_complex:
        one, other = torch.view_as_real(one.resolve_conj()), torch.view_as_real(other.resolve_conj())
    if one.dtype.itemsize == 1:  # of floats of eight bits torch cannot tell the sign
        one, other = one.view(torch.uint8), other.view(torch.uint8)
    if not one.dtype.is_floating_point:
        return torch.equal(one, other)
    same = (one == other) & (one.signbit() == other.signbit()) | one.isnan() & other.isnan()
    return bool(same.all())


def _error(
    expected: torch.Tensor, met: torch.Tensor, old: torch.Tensor | None, met_old: torch.Tensor | None = None
) -> float:
    """How far ``met`` is off, relative to ``expected``; both as changes from ``old`` where that is given."""
    wide = torch.complex128 if expected.dtype.is_complex else torch.float64
    wanted, got = expected.detach().to(wide), met.detach().to(wide)
    rounding: torch.Tensor | float = 0.0
    if old is not None:
        rounding = 2 * torch.finfo(expected.dtype).eps * wanted.abs()
        wanted = wanted - old.detach().to(wide)
        got = got - (old if met_old is None else met_old).detach().to(wide)
    finite = wanted.isfinite()
    if not finite.all():
        if not same_bits(torch.where(finite, 0, wanted), torch.where(finite, 0, got)):
            return float("inf")
        wanted, got = torch.where(finite, wanted, 0), torch.where(finite, got, 0)
    difference = ((got - wanted).abs() - rounding).clamp(min=0)
    if not difference.any():
        return 0.0
    if not wanted.any() or not got.isfinite().all():
        return float("inf")
    largest = difference.max() / wanted.abs().max() / LARGEST_ELEMENT
    return max(float(difference.norm() / wanted.norm()), float(largest))
