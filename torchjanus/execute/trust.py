"""Trust: an artifact is used only after its results and state updates agreed with replay on live calls.

A Trial runs the artifact on copies and then replay on the live tensors, and compares. The results of a call on trial
are replay's: the artifact gets copies of all inputs, so nothing that it writes has an effect. This module does not know
how artifacts are made.

Agreement: every fresh value and every updated input is compared, in shape, dtype, strides and contents; inputs that are
not updated must not change, values must have memory of their own, the same assertions must fail, and the same random
numbers must have been drawn. Numbers are compared by norm and by largest element. A state update is compared as an
update, new minus old, so that a large old value cannot hide a wrong or missing one; only the rounding of storing it is
allowed for. Relative tolerances: float64 1e-9, float32 1e-4, half precisions 3e-2 (ten times that for the largest
element). Everything else must be equal. Where numbers disagree there is a *doubt*, and replay is asked how well
determined they are (``execute.determinacy``).

Cost: a call on trial runs the step twice, and keeps one copy of the inputs. The artifact runs first; once the size of
its updates is known, the old contents are not needed any more. A doubt does need them. So the first call in which
numbers disagree proves nothing and does not count; the calls after it keep the old contents, and ask one question each.
In return one more call has to agree, which more than compensates. Let an artifact show its fault in a share r of all
calls. It passes n + 1 calls, or n + 2 after one that proved nothing, with probability (1 - r)^(n+1) (1 + r (1 - r)).
That is less than (1 - r)^n. How much a tensor varies under the smallest changes is kept for later calls: no question is
asked about a disagreement of up to a quarter of that (a transformer has such a tensor in each layer, the gradient of
the keys' biases).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from torchjanus.core.clock import undelayed
from torchjanus.execute.comparing import ONE, Size, distance, duplicate, same_bits, size_of
from torchjanus.execute.determinacy import DeterminacyCheck, Suspect
from torchjanus.execute.memory import give_back
from torchjanus.execute.replay import Replay
from torchjanus.execute.running.base import Executable, Numbers, Violated
from torchjanus.execute.running.gate import Generators, State

__all__ = ["Disagreement", "Trial"]

_FELT = 1e-2  # of the size of an update: from here on rounding changes it noticeably
_KNOWN = 4.0  # times the variation that replay showed in an earlier call still counts as rounding
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 3e-2, torch.bfloat16: 3e-2}


@dataclass(frozen=True, slots=True)
class Disagreement:
    """One difference between an artifact and replay. ``error`` and ``allowed`` are relative; 0 where equality is
    required."""

    artifact: str
    what: str
    error: float
    allowed: float

    def __str__(self) -> str:
        size = f" by {self.error:.2e}, where {self.allowed:.0e} is allowed" if self.allowed else ""
        return f"{self.artifact} disagrees with replay: {self.what}{size}"


@dataclass(slots=True)
class _Attempt:
    """The candidate's run on copies of the inputs."""

    copies: list[torch.Tensor] = field(default_factory=list)
    made: list[torch.Tensor] | Violated | None = None  # None where it raised
    seconds: float = 0.0  # duration
    updates: list[Size] = field(default_factory=list)  # the sizes of its updates of the copies
    drawn: State = field(default_factory=list)  # the generators' states after it
    found: list[Disagreement] = field(default_factory=list)  # faults that do not depend on replay's run


class Trial:
    """Runs a lowered graph by replay while a candidate is tried beside it. It is itself an Executable."""

    def __init__(
        self, candidate: Executable, replay: Replay | None = None, needed: int = 3, thorough: bool = False
    ) -> None:
        """``needed``: the number of calls on which the candidate has to agree before it is trusted. ``thorough``: even
        the first call keeps what a doubt needs."""
        self.candidate = candidate
        self.lowered = candidate.lowered
        self.name = f"trial of {candidate.name}"
        self.disagreements: tuple[Disagreement, ...] = ()
        self.agreed = 0
        # Inputs of whose updates rounding decides a noticeable part: no artifact can give eager's.
        self.undetermined: dict[int, str] = {}
        self.needed = needed
        self.times: list[tuple[float, float]] = []  # seconds of calls, the candidate's and replay's, without the first
        self._warm = False  # whether both have run
        self._spreads: dict[tuple[int, int], float] = {}  # see Doubt.spreads
        self._thorough = thorough
        self._doubt: DeterminacyCheck | None = None
        self._replay = replay or Replay(candidate.lowered)
        self._generators = Generators(candidate.lowered)
        self._one = threading.Lock()

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
        if not self._one.acquire(blocking=False):  # calls may come from several threads
            return self._replay.run(inputs, slots)
        try:
            if self.decided:
                return self._replay.run(inputs, slots)
            if self._doubt is not None:
                values = self._replay.run(inputs, slots)
                self.ask()
                return values
            if not self.candidate.fits(inputs):
                return self._replay.run(inputs, slots)
            return self._compared(inputs, slots)
        finally:
            self._one.release()

    @property
    def doubts(self) -> bool:
        """Whether ``ask`` has to be called before the trial can go on."""
        return self._doubt is not None

    def ask(self) -> None:
        """Ask replay one question about what disagreed."""
        doubt = self._doubt
        assert doubt is not None
        give_back()
        asked = doubt.suspects
        doubt.ask(self._replay, self._generators)
        left = set(map(id, doubt.suspects))
        for suspect in asked:
            if suspect.update >= 0 and suspect.error > _FELT and id(suspect) not in left:
                self.undetermined[suspect.update] = self._called(suspect.update)
        self._spreads.update(doubt.spreads)
        if not doubt.suspects:
            self._doubt = None
            self.agreed += 1
        elif doubt.over:
            self._doubt = None
            self.disagreements = tuple(suspect.judged for suspect in doubt.suspects)
        give_back()

    def _compared(self, inputs: Sequence[torch.Tensor], slots: Numbers) -> list[torch.Tensor] | Violated:
        """Make one call by the candidate and by replay, and compare."""
        given, generators = [*inputs], self._generators
        before = generators.save()
        attempt = self._attempt(given, slots)
        olds = [duplicate(given[index]) for index in self.lowered.mutated] if self._thorough else None
        generators.restore(before)
        give_back()
        started = undelayed()
        values = self._replay.run(inputs, slots)
        seconds = undelayed() - started
        # The first runs warm up caches; a device that works asynchronously cannot be timed like this.
        if self._warm and all(tensor.is_cpu for tensor in given):
            self.times.append((attempt.seconds, seconds))
        self._warm = True
        after = generators.save()
        suspects: list[Suspect] = []
        found = attempt.found + self._differences(given, values, attempt, olds, after, suspects)
        if found:
            self.disagreements = tuple(found)
        elif not suspects:
            self.agreed += 1
        elif olds is None:
            self._thorough = True
            self.needed += 1
        else:
            kept = attempt.copies  # inputs that are not updated still have their old contents
            for index, old in zip(self.lowered.mutated, olds, strict=True):
                kept[index] = old
            self._doubt = DeterminacyCheck(kept, [*slots], before, suspects)
        del attempt
        give_back()
        return values

    def _attempt(self, inputs: Sequence[torch.Tensor], slots: Numbers) -> _Attempt:
        """Run the candidate on copies."""
        attempt = _Attempt()
        try:
            copies = attempt.copies = [duplicate(tensor) for tensor in inputs]
            give_back()  # as before replay's run: free memory makes a run faster
            started = undelayed()
            made = attempt.made = self.candidate.run([*copies], slots)
            attempt.seconds = undelayed() - started
        except Exception as error:
            attempt.found.append(self._exact(f"it raised {type(error).__name__}: {error}"))
            return attempt
        attempt.drawn = self._generators.save()
        updated = () if isinstance(made, Violated) else self.lowered.mutated
        attempt.found += [
            self._exact(f"it changed input {index}, which must stay as it is")
            for index in range(len(inputs))
            if index not in updated and not same_bits(inputs[index], copies[index])
        ]
        if not isinstance(made, Violated):
            attempt.found += self._aliases(copies, made)
            attempt.updates = [_size(copies[index], inputs[index]) for index in updated]
        return attempt

    def _differences(
        self,
        inputs: Sequence[torch.Tensor],
        values: list[torch.Tensor] | Violated,
        attempt: _Attempt,
        olds: Sequence[torch.Tensor] | None,
        after: State,
        suspects: list[Suspect],
    ) -> list[Disagreement]:
        """Return the certain differences; where only numbers differ, add to ``suspects``."""
        made = attempt.made
        if made is None:
            return []
        if isinstance(made, Violated) or isinstance(values, Violated):
            if made == values:
                return []
            said = [str(one) if isinstance(one, Violated) else "all hold" for one in (made, values)]
            return [self._exact(f"assertions: {said[0]}, not {said[1]}")]
        lowered = self.lowered
        same = all(torch.equal(mine, theirs) for mine, theirs in zip(attempt.drawn, after, strict=True))
        found = [] if same else [self._exact("it drew other random numbers")]
        for number, (value, other) in enumerate(zip(values, made, strict=True)):
            what = f"value {number}"
            if (unlike := self._unlike(what, value, other)) is not None:
                found.append(unlike)
            elif (judged := self._judge(what, value, other, None)) is not None:
                suspects.append(_suspect(judged, value, other, size_of(value), value=number))
        for place, index in enumerate(lowered.mutated):
            what = f"the update of {self._called(index)}"
            value = inputs[index]
            # Without the old contents, by the candidate's update; if that is right, replay's is as large.
            size = attempt.updates[place] if olds is None else _size(value, olds[place])
            if (judged := self._judge(what, value, attempt.copies[index], size)) is not None:
                suspects.append(_suspect(judged, value, attempt.copies[index], size, update=index))
        suspects[:] = [one for one in suspects if one.bare or one.error >= _KNOWN * self._spreads.get(one.place, 0.0)]
        if not found and olds is not None:
            for suspect in suspects:
                suspect.keep()
        return found

    def _called(self, index: int) -> str:
        name = self.lowered.program.inputs[index].name
        return f"input {index}{f' ({name})' if name else ''}"

    def _exact(self, what: str) -> Disagreement:
        return Disagreement(self.candidate.name, what, 0.0, 0.0)

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

    def _unlike(self, what: str, expected: torch.Tensor, met: torch.Tensor) -> Disagreement | None:
        """Return a difference that rounding cannot explain: another shape, dtype or strides."""
        if met.shape != expected.shape or met.dtype != expected.dtype:
            return self._exact(f"{what} is {met.dtype}{list(met.shape)}, not {expected.dtype}{list(expected.shape)}")
        if _is_number(expected) and met.stride() != expected.stride() and expected.numel() > 1:
            return self._exact(f"{what} has strides {met.stride()}, not {expected.stride()}")
        return None

    def _judge(self, what: str, expected: torch.Tensor, met: torch.Tensor, update: Size | None) -> Disagreement | None:
        if not _is_number(expected):
            return None if torch.equal(expected, met) else self._exact(f"{what} is not equal")
        tolerance = TOLERANCE.get(expected.dtype, 1e-4)
        error = distance(expected, met, update or size_of(expected), update=update is not None)
        return Disagreement(self.candidate.name, what, error, tolerance) if error > tolerance else None


def _suspect(
    judged: Disagreement, expected: torch.Tensor, met: torch.Tensor, size: Size, value: int = -1, update: int = -1
) -> Suspect:
    bare = _is_number(expected) and not size.largest
    error = distance(expected, met, ONE, update=update >= 0) if bare else judged.error
    return Suspect(error, judged, expected, value, update, bare)


def _is_number(tensor: torch.Tensor) -> bool:
    return tensor.dtype.is_floating_point or tensor.dtype.is_complex


def _size(new: torch.Tensor, old: torch.Tensor) -> Size:
    return size_of(new, old) if _is_number(new) else Size(0.0, 0.0)
