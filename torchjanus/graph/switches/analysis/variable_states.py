"""Checks the values of variables between the iterations of a switched loop.

A graph carries tensors and numbers only; any other value must not depend on the arms taken. Reads states of variables.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Any

from torchjanus.core.access_path import token_of
from torchjanus.core.remarks import NotMergeable
from torchjanus.graph.switches.analysis.numbers import is_in_known
from torchjanus.trace.loops.records import LoopSnapshots

__all__ = ["check_states", "has_only_grown", "is_slot", "without_elements", "without_unbound"]

_NUMBERS = frozenset({"int", "fetched", "number"})
_COUNTED = _NUMBERS | {"float"}
_VALUES = frozenset({"tuple", "frozenset", "function", "method", "partial", "builtin_function_or_method"})

_UNBOUND = ("unbound", None)


def is_slot(name: Any) -> bool:
    """Whether this names the content of a container or an object."""
    return len(name) > 2 and name[-1] != "length"


def check_states(frames: LoopSnapshots) -> dict[Any, Any]:
    """Return what iterations leave that was absent or different before the loop: variable -> description.

    Raises NotMergeable where a value is not the same after each iteration. Tensors and numbers may differ; a list may
    grow by the same amount in each iteration. Whether each arm leaves it is not checked: only an iteration at index 0
    shows that. Names that begin with a string are the extra variables of ``effects``."""
    first, *others = frames.states
    left: dict[Any, Any] = {}
    aliases = [_aliases(state) for state in frames.states]
    for name in sorted(set(first).union(*others), key=repr):
        row = [state.get(name) for state in others]
        kinds = {None if value is None else value[0] for value in row}
        before = None if (begun := first.get(name)) == _UNBOUND else begun
        if type(name[0]) is str or _is_merged(name, first):
            continue
        if _UNBOUND[0] in kinds and (before is not None or len(kinds) > 1):
            raise NotMergeable("branch-carried", "a variable is bound to nothing after some iterations")
        if kinds == {_UNBOUND[0]}:
            left[name] = _UNBOUND  # iterations that find and leave it bound are others
        elif kinds == {None}:
            if is_slot(name) and name[-1] != "marks" and name[:-2] in others[0] and not is_in_known(name, first):
                left[name] = ("gone",)
        elif name[-1] == "length" and kinds == {"int"}:
            left[name] = _growth([value[1] for value in row if value is not None], before)
        elif kinds <= {None, "tensor"}:
            if before is not None and before[0] != "tensor":
                raise NotMergeable("branch-carried", "a variable holds a tensor after the first iteration only")
            if before is None and not is_in_known(name, others[-1]):
                left[name] = _set_by_all("tensor", kinds)
        elif kinds <= _NUMBERS | {None} and (before is None or before[0] in _COUNTED):
            if before is None and not is_in_known(name, others[-1]):
                left[name] = _set_by_all("number", kinds)  # its source is resolved by comparing iterations
        elif kinds <= _COUNTED and before is not None and before[0] == "float":
            if any(value[0] == "float" and token_of(value[1]) != token_of(before[1]) for value in row if value):
                raise NotMergeable("branch-carried", "a variable holds floats that change")
        else:
            first_merged, *merged = (
                _plainly(value, alias) for value, alias in zip([before, *row], aliases, strict=True)
            )
            if any(one != merged[0] for one in merged) or (
                before is not None and first_merged != merged[0] and name[-1] != "marks"
            ):
                raise NotMergeable("branch-carried", "a variable holds something else after the first iteration")
            if first_merged != merged[0]:
                left[name] = merged[0]
    return left


def _is_merged(name: Any, state: Mapping[Any, Any]) -> bool:
    """Whether these are the marks of a list whose elements have states of their own."""
    return bool(name[-2:] == ("list", "marks")) and (*name[:-1], 0) in state


def _set_by_all(what: str, kinds: Container[Any]) -> Any:
    """Return the description of a new tensor or number. Raises NotMergeable unless it exists after each iteration."""
    if None in kinds:
        raise NotMergeable("branch-carried", "a variable is set by some iterations only")
    return (what,)


def _aliases(state: Mapping[Any, Any]) -> dict[int, Any]:
    """Return the first name of each mutable object that the call made."""
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
    """Return the description of a list that grows by the same amount in each iteration. Raises NotMergeable."""
    steps = {b - a for a, b in itertools.pairwise(values)}
    if before is not None and before[0] == "int":
        steps.add(values[0] - before[1])
    if len(steps) > 1 or (before is not None and before[0] != "int"):
        raise NotMergeable("branch-numbers", "a variable counts by different steps")
    return ("grows", *steps)


def without_unbound(frames: LoopSnapshots) -> LoopSnapshots:
    """Return the loop without states of variables that are bound to nothing."""
    states = tuple({n: value for n, value in state.items() if value != _UNBOUND} for state in frames.states)
    return replace(frames, states=states)


def without_elements(frames: LoopSnapshots, made: Container[int]) -> LoopSnapshots:
    """Return the loop without states of elements of growing lists. Raises NotMergeable if they change otherwise.

    ``made``: tensors that the iterations made."""
    first, last = frames.states[0], frames.states[-1]
    grown = [name[:-1] for name in last if name[-1] == "length" and last[name] != first.get(name)]
    shapes: dict[Any, Any] = {}
    for name in grown:
        if is_in_known(name, last):
            continue  # the heap facts describe it
        shapes[*name, "shape"] = ("grows", _shape_of_growth(frames, name))
        tensors = [state.get((*name, "last")) for state in frames.states[1:]]
        known = [one is not None and one[1] in made for one in tensors]
        # A tensor from before the loop looks loop-invariant; beside tensors of earlier iterations, which only the list
        # holds, it is not.
        if any(one is not None for one in tensors) and not all(known) and not any(known[:-1]):
            raise NotMergeable("branch-carried", "it is not known which tensor of a list an iteration takes")

    def is_element(name: Any) -> bool:
        return any(
            name[: len(one)] == one
            and len(name) > len(one)
            and (type(name[len(one)]) is int or name[len(one)] == "marks")
            for one in grown
        )

    states = [{n: value for n, value in state.items() if not is_element(n)} for state in frames.states]
    return replace(frames, states=(states[0], *(state | shapes for state in states[1:])))


def has_only_grown(frames: LoopSnapshots, name: Any) -> bool:
    """Whether the earlier elements of this list stay in it. For lists from before the call the heap facts show it."""
    marks = [state.get((*name, "list", "marks"), (None, (None,)))[1] for state in frames.states]
    return all(record is marks[0][0] for record, *_ in marks)


def _shape_of_growth(frames: LoopSnapshots, name: Any) -> Any:
    """Return the description of what each iteration appends. Raises NotMergeable where it differs."""
    marks = [state[*name, "marks"][1] for state in frames.states if (*name, "marks") in state]
    if len(marks) != len(frames.states) or not has_only_grown(frames, name[:-1]):
        raise NotMergeable("branch-lists", "an iteration does more with a list than append")
    added = {tuple(map(_shape, one.marks[start:end])) for (one, start), (_, end) in itertools.pairwise(marks)}
    if len(added) > 1:
        raise NotMergeable("branch-lists", "iterations append different kinds of values")
    return added.pop()


def _shape(mark: Any) -> Any:
    """Return the structure of an element, without which tensors it contains."""
    match mark:
        case ("tensor", int()):
            return "tensor"
        case tuple():
            return tuple(map(_shape, mark))
    return mark
