"""Runs switches: the common part of the arms, the predicate, and the rest of one arm.

The forward graphs of the arms (see ``graph.regions.switch``) are printed as one Python function, with the predicates as
its branches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from torchjanus.core.trees import tree_token
from torchjanus.execute.running.gate import below_autograd
from torchjanus.execute.running.partition import apart, printed
from torchjanus.execute.running.printing import ReplaySource
from torchjanus.graph.aten import clean_up
from torchjanus.graph.ir.program import Program
from torchjanus.graph.operators.switch_op import UNKNOWN
from torchjanus.graph.regions.loop import Loop
from torchjanus.graph.regions.partition import SourcedGraph
from torchjanus.graph.regions.saved_values import returned
from torchjanus.graph.regions.switch import Switch, SwitchPartition

__all__ = ["ReplaySwitch", "switches_of"]


class ReplaySwitch:
    """Runs one of several arms. Results are new tensors that share no memory, and bitwise those of the arm taken."""

    def __init__(self, partition: SwitchPartition) -> None:
        self.partition = partition
        self._forward = _ArmsPrinter(partition).function()
        self._backward = [None if arm.backward is None else printed(arm.backward) for arm in partition.arms]

    def forward(self, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the results, the number of the arm taken, and the values saved for backward."""
        partition = self.partition
        with below_autograd():
            made = self._forward(given)
            if made is None:
                blank = [one.zeros() for one in partition.gives]
                return [*blank, torch.tensor(UNKNOWN), *(one.zeros() for one in partition.columns)]
            arm, flat = made
            one = partition.arms[arm]
            saved: list[Any] = [None] * len(partition.columns)
            for place, value in zip(partition.places[arm], flat[one.results :], strict=True):
                saved[place] = value.contiguous()
            columns = [g.zeros() if s is None else s for s, g in zip(saved, partition.columns, strict=True)]
            return apart([*flat[: partition.results], torch.tensor(arm), *columns], given)

    def backward(
        self, present: str, arm: int, tangents: Sequence[torch.Tensor], kept: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Return the gradients. ``present``: for each differentiable result, "1" if it has a tangent, else "0"."""
        partition = self.partition
        with below_autograd():
            if arm == UNKNOWN:
                return [given.zeros() for given in partition.gradients]
            one, backward = partition.arms[arm], self._backward[arm]
            found: dict[int, torch.Tensor] = {}
            if backward is not None:
                assert one.backward is not None
                flowing = iter(tangents)
                known = {
                    index: next(flowing) if flag == "1" else partition.gives[index].zeros()
                    for index, flag in zip(partition.tangents, present, strict=True)
                }
                places = dict(zip(partition.kept, kept, strict=True))
                arguments = []
                for source in one.backward.sources:
                    if source.kind == "tangent":
                        arguments.append(known[source.index])
                    elif source.kind == "saved":
                        where = partition.places[arm][source.index]
                        arguments.append(next(v for s, v in places.items() if s.kind == "saved" and s.index == where))
                    else:
                        arguments.append(places[source])
                found = dict(zip(one.wanted, backward(arguments, ()), strict=True))
            gradients = [
                found[index] if index in found else given.zeros()
                for index, given in zip(partition.wanted, partition.gradients, strict=True)
            ]
            return apart(gradients, tangents, kept)


class _ValueNames(ReplaySource):
    """Names values by how they are computed: equal values of several arms have one name."""

    def __init__(self, names: dict[Any, str]) -> None:
        self.names = names
        self.constants = {}
        self._names = {}

    def text(self, value: Any) -> str:
        return self.names[value] if hasattr(value, "all_input_nodes") else super().text(value)


class _ArmsPrinter:
    """Prints the forward graphs of the arms as one function: values that several compute equally are computed once."""

    def __init__(self, partition: SwitchPartition) -> None:
        self.partition = partition
        self.names: dict[Any, str] = {}
        self.numbers: dict[Any, str] = {}
        self.source = _ValueNames(self.names)
        self.lines: list[str] = []
        self.graphs = [arm.forward.graph for arm in partition.arms]
        self.nodes = [list(graph.graph.nodes) for graph in self.graphs]
        for number, arm in enumerate(partition.arms):
            self._number(number, arm.forward)
        self.flat = [returned(graph) for graph in self.graphs]

    def function(self) -> Any:
        inputs = {f"i{source.index}" for arm in self.partition.arms for source in arm.forward.sources}
        self.lines.append("def forward(given):")
        self.lines += [f"    {name} = given[{name[1:]}]" for name in sorted(inputs)]
        self._part(list(range(len(self.graphs))), 0, frozenset(), 1)
        exec(compile("\n".join(self.lines), "<torchjanus switch>", "exec"), self.source.constants)
        return self.source.constants["forward"]

    def _number(self, number: int, direction: SourcedGraph) -> None:
        drawn, sources = 0, iter(direction.sources)
        for node in self.nodes[number]:
            if node.op == "placeholder":
                self.names[node] = f"i{next(sources).index}"
                continue
            if node.op == "output":
                continue
            key: Any
            if node.op == "get_attr":
                value = getattr(self.graphs[number], str(node.target))
                key = ("constant", value.dtype, tuple(value.size()), repr(value.tolist()))
            else:
                key = (node.target, tree_token((node.args, node.kwargs), self._leaf))
                if clean_up.has_effect(node):
                    key, drawn = (*key, drawn), drawn + 1
            self.names[node] = self.numbers.setdefault(key, f"v{len(self.numbers)}")

    def _leaf(self, value: Any) -> Any:
        is_node = isinstance(value, torch.fx.Node)
        return ("value", self.names[value]) if is_node else (type(value).__name__, repr(value))

    def _part(self, arms: list[int], asked: int, done: frozenset[str], deep: int) -> None:
        """Print what these arms do from one predicate to the next."""
        partition, first = self.partition, arms[0]
        indent = "    " * deep
        answers = partition.answers[first]
        if asked == len(answers):
            assert len(arms) == 1
            self._write(first, self.flat[first], len(self.nodes[first]), done, indent)
            values = ", ".join(self.names[node] for node in self.flat[first])
            self.lines.append(f"{indent}return {first}, [{values}]")
            return
        flag = self.flat[first][partition.results + asked]
        if len({self.names[self.flat[arm][partition.results + asked]] for arm in arms}) > 1:
            raise AssertionError("arms that evaluate different predicates")
        done = self._write(first, [flag], self.nodes[first].index(flag) + 1, done, indent)
        self.lines.append(f"{indent}if {self.names[flag]}:")
        for answer in (True, False):
            some = [arm for arm in arms if partition.answers[arm][asked] == answer]
            if not answer:
                self.lines.append(f"{indent}else:")
            if some:
                self._part(some, asked + 1, done, deep + 1)
            else:
                self.lines.append(f"{indent}    return None")

    def _write(self, arm: int, wanted: Sequence[Any], end: int, done: frozenset[str], indent: str) -> frozenset[str]:
        """Compute the wanted nodes, and nodes before ``end`` that have an effect. Returns the names that are computed
        then."""
        needed: set[Any] = set()
        pending = [*wanted, *(node for node in self.nodes[arm][:end] if clean_up.has_effect(node))]
        while pending:
            node = pending.pop()
            if node.op not in ("placeholder", "output") and node not in needed and self.names[node] not in done:
                needed.add(node)
                pending += node.all_input_nodes
        self.source.graph = self.graphs[arm]
        made = set(done)
        for node in self.nodes[arm]:
            if node in needed and self.names[node] not in made:
                self.lines.append(f"{indent}{self.names[node]} = {self.source.expression(node)}")
                made.add(self.names[node])
        return frozenset(made)


def switches_of(program: Program) -> Iterator[SwitchPartition]:
    """Yield the switches that a program runs, those within loops included."""
    for node in program.nodes:
        if isinstance(node.func, Switch):
            yield from node.func.made.values()
        elif isinstance(node.func, Loop):
            yield from switches_of(node.func.body)
