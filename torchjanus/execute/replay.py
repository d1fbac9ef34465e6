"""The replay executor: the graph as straight-line Python over ATen calls. Bitwise eager, and nothing to compile.

Knows nothing of fx's interpreter: the code it generates calls each operator directly and frees values early.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchjanus.errors import InternalFault
from torchjanus.execute.base import Numbers, Violated
from torchjanus.execute.gate import Ambience, Generators, failed
from torchjanus.graph.lowered import Lowered

__all__ = ["Replay"]

Compute = Callable[[Sequence[torch.Tensor], Numbers], list[torch.Tensor]]


class Replay:
    """Runs a lowered graph by calling ATen, operator by operator, with eager's kernels in eager's order."""

    name = "replay"

    def __init__(self, lowered: Lowered) -> None:
        self.lowered = lowered
        self.source, constants = _generate(lowered)
        exec(compile(self.source, "<torchjanus replay>", "exec"), constants)
        self._compute: Compute = constants["compute"]

    def compute(self, inputs: Sequence[torch.Tensor], slots: Numbers) -> list[torch.Tensor]:
        """All flat values of the graph (see Lowered). Changes nothing but the generators."""
        with Ambience(self.lowered):
            return self._compute(inputs, slots)

    def run(self, inputs: Sequence[torch.Tensor], slots: Numbers) -> list[torch.Tensor] | Violated:
        """See Executable.run."""
        lowered = self.lowered
        generators = Generators(lowered)
        try:
            values = self.compute(inputs, slots)
            violated = None if lowered.flags is None else failed(values[lowered.flags])
        except BaseException:
            generators.restore()
            raise
        if violated is not None:
            generators.restore()
            return violated
        self.commit(inputs, values)
        del values[lowered.fresh :]
        return values

    def commit(self, inputs: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
        """Write the updates among ``values`` into the mutated inputs."""
        lowered = self.lowered
        with torch.no_grad():
            for index, value in zip(lowered.mutated, values[lowered.updates :], strict=True):
                inputs[index].copy_(value)


def _generate(lowered: Lowered) -> tuple[str, dict[str, Any]]:
    """The source of ``compute``, and the constants it names."""
    constants: dict[str, Any] = {}
    nodes = list(lowered.graph.graph.nodes)
    count = len(lowered.program.inputs)
    placeholders = [node.name for node in nodes if node.op == "placeholder"]
    lines = ["def compute(inputs, slots):"]
    for names, source in ((placeholders[:count], "inputs"), (placeholders[count:], "slots")):
        if names:
            lines.append(f"    {', '.join(names)}, = {source}")
    last_use = {used: node for node in nodes for used in node.all_input_nodes}
    dying: dict[Any, list[str]] = {}
    for used, node in last_use.items():
        if used.op == "call_function" and node.op != "output":
            dying.setdefault(node, []).append(used.name)
    known: dict[int, str] = {}

    def constant(value: Any) -> str:
        name = known.setdefault(id(value), f"c{len(known)}")
        constants[name] = value
        return name

    def text(value: Any) -> str:
        if hasattr(value, "all_input_nodes"):
            return str(value.name)
        if isinstance(value, list | tuple):
            return f"[{', '.join(map(text, value))}]"
        plain = value is None or type(value) in (bool, int, str) or (type(value) is float and math.isfinite(value))
        return repr(value) if plain else constant(value)

    for node in nodes:
        if node.op == "get_attr":
            lines.append(f"    {node.name} = {constant(getattr(lowered.graph, node.target))}")
        elif node.op == "output":
            lines.append(f"    return {text(node.args[0])}")
        elif node.op == "call_function":
            if node.target is operator.getitem:
                lines.append(f"    {node.name} = {text(node.args[0])}[{text(node.args[1])}]")
            else:
                if isinstance(node.target, torch._ops.HigherOrderOperator):
                    raise InternalFault(f"replay does not know {node.target}")
                arguments = [*map(text, node.args), *(f"{key}={text(value)}" for key, value in node.kwargs.items())]
                lines.append(f"    {node.name} = {constant(node.target)}({', '.join(arguments)})")
            if gone := dying.get(node):
                lines.append(f"    del {', '.join(gone)}")
    return "\n".join(lines) + "\n", constants
