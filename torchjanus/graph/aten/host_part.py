"""Splits a graph in two: what tensors of the host's memory compute, and the rest, which runs on one device.

Optimizers keep step counters in the host's memory beside parameters on a device. Operations on the host cannot be part
of captured work. They need nothing of the device's, so they run first. Knows neither how graphs are run nor what a
device is: ``held`` says whether a tensor lies on the device.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchjanus.core.errors import Refused, refused
from torchjanus.graph.aten.clean_up import is_random
from torchjanus.graph.aten.flags import flags_of, stack_flags
from torchjanus.graph.aten.segments import example_of
from torchjanus.graph.ir.lowered import Lowered
from torchjanus.graph.ir.program import Input

__all__ = ["HostPart", "host_part_of"]

aten = torch.ops.aten
Node = torch.fx.Node
Held = Callable[[torch.Tensor], bool]


@dataclass(frozen=True, slots=True)
class HostPart:
    """The two halves of a graph.

    ``graph`` takes all inputs and slots, and returns the ``live`` values that the device needs, on the device, the
    fresh values of the host, its flags, and its updates. ``device`` takes the inputs numbered ``given``, then the live
    values. ``fresh``: of each fresh value of the whole whether it is the device's, and its position there; likewise
    ``flags``. ``mutated``: the inputs that the host updates.
    """

    graph: torch.fx.GraphModule
    device: Lowered
    given: tuple[int, ...]
    live: int
    fresh: tuple[tuple[bool, int], ...]
    flags: tuple[tuple[bool, int], ...]
    mutated: tuple[int, ...]


def host_part_of(lowered: Lowered, held: Held) -> HostPart | None:
    """Return the two halves; None where the host has nothing to do. Raises Refused where the host needs a value of the
    device, or the device one of the host that no transfer takes there."""
    return _Split(lowered, held).split()


class _Split:
    """Copies each node into one graph or the other."""

    def __init__(self, lowered: Lowered, held: Held) -> None:
        self.lowered, self.held = lowered, held
        nodes = list(lowered.graph.graph.nodes)
        count = len(lowered.program.inputs)
        self.nodes = nodes
        placeholders = [node for node in nodes if node.op == "placeholder"]
        self.inputs, self.slots = placeholders[:count], placeholders[count:]
        self.values: list[Node] = list(nodes[-1].args[0])
        self.flags = self._flags()
        skipped = self._transfers()
        inner = [node for node in nodes if node.op != "output" and node not in skipped]
        self.on_device = {node for node in inner if self._is_on_device(node)}
        self.on_host = [node for node in nodes if node.op == "call_function" and self._is_on_host(node, skipped)]
        self.live: dict[Node, None] = {}

    def split(self) -> HostPart | None:
        lowered, flags = self.lowered, [(flag in self.on_device) for flag in self.flags]
        given = tuple(number for number, node in enumerate(self.inputs) if node in self.on_device)
        if not self.on_host and len(given) == len(self.inputs) and all(flags):
            return None
        device, placeholders = self._device_graph(given)
        fresh, updates = self.values[: lowered.fresh], self.values[lowered.updates :]
        own = [value for value in fresh if value in self.on_device]
        pairs = [*zip(lowered.mutated, updates, strict=True)]
        written = [(index, value) for index, value in pairs if self.inputs[index] in self.on_device]
        stacked = [flag for flag in self.flags if flag in self.on_device]
        graph = self._finish(device, placeholders, own, stacked, [value for _, value in written])
        position = {number: place for place, number in enumerate(given)}
        inputs = [replace(lowered.program.inputs[number], grad=None) for number in given]
        inputs += [Input(example_of(self._moved(node)), False, True) for node in self.live]
        asked = [one for one, there in zip(lowered.assertions, flags, strict=True) if there]
        program = replace(lowered.program, inputs=tuple(inputs), assertions=tuple(asked))
        part = replace(
            lowered, program=program, graph=graph, fresh=len(own), lent=len(given), sized=(), leaves=(), outputs=(),
            scratch=frozenset(),
            mutated=tuple(position[index] for index, _ in written), replaced=(), restored=(), uncounted=(),
            requires_grad_set=(), random=any(is_random(node) for node in self.on_device),
            nodes=sum(node.op == "call_function" for node in graph.graph.nodes),
        )  # fmt: skip
        host_fresh = [value for value in fresh if value not in self.on_device]
        host_flags = [flag for flag in self.flags if flag not in self.on_device]
        here = [(index, value) for index, value in pairs if self.inputs[index] not in self.on_device]
        returned = [*host_fresh, *host_flags, *(value for _, value in here)]
        return HostPart(
            self._host_graph(returned), part, given, len(self.live), _sides(fresh, self.on_device),
            _sides(self.flags, self.on_device), tuple(index for index, _ in here),
        )  # fmt: skip

    # -- which node belongs where -----------------------------------------------------------------------------------

    def _flags(self) -> list[Node]:
        """Return the node of each flag, on the device that made it."""
        if self.lowered.flags is None:
            return []
        found = flags_of(self.values[self.lowered.flags])
        if found is None:
            raise _refused("assertions are not stacked")
        return [_before_transfer(flag) for flag in found]

    def _transfers(self) -> set[Node]:
        """Return the nodes that only bring flags together."""
        if self.lowered.flags is None:
            return set()
        stack = self.values[self.lowered.flags]
        found: set[Node] = {stack}
        for flag in flags_of(stack) or ():
            while flag not in self.flags:
                found.add(flag)
                flag = flag.args[0]  # type: ignore[assignment]
                if flag.target is aten.stack.default:
                    found.add(flag)
                    break
        return found

    def _is_on_device(self, node: Node) -> bool:
        made = _tensors(node)
        if node.op == "get_attr" or not made or not any(map(self.held, made)):
            return False
        given = [value for used in node.all_input_nodes for value in _tensors(used)]
        # An operation that brings a tensor of the host's to the device is made by the host.
        return not given or any(map(self.held, given))

    def _is_on_host(self, node: Node, skipped: set[Node]) -> bool:
        if node in skipped or node in self.on_device or not _tensors(node):
            return False
        if any(used in self.on_device and _tensors(used) for used in node.all_input_nodes):
            raise _refused(f"the host needs a value of the device ({node.target})")
        return True

    # -- the two graphs ---------------------------------------------------------------------------------------------

    def _device_graph(self, given: Sequence[int]) -> tuple[torch.fx.Graph, dict[Node, Node]]:
        """Return a graph with the placeholders of the device's inputs, of live values and of slots."""
        for node in self.nodes:
            if node in self.on_device:
                self._need(node)
        wanted = [value for value in self.values[: self.lowered.fresh] if value in self.on_device]
        updates = self.values[self.lowered.updates :]
        wanted += [v for i, v in zip(self.lowered.mutated, updates, strict=True) if self.inputs[i] in self.on_device]
        for value in wanted:
            if value not in self.on_device:
                self._cross(value)
        graph = torch.fx.Graph()
        copies: dict[Node, Node] = {}
        for node in (*(self.inputs[number] for number in given), *self.live, *self.slots):
            copies[node] = graph.placeholder(node.name)
            copies[node].meta = {**node.meta, "val": self._moved(node) if node in self.live else node.meta["val"]}
        return graph, copies

    def _need(self, node: Node) -> None:
        """Note the values of the host that a node of the device takes."""
        for used in node.all_input_nodes:
            if used.op == "get_attr" or used in self.on_device or not _tensors(used):
                continue
            self._cross(used)

    def _cross(self, node: Node) -> None:
        made = node.meta["val"]
        if not isinstance(made, torch.Tensor) or (not self.held(made) and made.dim()):
            raise _refused(f"the device takes a tensor of the host's memory ({node.name})")
        self.live[node] = None

    def _moved(self, node: Node) -> torch.Tensor:
        """Return the fake value of a live one, as it is on the device."""
        value: torch.Tensor = node.meta["val"]
        if self.held(value):
            return value
        device = next(v.device for n in self.nodes if n in self.on_device for v in _tensors(n) if self.held(v))
        with value.fake_mode:  # type: ignore[attr-defined]
            return value.to(device)

    def _brought(self, graph: torch.fx.Graph, copy: Node, node: Node) -> Node:
        """Return a live value of the host graph, brought to the device."""
        if self.held(node.meta["val"]):
            return copy
        made = graph.call_function(aten._to_copy.default, (copy,), {"device": self._moved(node).device})
        made.meta["val"] = self._moved(node)
        return made

    def _finish(
        self,
        graph: torch.fx.Graph,
        copies: dict[Node, Node],
        fresh: Sequence[Node],
        flags: Sequence[Node],
        updates: Sequence[Node],
    ) -> torch.fx.GraphModule:
        for node in self.nodes:
            if node.op == "call_function" and node in self.on_device:
                _copy(graph, copies, node)

        def call(target: Any, /, *args: Any, **kwargs: Any) -> Node:
            made = graph.call_function(target, args, kwargs)
            given = torch.fx.node.map_arg((args, kwargs), lambda part: part.meta["val"])
            with copies[flags[0]].meta["val"].fake_mode:
                made.meta["val"] = target(*given[0], **given[1])
            return made

        stacked = [stack_flags([copies[flag] for flag in flags], call)] if flags else []
        graph.output([*(copies[v] for v in fresh), *stacked, *(_copy(graph, copies, v) for v in updates)])
        return _module(self.lowered.graph, graph)

    def _host_graph(self, returned: Sequence[Node]) -> torch.fx.GraphModule:
        graph = torch.fx.Graph()
        copies: dict[Node, Node] = {}
        for node in (*self.inputs, *self.slots):
            copies[node] = graph.placeholder(node.name)
            copies[node].meta = dict(node.meta)
        for node in self.on_host:
            _copy(graph, copies, node)
        crossing = [self._brought(graph, _copy(graph, copies, node), node) for node in self.live]
        graph.output([*crossing, *(_copy(graph, copies, value) for value in returned)])
        return _module(self.lowered.graph, graph)


def _copy(graph: torch.fx.Graph, copies: dict[Node, Node], node: Node) -> Node:
    """Copy a node, with the constants and numbers that it needs."""
    if node not in copies:
        for used in node.all_input_nodes:
            _copy(graph, copies, used)
        copies[node] = graph.node_copy(node, lambda part: copies[part])
    return copies[node]


def _module(owner: torch.fx.GraphModule, graph: torch.fx.Graph) -> torch.fx.GraphModule:
    module = torch.fx.GraphModule(owner, graph)
    graph.lint()
    module.recompile()
    return module


def _tensors(node: Node) -> list[torch.Tensor]:
    return [one for one in pytree.tree_leaves(node.meta.get("val")) if isinstance(one, torch.Tensor)]


def _sides(values: Sequence[Node], there: set[Node]) -> tuple[tuple[bool, int], ...]:
    """Return of each value whether it is the device's, and how many of the same side come before it."""
    counts, found = [0, 0], []
    for value in values:
        side = value in there
        found.append((side, counts[side]))
        counts[side] += 1
    return tuple(found)


def _before_transfer(flag: Node) -> Node:
    """Return the flag as its device made it (see flags.stack_flags)."""
    if flag.target is not operator.getitem:
        return flag
    rows: Any = flag.args[0]
    if rows.target is not aten.unbind.int or rows.args[0].target is not aten._to_copy.default:
        return flag
    made = flags_of(rows.args[0].args[0])
    return flag if made is None else made[flag.args[1]]  # type: ignore[index]


def _refused(why: str) -> Refused:
    what = f"the step cannot be captured: {why}"
    return refused("graph-not-captured", what, "A CUDA graph runs without the host.", "Replay is used.")
