"""Elements at changing Python numbers, assigned and changed in place: ``table[s, a] += 0.1``."""

import random

import torch
from torch import nn

from tests.programs.branches.branches_in_loops import Net
from tests.programs.harness import Program, program

RUN_ONE_IN = 12  # Each takes a second or two, or is much like the others.


def numbered(calls=20, below=5):
    """(a tensor, a number, another)"""
    generator = torch.Generator().manual_seed(6)
    return [(torch.randn(4, 3, generator=generator), k % below, (k * 2 + 1) % 3) for k in range(calls)]


@program(speculated=17, compiles=1)
def pairs_of_numbers():
    table = torch.zeros(5, 3)

    def step(x, i, j):
        table[i, j] = x.sum()
        table[i, 0] = 1.0
        table[2, j] = i * 0.5
        table[i - 5, j - 3] += x[0, 0]
        return x * 2

    return Program(step, numbered(), state=table)


@program(speculated=17, compiles=1)
def rows_columns_and_types():
    table, whole = torch.zeros(5, 3, 4), torch.zeros(5, dtype=torch.long)

    def step(x, i, j):
        table[i] = x[0, 0]
        table[:, j] = x[0, 1]
        table[i, :, 1:3] = x[1, :2]
        table[i, ..., j] = x[:3, 2].double()
        table[None, i] = x.t()[None]
        whole[i] = x[2, 1] * 9
        whole[j] += 2
        whole[i] = j
        return table.sum(), whole.sum()

    return Program(step, numbered(), state=(table, whole))


@program(speculated=37, compiles=1)
def q_learning_by_hand():
    table, state = torch.zeros(5, 3), {"at": 0}

    def step(reward):
        at, action = state["at"], random.randrange(3)
        after = (at + action + 1) % 5
        table[at, action] += 0.1 * (reward + 0.9 * table[after].max() - table[at, action])
        state["at"] = after
        return action, table[at, action].item()

    return Program(step, [(0.1 * i,) for i in range(40)], state=(table, state))


@program(speculated=21, compiles=1)
def a_ring_of_several_tensors():
    size = 6
    seen, actions, rewards = torch.zeros(size, 3), torch.zeros(size, dtype=torch.long), torch.zeros(size)
    state = {"next": 0}

    def step(x, action, other):
        at = state["next"]
        seen[at] = x[0]
        actions[at] = action
        rewards[at] = x.mean() - other
        state["next"] = (at + 1) % size
        return rewards.sum()

    return Program(step, numbered(24), state=(seen, actions, rewards, state))


@program(speculated=17, compiles=1)
def parts_are_changed_by_their_own_names():
    table = torch.ones(6, 3)

    def step(x, i, j):
        table[i].zero_()
        table[i + 1].copy_(x[0])
        table[i][j] = 7.0
        row = table[i]
        row[1:].mul_(2)
        torch.add(row, 1, out=row)
        return row * 2, table[i, j] + 1

    return Program(step, numbered(), state=table)


@program(speculated=17, compiles=1)
def a_parameter_is_changed_without_gradients():
    net = Net()
    weight = net.layers[0].weight

    def step(x, i, j):
        loss = net.update(net.layers[0](torch.cat([x, x[:, :1]], 1)).square().sum())
        with torch.no_grad():
            weight[j] *= 0.5
            weight[j, 1] = 0.1
            nn.init.zeros_(weight[j, 2:])
        return loss

    return Program(step, numbered(), state=net)


@program(speculated=17, compiles=1)
def gradients_flow_into_what_is_set():
    net = Net()

    def step(x, i, j):
        h = net.layers[0](torch.cat([x, x[:, :1]], 1))
        out = torch.zeros(5, 3, 4)
        out[i] = h[:3]
        out[i, j] = h[1].sum()
        out[0, j, i - 2] = h[2, 3] * 2
        return net.update(out.square().sum() + h.sum()), out.detach()

    return Program(step, numbered(), state=net)


@program(speculated=12, compiles=4)
def gradients_flow_through_what_is_changed():
    net = Net()

    def step(x, i, j):
        h = net.layers[0](torch.cat([x, x[:, :1]], 1))
        out = h * 2
        out[j] *= h[3]
        return net.update(out.square().sum() + h.sum()), out.detach()

    return Program(step, numbered(), state=net)


@program(speculated=10, compiles=6)
def a_part_is_used_when_the_whole_has_changed():
    table = torch.ones(5, 3)

    def step(x, i, j):
        row = table[i]
        table[j] += x[0]
        return (row * 2).sum()

    return Program(step, numbered(), state=table)


@program(speculated=14, compiles=3)
def two_rows_change_places_and_do_not():
    table = torch.arange(9.0).reshape(3, 3)

    def step(x, i, j):
        table[j % 2], table[2] = table[2], table[j % 2]
        return table * 1

    return Program(step, numbered(), state=table)


@program(speculated=12, compiles=4)
def what_autograd_has_kept_of_a_part():
    table, weight = torch.ones(5, 3), torch.ones(3, requires_grad=True)

    def step(x, i, j):
        loss = (table[i] * weight).sum()
        table.data.mul_(1.1)  # which autograd does not notice
        weight.grad = None
        loss.backward()
        return loss.detach()

    return Program(step, numbered(below=3), state=(table, weight))


@program(speculated=20, compiles=2)
def some_are_out_of_range():
    one, other = torch.zeros(5), torch.zeros(3)

    def step(i):
        try:
            one[i] = 1.0 + i
            other[i] += 2.0
            one[i - 1] += 1
        except IndexError as error:
            return str(error)
        return one.sum() + other.sum()

    return Program(step, [(k % 3 if k % 8 != 6 else 3 + k % 4,) for k in range(30)], state=(one, other))


@program(speculated=20, compiles=2)
def a_ring_that_ends():
    ring, state = torch.zeros(12), {"next": 0}

    def step(x):
        try:
            ring[state["next"]] = x.sum()
        except IndexError:
            state["next"] = 0
            return None
        state["next"] += 1
        return ring.sum()

    return Program(step, [(x,) for x, _, _ in numbered(30)], state=(ring, state))


@program(speculated=17, compiles=1)
def in_inference_mode():
    table = torch.zeros(5, 3)

    def step(x, i, j):
        with torch.inference_mode():
            made = x * 2
            made[j] = 1.0
            table[i, j] = x[0, 0]
            return made.sum() * 1

    return Program(step, numbered(), state=table)
