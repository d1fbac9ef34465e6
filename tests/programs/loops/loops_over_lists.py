"""Arguments that are lists of tensors, of changing length: the host stacks them, and one graph serves all lengths."""

import collections

import torch
from torch import nn

from tests.programs.harness import Program, program

RUN_ONE_IN = 12  # Each takes a second or two, or is much like the others.

LENGTHS = (5, 7, 5, 9, 12, 30, 6, 4, 17, 8, 21, 5)
A = torch.eye(3) * 0.9


def lists(*more, lengths=LENGTHS, size=(3,)):
    return [tuple([torch.randn(size) for _ in range(n)] for _ in ("xs", *more)) for n in lengths]


@program(speculated=9, compiles=1)
def a_loop_over_a_list():
    def step(xs):
        h = torch.zeros(3)
        for x in xs:
            h = torch.tanh(A @ h + x)
        return h

    return Program(step, lists())


@program(speculated=9, compiles=1)
def a_tuple():
    def step(xs):
        h = torch.zeros(3)
        for x in xs:
            h = torch.tanh(A @ h + x)
        return h * len(xs)

    return Program(step, [(tuple(xs),) for (xs,) in lists()])


@program(speculated=9, compiles=1)
def a_stack():
    def step(xs):
        return torch.stack(xs).pow(2).sum(), len(xs)

    return Program(step, lists())


@program(speculated=9, compiles=1)
def one_behind_the_other():
    w = torch.randn(3, 2, requires_grad=True)

    def step(xs):
        loss = (torch.cat(xs) @ w).pow(2).mean()
        loss.backward()
        g, w.grad = w.grad, None
        return g, loss.item()

    return Program(step, lists(size=(2, 3)), state=w)


@program(speculated=9, compiles=1)
def a_mean_of_losses():
    def step(losses):
        return sum(losses) / len(losses)

    return Program(step, lists(size=()))


@program(speculated=9, compiles=1)
def training_on_sequences():
    cell = nn.GRUCell(3, 4)
    opt = torch.optim.Adam(cell.parameters(), lr=0.01)

    def step(xs):
        h = torch.zeros(2, 4)
        for x in xs:
            h = cell(x, h)
        loss = h.pow(2).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.item()

    return Program(step, lists(size=(2, 3)), state=cell)


@program(speculated=8, compiles=1)
def two_lists_and_prints():
    def step(xs, ys):
        total = 0
        for i, (x, y) in enumerate(zip(xs, ys)):
            loss = (x - y).pow(2).sum()
            total += loss
            print(f"{i}: {loss.item():.4f}")
        return total / len(xs)

    return Program(step, lists("ys"))


@program(speculated=9, compiles=1)
def a_list_of_a_module():
    class Batches:
        def __init__(self):
            self.rows = []

    batches = Batches()

    def step(x):
        for row in batches.rows:
            x = torch.tanh(A @ x + row)
        return x

    calls = [(torch.randn(3),) for _ in LENGTHS]
    fills = {
        number: lambda n=n: setattr(batches, "rows", [torch.randn(3) for _ in range(n)])
        for number, n in enumerate(LENGTHS)
    }
    return Program(step, calls, before=fills, state=batches)


# -- lists of which a graph for all lengths would be wrong ---------------------------------------------------------


@program(speculated=0, compiles=8)
def an_element_by_its_index():
    def step(xs):
        h = torch.zeros(3)
        for x in xs:
            h = torch.tanh(A @ h + x)
        return h + xs[-1]

    return Program(step, lists())


@program(speculated=0, compiles=8)
def elements_are_returned():
    def step(xs):
        return [x for x in xs], torch.stack(xs)

    return Program(step, lists())


@program(speculated=0, compiles=8)
def elements_change_in_place():
    def step(xs):
        for x in xs:
            x.mul_(0.5)
        return torch.stack(xs)

    return Program(step, lists())


@program(speculated=0, compiles=8)
def elements_of_other_sizes():
    def step(xs):
        return sum(x.sum() for x in xs)

    return Program(step, [([torch.randn(k + 1) for k in range(n)],) for n in LENGTHS])


@program(speculated=0, compiles=8)
def one_is_of_another_size():
    def step(xs):
        h = torch.zeros(3)
        for x in xs:
            h = torch.tanh(A @ h + x)
        return h

    calls = lists()
    for number in (5, 6, 9):
        calls[number][0][2] = torch.randn(1)
    return Program(step, calls)


@program(speculated=0, compiles=8)
def one_requires_gradients():
    def step(xs):
        h = torch.zeros(3)
        for x in xs:
            h = torch.tanh(A @ h + x)
        return h.detach()

    calls = lists()
    for number in (5, 6, 9):
        calls[number][0][2] = torch.randn(3, requires_grad=True)
    return Program(step, calls)


@program(speculated=0, compiles=8)
def elements_share_memory_with_what_is_trained():
    w = torch.randn(3, 3)

    def step(xs):
        w.mul_(0.9)
        h = torch.zeros(3)
        for x in xs:
            h = torch.tanh(A @ h + x)
        return h

    calls = lists()
    for number in (5, 6, 9):
        calls[number][0][1] = w[1]
    return Program(step, calls, state=w)


@program(speculated=0, compiles=8)
def the_same_element_twice():
    def step(xs):
        h = torch.zeros(3)
        for x in xs:
            h = torch.tanh(A @ h + x)
        return h

    return Program(step, [([*xs, xs[0]],) for (xs,) in lists()])


@program(speculated=0, compiles=8)
def a_deque():
    def step(xs):
        h = torch.zeros(3)
        for x in xs:
            h = torch.tanh(A @ h + x)
        return h

    return Program(step, [(collections.deque(xs),) for (xs,) in lists()])


@program(speculated=0, compiles=8)
def empty_lists_and_short_ones():
    def step(xs):
        h = torch.ones(3)
        for x in xs:
            h = torch.tanh(A @ h + x)
        return h

    return Program(step, lists(lengths=(3, 5, 0, 1, 2, 3, 0, 1, 4, 9, 2, 0)))
