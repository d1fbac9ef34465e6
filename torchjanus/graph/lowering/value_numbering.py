"""Value numbering over the graphs of several paths: equal nodes of different graphs are one value.

Nodes are equal where they call the same operator on the same values after the same draws. Knows nothing of cuts.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchjanus.core.errors import InternalFault
from torchjanus.core.trees import tree_token
from torchjanus.graph.aten.clean_up import is_random, is_view
from torchjanus.graph.aten.flags import flags_of
from torchjanus.graph.ir.lowered import Lowered

__all__ = ["Path", "PathValues", "Tree"]

_SMALL = 4096  # the most elements of constants that are compared

Node = torch.fx.Node


@dataclass(frozen=True, slots=True)
class Path:
    """The graph of one path. Inputs (slots) of two paths are the same where their keys are equal."""

    lowered: Lowered
    inputs: tuple[Any, ...]
    slots: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Tree:
    """How the paths branch: ``arms`` are numbers of paths or subtrees; ``flags[k]`` is the assertion that holds if arm
    k is taken: the number of a path in that arm, and the number of the assertion in it."""

    arms: tuple[Tree | int, ...]
    flags: tuple[tuple[int, int], ...]

    def paths(self) -> Iterator[int]:
        """Yield the numbers of all paths in the tree."""
        for arm in self.arms:
            yield from (arm,) if isinstance(arm, int) else arm.paths()


class PathValues:
    """The values of these paths."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths
        self.numbers: dict[Node, int] = {}
        self.nodes: list[Node] = []  # for each number one node that computes it
        self.constants: dict[int, Any] = {}
        self._known: dict[Any, int] = {}
        self.calls = [self._number_path(path) for path in paths]  # in the order of each path's graph
        self.inputs = [
            [self.numbers[node] for node in path.lowered.graph.graph.nodes if node.op == "placeholder"]
            for path in paths
        ]

    def _number_path(self, path: Path) -> list[int]:
        """Number the values of one path, and return those of its calls in order."""
        module = path.lowered.graph
        nodes = list(module.graph.nodes)
        placeholders = [node for node in nodes if node.op == "placeholder"]
        keys = [*(("input", key) for key in path.inputs), *(("slot", key) for key in path.slots)]
        for node, given in zip(placeholders, keys, strict=True):
            self._number(node, given)
        calls, met, drawn = [], dict[Any, int](), -1
        for node in nodes:
            if node.op == "get_attr":
                constant = getattr(module, str(node.target))
                self.constants[self._number(node, ("constant", _constant(constant)))] = constant
            elif node.op == "call_function":
                key: Any = (node.target, tree_token((node.args, node.kwargs), self._leaf))
                if is_random(node):
                    key = (*key, "after draw", drawn)
                # Equal nodes of one graph are distinct values on purpose: their results are distinct tensors.
                met[key] = met.get(key, 0) + 1
                calls.append(self._number(node, (key, met[key])))
                if is_random(node):
                    drawn = calls[-1]
        return calls

    def _number(self, node: Node, key: Any) -> int:
        number = self._known.setdefault(key, len(self.nodes))
        if number == len(self.nodes):
            self.nodes.append(node)
        self.numbers[node] = number
        return number

    def _leaf(self, value: Any) -> Any:
        if isinstance(value, Node):
            return "value", self.numbers[value]
        return (float, value.hex()) if isinstance(value, float) else (type(value), value)  # -0.0 equals 0.0

    def used_by(self, number: int) -> list[int]:
        """Return the values that this one is computed from."""
        return [self.numbers[used] for used in self.nodes[number].all_input_nodes]

    def may_live(self, number: int) -> bool:
        """Whether one part may pass the value to another: a tensor with memory of its own."""
        node = self.nodes[number]
        return isinstance(node.meta.get("val"), torch.Tensor) and not is_view(node)

    def is_call(self, number: int) -> bool:
        """Whether it is computed, as opposed to a placeholder or a constant."""
        return self.nodes[number].op == "call_function"

    def common(self, tree: Tree) -> set[int]:
        """Return what all paths of the tree compute; of an operation with several results all that any path uses."""
        members = list(tree.paths())
        found = set.intersection(*(set(self.calls[path]) for path in members))
        for path in members:
            for number in self.calls[path]:
                node = self.nodes[number]
                if node.target is operator.getitem and self.numbers[node.args[0]] in found:  # type: ignore[index]
                    found.add(number)
        return found

    def output(self, path: int) -> list[Node]:
        """Return the flat output of a path."""
        last: Any = next(iter(reversed(self.paths[path].lowered.graph.graph.nodes)))
        return list(last.args[0])

    def flags(self, path: int) -> list[int]:
        """Return the values of the flags of a path's assertions."""
        position = self.paths[path].lowered.flags
        if position is None:
            return []
        stacked = self.output(path)[position]
        flags = flags_of(stacked)
        if flags is None:
            raise InternalFault(f"the flags are not stacked but made by {stacked.target}")
        return [self.numbers[flag] for flag in flags]


def _constant(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.numel() <= _SMALL and value.device.type == "cpu":
        return value.dtype, tuple(value.shape), value.stride(), repr(value.tolist())
    return id(value)
