"""The loop op: one iteration compiled once for all trip counts, equal to the unrolled loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.graph.recording import generalise, record
from torchjanus.execute.compiled.inductor import Inductor
from torchjanus.execute.replay import Replay
from torchjanus.graph.ir.program import Input, Node, Program, Ref
from torchjanus.graph.lowering.lower import lower
from torchjanus.graph.regions.loop import Loop

Iteration = Callable[..., tuple[list[torch.Tensor], list[torch.Tensor]]]


def body_of(
    iteration_: Iteration, carried: list[torch.Tensor], rows: list[torch.Tensor], rest: list[torch.Tensor]
) -> Loop:
    """A loop whose body is what ``iteration_(carried, rows, rest)`` does."""
    given = [*carried, *rows, *rest]
    recording = record(lambda: iteration_(carried, rows, rest))
    program, _ = generalise([recording])
    places = [next(i for i, t in enumerate(given) if t is entry.example) for entry in program.inputs]
    unused = [i for i in range(len(given)) if i not in places]
    order = [*places, *unused]
    moved = {Ref(old): Ref(new) for old, new in enumerate(order[: len(places)])}

    def move(value: Any) -> Any:
        if not isinstance(value, Ref):
            return value
        return moved.get(value, Ref(value.index + len(unused)))

    from torchjanus.core.trees import map_leaves

    nodes = tuple(
        Node(n.func, map_leaves(n.args, move), map_leaves(n.kwargs, move), map_leaves(n.outs, move), n.modes)
        for n in program.nodes
    )
    inputs = tuple(Input(t, t.requires_grad, t.is_leaf) for t in given)
    outputs = tuple(move(ref) for ref in program.outputs)
    body = Program(inputs, (), nodes, outputs, (len(nodes),) * len(outputs), (), ())
    return Loop(body, len(carried), len(rows))


def lstm(carried: Any, rows: Any, rest: Any) -> Any:
    (h, c), (x,), (wx, wh, b) = carried, rows, rest
    i, f, g, o = (x @ wx + h @ wh + b).chunk(4, 1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    h = torch.sigmoid(o) * torch.tanh(c)
    return [h, c], [h]


def unrolled(iteration_: Iteration, xs: Any, carried: Any, rest: Any) -> Any:
    outs = []
    for t in range(len(xs[0])):
        carried, made = iteration_(carried, [x[t] for x in xs], rest)
        outs.append(made)
    return list(carried), [torch.stack(column) for column in zip(*outs, strict=True)]


def lstm_inputs(steps: int, hidden: int = 8, batch: int = 4, start: bool = False) -> Any:
    torch.manual_seed(0)
    xs = torch.randn(steps, batch, 6, requires_grad=True)
    state = [torch.randn(batch, hidden, requires_grad=start) for _ in range(2)]
    rest = [(torch.randn(n, 4 * hidden) * 0.3).requires_grad_() for n in (6, hidden)]
    return [xs], state, [*rest, torch.randn(4 * hidden, requires_grad=True)]


def step_program(loop: Loop | None, iteration_: Iteration, xs: Any, state: Any, rest: Any) -> Program:
    """A whole step around the loop: the sum of squares of all it gives, backward."""
    if loop is None:

        def step() -> Any:
            carried, outs = unrolled(iteration_, xs, state, rest)
            loss = sum(t.pow(2).sum() for t in (*carried, *outs))
            loss.backward()
            return [loss, *carried, *outs]

        program, _ = generalise([record(step)])
        return program
    given = [*state, *xs, *rest]
    inputs = tuple(Input(t, t.requires_grad, t.is_leaf) for t in given)
    n, s, x = len(given), len(state), len(xs)
    results = len(loop.body.outputs)
    refs = [Ref(i) for i in range(n)]
    outs = tuple(Ref(n + i) for i in range(results))
    nodes = [Node(loop, (len(xs[0]), refs[:s], refs[s : s + x], refs[s + x :]), {}, outs)]
    top = n + results
    total = None
    for out in outs:
        nodes.append(Node(torch.Tensor.pow, (out, 2), {}, (Ref(top),)))
        nodes.append(Node(torch.Tensor.sum, (Ref(top),), {}, (Ref(top + 1),)))
        if total is not None:
            nodes.append(Node(torch.add, (total, Ref(top + 1)), {}, (Ref(top + 2),)))
        total = Ref(top + 1) if total is None else Ref(top + 2)
        top += 3
    assert total is not None
    nodes.append(Node(torch.Tensor.backward, (total,), {}, ()))
    outputs = (total, *outs)
    leaves = tuple(Ref(i) for i, t in enumerate(given) if t.requires_grad)
    return Program(inputs, (), tuple(nodes), outputs, (len(nodes),) * len(outputs), (), leaves)


def results(program: Program, given: list[torch.Tensor]) -> tuple[list[torch.Tensor], dict[int, torch.Tensor]]:
    lowered = lower(program)
    values = Replay(lowered).run([t.detach() for t in given], ())
    assert isinstance(values, list)
    outs = [values[r.source.index] for r in lowered.outputs]  # type: ignore[union-attr]
    grads = {leaf.index: values[leaf.result.source.index] for leaf in lowered.leaves if leaf.changed}  # type: ignore[union-attr]
    return outs, grads


@pytest.mark.parametrize("steps", [1, 2, 7, 20])
def test_lstm_equals_the_unrolled_loop(steps: int) -> None:
    xs, state, rest = lstm_inputs(steps, start=True)
    loop = body_of(lstm, state, [x[0] for x in xs], rest)
    program = step_program(loop, lstm, xs, state, rest)
    made, grads = results(program, [*state, *xs, *rest])
    carried, outs = unrolled(lstm, xs, state, rest)
    loss = sum(t.pow(2).sum() for t in (*carried, *outs))
    loss.backward()
    for one, other in zip(made, (loss, *carried, *outs), strict=True):
        assert torch.equal(one, other)
    assert len(grads) == 6
    for index, tensor in enumerate((*state, *xs, *rest)):
        torch.testing.assert_close(grads[index], tensor.grad)


@pytest.mark.parametrize("steps", [pytest.param(2, marks=pytest.mark.slow), 9])
def test_compiled_iterations_equal_replay(steps: int) -> None:
    xs, state, rest = lstm_inputs(steps, start=True)
    loop = body_of(lstm, state, [x[0] for x in xs], rest)
    program = step_program(loop, lstm, xs, state, rest)
    lowered = lower(program)
    given = [t.detach() for t in (*state, *xs, *rest)]
    expected = Replay(lowered).run(given, ())
    met = Inductor(lowered).run(given, ())
    assert isinstance(expected, list)
    assert isinstance(met, list)
    for one, other in zip(expected, met, strict=True):
        torch.testing.assert_close(one, other)


def test_what_all_iterations_are_given_is_not_saved_by_each() -> None:
    """Two matrices of one size would be carried as one, copied in each iteration."""
    torch.manual_seed(0)
    weights = [(torch.randn(8, 8) * 0.3).requires_grad_() for _ in range(2)]
    xs = torch.randn(5, 4, 8)

    def two_layers(carried: Any, rows: Any, rest: Any) -> Any:
        (h,), (x,), (first, second) = carried, rows, rest
        h = torch.tanh(torch.nn.functional.linear(torch.nn.functional.linear(h + x, first), second))
        return [h], [h]

    loop = body_of(two_layers, [torch.zeros(4, 8)], [xs[0]], weights)
    lower(step_program(loop, two_layers, [xs], [torch.zeros(4, 8)], weights))
    (partition,) = loop.made.values()
    assert {(source.kind, source.index) for source in partition.kept} >= {("invariant", 0), ("invariant", 1)}
    assert all(one.size[-2:] != (8, 8) for one in partition.gives)
