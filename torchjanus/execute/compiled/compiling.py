"""Compiles graphs with Inductor in this thread.

This module knows neither who runs what has been compiled, nor other processes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchjanus.core.errors import refused
from torchjanus.core.lazy import deferred
from torchjanus.execute.compiled.loop import PreparedBlock
from torchjanus.execute.regions.loop import loops_of
from torchjanus.execute.regions.switch import switches_of
from torchjanus.graph.ir.lowered import Lowered
from torchjanus.graph.lowering.for_inductor import Prepared, prepare
from torchjanus.graph.lowering.lower import lower
from torchjanus.graph.lowering.prepared_bytes import Condition, Geometry, Sizes, UnpackedExamples
from torchjanus.graph.lowering.risks import Risks, risks_of
from torchjanus.graph.operators.data_sizes import found_sizes
from torchjanus.trace.blanks import is_blank, like

__all__ = [
    "Compiled", "bare", "compile_block", "compile_for_sizes", "compile_step", "examples_of", "patches", "patches_for",
    "prepared_of", "risks_in", "taken_by",
]  # fmt: skip

after_mutation = deferred("torchjanus.execute.compiled.after_mutation")
inductor = deferred("torch._inductor")


@dataclass(frozen=True, slots=True)
class Compiled:
    """The compiled step, which is right where the ``conditions`` on the sizes of its inputs hold."""

    call: Callable[..., Any]
    conditions: tuple[Condition, ...] = ()


def prepared_of(lowered: Lowered, *, rewrite_alpha: bool = True) -> Prepared:
    """Return the graph prepared for Inductor. Raises Refused where Inductor cannot take it."""
    _refuse_lost(lowered)
    return prepare(_without_rnn_kernels(lowered), rewrite_alpha=rewrite_alpha)


def risks_in(lowered: Lowered) -> Risks:
    """Return what may raise in the graph, its loops and its switches."""
    return risks_of(lowered, loops_of(lowered.program), switches_of(lowered.program))


def _refuse_lost(lowered: Lowered) -> None:
    """Refuse graphs that rely on errors: Inductor drops operations that only raise, and its integer division by zero
    ends the program."""
    lost = risks_in(lowered).lost
    if lost:
        what = f"{lost} raises on some values, and Inductor would not"
        raise refused("inductor-error-lost", what, "The error would be lost.", "Replay is used.")


def _without_rnn_kernels(lowered: Lowered) -> Lowered:
    """Return the same program on plain ATen if it uses oneDNN's recurrent layer, which Inductor cannot call in
    training."""
    if not any("mkldnn_rnn_layer" in str(node.target) for node in lowered.graph.graph.nodes):
        return lowered
    if lowered.lent is not None or lowered.saves is not None:
        what = "a part of the step uses oneDNN's recurrent layer"
        raise refused("inductor-recurrent-layer", what, "Inductor cannot compile that layer.", "Replay is used.")
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)  # torch.backends.mkldnn.flags() warns about settings that are not changed here
    try:
        other = lower(lowered.program, lowered.pinned)
    finally:
        torch._C._set_mkldnn_enabled(enabled)
    if (other.outputs, other.leaves, other.mutated) != (lowered.outputs, lowered.leaves, lowered.mutated):
        what = "without oneDNN's recurrent layer the step has other results"
        raise refused("inductor-recurrent-layer", what, "Inductor cannot compile that layer.", "Replay is used.")
    return other


def taken_by(prepared: Prepared) -> list[torch.Tensor]:
    """Return the arguments of the prepared graph, as traced."""
    return [node.meta["val"] for node in prepared.graph.graph.nodes if node.op == "placeholder"]


def examples_of(lowered: Lowered, prepared: Prepared) -> list[torch.Tensor]:
    """Return one tensor for each argument of the artifact; fake ones where sizes vary."""
    if any(not dimension.made for dimension in lowered.program.dimensions):
        return taken_by(prepared)
    given = [entry.example for entry in lowered.program.inputs]
    examples = [like(example) if is_blank(example) else example.detach() for example in given]
    if prepared.floats:
        examples.append(torch.zeros(len(prepared.floats), dtype=torch.float64, device=prepared.device))
    if prepared.ints:
        examples.append(torch.zeros(len(prepared.ints), dtype=torch.int64, device=prepared.device))
    return [*examples, *prepared.constants]


def patches(cpp_wrapper: bool) -> dict[str, Any]:
    """Return settings of Inductor."""
    return {"fallback_random": True, "cpp_wrapper": cpp_wrapper}


def patches_for(lowered: Lowered) -> dict[str, Any]:
    """Return settings of Inductor for this graph.

    The code around the kernels may be C++ if all inputs are on the CPU: on other devices kernels are launched from
    Python. It is Python, too, if an operator of torchjanus returns a list of one tensor, which crashes the C++ code.
    """
    graph = lowered.graph.graph
    values = [node.meta.get("val") for node in graph.nodes if getattr(node.target, "namespace", "") == "torchjanus"]
    lists_of_one = any(isinstance(value, list | tuple) and len(value) == 1 for value in values)
    return patches(not lists_of_one and all(e.example.device.type == "cpu" for e in lowered.program.inputs))


def bare(prepared: Prepared) -> torch.fx.GraphModule:
    """Return the graph without metadata of its values: their symbols differ where it is compiled."""
    graph = copy.deepcopy(prepared.graph)
    for node in graph.graph.nodes:
        node.meta.clear()
    return graph


def compile_step(lowered: Lowered, prepared: Prepared, patches: dict[str, Any]) -> Compiled:
    """Compile the whole graph. Raises Refused, as the next functions do."""
    examples = examples_of(lowered, prepared)
    if not Sizes.of(examples, found_sizes(prepared.graph)).symbols:
        return Compiled(_compile(prepared, examples, patches))
    return compile_for_sizes(prepared, examples, patches)


def compile_block(writing: PreparedBlock, patches: dict[str, Any]) -> Callable[..., Any]:
    """Compile a block of a loop's iterations."""
    return _compile(writing.prepared, [*writing.examples, *writing.prepared.constants], patches)


def compile_for_sizes(prepared: Prepared, fakes: Sequence[torch.Tensor], patches: dict[str, Any]) -> Compiled:
    """Compile a graph some of whose sizes vary."""
    sizes = Sizes.of(fakes, found_sizes(prepared.graph))
    with UnpackedExamples([Geometry.of(fake) for fake in fakes], sizes) as opened:
        artifact = _compiled(bare(prepared), opened.examples, patches, opened.shapes)
        return Compiled(artifact, opened.conditions())


def _compile(prepared: Prepared, given: Sequence[Any], patches: dict[str, Any]) -> Callable[..., Any]:
    graph = bare(prepared) if found_sizes(prepared.graph) else prepared.graph
    return _compiled(graph, given, patches, "from_example_inputs")


def _compiled(
    graph: torch.fx.GraphModule, given: Sequence[Any], patches: dict[str, Any], shapes: Any
) -> Callable[..., Any]:
    examples: list[Any] = [*given]
    try:
        chosen = after_mutation.options(patches)
        made: Callable[..., Any] = inductor.standalone_compile(graph, examples, dynamic_shapes=shapes, options=chosen)
        return made
    except Exception as error:
        what = f"Inductor cannot compile the step ({type(error).__name__}: {str(error).splitlines()[0][:200]})"
        raise refused("inductor-compile", what, "The fault is Inductor's.", "Replay is used.") from error
