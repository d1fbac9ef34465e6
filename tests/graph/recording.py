"""A small recorder for tests: runs a function for real and writes down the torch-API calls as a Program.

It stands in for the watcher. Python numbers that differ between recordings become slots (see ``generalise``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from torchjanus.core.errors import Place
from torchjanus.core.trees import map_leaves
from torchjanus.graph.ir.program import Assertion, Input, Node, Program, Ref, Slot, SlotKind
from torchjanus.trace.modes import Modes


def current_modes() -> Modes:
    autocast = ()
    if torch.is_autocast_enabled("cpu"):
        autocast = (("cpu", torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled()),)
    return Modes(torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast, torch.get_default_dtype())


@dataclass
class Recording:
    """What one run did: everything a Program needs, with Python numbers still in place."""

    tensors: list[torch.Tensor] = field(default_factory=list)  # by number, inputs first; kept alive
    inputs: list[Input] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    outputs: list[tuple[int, int]] = field(default_factory=list)  # (provisional number, after)
    asserted: list[tuple[int, bool, int]] = field(default_factory=list)
    result: Any = None


class Recorder(TorchFunctionMode):
    """Records calls. ``item`` results and truth values become outputs and assertions, as the watcher would have it."""

    def __init__(self) -> None:
        super().__init__()
        self.recording = Recording()
        self._numbers: dict[int, int] = {}
        self._made: set[int] = set()
        self._kept: list[torch.Tensor] = []
        self.input_numbers: list[int] = []
        self._grad_of: dict[int, int] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        modes = current_modes()
        taken = map_leaves((tuple(args), dict(kwargs)), self._ref)
        result = func(*args, **kwargs)
        if name in ("item", "__bool__"):
            number = self._number(args[0])
            if name == "item":
                self.recording.outputs.append((number, len(self.recording.nodes)))
            else:
                self.recording.asserted.append((number, result, len(self.recording.nodes)))
            return result
        made = [part for part in pytree.tree_leaves(result) if isinstance(part, torch.Tensor)]
        acts = name in ("__set__", "__setitem__", "backward", "_set_grad_enabled")
        tensors = any(isinstance(part, Ref) for part in pytree.tree_leaves(taken))
        if not made and not acts and (not tensors or name == "__get__"):
            return result
        outs = tuple(Ref(self._number(part, made=True)) for part in made)
        self.recording.nodes.append(Node(func, taken[0], taken[1], outs, modes, Place("test.py", len(self._made))))
        return result

    def _ref(self, value: Any) -> Any:
        return Ref(self._number(value)) if isinstance(value, torch.Tensor) else value

    def _number(self, tensor: torch.Tensor, made: bool = False) -> int:
        known = self._numbers.get(id(tensor))
        if known is not None:
            return known
        number = self._numbers[id(tensor)] = len(self._kept)
        self._kept.append(tensor)
        if made:
            self._made.add(number)
            return number
        self.input_numbers.append(number)
        with torch._C.DisableTorchFunction():
            grad = tensor.grad if tensor.is_leaf else None
        if grad is not None:
            self._grad_of[number] = self._number(grad)
        return number

    def finish(self, result: Any) -> Recording:
        """Renumber so that inputs come first."""
        recording = self.recording
        for part in pytree.tree_leaves(result):
            if isinstance(part, torch.Tensor):
                recording.outputs.append((self._number(part), len(recording.nodes)))
        order = [*self.input_numbers, *sorted(self._made)]
        place = {number: position for position, number in enumerate(order)}

        def move(value: Any) -> Any:
            return Ref(place[value.index]) if isinstance(value, Ref) else value

        recording.nodes = [
            Node(node.func, map_leaves(node.args, move), map_leaves(node.kwargs, move), map_leaves(node.outs, move),
                 node.modes, node.place)
            for node in recording.nodes
        ]  # fmt: skip
        recording.outputs = [(place[number], after) for number, after in recording.outputs]
        recording.asserted = [(place[number], value, after) for number, value, after in recording.asserted]
        for number in self.input_numbers:
            tensor = self._kept[number]
            grad = self._grad_of.get(number)
            entry = None if grad is None else Ref(place[grad])
            recording.inputs.append(Input(tensor, tensor.requires_grad, tensor.is_leaf, entry, f"t{place[number]}"))
        recording.tensors = [self._kept[number] for number in order]
        recording.result = result
        return recording


def record(function: Callable[..., Any], *args: Any) -> Recording:
    """Run ``function`` for real and write down what it did."""
    recorder = Recorder()
    with recorder:
        result = function(*args)
    return recorder.finish(result)


def generalise(recordings: Sequence[Recording]) -> tuple[Program, Callable[[Recording], list[float | int]]]:
    """One Program for recordings of one path, and how to read a further recording's slot values.

    Numbers that differ between the recordings become slots, one for each distinct history of values.
    """
    last = recordings[-1]
    histories: dict[tuple[float | int, ...], int] = {}
    kinds: list[SlotKind] = []
    where: list[tuple[int, int]] = []  # for each slot: node, leaf number
    nodes: list[Node] = []
    for position in range(len(last.nodes)):
        twins = [recording.nodes[position] for recording in recordings]
        columns = [_leaves((twin.args, twin.kwargs)) for twin in twins]
        counter = iter(range(10**9))

        def leaf(value: Any, position: int = position, columns: Any = columns, counter: Any = counter) -> Any:
            number = next(counter)
            seen = tuple(column[number] for column in columns)
            if type(value) not in (float, int) or len(set(seen)) == 1:
                return value
            if seen not in histories:
                histories[seen] = len(kinds)
                kinds.append(SlotKind(type(value), seen, f"number {number} of node {position}"))
                where.append((position, number))
            return Slot(histories[seen])

        node = twins[-1]
        args, kwargs = map_leaves((node.args, node.kwargs), leaf)
        nodes.append(Node(node.func, args, kwargs, node.outs, node.modes, node.place))
    program = Program(
        inputs=tuple(last.inputs),
        slots=tuple(kinds),
        nodes=tuple(nodes),
        outputs=tuple(Ref(number) for number, _ in last.outputs),
        output_after=tuple(after for _, after in last.outputs),
        assertions=tuple(Assertion(Ref(number), value, after, Place("test.py", 1))
                         for number, value, after in last.asserted),
        leaves=tuple(Ref(i) for i, entry in enumerate(last.inputs) if entry.requires_grad and entry.is_leaf),
    )  # fmt: skip

    def values(recording: Recording) -> list[float | int]:
        return [_leaves((recording.nodes[p].args, recording.nodes[p].kwargs))[number] for p, number in where]

    return program, values


def _leaves(value: Any) -> list[Any]:
    found: list[Any] = []
    map_leaves(value, found.append)
    return found
