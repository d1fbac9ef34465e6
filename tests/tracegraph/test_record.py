"""The tree of a watched run: which blocks its nodes stand in, and that the flat trace follows from it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.programs import harness
from tests.programs.tree import differences, tree_findings
from torchjanus.semantics.watch.run import watch_call
from torchjanus.trace.events import Trace
from torchjanus.trace.loops.outline import outlined
from torchjanus.tracegraph.graph import Block, Const, Graph, walk
from torchjanus.tracegraph.record import tree_of

STRUCTURE = ("loop", "switch", "call", "op", "write", "mutate", "extern")


def watched(step: Callable[..., Any], *args: Any) -> Trace:
    with outlined():
        return watch_call(step, (), args, {})[1]  # type: ignore[arg-type]


def tree(step: Callable[..., Any], *args: Any) -> Graph:
    """The tree of a run, which leads back to the run also by way of its text."""
    trace = watched(step, *args)
    assert differences(trace) == []
    return tree_of(trace)


def shape(block: Block) -> list[Any]:
    """Names of operations and constructs, nested as the blocks are."""
    found: list[Any] = []
    for node in block.nodes:
        if node.kind in ("loop", "switch", "call"):
            name = node.get("construct") or node.get("name")
            found.append((name.value, *([inner.role, *shape(inner)] for inner in node.blocks)))
        elif node.kind in STRUCTURE:
            found.append((node.get("name") or node.get("method") or Const(node.kind)).value.rpartition(".")[2])
    return found


X = torch.ones(3)


def test_straight_line() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return (x + 1).sum()

    graph = tree(step, X)
    assert shape(graph.body) == ["add", "sum"]
    assert [str(one.value.type.dtype) for one in graph.inputs] == ["float32"]  # type: ignore[union-attr]


def test_for_and_if() -> None:
    def step(x: torch.Tensor, n: int) -> torch.Tensor:
        for i in range(n):
            if i == 1:
                x = x * 2
            else:
                x = x - i
        return x.sum()

    iterations = [
        ["body", ("if", ["else", "sub"])],
        ["body", ("if", ["then", "mul"])],
        ["body", ("if", ["else", "sub"])],
    ]
    assert shape(tree(step, X, 3).body) == [("for", *iterations), "sum"]


def test_what_an_iteration_hands_on_is_yielded() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            y = x + 1
            x = y * 2
        return x

    graph = tree(step, X)
    (loop,) = (node for node in walk(graph.body) if node.kind == "loop")
    for block in loop.blocks:
        (ref,) = block.yields
        assert ref.value in {out.value for out in block.nodes[-1].outs}


def test_while_and_its_test() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        while x.sum() < 10:
            x = x + 1
        return x

    expected = [["test", "sum", "lt"], ["body", "add"]] * 3 + [["test", "sum", "lt"]]
    assert shape(tree(step, X).body) == [("while", *expected)]


def test_while_without_hooks_in_its_body() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        values = [x, x]
        while values.pop().sum() > 0 and values:
            pass
        return x

    assert [role for role, *_ in shape(tree(step, X).body)[0][1:]] == ["test", "test"]


def test_break_ends_the_blocks_that_it_leaves() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        for i in range(5):
            x = x + 1
            if i == 1:
                x = x * 3
                break
        return x.sum()

    graph = tree(step, X)
    assert shape(graph.body) == [("for", ["body", "add"], ["body", "add", ("if", ["then", "mul"])]), "sum"]
    (loop,) = (node for node in walk(graph.body) if node.kind == "loop")
    assert loop.get("exit") is None


def test_nested_comprehension() -> None:
    def step(x: torch.Tensor) -> list[torch.Tensor]:
        return [x * i + j for i in range(2) for j in range(2) if j >= i]

    inner = ("comprehension", ["body", "mul", "add"], ["body", "mul", "add"])
    last = ("comprehension", ["body"], ["body", "mul", "add"])
    assert shape(tree(step, X).body) == [("comprehension", ["body", inner], ["body", last])]


def test_calls_in_loops_and_loops_in_calls() -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = x + x
        return x

    def step(x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = double(x)
        return x - 1

    name = "test_calls_in_loops_and_loops_in_calls.<locals>.double"
    call = (name, ["body", ("for", ["body", "add"], ["body", "add"])])
    assert shape(tree(step, X).body) == [("for", ["body", call], ["body", call]), "sub"]


def test_a_call_in_an_arm_of_the_function_that_it_calls() -> None:
    def step(x: torch.Tensor, n: int) -> torch.Tensor:
        def deeper(x: torch.Tensor, n: int) -> torch.Tensor:
            if n > 0:
                return deeper(x * 2, n - 1) + n
            return x

        return deeper(x, n)

    graph = tree(step, X, 2)
    assert [node.kind for node in walk(graph.body) if node.kind in ("switch", "call")] == ["call", "switch"] * 2 + [
        "call"
    ]


def test_conditional_expression_and_match() -> None:
    def step(x: torch.Tensor, how: str) -> torch.Tensor:
        y = x + 1 if how == "add" else x - 1
        match how:
            case "mul":
                return y * 2
            case _:
                return y / 2

    shaped = shape(tree(step, X, "add").body)
    assert shaped == [("conditional", ["then", "add"]), ("match", ["case", "div"])]


def test_a_generator_opens_no_region() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        def doubled() -> Any:
            for i in range(2):
                yield x * i

        for y in doubled():
            x = x + y
        return x

    shaped = shape(tree(step, X).body)
    assert [one for one in shaped if one[0] != "for"][-1] == "mul"
    assert [one[0] for one in shaped].count("for") == 1


class Rows:
    """Iterated by a method of its own."""

    def __init__(self, n: int) -> None:
        self.left = n

    def __iter__(self) -> Rows:
        return self

    def __next__(self) -> int:
        if not self.left:
            raise StopIteration
        self.left -= 1
        return self.left


def test_an_iterator_of_the_program() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        for i in Rows(2):
            x = x + i
        return x

    (loop,) = (node for node in walk(tree(step, X).body) if node.kind == "loop")
    assert [len([node for node in block.nodes if node.kind == "op"]) for block in loop.blocks] == [1, 1]


def test_versions_count_the_writes_of_a_class() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        row = y[0]
        y.add_(1)
        z = row * 2
        row.zero_()
        return y + z

    graph = tree(step, X)
    ops = {node.get("name").value: node for node in walk(graph.body) if node.kind == "op"}
    (alias,) = {alias for node in ops.values() for alias, _ in node.writes}
    assert ops["Tensor.add_"].writes == ((alias, 1),)
    assert ops["Tensor.zero_"].writes == ((alias, 2),)
    read, _ = ops["Tensor.mul"].get("args").items
    assert (read.value.alias, read.version) == (alias, 1)
    (changed,), (before, _) = ops["Tensor.add_"].outs, ops["Tensor.add_"].get("args").items
    assert (changed.value, changed.version, before.version) == (before.value, 1, 0)
    last, other = ops["Tensor.add"].get("args").items
    assert (last.version, other.version) == (2, 0)


def test_an_optimizer_writes_parameters_and_a_backward_gradients() -> None:
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad(set_to_none=False)
        model(x).sum().backward()
        optimizer.step()

    step(X)
    graph = tree(step, X)
    writing = {node.get("name").value.rpartition(".")[2]: len(node.writes) for node in walk(graph.body) if node.writes}
    assert writing["backward"] == 2
    assert writing.get("_foreach_add_", 2) == 2


def test_effects_and_numbers() -> None:
    log: list[float] = []

    def step(x: torch.Tensor) -> float:
        total = 0.0
        for i in range(2):
            total += (x * i).sum().item()
            log.append(total)
            print(total)
        return total

    graph = tree(step, X)
    kinds = [node.kind for node in walk(graph.body)]
    assert kinds.count("fetch") == kinds.count("mutate") == kinds.count("extern") == 2
    assert "compute" in kinds


def test_facts_are_a_set() -> None:
    def step(x: torch.Tensor, n: list[int]) -> torch.Tensor:
        return x * n[0] + n[0]

    graph = tree(step, X, [2])
    assert len({fact.id for fact in graph.facts}) == len(graph.facts)
    assert sum(fact.kind == "found" and fact.fields[0] == ("kind", Const("number")) for fact in graph.facts) == 1


def test_without_an_outline_a_run_has_no_loops() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = x + 1
        return x

    trace = watch_call(step, (), (X,), {})[1]
    assert trace.outline is None
    assert differences(trace) == []
    assert "loop" not in {node.kind for node in walk(tree_of(trace).body)}


QUICK = [one for one in harness.programs() if one not in harness.slow()]


@pytest.mark.parametrize(("category", "name"), random.Random(45).sample(QUICK, 24))
def test_programs(category: str, name: str) -> None:
    findings = tree_findings(category, name, served=False)
    assert findings.differences == []


@pytest.mark.slow
@pytest.mark.parametrize(("category", "name"), random.Random(46).sample(QUICK, 40))
def test_programs_of_which_graphs_are_made(category: str, name: str) -> None:
    findings = tree_findings(category, name)
    assert findings.differences == []
