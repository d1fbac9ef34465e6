"""What autograd saves while a program runs on fake tensors, and the backward pass that takes it as inputs.

The forward graph returns the very tensors that eager would have kept, and nothing is computed twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.autograd.graph import saved_tensors_hooks
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

from torchjanus.core.errors import JanusError, Refused, refused
from torchjanus.graph.ir.lowered import FromInput, GradState, NoGradient, Saves, Source, ViewOf
from torchjanus.graph.ir.program import Program
from torchjanus.graph.ir.tensor_versions import memory_of
from torchjanus.graph.tracing.pull import nodes_of, pull
from torchjanus.ops.aten import operator_of

__all__ = ["Bases", "SavedTensors", "drop_forward", "saves_of", "undifferentiable"]


def undifferentiable(what: str, why: str, remedy: str = "") -> Refused:
    """Return the refusal of results whose backward pass is still to come."""
    what = f"a tensor leaves the step with its backward pass still to come, and {what}"
    return refused("backward-missing", what, why, remedy or "Call backward() inside the step, or return loss.detach().")


class Bases(JanusError):
    """Results are views: the backward pass is that of the tensors that they are views of, by place and number."""

    def __init__(self, numbers: Mapping[int, int]) -> None:
        super().__init__("results are views of others")
        self.numbers = dict(numbers)


class SavedTensors:
    """The tensors that autograd saves in one run, by the order of the saves."""

    def __init__(self, program: Program, values: Mapping[int, torch.Tensor]) -> None:
        self._program = program
        self._given = {} if program.backward is None else program.backward.saved
        self._values = values
        self._saved: list[tuple[torch.Tensor, int]] = []
        self._asked: set[int] = set()

    def recorded(self) -> AbstractContextManager[Any]:
        """Return the context in which the program runs."""
        active = self._program.saves or self._program.backward is not None
        return saved_tensors_hooks(self._save, self._load) if active else nullcontext()

    def _save(self, tensor: torch.Tensor) -> int:
        self._saved.append((tensor, tensor._version))
        return len(self._saved) - 1

    def _load(self, number: int) -> torch.Tensor:
        self._asked.add(number)
        given = self._given.get(number)
        return self._saved[number][0] if given is None else self._values[given.index]

    def needed(
        self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], states: Sequence[GradState]
    ) -> tuple[Saves, dict[int, torch.Tensor]]:
        """Return what autograd saves for the backward pass of the results that leave the program, and the saved tensors
        by number; ``saves_of`` adds these to the first. Raises Refused if the pass would not be eager's."""
        places: dict[int, int] = {}  # one object may be several outputs
        for place in self._program.escaping:
            if states[place] is GradState.LIVE:
                places.setdefault(id(outputs[place]), place)
        if bases := self._bases(places.values(), inputs, outputs):
            raise Bases(bases)
        results = [outputs[place] for place in places.values()]
        wanted = [place for place, entry in enumerate(self._program.inputs) if entry.requires_grad]
        _require_apart(results, inputs)
        with disable_proxy_modes_tracing():
            self._asked.clear()
            try:
                _require_one_pass(results, [inputs[place] for place in wanted])
                seeds = [torch.empty_like(result) for result in results]
                uses = pull(results, seeds, [inputs[place] for place in wanted])
            except (DynamicOutputShapeException, DataDependentOutputException) as error:
                what = "its backward pass has operations whose results' sizes, or whose choice, depends on values"
                raise undifferentiable(what, "they cannot be traced.") from error
        if not uses:
            raise undifferentiable("its backward pass gives no gradients", "autograd would not make a node for it.")
        saved = {}
        for number in sorted(self._asked):
            tensor, version = self._saved[number]
            if tensor._version != version:
                raise undifferentiable(
                    "one that the backward pass needs is changed in place before the step ends",
                    "eager's backward pass raises an error, too.",
                    "Change a copy of it.",
                )
            saved[number] = tensor
        made = [torch.autograd.graph.get_gradient_edge(result).node for result in results]
        below = [{*nodes_of([result])} - {node} for result, node in zip(results, made, strict=True)]
        inner = tuple(tuple(place for place, node in enumerate(made) if node in some) for some in below)
        names = tuple(type(node).__name__ for node in made)
        order = tuple(sorted(range(len(made)), key=lambda place: made[place]._sequence_nr()))
        found = tuple(wanted[place] for place, _ in uses)
        return Saves(tuple(places.values()), (), (), found, names, inner, order), saved

    def _bases(
        self, places: Collection[int], inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> dict[int, int]:
        """Return the numbers of the tensors of the program that results (by place) are views of to autograd."""
        taken = {memory_of(tensor) for tensor in inputs}
        numbers = {id(tensor): number for number, tensor in self._values.items()}
        found = {}
        for place in places:
            base = outputs[place]._base if outputs[place]._is_view() else None
            if base is None or id(base) not in numbers or memory_of(base) in taken or base.is_leaf:
                continue
            _require_one_view(outputs[place])
            node = torch.autograd.graph.get_gradient_edge(outputs[place]).node
            # A view of what the graph returns is no part of the backward pass of others that are computed from it.
            if not any(node in nodes_of([outputs[other]]) for other in places if other != place):
                found[place] = numbers[id(base)]
        return found


def _require_one_view(result: torch.Tensor) -> None:
    if result._is_view() and torch._C._autograd._get_creation_meta(result).name != "DEFAULT":
        raise undifferentiable(
            "it is one of several views that one operation gives",
            "eager does not let them be changed in place.",
            "Return a clone of it.",
        )


def _require_apart(results: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
    """Raise Refused where a result is a view of an input or shares memory with another one."""
    taken = {memory_of(tensor) for tensor in inputs}
    for result in results:
        if memory_of(result) in taken:
            raise undifferentiable(
                "it shares memory with an input or with another such tensor",
                "changes in place of one would have to reach the backward pass of the other.",
                "Return a clone of it.",
            )
        taken.add(memory_of(result))
        _require_one_view(result)


def _require_one_pass(results: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> None:
    """Raise Refused unless eager, too, frees what the backward passes of the results share in the first of them."""
    leaves = {torch.autograd.graph.get_gradient_edge(tensor).node for tensor in wanted}
    nodes = [set(nodes_of([result])) - leaves for result in results]
    if any(hasattr(node, "variable") for some in nodes for node in some):
        raise undifferentiable(
            "gradients go to a tensor that the step has made", "the tensor is another one in each call.", "Detach it."
        )
    for number, one in enumerate(nodes):
        for other in nodes[:number]:
            if not any(map(_saves, one & other)):
                raise undifferentiable(
                    "another one does, whose backward pass is independent of it",
                    "eager frees each backward graph by itself; a graph has one for all of its results.",
                    "Compute them in two functions, or call backward() inside the step.",
                )


def _saves(node: Any) -> bool:
    """Whether a node of autograd keeps tensors, which it frees after it has run."""
    return any(name.startswith("_raw_saved_") for name in dir(node))


def saves_of(
    saves: Saves,
    numbers: Iterable[int],
    sources: Sequence[Source],
    inputs: Sequence[torch.Tensor],
    values: Sequence[torch.Tensor],
) -> Saves:
    """Return ``saves`` with the sources of the saved tensors, each once. ``numbers``: of the saves, in the order of
    their ``sources``."""
    places: dict[Source, int] = {}
    packs = []
    for number, source in zip(numbers, sources, strict=True):
        assert not isinstance(source, NoGradient)
        if isinstance(source, ViewOf):
            base = source.base
            below = inputs[base.index] if isinstance(base, FromInput) else values[base.index]
            whole = ViewOf(base, tuple(below.size()), tuple(below.stride()), 0)
            source = base if source == whole else source
        packs.append((number, places.setdefault(source, len(places))))
    return replace(saves, saved=tuple(places), packs=tuple(packs))


def drop_forward(graph: torch.fx.GraphModule, forward: Collection[str]) -> None:
    """Erase the nodes of the forward pass from the trace of a backward pass. Raises Refused where this uses them."""
    output = graph.graph.output_node()
    for node in reversed([*graph.graph.nodes]) if forward else ():
        known = operator_of(node.target)
        if not node.users and known.view and not known.writes:  # the engine looks at sizes of what a Python node gave
            graph.graph.erase_node(node)
        elif node.name in forward and node.op != "placeholder" and node is not output:
            if any(user.name not in forward for user in node.users):
                raise undifferentiable(
                    f"its backward pass needs the result of {node.target}, which autograd does not save",
                    "the backward graph takes only what eager keeps for it.",
                )
            if not node.users:
                graph.graph.erase_node(node)
