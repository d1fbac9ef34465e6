"""Executors that fail: replay with one assertion that does not hold, or one operation that raises.

In: a lowered graph, and the fault to inject. Out: a function that runs the graph for an entry's launch. Used by nothing
but the tests' injections (see ``testing``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from torchjanus.execute.replay import Replay
from torchjanus.execute.staged import Staged
from torchjanus.graph.ir.lowered import Lowered

__all__ = ["Fault", "Injected", "Injection", "operations_of", "raising", "undecided", "violating"]

_OPERATION = re.compile(r"(\w+ = )?c\d+\(")  # in generated code


class Injected(RuntimeError):
    """Raised by an operation that is made to fail."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that can go wrong in an entry: its guard, assertion or operation number ``number``. In a part before a
    decision the one assertion is that there is an arm for the outcome.

    ``sort`` is equal for faults with equal consequences: guards of one kind, or all operations.
    """

    kind: Literal["guard", "assertion", "operation"]
    number: int
    what: str
    sort: str

    def __str__(self) -> str:
        return f"{self.kind} {self.number}: {self.what}"


@dataclass(slots=True)
class Injection:
    """A fault that is injected. ``struck`` counts how often it took effect."""

    fault: Fault
    struck: int = 0


class _AtOnce(Replay):
    """Replay, with generated code that can be exchanged."""

    @property
    def overwrites(self) -> bool:
        """Whether inputs are overwritten in the run: then the generated code takes a function ``begin``."""
        return self._step is not None

    def generated(self) -> Callable[..., Any]:
        made = self._pure if self._step is None else self._step
        assert made is not None
        return made

    def exchange(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        """Exchange the code, and return what an entry's launch uses from now on."""
        if self._step is None:
            self._pure = compute
        else:
            self._step = compute
        return self.run


class _InParts(Staged):
    """The same for a graph with cuts."""

    def generated(self) -> Callable[..., Any]:
        return self.compute

    def exchange(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        self.compute = compute
        return self.begin


def _executor(lowered: Lowered) -> _AtOnce | _InParts:
    return _InParts(lowered) if lowered.program.cuts else _AtOnce(lowered)


def violating(lowered: Lowered, injection: Injection) -> Callable[..., Any]:
    """Return a function that runs the graph, and finds that one assertion does not hold."""
    number = injection.fault.number
    executor = _executor(lowered)
    compute, position = executor.generated(), lowered.flags
    assert position is not None

    def put_down(flags: torch.Tensor) -> torch.Tensor:
        injection.struck += 1
        flags = flags.clone()
        flags[number] = False
        return flags

    def at_once(inputs: Sequence[torch.Tensor], slots: Sequence[float | int]) -> list[torch.Tensor]:
        values: list[torch.Tensor] = compute(inputs, slots)
        values[position] = put_down(values[position])
        return values

    def overwriting(
        inputs: Sequence[torch.Tensor], slots: Sequence[float | int], begin: Callable[[torch.Tensor], bool]
    ) -> list[torch.Tensor] | None:
        return compute(inputs, slots, lambda flags: begin(put_down(flags)))  # type: ignore[no-any-return]

    def in_parts(inputs: Sequence[torch.Tensor], slots: Sequence[float | int], runs: Any) -> Any:
        parts = compute(inputs, slots, runs)
        try:
            flags, wanted = next(parts)
            while True:
                if len(flags) > number:
                    flags = list(put_down(torch.stack(list(flags))))
                flags, wanted = parts.send((yield flags, wanted))
        except StopIteration as end:
            values: list[torch.Tensor] = end.value
            values[position] = put_down(values[position])
            return values
        finally:
            parts.close()

    if isinstance(executor, _InParts):
        return executor.exchange(in_parts)
    return executor.exchange(overwriting if executor.overwrites else at_once)


def raising(lowered: Lowered, injection: Injection) -> Callable[..., Any]:
    """Return a function that runs the graph up to one operation, and raises in its place."""

    def strike() -> None:
        injection.struck += 1
        raise Injected(str(injection.fault))

    executor = _executor(lowered)
    lines = executor.source.split("\n")
    lines[lines.index(f"    {_operations(executor)[injection.fault.number]}")] = "    injected()"
    scope = {**executor.generated().__globals__, "injected": strike}
    exec(compile("\n".join(lines), "<torchjanus replay, raising>", "exec"), scope)
    return executor.exchange(scope["compute"])


def operations_of(lowered: Lowered) -> list[str]:
    """Return the lines of a graph's generated code that call operators, in place or not."""
    return _operations(_executor(lowered))


def _operations(executor: _AtOnce | _InParts) -> list[str]:
    lines = (line.strip() for line in executor.source.split("\n"))
    return [line for line in lines if line.endswith(")") and _OPERATION.match(line)]


def undecided(lowered: Lowered, injection: Injection) -> Callable[..., Any]:
    """Return a function that runs the part, and finds that there is no arm for the outcome."""
    executor = _AtOnce(lowered)
    compute = executor.generated()
    assert not executor.overwrites  # what comes before a decision commits nothing

    def undecided(inputs: Sequence[torch.Tensor], slots: Sequence[float | int]) -> list[torch.Tensor]:
        injection.struck += 1
        flags, *others = compute(inputs, slots)
        return [torch.zeros_like(flags), *others]

    return executor.exchange(undecided)
