"""Turns the facts that stayed equal over the runs, and that the program relied on, into assumptions (JANUS 4.2).

In: the generalised numbers and inputs of a path, and the events of one of its runs. Out: the assumptions, of which
guards are made. A fact that another assumption implies is left out.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath, Step
from torchjanus.core.errors import Place
from torchjanus.core.kinds import module_of
from torchjanus.graph.generalize.builder import Builder
from torchjanus.graph.ir.dimensions import is_size
from torchjanus.graph.ir.inputs import Inputs
from torchjanus.graph.ir.numbers import Numbers, varies
from torchjanus.host import assumption, tensor_assumptions
from torchjanus.rewrite.hooks.lookup import is_python_class
from torchjanus.trace import facts
from torchjanus.trace.actions import ContainerMutation, HeapWrite
from torchjanus.trace.events import Event
from torchjanus.trace.expressions import applications
from torchjanus.trace.hazards import hazard
from torchjanus.trace.values import Apply, Expr, InductionVariable, Read, Size, Traced, leaves

__all__ = ["assumptions_of"]


def assumptions_of(
    work: Numbers, builder: Builder, describe: Callable[[torch.Tensor], Any]
) -> Iterator[assumption.Assumption]:
    """Yield the assumptions of a path. ``describe`` returns what a guard compares of a tensor."""
    inputs = builder.inputs
    taken = {*inputs.access_paths, *builder.trace.access_paths.values()}
    for event in work.traces[-1].events:
        match event:
            case facts.HeapRead():
                yield from _of_read(work, inputs, event, taken, describe)
            case facts.KeyLookup(base=base, key=key, present=present, place=place):
                if isinstance(key, Traced):
                    yield assumption.KeyPresence(place, base, key.expr, present)
                elif not (present and base.item(key) in inputs.found):
                    yield assumption.KeyPresence(place, base, key, present)
            case facts.EmptinessTest(access_path=access_path, filled=filled, place=place):
                yield assumption.Emptiness(place, access_path, filled)
            case facts.KeySetRead(access_path=access_path, keys=keys, place=place):
                yield assumption.ContainerKeys(place, access_path, keys)
            case facts.IdentityTest(first=first, second=second, same=same, place=place):
                if not (first in inputs.identical and second in inputs.identical):
                    yield assumption.SameObject(place, first, second, same)
            case facts.InstanceTest(access_path=access_path, classes=classes, outcome=outcome, place=place):
                yield assumption.InstanceOf(place, access_path, classes, outcome)
            case facts.NumberPredicate(expr=expr, outcome=outcome, place=place):
                if not builder.decided_in_graph(expr) and not _implied(work, expr):
                    yield assumption.Condition(place, expr, outcome)
            case facts.Specialization(expr=expr, value=value, place=place):
                if not builder.decided_in_graph(expr) and not _implied(work, expr):
                    yield assumption.Condition(place, expr, value)
            case facts.HostComputation(expr=expr, place=place):
                yield from _of_operands(work, builder, expr, place)
    yield from _of_sizes(work, inputs, taken)
    yield from _apart(inputs, work.traces[-1].events)


def _is_free(symbol: int | None) -> bool:
    return symbol is not None


def _of_sizes(work: Numbers, inputs: Inputs, taken: set[AccessPath]) -> Iterator[assumption.Assumption]:
    """Assume that changing sizes are at least two, since 0 and 1 take other paths (no elements; broadcasting), and that
    sizes that changed together stay equal. Lowering adds what sizes need that may be 0 or 1."""
    for number, members in enumerate(work.dimensions.symbols):
        known = [(access_path, dim) for access_path, dim in members if access_path in taken]
        for position, (access_path, dim) in enumerate(known):
            size, place = Read(access_path.then(Step.SIZE, dim)), inputs.found[access_path].place
            if position == 0 and not work.dimensions.may_be_few(number):
                yield assumption.Condition(place, Apply(operator.ge, (size, 2)), True)
            elif position:
                yield assumption.Condition(place, Apply(operator.eq, (size, work.dimensions.read(number))), True)
    for read in work.dimensions.counts:
        yield assumption.Condition(inputs.found[read.access_path].place, Apply(operator.ge, (read, 2)), True)


def _of_operands(work: Numbers, builder: Builder, expr: Expr, place: Place) -> Iterator[assumption.Assumption]:
    """Assume that arithmetic in the graph does not raise, where the host can check (``n`` of ``loss.item() / n``)."""
    for part in applications(expr):
        condition = hazard(part)
        if condition is None or not builder.decided_in_graph(part) or builder.decided_in_graph(condition):
            continue
        if varies(work, condition):
            yield assumption.Condition(place, condition, True)


def _apart(inputs: Inputs, events: Sequence[Event]) -> Iterator[assumption.Assumption]:
    """Assume that an object that the program changes is distinct from the objects of its class at other paths.

    Only where that may differ from call to call: an argument may be the model's own list in the next call."""
    loose: dict[int, list[facts.HeapRead]] = {}  # by the id of their class
    held: dict[int, list[facts.HeapRead]] = {}
    for event in events:
        if isinstance(event, facts.HeapRead) and event.kind == "object":
            (held if event.access_path in inputs.identical else loose).setdefault(id(type(event.value)), []).append(
                event
            )
    if not loose:
        return
    asked: set[AccessPath] = set()
    for event in events:
        if not isinstance(event, HeapWrite | ContainerMutation):
            continue
        base = event.base.base if event.base.step is Step.DICT and event.base.base is not None else event.base
        if base in asked:
            continue
        asked.add(base)
        known = inputs.found.get(base)
        value = known.value if known is not None else base.key
        others = list(loose.get(id(type(value)), ()))
        if base not in inputs.identical and base.step is not Step.CONST:
            others += held.get(id(type(value)), ())
        for other in others:
            if other.value is not value and not (other.access_path in asked and other.access_path != base):
                yield assumption.SameObject(event.place, base, other.access_path, False)


def _implied(work: Numbers, expr: Expr) -> bool:
    """Whether other assumptions imply the condition: those on numbers that are held constant, and on sizes."""
    if varies(work, expr):
        return False
    return all(
        isinstance(leaf, Size | InductionVariable)
        or (isinstance(leaf, Read) and (leaf.access_path in work.needed or is_size(leaf.access_path)))
        for leaf in leaves(expr)
    )


def _may_change_class(cls: type) -> bool:
    """Whether ``x.__class__ = Other`` has to be expected: for classes of the user."""
    return is_python_class(cls) and module_of(cls).partition(".")[0] not in ("torch", "collections")


def _of_read(
    work: Numbers,
    inputs: Inputs,
    event: facts.HeapRead,
    taken: set[AccessPath],
    describe: Callable[[torch.Tensor], Any],
) -> Iterator[assumption.Assumption]:
    """Yield what has to hold for a read to find the same again: its value, type, identity or tensor geometry."""
    access_path, value, place = event.access_path, event.value, event.place
    is_grad = access_path.step is Step.FIELD and access_path.key == "grad" and isinstance(value, torch.Tensor | None)
    if event.kind == "constant" and access_path.step is Step.FIELD and access_path.base in taken and not is_grad:
        return  # a property of a tensor that is guarded as a whole
    match event.kind:
        case "number" if is_size(access_path):
            return  # the tensor is guarded as a whole
        case "number":
            if access_path in work.needed:
                yield assumption.ValueOf(place, access_path, value)
            elif access_path.step not in (Step.LEN, Step.SIZE) and access_path.key is not id:  # those are always ints
                # The read raises where there is no value, even if nothing uses the value.
                yield assumption.TypeOf(place, access_path, type(value))
        case "constant":
            yield assumption.ValueOf(place, access_path, value)
        case "pinned":
            yield assumption.Identity(place, access_path, value)
        case _:
            # An existing gradient is held constant only where the graph uses it: most steps drop it.
            if access_path in inputs.identical and (access_path in taken or not is_grad):
                yield assumption.Identity(place, access_path, value)
                if event.kind == "object" and _may_change_class(type(value)):
                    yield assumption.TypeOf(place, access_path, type(value))
            elif event.kind in ("object", "foreign") or access_path not in taken:
                yield assumption.TypeOf(place, access_path, type(value))
            if access_path in taken:
                free = work.dimensions.of(access_path, len(event.detail[2]))
                strides = work.dimensions.strides[access_path] if free else ()
                yield tensor_assumptions.TensorKind(
                    place, access_path, value, event.detail, describe, tuple(map(_is_free, free)), strides
                )
