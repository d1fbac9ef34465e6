"""Loops that subscript lists by the iteration index, lists of earlier iterations too: one graph serves all lengths."""

import collections
import itertools

import torch
from torch import nn

from tests.programs.harness import Program, program

RUN_ONE_IN = 12  # Each takes a second or two, or is much like the others.

LENGTHS = (5, 7, 5, 9, 12, 30, 6, 4, 17, 8, 21, 5)
A = torch.eye(3) * 0.9


def lists(*more, lengths=LENGTHS):
    return [tuple([torch.randn(3) for _ in range(n)] for _ in ("xs", *more)) for n in lengths]


def sequences(lengths=LENGTHS):
    return [(torch.randn(2, n, 3),) for n in lengths]


def training(loss_of, lengths=LENGTHS, inputs=None):
    """A step that trains a cell: ``loss_of(cell, ...)``."""
    cell = nn.Linear(3, 3)
    sgd = torch.optim.SGD(cell.parameters(), lr=0.1)

    def step(*args):
        sgd.zero_grad()
        loss = loss_of(cell, *args)
        loss.backward()
        sgd.step()
        return loss.item()

    return Program(step, sequences(lengths) if inputs is None else inputs, state=(cell, sgd))


def states_of(cell, x):
    h, outs = torch.zeros(x.size(0), 3), []
    for t in range(x.size(1)):
        h = torch.tanh(cell(x[:, t]) + h)
        outs.append(h)
    return outs


# -- lists from before the call --------------------------------------------------------------------------------------


@program(speculated=9, compiles=1)
def elements_by_number():
    def step(xs):
        h = torch.zeros(3)
        for t in range(len(xs)):
            h = torch.tanh(A @ h + xs[t])
        return h

    return Program(step, lists())


@program(speculated=9, compiles=1)
def two_lists_by_number():
    def step(xs, ys):
        h, loss = torch.zeros(3), torch.zeros(())
        for t in range(len(xs)):
            h = torch.tanh(A @ h + xs[t])
            loss = loss + (h - ys[t]).pow(2).mean()
        return loss

    return Program(step, lists("ys"))


@program(speculated=9, compiles=1)
def the_other_list_by_number():
    def step(xs, ys):
        h = torch.zeros(3)
        for t, x in enumerate(xs):
            h = torch.tanh(A @ h + x * ys[t])
        return h

    return Program(step, lists("ys"))


@program(speculated=9, compiles=1)
def the_element_before():
    def step(xs):
        h = torch.zeros(3)
        for t in range(1, len(xs)):
            h = torch.tanh(A @ h + xs[t] - xs[t - 1])
        return h

    return Program(step, lists())


@program(speculated=9, compiles=1)
def the_element_behind():
    def step(xs):
        h = torch.zeros(3)
        for t in range(len(xs) - 1):
            h = torch.tanh(A @ h + xs[t] * xs[t + 1])
        return h

    return Program(step, lists())


@program(speculated=9, compiles=1)
def elements_backwards():
    def step(xs):
        h = torch.zeros(3)
        for t in range(len(xs) - 1, -1, -1):
            h = torch.tanh(A @ h + xs[t])
        return h

    return Program(step, lists())


@program(speculated=9, compiles=1)
def dictionaries_by_number():
    def step(samples):
        h = torch.zeros(3)
        for t in range(len(samples)):
            h = torch.tanh(A @ h + samples[t]["x"] * samples[t]["scale"])
        return h

    return Program(step, [([{"x": torch.randn(3), "scale": torch.rand(3)} for _ in range(n)],) for n in LENGTHS])


@program(speculated=9, compiles=1)
def pairs_by_number():
    def step(pairs):
        h = torch.zeros(3)
        for t in range(len(pairs)):
            x, scale = pairs[t]
            h = torch.tanh(A @ h + x * scale)
        return h

    return Program(step, [([(torch.randn(3), torch.rand(3)) for _ in range(n)],) for n in LENGTHS])


@program(speculated=9, compiles=1)
def as_large_as_the_first_one():
    def step(xs):
        h = torch.zeros_like(xs[0])
        for t in range(len(xs)):
            h = torch.tanh(A @ h + xs[t])
        return h - xs[0]

    return Program(step, lists())


@program(speculated=9, compiles=1)
def of_the_size_of_the_first_one():
    def step(xs):
        h = torch.zeros(xs[0].shape[0], xs[0].size(1))
        for x in xs:
            h = torch.tanh(h @ A + x)
        return h / len(xs)

    return Program(step, [([torch.randn(2, 3) for _ in range(n)],) for n in LENGTHS])


@program(speculated=7)
def of_sizes_that_change_too():
    def step(xs):
        h, total = torch.zeros(xs[0].size(0), 3), torch.zeros(())
        for t in range(len(xs)):
            h = torch.tanh(h @ A + xs[t])
            total = total + h.sum() / xs[t].size(0)
        return total * xs[0].size(0)

    sizes = zip(LENGTHS, (2, 2, 2, 4, 3, 5, 2, 6, 4, 3, 2, 7), strict=True)
    return Program(step, [([torch.randn(b, 3) for _ in range(n)],) for n, b in sizes])


@program(speculated=9, compiles=1)
def rows_of_a_tensor_by_number():
    def step(x):
        rows, h = list(x.unbind(1)), torch.zeros(2, 3)
        for t in range(len(rows)):
            h = torch.tanh(h @ A + rows[t])
        return h * len(rows)

    return Program(step, sequences())


@program(speculated=9, compiles=1)
def rows_in_both_orders():
    def step(x):
        rows, h = x.unbind(1), torch.zeros(2, 3)
        for row in rows:
            h = torch.tanh(h @ A + row)
        for row in reversed(rows):
            h = torch.tanh(h @ A - row)
        return h

    return Program(step, sequences())


@program(speculated=3)
def lists_of_different_lengths():
    """Where the other list is as long by chance, that is assumed."""

    def step(xs, ys):
        h = torch.zeros(3)
        for t in range(len(xs)):
            h = torch.tanh(A @ h + xs[t] * ys[t])
        return h

    alike, others = lists("ys", lengths=(5, 6, 7, 8, 9, 4)), lists("ys", lengths=(5, 6, 7))
    return Program(step, [*alike, *((xs, [*ys, torch.ones(3)]) for xs, ys in others), *lists("ys", lengths=(5, 8))])


@program(speculated=3)
def a_list_that_is_too_short():
    def step(xs, ys):
        h = torch.zeros(3)
        for t in range(len(xs)):
            h = torch.tanh(A @ h + xs[t] * ys[t])
        return h

    alike = lists("ys", lengths=(5, 6, 7, 8, 9, 4))
    return Program(step, [*alike, *((xs, ys[:-1]) for xs, ys in lists("ys", lengths=(5, 6, 7)))])


# -- lists that the step has made -------------------------------------------------------------------------------------


@program(speculated=9, compiles=1)
def what_iterations_have_made():
    def loss_of(cell, x):
        loss = torch.zeros(())
        for h in states_of(cell, x):
            loss = loss + h.pow(2).mean()
        return loss

    return training(loss_of)


@program(speculated=9, compiles=1)
def what_iterations_have_made_by_number():
    def loss_of(cell, x):
        outs, loss = states_of(cell, x), torch.zeros(())
        for t in range(len(outs)):
            loss = loss + (outs[t] * x[:, t]).mean()
        return loss / len(outs)

    return training(loss_of)


@program(speculated=9, compiles=1)
def what_iterations_have_made_by_another_length():
    def loss_of(cell, x):
        outs, loss = states_of(cell, x), torch.zeros(())
        for t in range(x.size(1)):
            loss = loss + outs[t].pow(2).mean()
        return loss

    return training(loss_of)


@program(speculated=9, compiles=1)
def neighbours_among_what_iterations_have_made():
    def loss_of(cell, x):
        outs, loss = states_of(cell, x), torch.zeros(())
        for t in range(1, len(outs)):
            loss = loss + (outs[t] - outs[t - 1]).pow(2).mean()
        return loss

    return training(loss_of)


@program(speculated=9, compiles=1)
def what_is_behind_in_what_iterations_have_made():
    def loss_of(cell, x):
        outs = [torch.zeros(2, 3), *states_of(cell, x)]
        loss = torch.zeros(())
        for t in range(len(outs) - 1):
            loss = loss + (outs[t + 1] * outs[t]).mean()
        return loss

    return training(loss_of)


@program(speculated=9, compiles=1)
def numbered_and_paired():
    def loss_of(cell, x):
        outs, loss = states_of(cell, x), torch.zeros(())
        for t, h in enumerate(outs):
            loss = loss + (h * x[:, t]).mean()
        for h, y in zip(outs, x.unbind(1), strict=True):
            loss = loss + (h - y).pow(2).mean()
        return loss

    return training(loss_of)


@program(speculated=9, compiles=1)
def all_but_the_first_and_last():
    def loss_of(cell, x):
        outs, loss = states_of(cell, x), torch.zeros(())
        for a, b in zip(outs[:-1], outs[1:], strict=True):  # noqa: RUF007
            loss = loss + (a - b).pow(2).mean()
        return loss

    return training(loss_of)


@program(speculated=9, compiles=1)
def one_and_the_next():
    def loss_of(cell, x):
        loss = torch.zeros(())
        for a, b in itertools.pairwise(states_of(cell, x)):
            loss = loss + (a - b).pow(2).mean()
        return loss

    return training(loss_of)


@program(speculated=9, compiles=1)
def rewards_to_go():
    def loss_of(cell, x):
        rewards = [x[:, t].mean(1) for t in range(x.size(1))]
        r, returns = torch.zeros(2), []
        for t in reversed(range(len(rewards))):
            r = rewards[t] + 0.9 * r
            returns.insert(0, r)
        loss = torch.zeros(())
        for t in range(len(returns)):
            loss = loss + (cell(x[:, t]).mean(1) * returns[t]).sum()
        return loss

    return training(loss_of)


@program(speculated=9, compiles=1)
def advantages():
    """Values and the one after the last, detached, from the last to the first."""

    def loss_of(cell, x):
        values = [h.mean(1) for h in states_of(cell, x)]
        later = [v.detach() for v in values] + [torch.zeros(2)]
        advantage, advantages_ = torch.zeros(2), []
        for t in reversed(range(len(values))):
            advantage = x[:, t].mean(1) + 0.99 * later[t + 1] - later[t] + 0.9 * advantage
            advantages_.insert(0, advantage)
        loss = torch.zeros(())
        for value, goal in zip(values, advantages_, strict=True):
            loss = loss + (value - goal).pow(2).mean()
        return loss

    return training(loss_of)


@program(speculated=9, compiles=1)
def summed_up():
    def loss_of(cell, x):
        losses = [h.pow(2).mean() for h in states_of(cell, x)]
        return sum(losses) / len(losses)

    return training(loss_of)


@program(speculated=9, compiles=1)
def the_first_and_the_last():
    def loss_of(cell, x):
        outs = states_of(cell, x)
        return outs[0].pow(2).mean() + outs[-1].mean() + 0.1 * len(outs)

    return training(loss_of)


@program(speculated=9, compiles=1)
def views_by_number():
    def loss_of(cell, x):
        rows, h = [x[:, t] for t in range(x.size(1))], torch.zeros(2, 3)
        for t in range(len(rows)):
            h = torch.tanh(cell(rows[t]) + h)
        return h.pow(2).mean()

    return training(loss_of)


# -- what must not be taken for all that iterations have made
# ------------------------------------------------------------

SHORT = (5, 4, 3, 5, 4, 3, 5, 4, 7, 9, 6, 4)  # nothing is cut off at first


def cut_off(part, whole=torch.stack):
    """A step that makes one tensor of what is left of what iterations have made."""
    a = torch.eye(3) * 0.7

    def step(x):
        h, outs = torch.zeros(2, 3), []
        for t in range(x.size(1)):
            h = torch.tanh(h @ a + x[:, t])
            outs.append(h)
        return whole(part(outs)).sum(0)

    return Program(step, sequences(SHORT))


def gone_through(left):
    total = torch.zeros(2, 3)
    for one in left:
        total = total + one
    return total * len(left)


def deleted(outs):
    del outs[5:]
    return outs


def emptied(outs):
    outs[5:] = []
    return outs


def window(outs):
    left = collections.deque(maxlen=5)
    for one in outs:
        left.append(one)
    return list(left)


@program(speculated=1, compiles=3)
def a_part_deleted():
    return cut_off(deleted)


@program(speculated=1, compiles=3)
def a_part_deleted_and_the_rest_gone_through():
    return cut_off(deleted, gone_through)


@program(speculated=1, compiles=3)
def a_part_emptied():
    return cut_off(emptied)


@program(speculated=1, compiles=3)
def the_first_by_islice():
    return cut_off(lambda outs: list(itertools.islice(outs, 5)))


@program(speculated=1, compiles=3)
def the_last_in_a_deque():
    return cut_off(lambda outs: list(collections.deque(outs, maxlen=5)))


@program(speculated=1, compiles=3)
def the_last_in_a_deque_gone_through():
    return cut_off(lambda outs: list(collections.deque(outs, maxlen=5)), gone_through)


@program(speculated=1, compiles=3)
def the_last_appended_to_a_deque():
    return cut_off(window)


@program(speculated=1, compiles=3)
def the_first_by_a_slice():
    return cut_off(lambda outs: outs[:5], gone_through)


@program(speculated=1, compiles=4)
def all_but_more_than_there_may_be():
    return cut_off(lambda outs: outs[2:] or outs, gone_through)


@program(speculated=1, compiles=3)
def changed_between_the_loops():
    a = torch.eye(3) * 0.7

    def step(x):
        h, outs = torch.zeros(2, 3), []
        for t in range(x.size(1)):
            h = torch.tanh(h @ a + x[:, t])
            outs.append(h)
        outs[0].add_(1.0)
        total = torch.zeros(2, 3)
        for t in range(len(outs)):
            total = total + outs[t] * outs[0]
        return total

    return Program(step, sequences(SHORT))


@program(speculated=1, compiles=3)
def the_last_ones_number_kept():
    """The number that the first loop leaves is no number of the second one's rounds."""
    a = torch.eye(3) * 0.7

    def step(x):
        h, outs = torch.zeros(2, 3), []
        for t in range(x.size(1)):
            h = torch.tanh(h @ a + x[:, t])
            outs.append(h)
        total = torch.zeros(2, 3)
        for s in range(x.size(1)):
            total = total + outs[s] * outs[t]
        return total

    return Program(step, sequences(SHORT))
