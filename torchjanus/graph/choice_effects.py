"""What rounds in which tensors decide show to the world: the same in all of them, whichever way they go.

What they show of tensors (numbers fetched, tensors printed) becomes a variable that each round hands out, and the calls
and appends of each round come after its operation. Knows traces, not ways.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from torchjanus.graph.loop_scan import UnlikeRounds
from torchjanus.origin import token_of
from torchjanus.trace.events import Extern, Frames, Mutation, TensorRef, Trace
from torchjanus.trace.recipes import Constant, FoundAt, Number, Recipe, TensorAt
from torchjanus.trace.values import Apply, Expr, Fetch, Turn

__all__ = ["Shown", "effects_of", "is_shown", "moved", "shown_by", "told", "with_shown"]

_SHOWN = "shown"


@dataclass(frozen=True, slots=True)
class Shown:
    """A call or an append, by what it has in common with those of other rounds."""

    token: Any


def is_shown(name: Any) -> bool:
    """Whether it is a variable that stands for what rounds show."""
    return bool(name[0] == _SHOWN)


def effects_of(trace: Trace, start: int, end: int) -> list[Extern | Mutation]:
    """What a round calls and appends."""
    return [event for event in trace.events[start:end] if isinstance(event, Extern | Mutation)]


def shown_by(trace: Trace, start: int, end: int) -> dict[int, Any]:
    """The tensors of which a round shows something, and the variables that stand for them."""
    found: dict[int, Any] = {}
    for event in effects_of(trace, start, end):
        for recipe in trace.recipes.get(id(event), ()):
            for tensor in _tensors(recipe):
                found.setdefault(tensor, (_SHOWN, len(found)))
    return found


def with_shown(trace: Trace, frames: Frames) -> Frames:
    """The loop with variables for what its rounds show. Raises UnlikeRounds."""
    states = [dict(state) for state in frames.states]
    for turn, (start, end) in enumerate(zip(frames.starts, (*frames.starts[1:], frames.end), strict=True)):
        for tensor, name in shown_by(trace, start, end).items():
            states[turn + 1][name] = ("tensor", tensor)
    return replace(frames, states=tuple(states))


def told(trace: Trace, event: Extern | Mutation, names: dict[int, Any]) -> Shown:
    """What it has in common with those of other rounds. Raises UnlikeRounds."""
    if isinstance(event, Extern) and event.draws:
        raise UnlikeRounds
    recipes = tuple(_told(recipe, names) for recipe in trace.recipes.get(id(event), ()))
    return Shown((event.place, event.token, recipes))


def moved(trace: Trace, event: Any, names: dict[int, Any], results: dict[Any, int], after: int) -> tuple[Any, ...]:
    """The event and its recipes after the operation of a round, and what each fetch of theirs gave. ``results``: what
    the variables are there; ``after``: how many operations come before."""
    fetched: dict[Any, Any] = {}

    def leaf(expr: Any) -> Any:
        if isinstance(expr, Fetch):
            made = replace(expr, ref=results[names[expr.ref]], after=after)
            fetched[made.token] = trace.fetched.get(expr.token)
            return made
        return expr

    def recipe(one: Recipe) -> Recipe:
        if isinstance(one, TensorAt):
            return TensorAt(TensorRef(results[names[one.ref.number]]), after)
        return Number(_mapped(one.expr, leaf)) if isinstance(one, Number) else one

    made = replace(event, after=after) if isinstance(event, Extern) else replace(event)
    return made, tuple(map(recipe, trace.recipes.get(id(event), ()))), fetched


def _mapped(expr: Any, leaf: Callable[[Any], Any]) -> Any:
    if isinstance(expr, Apply):
        return Apply(expr.func, tuple(_mapped(arg, leaf) for arg in expr.args))
    return leaf(expr)


def _tensors(recipe: Recipe) -> Iterator[int]:
    if isinstance(recipe, TensorAt):
        yield recipe.ref.number
    elif isinstance(recipe, Number):
        yield from _fetched(recipe.expr)


def _fetched(expr: Any) -> Iterator[int]:
    if isinstance(expr, Fetch):
        yield expr.ref
    for arg in expr.args if isinstance(expr, Apply) else ():
        yield from _fetched(arg)


def _told(recipe: Recipe, names: dict[int, Any]) -> Any:
    if isinstance(recipe, TensorAt):
        return ("at", names[recipe.ref.number])
    if isinstance(recipe, Number):
        return ("number", _told_expr(recipe.expr, names))
    if isinstance(recipe, Constant) and type(recipe.value) is int:
        return ("integer",)  # it may count the rounds; that is found out where they are compared
    if isinstance(recipe, Constant | FoundAt):
        return recipe.token
    raise UnlikeRounds


def _told_expr(expr: Any, names: dict[int, Any]) -> Any:
    if isinstance(expr, Fetch):
        return ("fetch", names[expr.ref], expr.type.__name__, expr.index)
    if isinstance(expr, Turn):
        return ("turn",)
    if isinstance(expr, Apply):
        return ("apply", token_of(expr.func), *(_told_expr(arg, names) for arg in expr.args))
    return expr.token if isinstance(expr, Expr) else token_of(expr)
