"""Which loops a tensor ends, and what runs of different counts have in common."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torchjanus.execute.regions.loop import ReplayLoop
from torchjanus.graph.ir.program import Input, Node, Program, Ref
from torchjanus.graph.loops.analysis.tensor_termination import terminated_loops
from torchjanus.graph.loops.rewrites.fold import FoldedTrace, OneIteration, fold_loops, one_iteration_form
from torchjanus.graph.operators.loop_op import LoopInputs, Tangents
from torchjanus.graph.regions.partition import kind_of, partition_of
from torchjanus.graph.regions.sizes import named
from torchjanus.semantics.watch.run import watch_call
from torchjanus.trace.facts import NumberPredicate, Specialization
from torchjanus.trace.loops.records import LoopInstance, TensorTermination


def run(step: Any, *args: Any) -> Any:
    return watch_call(step, (), args, {})[1]


def cut(step: Any, *args: Any) -> FoldedTrace:
    made = fold_loops(run(step, *args))
    assert made is not None
    return made


def in_brief(step: Any, *args: Any) -> OneIteration:
    made = one_iteration_form(run(step, *args))
    assert made is not None
    return made


def first(step: Any, *args: Any) -> LoopInstance:
    return next(terminated_loops(run(step, *args)))


def halved(x: torch.Tensor) -> torch.Tensor:
    while x.max() > 1:
        x = x * 0.5
    return x


def left(x: torch.Tensor) -> torch.Tensor:
    for _ in range(6):
        x = x * 0.5
        if x.max() < 1:
            break
    return x


def counted(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    steps = 0
    while x.max() > 1:
        x = x * 0.5
        steps += 2
    return x, steps


def decided_by_its_count(x: torch.Tensor) -> torch.Tensor:
    steps = 0
    while x.max() > 1:
        x = x * 0.5
        steps += 1
    return x if steps % 2 else -x


def with_a_decision_within(x: torch.Tensor) -> torch.Tensor:
    for _ in range(6):
        x = x * 0.5
        if x.max() < 4:
            x = x - 0.1
    return x


def handing_on(x: torch.Tensor) -> torch.Tensor:
    a = b = c = d = torch.ones(2)
    while x.max() > 1:
        y = x * 0.5 - 0.001 * a
        a, b, c, d, x = b, c, d, x, y
    return x


def of(iterations: int) -> torch.Tensor:
    return torch.full((2,), 0.75 * 2.0**iterations)


def test_a_while_goes_iteration_from_the_first_answer_on() -> None:
    found = first(halved, of(5))
    assert found.count == TensorTermination(True, None)
    assert len(found.starts) == 5


def test_a_loop_that_is_left_goes_iteration_as_it_is_written() -> None:
    found = first(left, of(4))
    assert found.count == TensorTermination(False, 6)
    assert len(found.starts) == 4
    assert found.counters == ((0, 1),)


def test_a_loop_that_comes_to_its_limit_is_one_too() -> None:
    assert cut(left, of(9)).counts == (6,)
    assert cut(left, of(9)).full == (True,)


def test_runs_of_different_counts_are_one_path() -> None:
    assert cut(halved, of(3)).trace.tokens() == cut(halved, of(9)).trace.tokens()


def test_leaving_and_the_limit_part_at_the_last_question() -> None:
    one, other = cut(left, of(4)), cut(left, of(9))
    assert one.trace.tokens() != other.trace.tokens()
    assert one.loop_keys() == other.loop_keys()


def test_few_iterations_are_known_by_what_they_lead_to() -> None:
    assert fold_loops(run(left, of(1))) is None
    assert in_brief(left, of(1)).tokens == in_brief(left, of(4)).tokens
    assert in_brief(left, of(1)).counts == (1,)


def test_counts_are_the_number_of_iterations() -> None:
    assert first(counted, of(5)).counters == ((2, 2),)
    assert cut(counted, of(4)).trace.tokens() == cut(counted, of(7)).trace.tokens()


@pytest.mark.parametrize("step", [decided_by_its_count, with_a_decision_within, handing_on])
def test_what_may_know_its_iteration_stays_as_it_is(step: Any) -> None:
    assert fold_loops(run(step, of(5))) is None


def iterations() -> ReplayLoop:
    """``x = x * w`` as long as the sum is less than ten."""
    nodes = (
        Node(torch.mul, (Ref(0), Ref(1)), {}, (Ref(2),)),
        Node(torch.sum, (Ref(2),), {}, (Ref(3),)),
        Node(torch.lt, (Ref(3), 10), {}, (Ref(4),)),
    )
    inputs = tuple(Input(torch.empty(0), False, True) for _ in range(2))
    body = Program(inputs, (), nodes, (Ref(2), Ref(4)), (3, 3), (), ())
    kinds = [kind_of(torch.empty(2).requires_grad_()) for _ in range(2)]
    return ReplayLoop(partition_of(body, 1, 0, named(kinds), shared=True))


def test_iterations_are_made_until_the_tensor_says_so() -> None:
    start, factor = torch.ones(2), torch.full((2,), 2.0)
    last, answer, count = iterations().until(True, -1, [], LoopInputs([start], [], [factor]))
    assert last.tolist() == [8.0, 8.0]
    assert not answer
    assert count == 3


def test_no_iteration_is_made_where_something_before_went_another_way() -> None:
    start, factor = torch.ones(2), torch.zeros(2)  # this would never end
    last, _, count = iterations().until(True, -1, [torch.tensor(False)], LoopInputs([start], [], [factor]))
    assert last.tolist() == [1.0, 1.0]
    assert last is not start
    assert count == 0


def test_the_limit_ends_it() -> None:
    start, factor = torch.ones(2), torch.zeros(2)
    _, answer, count = iterations().until(True, 5, [], LoopInputs([start], [], [factor]))
    assert answer
    assert count == 5


def test_gradients_flow_through_the_iterations_that_were_made() -> None:
    start, factor = torch.ones(2), torch.full((2,), 2.0)
    gradients = iterations().until_backward(3, Tangents("1", [torch.ones(2)]), LoopInputs([start], [], [factor]))
    assert [gradient.tolist() for gradient in gradients] == [[8.0, 8.0], [12.0, 12.0]]


def test_bodies_that_do_the_same_are_one() -> None:
    one, other = iterations(), iterations()
    assert one.partition is other.partition


def with_a_limit(x: torch.Tensor, n: int) -> torch.Tensor:
    for _ in range(n):
        x = x * 0.5
        if x.max() < 1:
            break
    return x


def asked_first(x: torch.Tensor, n: int) -> torch.Tensor:
    for _ in range(n):
        if x.max() < 1:
            break
        x = x * 0.5
    return x


def with_its_limit_elsewhere(x: torch.Tensor, n: int) -> torch.Tensor:
    return {n: with_a_limit(x, n)}[n]


def scaled_beyond(x: torch.Tensor, n: int) -> torch.Tensor:
    for _ in range(n):
        x = x * 0.5
        if x.max() < 1:
            x = x * 8
    return x


def through_rows(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(2)
    for row in x:
        total = total + row
        if total.max() > 3:
            break
    return total


def by_number(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(2)
    for t in range(x.size(0)):
        total = total + x[t]
        if total.max() > 3:
            break
    return total


def through_a_list(xs: list[torch.Tensor]) -> torch.Tensor:
    total = torch.zeros(2)
    for x in xs:
        total = total + x
        if total.max() > 3:
            break
    return total


def test_a_limit_that_is_a_number_of_the_call_is_read_there() -> None:
    found = first(with_a_limit, of(4), 6)
    assert str(found.whole) == "n"
    assert len(found.starts) == 4


@pytest.mark.parametrize("step", [with_a_limit, asked_first])
@pytest.mark.parametrize("iterations", [4, 20])
def test_runs_of_different_limits_are_one_path(step: Any, iterations: int) -> None:
    one, other = cut(step, of(iterations), 7), cut(step, of(iterations), 9)
    assert one.full == (iterations == 20,)
    assert one.trace.tokens() == other.trace.tokens()
    assert not any(isinstance(event, Specialization) for event in one.trace.events)


def test_a_limit_that_decides_more_stays_what_it_was() -> None:
    one, other = cut(with_its_limit_elsewhere, of(4), 7), cut(with_its_limit_elsewhere, of(4), 9)
    assert one.trace.tokens() != other.trace.tokens()


def test_what_is_true_in_the_last_iteration_has_not_ended_the_loop() -> None:
    assert fold_loops(run(scaled_beyond, of(5), 5)) is None


@pytest.mark.parametrize("step", [through_rows, by_number])
def test_rows_behind_those_that_were_taken_are_nobodys_concern(step: Any) -> None:
    one, other = cut(step, torch.ones(9, 2)), cut(step, torch.full((7, 2), 0.7))
    assert (one.counts, other.counts) == ((4,), (5,))
    assert one.trace.tokens() == other.trace.tokens()


def test_elements_that_a_loop_has_not_come_to_are_rows() -> None:
    one = cut(through_a_list, list(torch.ones(9, 2)))
    other = cut(through_a_list, list(torch.full((7, 2), 0.7)))
    assert (one.counts, other.counts) == ((4,), (5,))
    assert (one.lists, other.lists) == ((9,), (7,))
    assert one.trace.tokens() == other.trace.tokens()


def test_elements_that_are_unlike_those_that_were_read_keep_the_list_a_list() -> None:
    made = cut(through_a_list, list(torch.full((7, 2), 0.7)))
    odd = fold_loops(run(through_a_list, [*torch.full((6, 2), 0.7), torch.ones(1)]))
    assert made.lists == (7,)
    assert odd is None or odd.lists == ()


def test_a_short_loop_relies_on_a_number_that_other_loops_are_freed_of() -> None:
    def step(x: torch.Tensor, n: int) -> torch.Tensor:
        for _ in range(n):
            x = x + 1
        for _ in range(n):
            x = x * 0.5
            if x.max() < 100:
                break
        return x

    asked = [str(event) for event in cut(step, of(7), 5).trace.events if isinstance(event, NumberPredicate)]
    assert "assume (n >= 1) is True" in asked
    asked = [str(event) for event in cut(step, of(9), 5).trace.events if isinstance(event, NumberPredicate)]
    assert "assume (n >= 2) is True" in asked


def row_iterations() -> ReplayLoop:
    """``x = x * row`` as long as the sum is less than ten."""
    nodes = (
        Node(torch.mul, (Ref(0), Ref(1)), {}, (Ref(2),)),
        Node(torch.sum, (Ref(2),), {}, (Ref(3),)),
        Node(torch.lt, (Ref(3), 10), {}, (Ref(4),)),
    )
    inputs = tuple(Input(torch.empty(0), False, True) for _ in range(2))
    body = Program(inputs, (), nodes, (Ref(2), Ref(4)), (3, 3), (), ())
    kinds = [kind_of(torch.empty(2).requires_grad_()) for _ in range(2)]
    return ReplayLoop(partition_of(body, 1, 1, named(kinds), shared=True))


def test_each_iteration_takes_its_row() -> None:
    factors = torch.tensor([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [7.0, 7.0], [9.0, 9.0]])
    last, answer, count = row_iterations().until(True, 5, [], LoopInputs([torch.ones(2)], [factors], []))
    assert last.tolist() == [6.0, 6.0]
    assert not answer
    assert count == 3


def test_a_iteration_without_a_row_is_an_error() -> None:
    with pytest.raises(IndexError):
        row_iterations().until(True, 5, [], LoopInputs([torch.zeros(2)], [torch.ones(3, 2)], []))


def test_rows_that_no_iteration_took_have_no_gradient() -> None:
    factors = torch.tensor([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [7.0, 7.0]])
    start, rows = row_iterations().until_backward(
        3, Tangents("1", [torch.ones(2)]), LoopInputs([torch.ones(2)], [factors], [])
    )
    assert start.tolist() == [6.0, 6.0]
    assert rows.tolist() == [[6.0, 6.0], [3.0, 3.0], [2.0, 2.0], [0.0, 0.0]]
