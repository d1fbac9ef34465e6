"""Collects the effects that the iterations of a switched loop have: host calls, appends and writes, per arm.

A tensor that an effect uses (fetched or printed) becomes an extra variable that each iteration outputs; the effects of
an iteration follow its operation. This module reads traces, not arms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchjanus.core.remarks import NotMergeable
from torchjanus.graph.switches.analysis.lists import FilledList
from torchjanus.graph.switches.analysis.numbers import IterationNumbers, contents_of
from torchjanus.trace.actions import ContainerMutation, Extern, HeapWrite
from torchjanus.trace.events import Trace
from torchjanus.trace.expressions import parts_of_expr
from torchjanus.trace.loops.records import LoopSnapshots
from torchjanus.trace.operations import made_by
from torchjanus.trace.recipes import Constant, ExistingObject, Number, Recipe, TensorAt
from torchjanus.trace.values import Fetch, Traced

__all__ = ["ArmEffect", "is_shown", "merged", "merged_recipe", "with_shown"]

_SHOWN = "shown"


@dataclass(frozen=True, slots=True)
class ArmEffect:
    """A call, an append or a write.

    ``values``: each argument as ("number", form), ("at", variable) or ("kept", recipe); ``token``: equal for equal
    effects of other iterations."""

    token: Any
    event: Any
    values: tuple[Any, ...]


def is_shown(name: Any) -> bool:
    """Whether it is a variable for a tensor that an effect uses."""
    return bool(name[0] == _SHOWN)


def with_shown(trace: Trace, frames: LoopSnapshots, lists: Mapping[Any, FilledList]) -> LoopSnapshots:
    """Return the loop with extra variables for the tensors that its effects use. Raises NotMergeable."""
    states = [dict(state) for state in frames.states]
    for iteration, (start, end) in enumerate(frames.spans):
        appended = [recipe for one in lists.values() if (recipe := one.appended(iteration)) is not None]
        for tensor, name in _shown_by(trace, frames, iteration, trace.events[start:end], appended).items():
            states[iteration + 1][name] = ("tensor", tensor)
    return replace(frames, states=tuple(states))


def _shown_by(
    trace: Trace, frames: LoopSnapshots, iteration: int, events: Sequence[Any], appended: Sequence[Recipe]
) -> dict[int, Any]:
    """Return the tensors that an iteration's effects use, with their variables, named by kind and order."""
    found: dict[int, Any] = {}
    shown = [
        r for e in events if isinstance(e, Extern | ContainerMutation | HeapWrite) for r in trace.recipes.get(id(e), ())
    ]
    made = made_by(events)
    tensors = [tensor for recipe in (*shown, *appended) for tensor in _tensors(recipe)]
    for value in contents_of(frames.states[iteration + 1]).values():
        tensors += [
            tensor
            for tensor in (part.ref for part in parts_of_expr(value) if isinstance(part, Fetch))
            if tensor in made
        ]
    for tensor in tensors:
        if tensor in found or tensor not in made:
            continue
        if tensor not in trace.kinds:
            raise NotMergeable("branch-effects", "an iteration writes a tensor of unknown kind")
        kind = trace.kinds[tensor]
        found[tensor] = (_SHOWN, kind, sum(name[1] == kind for name in found.values()))
    return found


def merged(trace: Trace, event: Extern | ContainerMutation | HeapWrite, numbers: IterationNumbers) -> ArmEffect:
    """Return the form of an effect that is equal in other iterations. Raises NotMergeable."""
    if isinstance(event, Extern) and (event.draws or event.handled):
        raise NotMergeable(
            "branch-native-call", "an iteration makes an extern call that draws, or whose error is handled"
        )
    if isinstance(event, HeapWrite) and (isinstance(event.key, Traced) or event.how not in ("item", "field")):
        raise NotMergeable("branch-effects", "an iteration writes a variable, or under a key that changes")
    values = tuple(merged_recipe(recipe, numbers) for recipe in trace.recipes.get(id(event), ()))
    words = tuple(("kept", value[1].token) if value[0] == "kept" else value for value in values)
    return ArmEffect((event.place, event.token, words), event, values)


def merged_recipe(recipe: Recipe, numbers: IterationNumbers) -> Any:
    """Return the form of one argument of an effect. Raises NotMergeable."""
    if isinstance(recipe, TensorAt):
        if recipe.ref.number not in numbers.shown:
            raise NotMergeable("branch-effects", "an iteration writes a tensor that it has not made")
        return ("at", numbers.shown[recipe.ref.number])
    if isinstance(recipe, Number):
        return ("number", numbers.form(recipe.expr))
    if isinstance(recipe, Constant) and type(recipe.value) in (int, float):
        return ("number", numbers.take(recipe.value))
    if isinstance(recipe, Constant | ExistingObject):
        return ("kept", recipe)
    raise NotMergeable("branch-effects", "an iteration writes a value that cannot be made for each of them")


def _tensors(recipe: Recipe) -> Iterator[int]:
    if isinstance(recipe, TensorAt):
        yield recipe.ref.number
    elif isinstance(recipe, Number):
        yield from (part.ref for part in parts_of_expr(recipe.expr) if isinstance(part, Fetch))
