"""The Inductor executor: the whole step compiled to native code by torch._inductor.standalone_compile.

An artifact must pass a Trial before it is trusted (see trust). This module does not know fx.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

import torch

from torchjanus.execute.compiled.compiling import (
    Compiled,
    compile_block,
    compile_step,
    patches_for,
    prepared_of,
    risks_in,
)
from torchjanus.execute.compiled.invoke import CompiledCalls, calls_to_compile, compile_calls, compiled_calls
from torchjanus.execute.compiled.loop import CompiledLoop, compiled_loops, loops_to_compile, prepared_blocks
from torchjanus.execute.compiled.shared_parts import compile_part
from torchjanus.execute.compiled.store import Verdict
from torchjanus.execute.replay import Replay
from torchjanus.execute.rollback import Rollback
from torchjanus.execute.running.base import Numbers, Updating, Violated
from torchjanus.execute.running.gate import Ambience, failed
from torchjanus.graph.ir.lowered import Lowered
from torchjanus.graph.lowering.for_inductor import Prepared
from torchjanus.graph.lowering.prepared_bytes import Geometry, fitting

__all__ = ["Inductor", "packer"]


class Inductor:
    """Runs a lowered graph as one compiled artifact, which updates the mutated inputs in place under its flags."""

    name = "inductor"
    kept = False  # whether an earlier run has compiled it
    keys: tuple[str, ...] = ()  # of what it is made of, in the store
    verdict: Verdict | None = None  # stores whether it agrees with replay

    def __init__(self, lowered: Lowered, *, rewrite_alpha: bool = True) -> None:
        """Compile in this thread, which takes seconds to minutes. Raises Refused where Inductor cannot take the
        graph."""
        prepared = prepared_of(lowered, rewrite_alpha=rewrite_alpha)
        patches, loops, wanted = patches_for(lowered), [], loops_to_compile(lowered)
        with Ambience(lowered):
            step = compile_step(lowered, prepared, patches)
            for partition, counts in wanted:
                made = prepared_blocks(partition, counts)
                loops.append(CompiledLoop(partition, made, [compile_block(one, patches) for one in made]))
            recursions = [compile_calls(one, compile_part) for one in calls_to_compile(lowered)]
        self._fill(lowered, prepared, step, loops, recursions)

    @classmethod
    def loaded(
        cls,
        lowered: Lowered,
        prepared: Prepared,
        step: Compiled,
        loops: Sequence[CompiledLoop],
        recursions: Sequence[CompiledCalls],
        *,
        kept: bool,
        verdict: Verdict | None,
        keys: tuple[str, ...] = (),
    ) -> Inductor:
        """Return an executor of what another process has compiled: ``prepared``, loops and recursions. ``kept``: in an
        earlier run; ``keys``: of all of it in the store."""
        made = cls.__new__(cls)
        made.kept, made.verdict, made.keys = kept, verdict, keys
        made._fill(lowered, prepared, step, loops, recursions)
        return made

    def _fill(
        self,
        lowered: Lowered,
        prepared: Prepared,
        step: Compiled,
        loops: Sequence[CompiledLoop],
        recursions: Sequence[CompiledCalls],
    ) -> None:
        self.lowered = lowered
        self.call = step.call
        risks = risks_in(lowered)
        # Where sizes do not ensure that no operation raises, replay runs, and raises what eager does.
        sizes = risks.sizes if lowered.mutated else ()
        self._fits = fitting([*map(Geometry.of, _fakes(lowered))], [*step.conditions, *sizes])
        self._otherwise = None if self._fits is None else Replay(lowered)
        self._loops = compiled_loops(lowered, loops)
        self._calls = compiled_calls(lowered, recursions)
        self.pack = packer(prepared)
        self.copies = prepared.copies
        self._bounds = risks.bounds if lowered.mutated else ()
        self._undone = lowered.mutated if risks.open else ()
        self.constants = prepared.constants
        self.place = prepared.device  # of the packed numbers
        self._rollback = Rollback(lowered)

    @property
    def asks(self) -> bool:
        """Whether a run needs the host: to look at indices, or to keep what may have to be restored."""
        return bool(self._bounds or self._undone)

    def fits(self, inputs: Sequence[torch.Tensor]) -> bool:
        """Whether the artifact is right for inputs of these sizes, since the compiler may have specialised on those of
        the examples. For others, replay is used."""
        return self._fits is None or self._fits(inputs)

    def run(self, inputs: Sequence[torch.Tensor], slots: Numbers) -> list[torch.Tensor] | Violated:
        """See Executable.run. The versions of mutated inputs increase even where a violation leaves their contents."""
        lowered = self.lowered
        if self._otherwise is not None and not self.fits(inputs):
            return self._otherwise.run(inputs, slots)
        if not all(bound.holds(inputs) for bound in self._bounds):
            # An element may be no valid index, or only where an assertion holds: replay decides.
            return Replay.of(lowered).run(inputs, slots)
        # An operation may raise after the artifact has updated inputs.
        saved = self._rollback.save([inputs[index] for index in self._undone])
        try:
            with Ambience(lowered):
                values = self.call(*inputs, *self.pack(slots), *self.constants)
        except BaseException:
            self._rollback.restore(saved)
            raise
        try:
            with Ambience(lowered):
                if self.copies:
                    values = list(values)
                    for position, source in self.copies:
                        values.insert(position, values[source].clone())
            violated = None if lowered.flags is None else failed(values[lowered.flags])
        except Exception as error:  # inputs have been updated
            raise Updating(error) from None
        if violated is not None:
            self._rollback.generators.restore(saved.generators)
            return violated
        return list(values[: lowered.fresh])


def packer(prepared: Prepared) -> Callable[[Numbers], list[torch.Tensor]]:
    """Return a function from slot values to the packed tensors."""
    there = "" if prepared.device.type == "cpu" else ".to(device, non_blocking=True)"
    parts = []
    if prepared.floats:
        parts.append(f"frombuffer(array('d', ({', '.join(prepared.floats)},)), dtype=float64){there}")
    if prepared.ints:
        parts.append(f"frombuffer(array('q', ({', '.join(prepared.ints)},)), dtype=int64){there}")
    names = {"frombuffer": torch.frombuffer, "array": array, "float64": torch.float64, "int64": torch.int64}
    names["device"] = prepared.device
    made: Callable[[Numbers], list[torch.Tensor]] = eval(f"lambda slots: [{', '.join(parts)}]", names)
    return made


def _fakes(lowered: Lowered) -> list[torch.Tensor]:
    """Return the graph's inputs, with symbols where sizes vary."""
    placeholders = [node for node in lowered.graph.graph.nodes if node.op == "placeholder"]
    return [node.meta["val"] for node in placeholders[: len(lowered.program.inputs)]]
