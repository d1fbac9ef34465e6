"""The Inductor executor: the whole step compiled to native code by torch._inductor.standalone_compile.

An Inductor artifact is not to be believed before it has passed a Trial (see trust). Knows nothing of fx.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._inductor import standalone_compile

from torchjanus.errors import NOWHERE, Refusal, Refused
from torchjanus.execute.base import Numbers, Violated
from torchjanus.execute.gate import Ambience, Generators, failed
from torchjanus.execute.trust import duplicate
from torchjanus.execute.worker import Compilation, Geometry, Request
from torchjanus.graph.bounds import risks_of
from torchjanus.graph.for_inductor import Prepared, prepare
from torchjanus.graph.lower import lower
from torchjanus.graph.lowered import Lowered
from torchjanus.graph.shipping import pack

__all__ = ["Inductor", "PendingInductor"]


class Inductor:
    """Runs a lowered graph as one compiled artifact, which updates the mutated inputs in place under its flags."""

    name = "inductor"

    def __init__(self, lowered: Lowered, *, cpp_wrapper: bool = True, rewrite_alpha: bool = True) -> None:
        """Compile, in this thread: seconds to minutes. Raises Refused where Inductor cannot take the graph."""
        _refuse_lost(lowered)
        prepared = prepare(_without_rnn_kernels(lowered), rewrite_alpha=rewrite_alpha)
        with Ambience(lowered):
            self._fill(lowered, prepared, _compile(lowered, prepared, _patches(cpp_wrapper)))

    @classmethod
    def start(cls, lowered: Lowered, *, cpp_wrapper: bool = True) -> PendingInductor:
        """Compile in another process. Raises Refused where Inductor cannot take the graph."""
        _refuse_lost(lowered)
        prepared = prepare(_without_rnn_kernels(lowered))
        examples = tuple(Geometry.of(tensor) for tensor in _examples(lowered, prepared))
        request = Request(
            pack(prepared), examples, _patches(cpp_wrapper), torch.get_num_threads(), lowered.default_dtype
        )
        return PendingInductor(lowered, prepared, Compilation(request))

    @classmethod
    def loaded(cls, lowered: Lowered, prepared: Prepared, call: Callable[..., Any]) -> Inductor:
        """An executor around what another process has compiled of ``prepared``."""
        made = cls.__new__(cls)
        made._fill(lowered, prepared, call)
        return made

    def _fill(self, lowered: Lowered, prepared: Prepared, call: Callable[..., Any]) -> None:
        self.lowered = lowered
        self._call = call
        self._pack = _packer(prepared)
        self._copies = prepared.copies
        risks = risks_of(lowered)
        self._bounds = risks.bounds if lowered.mutated else ()
        self._undone = lowered.mutated if risks.open else ()
        self._constants = prepared.constants
        self._generators = Generators(lowered)

    def run(self, inputs: Sequence[torch.Tensor], slots: Numbers) -> list[torch.Tensor] | Violated:
        """See Executable.run. Versions of the mutated inputs rise even where a violation leaves their contents."""
        lowered = self.lowered
        for bound in self._bounds:
            if not bound.holds(inputs):
                raise IndexError(f"input {bound.index} has an element that is no index below {bound.limit}")
        states = self._generators.save()
        # An operation may raise after the artifact has updated inputs.
        saved = [duplicate(inputs[index].detach()) for index in self._undone]
        try:
            with Ambience(lowered):
                values = self._call(*inputs, *self._pack(slots), *self._constants)
                if self._copies:
                    values = list(values)
                    for position, source in self._copies:
                        values.insert(position, values[source].clone())
            violated = None if lowered.flags is None else failed(values[lowered.flags])
        except BaseException:
            self._generators.restore(states)
            with torch.no_grad():
                for index, content in zip(self._undone, saved, strict=True):
                    inputs[index].copy_(content)
            raise
        if violated is not None:
            self._generators.restore(states)
            return violated
        return list(values[: lowered.fresh])


def _refuse_lost(lowered: Lowered) -> None:
    """Inductor drops operations that are there only to raise, and its integer division by zero ends the program."""
    lost = risks_of(lowered).lost
    if lost:
        what = f"{lost} raises on some values, and Inductor would not"
        raise Refused(Refusal(NOWHERE, what, "The error would be lost.", "Replay is used."))


def _without_rnn_kernels(lowered: Lowered) -> Lowered:
    """The same program on plain ATen where it uses oneDNN's recurrent layer, which Inductor cannot call in training."""
    if not any("mkldnn_rnn_layer" in str(node.target) for node in lowered.graph.graph.nodes):
        return lowered
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)  # torch.backends.mkldnn.flags() warns about settings it is not asked to touch
    try:
        other = lower(lowered.program, lowered.pinned)
    finally:
        torch._C._set_mkldnn_enabled(enabled)
    if (other.outputs, other.leaves, other.mutated) != (lowered.outputs, lowered.leaves, lowered.mutated):
        what = "without oneDNN's recurrent layer the step has other results"
        raise Refused(Refusal(NOWHERE, what, "Inductor cannot compile that layer.", "Replay is used."))
    return other


def _packer(prepared: Prepared) -> Callable[[Numbers], list[torch.Tensor]]:
    """A function from slot values to the packed tensors."""
    parts = []
    if prepared.floats:
        parts.append(f"frombuffer(array('d', ({', '.join(prepared.floats)},)), dtype=float64)")
    if prepared.ints:
        parts.append(f"frombuffer(array('q', ({', '.join(prepared.ints)},)), dtype=int64)")
    names = {"frombuffer": torch.frombuffer, "array": array, "float64": torch.float64, "int64": torch.int64}
    made: Callable[[Numbers], list[torch.Tensor]] = eval(f"lambda slots: [{', '.join(parts)}]", names)
    return made


def _examples(lowered: Lowered, prepared: Prepared) -> list[torch.Tensor]:
    """One tensor for each argument of the artifact."""
    examples = [entry.example.detach() for entry in lowered.program.inputs]
    if prepared.floats:
        examples.append(torch.zeros(len(prepared.floats), dtype=torch.float64))
    if prepared.ints:
        examples.append(torch.zeros(len(prepared.ints), dtype=torch.int64))
    return [*examples, *prepared.constants]


def _patches(cpp_wrapper: bool) -> dict[str, Any]:
    return {"fallback_random": True, "cpp_wrapper": cpp_wrapper}


def _compile(lowered: Lowered, prepared: Prepared, patches: dict[str, Any]) -> Callable[..., Any]:
    examples: list[Any] = [*_examples(lowered, prepared)]
    try:
        return standalone_compile(
            prepared.graph, examples, dynamic_shapes="from_example_inputs", options={"config_patches": patches}
        )
    except Exception as error:
        what = f"Inductor cannot compile the step ({type(error).__name__}: {str(error).splitlines()[0][:200]})"
        raise Refused(Refusal(NOWHERE, what, "The fault is Inductor's.", "Replay is used.")) from error


@dataclass(frozen=True, slots=True)
class PendingInductor:
    """An Inductor executor in the making."""

    lowered: Lowered
    prepared: Prepared
    compilation: Compilation

    def ready(self) -> bool:
        """Whether ``result`` would not have to wait for the compiler (it still has to load the artifact)."""
        return self.compilation.ready()

    def result(self, timeout: float | None = None) -> Inductor:
        """The executor. Raises Refused if the compiler failed."""
        return Inductor.loaded(self.lowered, self.prepared, self.compilation.result(timeout))

    def cancel(self) -> None:
        """Give the compilation up."""
        self.compilation.cancel()
