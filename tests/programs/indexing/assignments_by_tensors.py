"""Elements and windows at integers from tensors, assigned and changed in place: ``table[state, a] += 0.1``."""

import random

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.branches.branches_in_loops import Net
from tests.programs.harness import Program, program

RUN_ONE_IN = 12  # Each takes a second or two, or is much like the others.


def rows(calls=20, length=6):
    generator = torch.Generator().manual_seed(5)
    return [(torch.randn(length, 4, generator=generator),) for _ in range(calls)]


@program(speculated=17, compiles=1)
def visits_are_counted():
    visits = torch.zeros(4, dtype=torch.long)

    def step(x):
        best = x[0].argmax().item()
        visits[best] += 1
        bonus = 1 / (1 + visits[best].float()).sqrt()
        return x * bonus, best

    return Program(step, rows(), state=visits)


@program(speculated=17, compiles=1)
def a_table_of_values_learns():
    table = torch.zeros(6, 4)

    def step(x):
        state, action, after = x[:, 0].argmax().item(), x[0].argmax().item(), int(x[:, 1].argmax())
        error = x.mean() + 0.9 * table[after].max() - table[state, action]
        table[state, action] += 0.1 * error
        table[state][action] -= 0.01
        return table[state, action].item(), error

    return Program(step, rows(), state=table)


class Queue(nn.Module):
    """MoCo's: keys of earlier batches, written over in turn from where a buffer points."""

    def __init__(self, size, count):
        super().__init__()
        self.register_buffer("queue", torch.randn(size, count))
        self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def put(self, keys):
        begin = int(self.pointer)
        self.queue[:, begin : begin + len(keys)] = keys.T
        begin = (begin + len(keys)) % self.queue.shape[1]
        self.pointer[0] = begin


@program(speculated=17, compiles=1)
def a_queue_of_keys():
    net, queue = Net(), Queue(4, 24)

    def step(x):
        keys = F.normalize(net.layers[0](x), dim=1)
        loss = net.update((keys @ queue.queue.clone()).logsumexp(1).mean())
        queue.put(keys.detach())
        return loss

    return Program(step, rows(), state=(net, queue))


@program(speculated=17, compiles=1)
def gradients_flow_into_what_is_put():
    net = Net()

    def step(x):
        h = net.layers[0](x)
        out = torch.zeros(6, 4)
        first, second = x[:, 0].argmax(), x[:, 1].argmin().item()
        out[first] = h[0] * 2
        out[second, first // 2] = h[1].sum()
        out[:, second // 2] = h[:, 2]
        return net.update(out.square().sum() + h.sum()), out.detach()

    return Program(step, rows(), state=net)


@program(speculated=9, compiles=6)
def gradients_flow_through_what_is_changed():
    net = Net()

    def step(x):
        h = net.layers[0](x)
        out = h * 2
        out[x[:3, 0].argmax().item()] *= h[3]
        return net.update(out.square().sum() + h.sum()), out.detach()

    return Program(step, rows(), state=net)


@program(speculated=17, compiles=1)
def of_other_sizes_and_types():
    def step(x):
        i, j = x[:, 0].argmax().item(), x[0].argmax().item()
        a, b, c = torch.zeros(6, 4, 3), torch.zeros(6, 4, 3, dtype=torch.long), torch.zeros(6, 4, 3)
        a[i] = x[1, :3]  # a row for each
        a[:, j] = x[:, :1]
        a[i, :, j // 2] = x[2]  # not side by side
        a[..., j // 2] += 1
        a[None, i, 1:3, None] = x[3, 0]
        b[i, j] = x[4, 1] * 5  # rounds towards zero
        b[i, 1] = 2.5
        b[2, j] = i
        c[i] = 7
        c[i - 6, j - 4, 0] = x[0, 0]
        c[1:][i // 2] = x[0, 1]
        return a, b, c

    return Program(step, rows())


@program(speculated=17, compiles=1)
def windows_are_set_and_changed():
    def step(x):
        i = x[:3, 0].argmax().item()
        out = torch.zeros(6, 4)
        out[i : i + 2] = x[:2]
        out[i : i + 2] *= 3
        out[:, i : i + 1] = x[:, :1]
        out[i : i + 3, 1:] += 1
        part = out[i : i + 2]
        part.add_(1)
        part[0] = 9
        return out, part.sum()

    return Program(step, rows())


@program(speculated=17, compiles=1)
def parts_of_parts_are_changed():
    def step(x):
        i, j = x[:, 0].argmax().item(), x[0].argmax()
        h = x.exp()
        row = h[i]
        row[j] += 1
        view = row[1:]
        view.mul_(2)
        torch.add(row, 1, out=row)
        nn.init.constant_(row[:1], 5.0)
        return h, row * 2

    return Program(step, rows())


@program(speculated=16, compiles=2)
def some_are_out_of_range():
    table = torch.zeros(3)

    def step(x):
        place = x[:, 0].argmax().item()
        try:
            table[place] += 1
        except IndexError:
            return None
        return table.sum()

    calls = rows(24)
    for number, (x,) in enumerate(calls):
        x[0 if number % 8 != 6 else 4, 0] = 9.0
    return Program(step, calls, state=table)


@program(speculated=17, compiles=1)
def a_number_is_put_where_a_constant_says():
    pointer, copy = torch.zeros(2, dtype=torch.long), torch.zeros(3)

    def step(x):
        place = int(pointer[0]) + 1
        pointer[0] = place % 5
        pointer[-1] = x[:, 0].argmax().item()
        copy[1:] = place
        return x * pointer[0]

    return Program(step, rows(), state=(pointer, copy))


@program(speculated=14, compiles=6)
def drawn_or_best():
    table = torch.zeros(4)

    def step(x):
        arm = random.randrange(4) if random.random() < 0.3 else (table + x[0] * 0.1).argmax().item()
        table[arm] += 0.5 * (x.mean() - table[arm])
        return arm

    return Program(step, rows(30), state=table)


@program(refused="picked by a tensor, is used when one of the two has been changed")
def another_part_is_used_after_it():
    def step(x):
        h = x.exp()
        i = x[:, 0].argmax()
        one, other = h[i], h[x[:, 1].argmax()]
        one += 1
        return other.sum()

    return Program(step, rows())
