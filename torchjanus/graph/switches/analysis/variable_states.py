"""What the program's variables may be between the iterations of a loop in which tensors decide.

What is neither tensor nor number, no graph hands on: it may not depend on which arms the iterations have gone. Knows
states, not iterations.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Any

from torchjanus.core.access_path import token_of
from torchjanus.graph.loops.analysis.host_recurrences import NotMergeable
from torchjanus.graph.switches.analysis.numbers import is_in_known
from torchjanus.trace.loop_records import Frames

__all__ = ["check_states", "has_only_grown", "is_slot", "without_elements"]

_NUMBERS = frozenset({"int", "fetched", "number"})
_COUNTED = _NUMBERS | {"float"}
_VALUES = frozenset({"tuple", "frozenset", "function", "method", "partial", "builtin_function_or_method"})


def is_slot(name: Any) -> bool:
    """Whether this is what a container or an object holds, and no variable."""
    return len(name) > 2 and name[-1] != "length"


def check_states(frames: Frames) -> dict[Any, Any]:
    """What the iterations leave that was not there before, or was something else: by name what tells it. Raises
    NotMergeable where it is not the same after each iteration, but for tensors and numbers, and for how long lists are,
    which may grow by the same in each.

    That each arm leaves it is not said: of that only those iterations tell that come first. Names that begin with a
    text are no variables of the program's: they stand for what iterations show."""
    first, *others = frames.states
    left: dict[Any, Any] = {}
    aliases = [_aliases(state) for state in frames.states]
    for name in sorted(set(first).union(*others), key=repr):
        row = [state.get(name) for state in others]
        kinds = {None if value is None else value[0] for value in row}
        before = first.get(name)
        if type(name[0]) is str or _is_merged(name, first):
            continue
        if kinds == {None}:
            if is_slot(name) and name[-1] != "marks" and name[:-2] in others[0] and not is_in_known(name, first):
                left[name] = ("gone",)
        elif name[-1] == "length" and kinds == {"int"}:
            left[name] = _growth([value[1] for value in row if value is not None], before)
        elif kinds <= {None, "tensor"}:
            if before is not None and before[0] != "tensor":
                raise NotMergeable  # there was no tensor at first
            if before is None and not is_in_known(name, others[-1]):
                left[name] = _set_by_all("tensor", kinds)
        elif kinds <= _NUMBERS | {None} and (before is None or before[0] in _COUNTED):
            if before is None and not is_in_known(name, others[-1]):
                left[name] = _set_by_all("number", kinds)  # where it comes from is settled by comparing iterations
        elif kinds <= _COUNTED and before is not None and before[0] == "float":
            if any(value[0] == "float" and token_of(value[1]) != token_of(before[1]) for value in row if value):
                raise NotMergeable
        else:
            first_merged, *merged = (
                _plainly(value, alias) for value, alias in zip([before, *row], aliases, strict=True)
            )
            if any(one != merged[0] for one in merged) or (
                before is not None and first_merged != merged[0] and name[-1] != "marks"
            ):
                raise NotMergeable
            if first_merged != merged[0]:
                left[name] = merged[0]
    return left


def _is_merged(name: Any, state: Mapping[Any, Any]) -> bool:
    """Whether these are the marks of a list whose elements are told one by one."""
    return bool(name[-2:] == ("list", "marks")) and (*name[:-1], 0) in state


def _set_by_all(what: str, kinds: Container[Any]) -> Any:
    """What tells a tensor or a number that was not there before: it has to be there after each iteration."""
    if None in kinds:
        raise NotMergeable
    return (what,)


def _aliases(state: Mapping[Any, Any]) -> dict[int, Any]:
    """Of the call's own objects that may change: by which name each is told."""
    found: dict[int, Any] = {}
    for name in sorted(state, key=repr):
        value = state[name]
        if value[0] == "new" and value[1] not in _VALUES:
            found.setdefault(value[2], name)
    return found


def _plainly(value: Any, aliases: Mapping[int, Any]) -> Any:
    if value is None or value[0] not in ("float", "new"):
        return value
    return token_of(value[1]) if value[0] == "float" else (*value[:2], aliases.get(value[2]))


def _growth(values: list[int], before: Any) -> Any:
    """A list has to grow by the same in each iteration."""
    steps = {b - a for a, b in itertools.pairwise(values)}
    if before is not None and before[0] == "int":
        steps.add(values[0] - before[1])
    if len(steps) > 1 or (before is not None and before[0] != "int"):
        raise NotMergeable
    return ("grows", *steps)


def without_elements(frames: Frames, made: Container[int]) -> Frames:
    """The loop without what is told of single elements of lists that grow in it. Raises NotMergeable where they do more
    than grow, by the like in each iteration. ``made``: tensors that the iterations have made."""
    first, last = frames.states[0], frames.states[-1]
    grown = [name[:-1] for name in last if name[-1] == "length" and last[name] != first.get(name)]
    shapes: dict[Any, Any] = {}
    for name in grown:
        if is_in_known(name, last):
            continue  # what becomes of it the heap tells
        shapes[*name, "shape"] = ("grows", _shape_of_growth(frames, name))
        tensors = [state.get((*name, "last")) for state in frames.states[1:]]
        known = [one is not None and one[1] in made for one in tensors]
        # One that no iteration has made looks as if it were taken whatever the arms, but beside others: of what an
        # earlier iteration has made nobody but the list knows.
        if any(one is not None for one in tensors) and not all(known) and not any(known[:-1]):
            raise NotMergeable

    def is_element(name: Any) -> bool:
        return any(
            name[: len(one)] == one
            and len(name) > len(one)
            and (type(name[len(one)]) is int or name[len(one)] == "marks")
            for one in grown
        )

    states = [{n: value for n, value in state.items() if not is_element(n)} for state in frames.states]
    return replace(frames, states=(states[0], *(state | shapes for state in states[1:])))


def has_only_grown(frames: Frames, name: Any) -> bool:
    """Whether what was in this list before the loop, or an iteration, stays in it. Of one from before the call the heap
    tells that."""
    marks = [state.get((*name, "list", "marks"), (None, (None,)))[1] for state in frames.states]
    return all(record is marks[0][0] for record, *_ in marks)


def _shape_of_growth(frames: Frames, name: Any) -> Any:
    """What each iteration puts into the list, where it is the like. Raises NotMergeable."""
    marks = [state[*name, "marks"][1] for state in frames.states if (*name, "marks") in state]
    if len(marks) != len(frames.states) or not has_only_grown(frames, name[:-1]):
        raise NotMergeable
    added = {tuple(map(_shape, one.marks[start:end])) for (one, start), (_, end) in itertools.pairwise(marks)}
    if len(added) > 1:
        raise NotMergeable
    return added.pop()


def _shape(mark: Any) -> Any:
    """What an element is like, whichever tensors are in it."""
    match mark:
        case ("tensor", int()):
            return "tensor"
        case tuple():
            return tuple(map(_shape, mark))
    return mark
