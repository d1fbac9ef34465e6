"""What rounds in which tensors decide show to the world: the calls, appends and writes of each way.

What they show of tensors (numbers fetched, tensors printed) becomes a variable that each round hands out, and the
effects of each round come after its operation. Knows traces, not ways.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchjanus.graph.loops.analysis.host_recurrences import UnlikeRounds
from torchjanus.graph.switches.analysis.lists import FilledList
from torchjanus.graph.switches.analysis.numbers import RoundNumbers, contents_of
from torchjanus.trace.actions import Extern, Mutation, Op, Stored
from torchjanus.trace.events import Trace
from torchjanus.trace.recipes import Constant, FoundAt, Number, Recipe, TensorAt
from torchjanus.trace.rounds import Frames
from torchjanus.trace.values import Apply, Fetch, Traced

__all__ = ["Shown", "is_shown", "told", "told_recipe", "with_shown"]

_SHOWN = "shown"


@dataclass(frozen=True, slots=True)
class Shown:
    """A call, an append or a write. ``values``: of each that it is given ("number", form), ("at", variable) or
    ("kept", recipe); ``token``: what it has in common with those of other rounds."""

    token: Any
    event: Any
    values: tuple[Any, ...]


def is_shown(name: Any) -> bool:
    """Whether it is a variable that stands for what rounds show."""
    return bool(name[0] == _SHOWN)


def with_shown(trace: Trace, frames: Frames, lists: Mapping[Any, FilledList]) -> Frames:
    """The loop with variables for what its rounds show. Raises UnlikeRounds."""
    states = [dict(state) for state in frames.states]
    for turn, (start, end) in enumerate(zip(frames.starts, (*frames.starts[1:], frames.end), strict=True)):
        appended = [recipe for one in lists.values() if (recipe := one.appended(turn)) is not None]
        for tensor, name in _shown_by(trace, frames, turn, trace.events[start:end], appended).items():
            states[turn + 1][name] = ("tensor", tensor)
    return replace(frames, states=tuple(states))


def _shown_by(
    trace: Trace, frames: Frames, turn: int, events: Sequence[Any], appended: Sequence[Recipe]
) -> dict[int, Any]:
    """The tensors of which a round shows something, and the variables that stand for them: by what they are like."""
    found: dict[int, Any] = {}
    shown = [r for e in events if isinstance(e, Extern | Mutation | Stored) for r in trace.recipes.get(id(e), ())]
    made = {ref.number for event in events if isinstance(event, Op) for ref in event.outs}
    tensors = [tensor for recipe in (*shown, *appended) for tensor in _tensors(recipe)]
    for value in contents_of(frames.states[turn + 1]).values():
        tensors += [tensor for tensor in _fetched(value) if tensor in made]
    for tensor in tensors:
        if tensor in found or tensor not in made:
            continue
        if tensor not in trace.kinds:
            raise UnlikeRounds
        kind = trace.kinds[tensor]
        found[tensor] = (_SHOWN, kind, sum(name[1] == kind for name in found.values()))
    return found


def told(trace: Trace, event: Extern | Mutation | Stored, numbers: RoundNumbers) -> Shown:
    """What it has in common with those of other rounds. Raises UnlikeRounds."""
    if isinstance(event, Extern) and (event.draws or event.handled):
        raise UnlikeRounds
    if isinstance(event, Stored) and (isinstance(event.key, Traced) or event.how not in ("item", "field")):
        raise UnlikeRounds
    values = tuple(told_recipe(recipe, numbers) for recipe in trace.recipes.get(id(event), ()))
    words = tuple(("kept", value[1].token) if value[0] == "kept" else value for value in values)
    return Shown((event.place, event.token, words), event, values)


def told_recipe(recipe: Recipe, numbers: RoundNumbers) -> Any:
    """One of the values. Raises UnlikeRounds."""
    if isinstance(recipe, TensorAt):
        if recipe.ref.number not in numbers.shown:
            raise UnlikeRounds
        return ("at", numbers.shown[recipe.ref.number])
    if isinstance(recipe, Number):
        return ("number", numbers.form(recipe.expr))
    if isinstance(recipe, Constant) and type(recipe.value) in (int, float):
        return ("number", numbers.take(recipe.value))
    if isinstance(recipe, Constant | FoundAt):
        return ("kept", recipe)
    raise UnlikeRounds


def _tensors(recipe: Recipe) -> Iterator[int]:
    if isinstance(recipe, TensorAt):
        yield recipe.ref.number
    elif isinstance(recipe, Number):
        yield from _fetched(recipe.expr)


def _fetched(expr: Any) -> Iterator[int]:
    """The tensors of which numbers are fetched in an expression, but for what it is made of that others made."""
    if isinstance(expr, Fetch):
        yield expr.ref
    for arg in expr.args if isinstance(expr, Apply) else ():
        yield from _fetched(arg)
