"""One graph of a speculated function: made from the traces of one path, guarded, and run.

Knows nothing of when entries are made or dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from torchjanus.assumptions.assumption import (
    AmbientState,
    Arguments,
    Assumption,
    Condition,
    Distinct,
    Identity,
    Memory,
    ValueOf,
    distinct,
)
from torchjanus.errors import NOWHERE, Refusal, Refused
from torchjanus.graph.generalise import Generalised, generalise
from torchjanus.graph.lower import lower
from torchjanus.graph.lowered import Lowered
from torchjanus.origin import RESULTS, Origin, Step
from torchjanus.runtime.engine import Engine
from torchjanus.runtime.launch import Launch, build_launch
from torchjanus.semantics.recording import tensor_detail
from torchjanus.trace.events import Found, Pinned, Trace
from torchjanus.trace.values import Read, leaves

__all__ = ["Entry", "Group", "make_entry"]


@dataclass(slots=True)
class Group:
    """The traces of one path, and what of it has been relaxed so far."""

    number: int
    shape: tuple[int, tuple[str, ...]]  # positional arguments and keywords
    traces: list[Trace] = field(default_factory=list)
    relaxed: set[Any] = field(default_factory=set)
    refusal: Refusal | None = None


@dataclass(slots=True)
class Entry:
    """A guarded graph."""

    group: Group
    plan: Generalised
    lowered: Lowered
    assumptions: tuple[Assumption, ...]
    launch: Launch
    engine: Engine
    runs: int = 0
    violations: int = 0
    errors: int = 0  # calls in which the graph raised and so did an operation of the program

    def broken(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Assumption]:
        """The assumptions that do not hold for this call. ``kwargs`` may hold the results of extern calls."""
        known = (a for a in self.assumptions if not _waiting(a) and not _unmade(a, kwargs))
        return [assumption for assumption in known if not assumption.holds(args, kwargs)]

    def relaxable(self, assumption: Assumption) -> list[Any]:
        """The tokens of the paths that the assumption holds constant and that a graph could take as inputs."""
        if isinstance(assumption, ValueOf) and type(assumption.value) in (int, float):
            # A number that Python itself needs (a length, an index) would be held constant all the same.
            read = Read(assumption.origin).token
            needed = any(isinstance(e, Pinned) and e.expr.token == read for e in self.group.traces[-1].events)
            found = [] if needed else [assumption.origin]
        elif isinstance(assumption, Identity) and _is_gradient(assumption.origin):
            # One gradient was made anew, so all were: one more graph, not one for each parameter.
            found = [a.origin for a in self.assumptions if isinstance(a, Identity) and _is_gradient(a.origin)]
        elif isinstance(assumption, Identity) and self._may_vary(assumption):
            found = [assumption.origin]
        else:
            found = []
        return [o.token for o in found if o.token not in self.group.relaxed]

    def _may_vary(self, assumption: Identity) -> bool:
        """Whether another object could be there: not what decides which code runs."""
        if callable(assumption.value) and not isinstance(assumption.value, torch.nn.Module):
            return False
        reads = (e for e in self.group.traces[-1].events if isinstance(e, Found) and e.origin == assumption.origin)
        return all(read.kind in ("tensor", "object") for read in reads)


def _is_gradient(origin: Origin) -> bool:
    return origin.step is Step.FIELD and origin.key == "grad"


def _waiting(assumption: Assumption) -> bool:
    return isinstance(assumption, Condition) and any(not isinstance(leaf, Read) for leaf in leaves(assumption.expr))


def _unmade(assumption: Assumption, kwargs: dict[str, Any]) -> bool:
    """Whether it speaks of an extern call that has not been made."""
    results = kwargs.get(RESULTS, {})
    return any(o.waits_for and o.waits_for - 1 not in results for o in assumption.origins())


def make_entry(group: Group, executor: str) -> Entry:
    """Generalise, lower, guard and compile one path. Raises Refused where no graph can stand for it."""
    plan = generalise(group.traces, frozenset(group.relaxed), tensor_detail)
    lowered = lower(plan.program)
    modes, deterministic = group.traces[-1].ambient  # not of this moment: what is relaxed now was watched before
    assumptions: list[Assumption] = [
        Arguments(NOWHERE, *group.shape),
        AmbientState(NOWHERE, modes, deterministic),
        *plan.assumptions,
    ]
    for slot, value in lowered.pinned.items():
        assumptions.append(Condition(NOWHERE, plan.slots[slot], value))
    assumptions.extend(_memory(plan, lowered))
    launch = build_launch(plan, lowered, assumptions)
    engine = Engine(lowered, executor, launch.use)
    return Entry(group, plan, lowered, tuple(assumptions), launch, engine)


def _memory(plan: Generalised, lowered: Lowered) -> Sequence[Distinct]:
    """Where inputs change in place, tensors that are new at each call must not share memory with them."""
    if not lowered.mutated:
        return ()
    fresh = [i for i, tensor in enumerate(plan.pinned) if tensor is None]
    if not fresh:
        return ()
    changed = set(lowered.mutated)
    held = tuple(t for i, t in enumerate(plan.pinned) if t is not None and i in changed)
    # Only pairs in which one is changed matter: where nothing fresh is changed, fresh ones may share.
    examples = [plan.program.inputs[i].example for i in fresh]
    together = any(i in changed for i in fresh)
    memory = Memory(held)
    if (together and not distinct(examples)) or any(memory.holds(t.data_ptr()) for t in examples):
        raise Refused(
            Refusal(
                NOWHERE,
                "a tensor passed in shares memory with one that the step changes in place",
                "the graph would have to know which comes first.",
                "Clone it before the step.",
            )
        )
    return (Distinct(NOWHERE, tuple(plan.origins[i] for i in fresh), held, together),)
