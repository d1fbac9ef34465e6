"""Rows that recursive calls pick by numbers of their own: ``labels[node.index]``.

The host knows the rows of tensors that it holds, so these become columns, like tensors that nodes hold. Tensors that
the step computes are padded for the calls. Either way cells do not depend on the length of the tensor, and one graph
serves all. Independent of how cells are made.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath, Step
from torchjanus.graph.generalize.generalize import EntryPlan
from torchjanus.graph.ir.program import Node, Ref, Slot
from torchjanus.graph.recursion.variants.plan import Column
from torchjanus.graph.recursion.variants.reads import calls_of
from torchjanus.trace.values import Apply, Expr, Fetch, Size, depends_on, is_local

__all__ = ["Pick", "tables_of", "with_picks"]


@dataclass(frozen=True, slots=True)
class Pick:
    """The row ``number`` of the tensor ``table``, whose example is ``example``. It is not negative."""

    table: AccessPath
    number: Expr
    example: torch.Tensor

    @property
    def column(self) -> Column:
        """The column that the host supplies."""
        return Column(tuple(self.example.shape[1:]), self.example.dtype)


def with_picks(
    plan: EntryPlan, nodes: Sequence[Node], places: Sequence[int]
) -> tuple[list[Node], list[int], dict[int, Pick]]:
    """Return the nodes of a variant without those that pick such a row, their ``places`` (where known), and the picks
    by tensor number. A slice of one row becomes an unsqueezed pick."""
    made: list[Node] = []
    kept: list[int] = []
    picks: dict[int, Pick] = {}
    free = 1 + max((ref.index for node in nodes for ref in node.outs), default=len(plan.access_paths))
    for position, node in enumerate(nodes):
        found = _picked(plan, node)
        if found is not None:
            pick, sliced = found
            index = free if sliced else node.outs[0].index
            picks[index] = pick
            if not sliced:
                continue
            node, free = replace(node, func=torch.Tensor.unsqueeze, args=(Ref(index), 0)), free + 1
        made.append(node)
        kept += places[position : position + 1]
    return made, kept, picks


def tables_of(plan: EntryPlan, nodes: Sequence[Node], wanted: Sequence[Ref]) -> dict[Any, tuple[int, ...] | None]:
    """Return for each tensor computed by the step, by token, the slots of the row numbers that are picked; None if it
    has any other use. ``wanted``: tensors used outside of ``nodes``."""
    own = {
        index: access_path.token for index, access_path in enumerate(plan.access_paths) if access_path.step is Step.OWN
    }
    found: dict[Any, tuple[int, ...] | None] = dict.fromkeys(own.values(), ())
    found.update((own[ref.index], None) for ref in wanted if ref.index in own)
    for node in nodes if own else ():
        for token in {own[ref.index] for ref in node.inputs if ref.index in own}:
            slots = found[token]
            match node.func, node.args:
                case torch.Tensor.__getitem__, (Ref(), Slot(index=slot)) if slots is not None and _is_known(plan, slot):
                    from_the_end = any(number < 0 for number in plan.program.slots[slot].seen)
                    found[token] = None if from_the_end else (*slots, slot)
                case _:
                    found[token] = None
    return found


def _is_known(plan: EntryPlan, slot: int) -> bool:
    """Whether the host knows the number when a call begins."""
    number = plan.slots[slot]
    known = not depends_on(number, Fetch | Size) and not calls_of(number)
    return known and plan.program.slots[slot].type is int


def _picked(plan: EntryPlan, node: Node) -> tuple[Pick, bool] | None:
    """Return the row that the node picks and whether as a slice, or None if it does anything else."""
    match node.func, node.args:
        case torch.Tensor.__getitem__, (Ref(index=table), Slot(index=slot)):
            sliced = False
        case torch.Tensor.__getitem__, (
            Ref(index=table),
            slice(start=Slot(index=slot), stop=Slot(index=end), step=None),
        ):
            sliced = True
            if plan.slots[end] != Apply(operator.add, (plan.slots[slot], 1)):
                return None
        case _:
            return None
    if (
        table >= len(plan.access_paths)
        or is_local(plan.access_paths[table])
        or plan.access_paths[table].step is Step.OWN
    ):
        return None
    entry, number = plan.program.inputs[table], plan.slots[slot]
    if entry.requires_grad or not _is_known(plan, slot):
        return None
    return Pick(plan.access_paths[table], number, entry.example), sliced
