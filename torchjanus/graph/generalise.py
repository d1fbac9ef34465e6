"""Traces of one path become one program with assumptions (JANUS 4.2: what stayed equal is assumed).

Where the traces agree there is an assumption; where a number or an object differs there is an input. The traces must
have taken the same path (equal tokens); which path a call will take is what the assumptions decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchjanus.assumptions.assumption import (
    Assumption,
)
from torchjanus.errors import Refused
from torchjanus.graph.assume import assumptions_of
from torchjanus.graph.builder import Builder
from torchjanus.graph.numbers import (
    HostBatch,
    Numbers,
    find_host_fetches,
    need,
    split_numbers,
    used_expressions,
    varies,
)
from torchjanus.graph.program import Program
from torchjanus.origin import Origin
from torchjanus.trace.events import (
    Extern,
    Mutation,
    Op,
    Pinned,
    Stored,
    Trace,
)
from torchjanus.trace.recipes import FoundAt, Recipe
from torchjanus.trace.values import Expr

__all__ = ["Effect", "Generalised", "HostBatch", "generalise"]


@dataclass(frozen=True, slots=True)
class Effect:
    """A held-back write or extern call, with the recipes of its values."""

    event: Stored | Mutation | Extern
    recipes: tuple[Recipe, ...]


@dataclass(frozen=True, slots=True)
class Generalised:
    """One path, ready to be lowered and guarded."""

    program: Program
    assumptions: tuple[Assumption, ...]
    origins: tuple[Origin, ...]  # of the program's inputs
    pinned: tuple[torch.Tensor | None, ...]  # the very tensor, where the assumptions say that it is
    slots: tuple[Expr, ...]
    batches: tuple[HostBatch, ...]
    outputs: dict[Any, int]  # ("tensor", number) or a fetch's token -> position in the program's outputs
    effects: tuple[Effect, ...]
    result: Recipe
    varying: tuple[Origin, ...] = ()


def generalise(
    traces: Sequence[Trace],
    relaxed: frozenset[Any] = frozenset(),
    describe: Callable[[torch.Tensor], Any] | None = None,
) -> Generalised:
    """The program and the assumptions that all of these runs share. Raises Refused where no graph can have them."""
    last = traces[-1]
    if any(trace.refusals for trace in traces):
        raise Refused(next(trace.refusals[0] for trace in traces if trace.refusals))
    work = Numbers(traces, relaxed)
    split_numbers(work)
    ops = [event for event in last.events if isinstance(event, Op)]
    find_host_fetches(work, last, ops)
    for expr in used_expressions(last):
        need(work, expr)
    for event in last.events:
        if isinstance(event, Pinned) and not varies(work, event.expr):
            need(work, event.expr)
    builder = Builder(work, last, ops)
    program = builder.build()
    assumptions = tuple(assumptions_of(work, builder, describe or (lambda t: None)))
    effects = tuple(_effects(last))
    return Generalised(
        program,
        assumptions,
        tuple(builder.origins),
        tuple(builder.pinned),
        tuple(builder.slots),
        tuple(builder.batches()),
        builder.outputs,
        effects,
        last.result,
        tuple(sorted(work.varying, key=str)),
    )


def _effects(trace: Trace) -> Iterator[Effect]:
    touched: set[Any] = set()
    for event in trace.events:
        if not isinstance(event, Stored | Mutation | Extern):
            continue
        recipes = trace.recipes.get(id(event), ())
        if isinstance(event, Stored) and event.how == "item":
            place = event.base.item(event.key)
            if place not in touched and recipes and isinstance(recipes[0], FoundAt) and recipes[0].origin == place:
                continue  # what was found there is put back
            touched.add(place)
        elif not isinstance(event, Extern):
            touched.add(event.base.item(event.key) if isinstance(event, Stored) else event.base)
        yield Effect(event, recipes)
