"""How many calls of a step the loops around it will make, by what they go through and by what they did before."""

from __future__ import annotations

import ast
import io
from collections.abc import Iterator
from textwrap import dedent
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler, Subset, TensorDataset

from torchjanus.cli.discovery import Module, Selection, compiled
from torchjanus.cli.discovery.candidates import candidates
from torchjanus.cli.discovery.loops import Nest, NotedLoop, loops_around


class Asked(Dataset[int]):
    """A data set of the program's own, whose length nobody may ask for."""

    def __len__(self) -> int:
        raise AssertionError("the program's own code ran")

    def __getitem__(self, number: int) -> int:
        return number


class Vocal(list[int]):
    """A list of the program's own."""

    def __len__(self) -> int:
        raise AssertionError("the program's own code ran")


DATA = TensorDataset(torch.zeros(10, 2))


@pytest.mark.parametrize(
    ("iterable", "length"),
    [
        (range(3, 10, 2), 4),
        ([1, 2], 2),
        (DataLoader(DATA, batch_size=4), 3),
        (DataLoader(DATA, batch_size=4, drop_last=True, shuffle=True), 2),
        (DataLoader(Subset(DATA, [1, 2, 3]), batch_size=1), 3),
        (DataLoader(DATA, batch_size=5, sampler=RandomSampler(DATA, num_samples=20, replacement=True)), 4),
        (DataLoader(Asked(), batch_size=2), None),
        (Vocal(), None),
        (iter([1]), None),
    ],
)
def test_only_what_is_known_is_asked_for_its_length(iterable: Any, length: int | None) -> None:
    loop = NotedLoop(1)
    assert loop(iterable) is iterable
    assert (loop.length, loop.entered) == (length, 1)


def test_a_progress_bar_knows_its_total() -> None:
    bars = pytest.importorskip("tqdm")
    loop = NotedLoop(1)
    loop(bars.tqdm(iter([1, 2]), total=7, file=io.StringIO()))
    assert loop.length == 7
    loop(bars.tqdm([1, 2, 3], file=io.StringIO()))
    assert loop.length == 3


def test_the_lengths_of_loops_are_multiplied_and_what_was_counted_is_better() -> None:
    outer, inner = NotedLoop(1), NotedLoop(2)
    nest = Nest((outer, inner))
    assert nest.calls(0) is None
    outer(range(100))
    inner(range(50))
    assert nest.calls(1) == 5000
    for _ in range(3):  # it is left after 10 iterations each time
        inner(range(50))
    assert nest.calls(40) == 1000


def test_a_loop_of_unknown_length_makes_the_number_a_least_one() -> None:
    outer, inner = NotedLoop(1), NotedLoop(2)
    outer(iter(()))
    inner(range(50))
    assert Nest((outer, inner)).calls(1) == 50
    inner(range(50))
    assert Nest((outer, inner)).calls(51) == 100


SCRIPT = """
def learn(batch):
    for one in batch:
        one.backward()
        one.step()

def fit(data):
    for number, batch in enumerate(data):
        learn(batch)

def warm_up(data):
    while True:
        fit(data)

for epoch in range(3):
    fit(data)
"""


def test_loops_are_found_through_the_functions_that_call_each_other() -> None:
    tree = ast.parse(SCRIPT)
    (found,) = candidates(tree)
    made: dict[ast.For, NotedLoop] = {}
    nest = loops_around(tree, found, lambda loop: made.setdefault(loop, NotedLoop(loop.lineno)))
    assert sorted(loop.line for loop in made.values()) == [3, 8, 15]
    by_line = {loop.line: loop for loop in made.values()}
    by_line[15](range(3))
    by_line[8](range(20))
    by_line[3]([1, 2])
    assert [loop.line for loop in nest.active()] == [15, 8, 3]
    assert nest.calls(1) == 120


def run(script: str, variables: dict[str, Any]) -> tuple[Module, Selection]:
    """Run a script with its steps outlined."""
    selection = Selection()
    module = compiled(dedent(script), "/nowhere/script.py", selection)
    module.bind(variables)
    exec(module.code, variables)
    return module, selection


def test_noting_changes_nothing_of_what_a_script_does() -> None:
    seen: list[Any] = []

    class Recording:
        """Something to go through, which tells when it is asked for an iterator."""

        def __iter__(self) -> Iterator[int]:
            seen.append("iter")
            return iter((1, 2))

    class One:
        def backward(self) -> None:
            seen.append("backward")

        def step(self) -> None:
            seen.append("step")

    variables: dict[str, Any] = {"__name__": "script", "things": Recording(), "one": One(), "seen": seen}
    _, selection = run(
        """
        for number, thing in enumerate(things, 5):
            one.backward()
            one.step()
            seen.append((number, thing))
        """,
        variables,
    )
    assert seen == ["iter", "backward", "step", (5, 1), "backward", "step", (6, 2)]
    (step,) = selection.taken
    (loop,) = step.around.loops
    assert (loop.entered, loop.length) == (1, None)


def test_an_error_where_a_loop_begins_keeps_its_line() -> None:
    with pytest.raises(TypeError, match="'int' object is not iterable") as raised:
        run("\nfor x in 5:\n    x.backward()\n    x.step()\n", {"__name__": "script"})
    assert raised.traceback[-1].lineno + 1 == 2 and str(raised.traceback[-1].path).endswith("script.py")
