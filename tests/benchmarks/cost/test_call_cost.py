"""That a clock in every statement of an entry's code changes nothing else, and what the statements are counted as."""

import pytest
import torch

import torchjanus
from benchmarks.cost.call_cost import AROUND, ASSUMED, PARTS, Borders, Marks, cost, marked, part_of
from benchmarks.programs.steps import make


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("values = run([C20, v13], [n18])", "the graph"),
        ("not C134(v13, v14, C20, C21)", "tensors: kind, size"),
        ("C135.holds(v13.data_ptr())", "tensors: memory shared"),
        ("C0() is not True", "modes of torch"),
        ("C4(True)", "modes of torch"),
        ("n18 = n17 ** 0.5", "numbers: fetched, computed"),
        ("h15 = C136(C100, C104)", "numbers: fetched, computed"),
        ("h15 = C136(C100, C104, C108)", "numbers: fetched, computed"),
        ("C20.grad = values[1]", "gradients, state, result"),
        ("waiting = hold_interrupts()", "interrupts held back"),
        ("C18['lr'] is not K121", "objects: attributes, values, hooks"),
    ],
)
def test_what_a_statement_is_counted_as(text, part):
    assert part_of(text) == part


@pytest.mark.parametrize("marks", [Marks, Borders])
def test_the_code_with_clocks_does_what_the_code_does(marks):
    mine, theirs = make("mlp", "adam"), make("mlp", "adam")
    step = torchjanus.speculate(mine.step, executor="replay")
    for number, batch in enumerate(mine.batches):
        if number >= 8 and number % 2:
            clocked, names = marked(step.entries[0].launch, marks())
            ticks = []
            made = clocked(batch, {}, None, (), ticks.append)
            assert len(ticks) == len(names) + 1
        else:
            made = step(*batch)
            step.wait()
        assert torch.equal(made, theirs.step(*theirs.batches[number]))
    assert all(torch.equal(mine.state()[name], tensor) for name, tensor in theirs.state().items())


def test_the_parts_of_a_call():
    found = cost("mlp", calls=5, executor="replay")
    assert set(found.parts) == {AROUND, *PARTS}
    assert all(found.parts[name] > 0 for name in ("the graph", *ASSUMED))
    assert 0 < found.checked < found.call
    assert found.assumed == found.checked / found.call
