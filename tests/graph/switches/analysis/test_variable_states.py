"""What iterations leave that is neither tensor nor number has to be the same after each, and is recorded."""

from __future__ import annotations

from typing import Any

import pytest

from torchjanus.core.remarks import NotMergeable
from torchjanus.graph.switches.analysis.variable_states import check_states, without_elements, without_unbound
from torchjanus.semantics.record.marks import AppendOnlyList
from torchjanus.trace.loops.records import LoopSnapshots

BOX = (0, "box")
SLOT = (0, "box", "dict", "a")
TEXT = ("value", "p")
NEW = {BOX: ("new", "dict", 1)}


def frames(*states: dict[Any, Any]) -> LoopSnapshots:
    return LoopSnapshots(tuple(range(len(states) - 1)), len(states), states, None, ())


def test_what_stays_is_not_left() -> None:
    assert check_states(frames({SLOT: TEXT}, {SLOT: TEXT}, {SLOT: TEXT})) == {}


def test_what_all_iterations_leave_is_reported() -> None:
    assert check_states(frames(NEW, {**NEW, SLOT: TEXT}, {**NEW, SLOT: TEXT})) == {SLOT: TEXT}
    assert check_states(frames(NEW, *[{**NEW, SLOT: ("tensor", n)} for n in (1, 2)])) == {SLOT: ("tensor",)}
    assert check_states(frames(NEW, *[{**NEW, SLOT: ("int", n)} for n in (1, 2)])) == {SLOT: ("number",)}
    assert check_states(frames({**NEW, SLOT: TEXT}, NEW, NEW)) == {SLOT: ("gone",)}


@pytest.mark.parametrize(
    "states",
    [
        (NEW, NEW, {**NEW, SLOT: TEXT}),
        (NEW, {**NEW, SLOT: TEXT}, {**NEW, SLOT: ("value", "n")}),
        (NEW, NEW, {**NEW, SLOT: ("tensor", 1)}),
        (NEW, NEW, {**NEW, SLOT: ("int", 1)}),
        ({SLOT: TEXT}, {SLOT: ("value", "n")}, {SLOT: ("value", "n")}),
        ({}, {}, {(0, "best"): ("tensor", 1)}),
    ],
)
def test_what_only_some_iterations_leave_is_unlike(states: Any) -> None:
    with pytest.raises(NotMergeable):
        check_states(frames(*states))


def test_variables_that_are_bound_to_nothing() -> None:
    last, unbound = (0, "last"), ("unbound", None)
    nothing, bound = {last: unbound}, {last: ("tensor", 1)}
    assert check_states(frames(nothing, bound, bound)) == {last: ("tensor",)}
    assert check_states(frames(nothing, nothing, nothing)) == {last: unbound}
    for states in ((bound, bound, nothing), (bound, nothing, nothing), (nothing, bound, nothing)):
        with pytest.raises(NotMergeable):
            check_states(frames(*states))
    assert without_unbound(frames(nothing, bound)).states == ({}, bound)


def test_which_of_two_objects_is_shown_by_their_names() -> None:
    a, b, best = (0, "a"), (0, "b"), (0, "best")
    both = {a: ("new", "Box", 1), b: ("new", "Box", 2)}
    same = [{**both, best: ("new", "Box", 2)}] * 3
    assert check_states(frames(*same)) == {}
    with pytest.raises(NotMergeable):
        check_states(frames({**both, best: ("new", "Box", 1)}, *same))
    # One that is made anew each time has no other name.
    assert check_states(frames(*[{best: ("new", "Box", number)} for number in (3, 4, 5)])) == {}


def growing(*elements: Any) -> list[dict[Any, Any]]:
    record = AppendOnlyList()
    for element in elements:
        record.add(element, element)
    name = (0, "r")
    return [
        {
            name: ("new", "list", 1),
            (*name, "list", "length"): ("int", length),
            (*name, "list", "marks"): ("marks", (record, length)),
            **({(*name, "list", "last"): ("tensor", length)} if length and elements[0][0] == "tensor" else {}),
        }
        for length in range(len(elements) + 1)
    ]


def test_lists_have_to_grow_by_the_like() -> None:
    tensors = [("tensor", 100 + number) for number in range(3)]
    loop = without_elements(frames(*growing(*tensors)), {1, 2, 3})
    assert check_states(loop)[(0, "r", "list", "shape")] == ("grows", ("tensor",))
    same = without_elements(frames(*growing("p", "p")), ())
    assert check_states(same)[(0, "r", "list", "shape")] == ("grows", ("p",))
    with pytest.raises(NotMergeable):
        without_elements(frames(*growing("p", "n")), ())


def test_tensors_in_lists_are_made_by_the_iterations() -> None:
    tensors = [("tensor", 100 + number) for number in range(3)]
    without_elements(frames(*growing(*tensors)), {1, 2})
    without_elements(frames(*growing(*tensors)), {2, 3})  # the first is what was carried from before
    with pytest.raises(NotMergeable):
        without_elements(frames(*growing(*tensors)), ())
    with pytest.raises(NotMergeable):
        without_elements(frames(*growing(*tensors[:2])), {2})
