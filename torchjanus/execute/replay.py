"""The replay executor: the graph as straight-line Python over ATen calls. It is bitwise eager, and needs no
compilation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from weakref import WeakValueDictionary

import torch
from torch.autograd.graph import increment_version

from torchjanus.core.errors import InternalFault
from torchjanus.execute.finishing import failed_in, finished, rest_of
from torchjanus.execute.memory import give_back
from torchjanus.execute.pending import violated_before
from torchjanus.execute.regions.invoke import ready_calls
from torchjanus.execute.regions.loop import ready
from torchjanus.execute.running.base import Numbers, Updating, Violated
from torchjanus.execute.running.gate import Ambience, Generators, below_autograd, failed
from torchjanus.execute.running.printing import ReplaySource
from torchjanus.graph.aten.buffer_reuse import of_updates
from torchjanus.graph.ir.lowered import Lowered

__all__ = ["Replay"]


Compute = Callable[[Sequence[torch.Tensor], Numbers], list[torch.Tensor]]
Step = Callable[[Sequence[torch.Tensor], Numbers, Callable[[torch.Tensor | None], bool]], list[torch.Tensor] | None]


_ALIVE: WeakValueDictionary[int, Replay] = WeakValueDictionary()


class Replay:
    """Runs a lowered graph by calling ATen, operator by operator, with eager's kernels in eager's order.

    Where it can, a run overwrites the inputs that the call updates, as eager does, instead of computing new contents
    beside the old ones (see graph.aten.buffer_reuse). No operation after that raises because of the values of tensors.
    Other faults of an operation show in the first run for the same sizes: that run keeps the old contents, and restores
    them. In a later run only memory may be missing, and then the run is completed.
    """

    name = "replay"

    def __init__(self, lowered: Lowered) -> None:
        self.lowered = lowered
        overwriting = of_updates(lowered)
        self._updated = frozenset(lowered.mutated[place] for place in overwriting.updated)
        self._left = [place for place in range(len(lowered.mutated)) if place not in overwriting.updated]
        # Sizes for which a whole run has completed. Where no size varies there is only one such key.
        self._proven: set[tuple[int, ...]] = set()
        self._measured = measured(lowered)
        self._copied = False  # whether updates are known to have the right shapes
        count = len(lowered.program.inputs)
        source = ReplaySource(lowered.graph, count, overwriting, lowered.flags, lowered.lent)
        self.source = source.generate()  # of what ``run`` runs
        generated = source.compute(self.source)
        self._step: Step | None = generated if self._updated else None
        self._pure: Compute | None = None if self._updated else generated
        self._loops = ready(lowered.program)
        self._calls = ready_calls(lowered.program)
        self._generators = Generators(lowered)
        _ALIVE[id(lowered)] = self

    @classmethod
    def of(cls, lowered: Lowered) -> Replay:
        """Return an existing Replay of this graph if there is one: to make one of a large graph takes long."""
        known = _ALIVE.get(id(lowered))
        return known if known is not None and known.lowered is lowered else cls(lowered)

    def compute(self, inputs: Sequence[torch.Tensor], slots: Numbers) -> list[torch.Tensor]:
        """Return all flat values of the graph (see Lowered). Changes only the generators, and the list of inputs:
        inputs that the run owns are removed from it."""
        if self._pure is None:
            source = ReplaySource(self.lowered.graph, len(self.lowered.program.inputs), lent=self.lowered.lent)
            self._pure = source.compute(source.generate())
        # Below autograd, which has nothing to record but takes a fifth of the time of small steps.
        with Ambience(self.lowered), below_autograd():
            return self._pure(inputs, slots)

    def fits(self, inputs: Sequence[torch.Tensor]) -> bool:
        """See Executable.fits: always true."""
        return True

    def run(self, inputs: Sequence[torch.Tensor], slots: Numbers) -> list[torch.Tensor] | Violated:
        """See Executable.run. Removes the inputs that the run owns from the list."""
        states = self._generators.save()
        try:
            made = self._beside(inputs, slots) if self._step is None else self._over(self._step, inputs, slots)
        except Updating:
            raise
        except Exception as error:
            self._generators.restore(states)
            if (violated := violated_before(self.lowered, error)) is not None:
                return violated
            raise
        except BaseException:
            self._generators.restore(states)
            raise
        if isinstance(made, Violated):
            self._generators.restore(states)
            return made
        del made[self.lowered.fresh :]
        return made

    def _beside(self, inputs: Sequence[torch.Tensor], slots: Numbers) -> list[torch.Tensor] | Violated:
        """Run the graph; then write the updates."""
        values = self.compute(inputs, slots)
        violated = None if self.lowered.flags is None else failed(values[self.lowered.flags])
        if violated is None:
            self.commit(inputs, values)
        return violated or values

    def _over(self, step: Step, inputs: Sequence[torch.Tensor], slots: Numbers) -> list[torch.Tensor] | Violated:
        """Run the graph, and overwrite inputs as soon as all flags are known to hold."""
        begun, violated = False, None
        sizes = tuple(inputs[index].size(dim) for index, dim in self._measured)
        saved: list[torch.Tensor] | None = None

        def begin(flags: torch.Tensor | None) -> bool:
            nonlocal begun, violated, saved
            violated = None if flags is None else failed(flags)
            if violated is None and sizes not in self._proven:
                saved = self._kept(inputs)
            begun = violated is None
            return begun

        with Ambience(self.lowered), below_autograd():
            try:
                values = step(inputs, slots, begin)
            except Exception as error:
                if not begun:
                    raise
                if saved is not None:
                    self._put_back(inputs, saved)
                    raise
                values = self._finished(step, error)
        if values is None:
            assert violated is not None
            return violated
        try:
            increment_version([inputs[index] for index in self._updated])
            self._copy(inputs, values, self._left)
        except Exception as error:
            if saved is None:
                raise Updating(error) from None
            self._put_back(inputs, saved)
            raise
        self._proven.add(sizes)
        return values

    def _put_back(self, inputs: Sequence[torch.Tensor], saved: list[torch.Tensor]) -> None:
        with torch.no_grad():
            torch._foreach_copy_([inputs[index] for index in self.lowered.mutated], saved)

    def _kept(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
        """Return copies of what is about to be overwritten; None where there is no memory for them."""
        try:
            return [inputs[index].clone() for index in self.lowered.mutated]
        except RuntimeError:
            return None

    def _finished(self, step: Step, error: Exception) -> list[torch.Tensor]:
        """Complete a run in which an operation has raised. Raises Updating if it raises again."""
        place = failed_in(error, step.__code__)
        if place is None:
            raise Updating(error) from None
        frame, line = place
        rest = rest_of(self.source.split("\n")[1:-1], line - 2)
        try:
            made: list[torch.Tensor] = finished(rest, frame.f_locals, frame.f_globals, "<torchjanus replay>")
        except Exception:
            raise Updating(error) from None
        return made

    def commit(self, inputs: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
        """Write the updates among ``values`` into the mutated inputs."""
        self._copy(inputs, values, range(len(self.lowered.mutated)))

    def _copy(self, inputs: Sequence[torch.Tensor], values: Sequence[torch.Tensor], places: Sequence[int]) -> None:
        if places:
            lowered = self.lowered
            updated = [inputs[lowered.mutated[place]] for place in places]
            made = [values[lowered.updates + place] for place in places]
            if not self._copied:
                for one, other in zip(updated, made, strict=True):
                    if one.shape != other.shape:
                        raise InternalFault(f"an update of {list(one.shape)} is {list(other.shape)}")
                self._copied = True
            with torch.no_grad():
                try:
                    torch._foreach_copy_(updated, made)
                except Exception:  # memory was missing: write all once more
                    give_back()
                    torch._foreach_copy_(updated, made)


def measured(lowered: Lowered) -> list[tuple[int, int]]:
    """Return where the sizes that vary are found: input and dimension, one for each."""
    found: dict[str, tuple[int, int]] = {}
    nodes = [node for node in lowered.graph.graph.nodes if node.op == "placeholder"]
    for index, node in enumerate(nodes[: len(lowered.program.inputs)]):
        for dim, size in enumerate(node.meta["val"].shape):
            if not isinstance(size, int):
                found.setdefault(str(size), (index, dim))
    return [*found.values()]
