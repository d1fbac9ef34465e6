"""Finds lists to which some arms of a loop append and others do not.

A list of numbers that the call owns is described by what each iteration appends, provided that nothing reads it within
the call. Nothing may read a container from before the call that iterations fill, either. This module reads traces.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torchjanus.core.remarks import NotMergeable
from torchjanus.graph.switches.analysis.variable_states import has_only_grown
from torchjanus.trace.actions import ContainerMutation, HeapWrite
from torchjanus.trace.events import ALL, Trace
from torchjanus.trace.loops.records import LoopSnapshots
from torchjanus.trace.recipes import Constant, NewObject, Number, Recipe, TensorOf

__all__ = ["FilledList", "check_unseen", "filled_in", "without_filled"]


@dataclass(frozen=True, slots=True)
class FilledList:
    """A list. ``number``: of its Build; ``lengths``: before each iteration and after the last; ``items``: all."""

    number: int
    lengths: tuple[int, ...]
    items: tuple[Recipe, ...]

    def appended(self, iteration: int) -> Recipe | None:
        """Return the recipe of what an iteration appended; None for nothing."""
        return self.items[self.lengths[iteration]] if self.lengths[iteration + 1] > self.lengths[iteration] else None


def filled_in(trace: Trace, frames: LoopSnapshots) -> dict[Any, FilledList]:
    """Return the lists to which each iteration appends one number or nothing, by a variable that holds them."""
    looked = {number for position, number in trace.peeked if position >= frames.starts[0]}
    builds = {build.number: build for build in _builds(trace)}
    found: dict[Any, FilledList] = {}
    known: set[int] = set()
    for name in sorted(frames.states[0], key=repr):
        value = frames.states[0][name]
        if value[:2] != ("new", "list") or value[2] in looked or value[2] in known:
            continue
        build = builds.get(trace.built.get(value[2], -1))
        lengths = [state.get((*name, "list", "length"), (None, None))[1] for state in frames.states]
        if build is None or build.cls is not list or None in lengths:
            continue
        if any(state.get(name) != value for state in frames.states) or len(build.items) < lengths[-1]:
            continue
        if not has_only_grown(frames, name):
            continue
        filled = FilledList(build.number, tuple(lengths), build.items)
        added = filled.items[lengths[0] : lengths[-1]]
        if {b - a for a, b in itertools.pairwise(lengths)} <= {0, 1} and all(map(_is_number, added)):
            found[name] = filled
            known.add(value[2])
    return found


def without_filled(frames: LoopSnapshots, lists: Mapping[Any, FilledList]) -> LoopSnapshots:
    """Return the loop without the states of these lists under any name."""
    held = {frames.states[0][name][2] for name in lists}
    named = {n for state in frames.states for n, v in state.items() if v[:1] == ("new",) and v[2] in held}

    def is_of_one(name: Any) -> bool:
        return any(name[:end] in named for end in range(2, len(name)))

    states = tuple({n: value for n, value in state.items() if not is_of_one(n)} for state in frames.states)
    return replace(frames, states=states)


def check_unseen(trace: Trace, frames: LoopSnapshots) -> None:
    """Check that nothing reads what depends on the arms taken, in the iterations or later. Raises NotMergeable.

    This covers containers from before the call that iterations fill, and places they write, tensors and numbers
    excepted."""
    iterations = trace.events[frames.starts[0] : frames.end]
    filled = {event.base.token for event in iterations if isinstance(event, ContainerMutation)}
    looked = {number for position, number in trace.peeked if position >= frames.starts[0]} if filled else set()
    if any(number in looked and access_path.token in filled for number, access_path in trace.owners.items()):
        raise NotMergeable("branch-lists", "iterations look into a list that they fill")
    written = {
        event.where for event in iterations if isinstance(event, HeapWrite) and not _is_loop_carried(trace, event)
    }
    asked = {where for position, where in trace.reread if position >= frames.starts[0]}
    if not written.isdisjoint(asked) or any((base, ALL) in asked for base, _ in written):
        raise NotMergeable("branch-lists", "iterations read what they have written")


def _is_loop_carried(trace: Trace, event: HeapWrite) -> bool:
    """Whether it replaces a value by a tensor or number, so that the value at this place is loop-carried."""
    if event.new or "delete" in event.how:
        return False
    recipes = trace.recipes.get(id(event), ())
    return bool(recipes) and (isinstance(recipes[0], TensorOf) or _is_number(recipes[0]))


def _is_number(recipe: Any) -> bool:
    return isinstance(recipe, Number) or (isinstance(recipe, Constant) and type(recipe.value) in (int, float))


def _builds(trace: Trace) -> Iterator[NewObject]:
    return (part for part in trace.recipe_parts() if isinstance(part, NewObject))
