"""One iteration of a switched loop as a differentiable function of torch that runs one of several arms (JANUS 4.2.1).

``Switch`` is called like a function of torch and becomes one node of the forward and one of the backward graph. How
arms are executed, and how they were found, is not known here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from torchjanus.core.errors import NOWHERE, Place, Refused, refused
from torchjanus.core.remarks import NotMergeable, remark
from torchjanus.core.trees import map_leaves
from torchjanus.graph.ir.program import Program, Ref
from torchjanus.graph.operators.loop_op import Tangents, TensorSignature, at_places, new_key, signature_text
from torchjanus.graph.operators.switch_op import SWITCH, SWITCH_BACKWARD, SWITCH_RANDOM
from torchjanus.graph.regions.partition import Partition, Source, kind_of, partition_of
from torchjanus.graph.regions.select import selecting
from torchjanus.graph.regions.sizes import named
from torchjanus.graph.regions.speculation import concrete
from torchjanus.graph.tracing.ambient import Ambient

__all__ = ["ArmProgram", "Switch", "SwitchPartition"]


@dataclass(frozen=True, slots=True)
class ArmProgram:
    """One arm: a program that outputs the results, then the predicates; ``answers``: their outcomes on this arm."""

    body: Program
    answers: tuple[bool, ...]


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class SwitchPartition:
    """All arms, partitioned into forward and backward graphs, for inputs of given kinds.

    ``columns`` describes the saved values of all arms together; an arm that saves fewer leaves some unused. ``places``:
    for each arm, the column of each of its saved values."""

    key: int
    arms: tuple[Partition, ...]
    answers: tuple[tuple[bool, ...], ...]
    results: int
    gives: tuple[TensorSignature, ...]  # the results
    columns: tuple[TensorSignature, ...]
    places: tuple[tuple[int, ...], ...]
    tangents: tuple[int, ...]  # results that have gradients
    wanted: tuple[int, ...]  # inputs that have gradients
    gradients: tuple[TensorSignature, ...]
    kept: tuple[Source, ...]  # operands of the backward arms, besides tangents
    random: bool


@dataclass(eq=False)
class Switch:
    """One iteration as a function of tensors; returns the carried values and the number of the arm taken."""

    arms: tuple[ArmProgram, ...]
    results: int
    made: dict[Any, SwitchPartition] = field(default_factory=dict)
    flowing: dict[Any, Any] = field(default_factory=dict)  # gradient checks, by the results that are used
    joined: dict[Any, Program | NotMergeable] = field(default_factory=dict)  # if-converted arms by kinds, or why not
    stale: bool = False  # superseded by a switch of more arms
    __name__ = "switch"

    def __call__(self, *given: torch.Tensor) -> list[torch.Tensor]:
        kinds = tuple(map(kind_of, given))
        joined = self._joined(kinds)
        if isinstance(joined, NotMergeable):
            remark(self.place, joined.reason, joined.detail)
        else:
            values = dict(enumerate(given))
            with Ambient() as ambient:
                run(joined, values, ambient)
            return [values[ref.index] for ref in joined.outputs]
        partition = self.partition(kinds)
        found = _SwitchFunction.apply(partition, *given)  # type: ignore[no-untyped-call]
        return list(found[: self.results + 1])

    @property
    def place(self) -> Place:
        """The source location of the first decision; of the first operation, if the decision is made before."""
        nodes, asked = self.arms[0].body.nodes, self.arms[0].body.outputs[self.results :]
        first = next((n for n, node in enumerate(nodes) if not set(asked).isdisjoint(node.outs)), -1)
        # The node that tests the decision has no place; what it tests was computed just before.
        before = (node.place for node in (*reversed(nodes[: first + 1]), *nodes))
        return next((place for place in before if place != NOWHERE), NOWHERE)

    def _joined(self, kinds: tuple[tuple[Any, ...], ...]) -> Program | NotMergeable:
        """Return the if-converted arms, or why there are none."""
        key = concrete(kinds)
        if key is None:
            return NotMergeable("branch-not-selected", "the sizes of its tensors are not known")
        if key not in self.joined:
            try:
                self.joined[key] = selecting(self.arms, self.results, key)
            except NotMergeable as error:
                self.joined[key] = error.with_traceback(None)
        return self.joined[key]

    def partition(self, kinds: Sequence[tuple[Any, ...]]) -> SwitchPartition:
        """Return the partition of all arms for inputs of these kinds. Raises Refused."""
        kinds = tuple(kinds)
        if any(not isinstance(size, int) for kind in kinds for size in (*kind[0], *kind[1])):
            raise _refused(self.arms, "work on tensors whose sizes change")
        partition = self.made.get(kinds)
        if partition is None:
            partition = self.made[kinds] = _partition(self.arms, self.results, kinds)
        return partition

    def flows(self, kinds: Sequence[tuple[Any, ...]]) -> list[list[list[bool]]]:
        """Return, for each arm and each result, whether its gradient flows into each input."""
        return [_flows(arm.body, self.results, kinds) for arm in self.arms]


def _partition(arms: Sequence[ArmProgram], results: int, kinds: tuple[tuple[Any, ...], ...]) -> SwitchPartition:
    made = [_part(arm.body, kinds) for arm in arms]
    given = [tuple(replace(one, stacked=False) for one in direction.gives) for direction in made]
    gives = given[0][:results]
    if any(some[:results] != gives for some in given):
        raise _refused(arms, "leave tensors of different sizes or types")
    most: Counter[TensorSignature] = Counter()
    for one, some in zip(made, given, strict=True):
        most |= Counter(some[one.results :])
    columns = tuple(most.elements())
    places = []
    for one, some in zip(made, given, strict=True):
        free = {kind: [n for n, column in enumerate(columns) if column == kind][::-1] for kind in most}
        places.append(tuple(free[kind].pop() for kind in some[one.results :]))
    wanted = tuple(sorted({index for one in made for index in one.wanted}))
    kept: dict[Source, None] = {}
    for one, where in zip(made, places, strict=True):
        for source in one.kept:
            if source.kind == "output" and source.index >= results:
                raise _refused(arms, "need what was asked for their gradients")
            kept[replace(source, index=where[source.index]) if source.kind == "saved" else source] = None
    return SwitchPartition(
        key=new_key(),
        arms=tuple(made),
        answers=tuple(arm.answers for arm in arms),
        results=results,
        gives=gives,
        columns=columns,
        places=tuple(places),
        tangents=tuple(sorted({index for one in made for index in one.tangents})),
        wanted=wanted,
        gradients=tuple(TensorSignature(kinds[index][2], kinds[index][0], False, kinds[index][3]) for index in wanted),
        kept=tuple(kept),
        random=any(one.random for one in made),
    )


def _part(body: Program, kinds: tuple[tuple[Any, ...], ...]) -> Partition:
    return partition_of(body, 0, 0, named(kinds), copied=frozenset(range(len(body.outputs))))


def _flows(body: Program, results: int, kinds: Sequence[tuple[Any, ...]]) -> list[list[bool]]:
    values: dict[int, torch.Tensor] = {}

    with (
        _disable_current_modes(),
        Ambient() as ambient,
        torch.enable_grad(),
        FakeTensorMode(allow_non_fake_inputs=True),
    ):
        given = [
            torch.empty_strided(size, stride, dtype=dtype, device=device).requires_grad_(needs)
            for size, stride, dtype, device, needs in kinds
        ]
        values.update(enumerate(given))
        run(body, values, ambient)
        asked = [index for index, tensor in enumerate(given) if tensor.requires_grad]
        found = []
        for ref in body.outputs[:results]:
            out, row = values[ref.index], [False] * len(given)
            if out.requires_grad and asked:
                gradients = torch.autograd.grad(
                    out, [given[index] for index in asked], torch.ones_like(out), retain_graph=True, allow_unused=True
                )
                for index, gradient in zip(asked, gradients, strict=True):
                    row[index] = gradient is not None
            found.append(row)
    return found


def run(body: Program, values: dict[int, torch.Tensor], ambient: Ambient) -> None:
    """Run the body's nodes; ``values`` holds the inputs by index and receives the results."""

    def leaf(value: Any) -> Any:
        return values[value.index] if isinstance(value, Ref) else value

    for node in body.nodes:
        ambient.switch(node.modes)
        result = node.func(*map_leaves(node.args, leaf), **map_leaves(node.kwargs, leaf))
        parts = [part for part in pytree.tree_leaves(result) if isinstance(part, torch.Tensor)]
        for ref, tensor in zip(node.outs, parts, strict=True):
            values[ref.index] = tensor


class _SwitchFunction(torch.autograd.Function):
    """Runs one arm; its derivative is the backward graph of the same arm."""

    @staticmethod
    def forward(ctx: Any, partition: SwitchPartition, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        arm = TensorSignature(torch.int64, (), False)
        target = SWITCH_RANDOM if partition.random else SWITCH
        made = target(partition.key, signature_text((*partition.gives, arm, *partition.columns)), list(given))
        results = partition.results
        ctx.mark_non_differentiable(*(one for i, one in enumerate(made) if i not in partition.tangents))
        kept = []
        for source in partition.kept:
            match source.kind:
                case "output":
                    kept.append(made[source.index])
                case "saved":
                    kept.append(made[results + 1 + source.index])
                case _:
                    kept.append(given[source.index])
        ctx.save_for_backward(made[results], *kept)
        ctx.partition, ctx.inputs = partition, len(given)
        return tuple(made)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *tangents: torch.Tensor | None) -> Any:
        partition: SwitchPartition = ctx.partition
        flows = Tangents.of(partition.tangents, tangents)
        if not flows.tangents or not partition.wanted:
            return (None,) * (1 + ctx.inputs)
        arm, *kept = ctx.saved_tensors
        gives = signature_text(partition.gradients)
        made = SWITCH_BACKWARD(partition.key, gives, flows.present, arm, flows.tangents, list(kept))
        return (None, *at_places(ctx.inputs, partition.wanted, made))


def _refused(arms: Sequence[ArmProgram], what: str) -> Refused:
    place = next((node.place for arm in arms for node in arm.body.nodes if node.place != NOWHERE), NOWHERE)
    return refused(
        "branch-arms-differ",
        f"the arms through an iteration of a loop {what}",
        "They are no iterations of one loop.",
        place=place,
    )
