"""Runs the calls of a level schedule by compiled code: one artifact for each part of a cell, for any number of calls.

An artifact reads and writes the rows of its batch in place. This module does not know how artifacts are made or loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchjanus.core.errors import refused
from torchjanus.execute.compiled.artifacts import bare_call
from torchjanus.execute.compiled.invoke_trial import disagreement
from torchjanus.execute.regions.cells import CellCalls, CellRun, Run, Tensors
from torchjanus.execute.regions.invoke import BatchedCalls, invocations_of
from torchjanus.graph.ir.lowered import Lowered
from torchjanus.graph.lowering.invoke_for_inductor import (
    PARTS,
    Argument,
    PreparedPart,
    adds_rows_up,
    work_of,
    writing_of,
)
from torchjanus.graph.operators.loop_op import compiled_key
from torchjanus.graph.recursion.cells.invoke_op import Calls, is_invoke, known_calls, register
from torchjanus.graph.recursion.cells.partition import Partition
from torchjanus.graph.recursion.cells.split import CellParts
from torchjanus.graph.recursion.variants.plan import Batch
from torchjanus.graph.regions.partition import Source

__all__ = [
    "CompiledCalls", "Part", "PartToCompile", "assembled", "calls_to_compile", "compile_calls", "compiled_calls",
    "parts_to_compile",
]  # fmt: skip

MOST_PARTS = 7  # that are compiled for one recursion
_MUCH = 4  # operations that are worth fusing in a part called once a run

Call = Callable[..., Any]
Fits = Callable[[Sequence[torch.Tensor]], bool]


@dataclass(frozen=True, slots=True)
class Part:
    """A compiled part. ``fits``: whether it was made for arguments of such sizes; None: for all."""

    call: Call
    fits: Fits | None = None


Compile = Callable[[PreparedPart], Part]


@dataclass(frozen=True, slots=True)
class PartToCompile:
    """One of the PARTS of a cell."""

    cell: int
    name: str
    writing: PreparedPart

    def bare(self) -> PartToCompile:
        """See PreparedPart.bare."""
        return PartToCompile(self.cell, self.name, self.writing.bare())


def calls_to_compile(lowered: Lowered) -> list[Partition]:
    """Return the recursions that the graph runs."""
    keys = {node.args[0] for node in lowered.graph.graph.nodes if is_invoke(node.target)}
    return [partition for partition in invocations_of(lowered.program) if partition.key in keys]


def parts_to_compile(partition: Partition, most: int = MOST_PARTS) -> list[PartToCompile]:
    """Return the parts that are worth compiling, at most ``most``, since each takes seconds."""
    found = []
    for number, name in _worth_it(partition)[:most]:
        writing = writing_of(partition.cells[number], partition.recursion, name)
        if writing is not None:
            found.append(PartToCompile(number, name, writing))
    return found


def compile_calls(partition: Partition, compile_one: Compile, most: int = MOST_PARTS) -> CompiledCalls:
    """Compile the parts that are worth it. Raises Refused, as ``compile_one`` may."""
    parts = parts_to_compile(partition, most)
    return assembled(partition, parts, [compile_one(part.writing) for part in parts])


def assembled(partition: Partition, wanted: Sequence[PartToCompile], compiled: Sequence[Part]) -> CompiledCalls:
    """Return the runner of a recursion by its compiled parts. Raises Refused where they disagree with replay."""
    made: list[dict[str, PreparedPart]] = [{} for _ in partition.cells]
    calls: list[dict[str, Part]] = [{} for _ in partition.cells]
    for part, one in zip(wanted, compiled, strict=True):
        made[part.cell][part.name], calls[part.cell][part.name] = part.writing, one
    cells: list[CellCalls] = []
    for number, parts in enumerate(partition.cells):
        plain = CellCalls(number, parts)
        cells.append(_compiled_cell(partition, plain, made[number], calls[number]) if calls[number] else plain)
    return CompiledCalls(partition, cells)


def _compiled_cell(
    partition: Partition, plain: CellCalls, made: Mapping[str, PreparedPart], calls: Mapping[str, Part]
) -> CellCalls:
    """Return the cell with its compiled parts, called below torch's wrappers if the results are the same. Raises
    Refused."""
    wrong = ""
    for past in (True, False):
        cell = _CompiledCell(plain.number, plain.parts, made, calls, past)
        try:
            wrong = disagreement(partition, plain, cell)
        except Exception as error:  # the trial runs compiled parts
            wrong = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
        if not wrong:
            return cell
    what = f"what Inductor compiled of {plain.parts.cell.name} disagrees with replay on made-up rows ({wrong})"
    raise refused("inductor-disagrees", what, "The fault is Inductor's.", "Replay is used.")


def _worth_it(partition: Partition) -> list[tuple[int, str]]:
    """Return the parts that are worth compiling, those that save most kernel launches first: large products take the
    same time either way."""
    known = known_calls(partition.key)
    # An estimate before the first run: nodes with many children are rare.
    takes = (len(cell.takes) for cell in partition.recursion.cells)
    batches: Sequence[float] = [8.0 / max(1, count - 3) if count else 1.0 for count in takes]
    if isinstance(known, BatchedCalls) and known.runs:
        batches = [count / known.runs for count in known.batches]
    found = {}
    for number, parts in enumerate(partition.cells):
        for name in PARTS:
            work = 0 if adds_rows_up(parts, name) else work_of(parts, name)
            often = bool(parts.cell.takes) and name != "sums"
            if batches[number] and work and (often or work >= _MUCH):
                found[number, name] = batches[number] * work if name != "sums" else work
    return sorted(found, key=lambda part: -found[part])


def compiled_calls(lowered: Lowered, made: Sequence[CompiledCalls]) -> list[Calls]:
    """Return the runners of a compiled graph's recursions. The graph can be run as long as they are kept."""
    for calls in made:
        register(compiled_key(calls.partition.key), calls)
    found = (known_calls(compiled_key(partition.key)) for partition in calls_to_compile(lowered))
    return [calls for calls in found if calls is not None]


class CompiledCalls(BatchedCalls):
    """See graph.recursion.cells.invoke_op.Calls."""


class _CompiledCell(CellCalls):
    """Runs one cell by its compiled parts."""

    def __init__(
        self,
        number: int,
        parts: CellParts,
        made: Mapping[str, PreparedPart],
        calls: Mapping[str, Part],
        past: bool = True,
    ) -> None:
        """``past``: call artifacts that return nothing below torch's wrappers."""
        super().__init__(number, parts)
        found = {name: _Artifact(made[name], call, past and name != "sums") for name, call in calls.items()}
        self._ahead, self._back, self._over = (found.get(name) for name in PARTS)
        self.writes = self._ahead is not None
        # Places whose gradients may go to one row several times in a batch.
        given = () if self._back is None else self._back.arguments
        self._shares = [one.index for one in given if one.kind == "share"]

    def begin(self, run: Run, own: CellRun) -> None:
        super().begin(run, own)
        if self._ahead is not None:
            own.forward = iter(self._rows_of_arguments(run, own, self._ahead))

    def forward(self, run: Run, own: CellRun, batch: Batch, position: int) -> None:
        artifact = self._ahead
        if artifact is None or not artifact.ran(next(own.forward)):
            super().forward(run, own, batch, position)

    def begin_backward(self, run: Run, own: CellRun) -> None:
        super().begin_backward(run, own)
        if self._back is None:
            return
        for place in self._shares:
            buffer = run.buffers[self.parts.cell.takes[place]]
            own.stack(Source("share", place), buffer.new_empty((own.total, *buffer.size()[1:])))
        own.backward = reversed(self._rows_of_arguments(run, own, self._back))

    def backward(self, run: Run, own: CellRun, batch: Batch, position: int) -> None:
        artifact = self._back
        if artifact is None or not artifact.ran(next(own.backward)):
            super().backward(run, own, batch, position)
            return
        for place in self._shares:
            gradient = own.slices[Source("share", place)][position]
            run.give(self.parts.cell.takes[place], own.rows[place][position], gradient)

    def sums(self, run: Run, own: CellRun) -> Tensors:
        artifact = self._over
        if artifact is None:
            return super().sums(run, own)
        given = [self._given_whole(run, own, Source(one.kind, one.index)) for one in artifact.arguments]
        if not artifact.fits(given):
            return super().sums(run, own)
        made = list(artifact.call(*given))
        for position, source in artifact.copies:
            made.insert(position, made[source].clone())
        return made

    def _rows_of_arguments(self, run: Run, own: CellRun, artifact: _Artifact) -> list[tuple[Any, ...]]:
        """Return the artifact's arguments for each batch. All at once, since there are many batches with little work
        each."""
        return list(zip(*(self._arguments(run, own, one) for one in artifact.arguments), strict=True))

    def _arguments(self, run: Run, own: CellRun, one: Argument) -> Sequence[torch.Tensor]:
        """Return one argument for each batch."""
        index, batches = one.index, own.batches
        match one.kind:
            case "shared":
                return (run.shared[index],) * len(batches)
            case "common":
                return (own.common[index],) * len(batches)
            case "buffer":
                return (run.buffers[index],) * len(batches)
            case "gradient":
                return (run.gradients[index],) * len(batches)
            case "rows":
                return own.rows[index]
            case "output":
                return own.slices_given(index, run.buffers)
            case "tangent":
                return own.slices_given(index, run.gradients)
        return own.slices[Source(one.kind, index)]


class _Artifact:
    """A compiled part with its arguments. ``past``: it returns nothing, and is called below torch's wrappers if
    possible."""

    def __init__(self, writing: PreparedPart, part: Part, past: bool) -> None:
        self.arguments, self.copies = writing.arguments, writing.prepared.copies
        self._constants, call = writing.prepared.constants, part.call
        self._fits = part.fits
        self._call: Callable[[list[Any]], Any] = (bare_call(call) if past else None) or (lambda given: call(*given))

    def call(self, *given: Any) -> Any:
        """Run it."""
        return self._call([*given, *self._constants])

    def ran(self, given: Sequence[torch.Tensor]) -> bool:
        """Run it, unless it does not fit the arguments' sizes. Returns whether it ran."""
        if self._fits is not None and not self._fits(given):
            return False
        self._call([*given, *self._constants])
        return True

    def fits(self, given: Sequence[torch.Tensor]) -> bool:
        """Whether it was made for arguments of these sizes; others are run by replay."""
        return self._fits is None or self._fits(given)
