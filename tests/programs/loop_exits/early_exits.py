"""Loops over ranges, sequences and lists of changing length that a tensor may leave early, with gradients."""

import torch
from torch import nn

from tests.programs.harness import Program, program

RUN_ONE_IN = 32  # Each takes a second or more: a loop or a recursive function is compiled for any trip count or tree.

LENGTHS = (9, 6, 8, 5, 12, 7, 10, 6, 9, 5, 8, 11, 7, 6, 9, 12)
LONG = (*LENGTHS, *LENGTHS)
SCALES = (0.7, 1.0, 0.9, 1.2, 0.8)
W = torch.linspace(-1, 1, 9).reshape(3, 3) * 0.4


def sequences(lengths=LENGTHS, scales=SCALES):
    return [(torch.randn(2, n, 3) * scales[k % len(scales)],) for k, n in enumerate(lengths)]


def numbers(lengths=LENGTHS, scales=SCALES):
    return [(torch.randn(2, 3) * scales[k % len(scales)], n) for k, n in enumerate(lengths)]


def lists(lengths=LENGTHS, scales=SCALES):
    return [([torch.randn(3) * scales[k % len(scales)] for _ in range(n)],) for k, n in enumerate(lengths)]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj, self.cell, self.out = nn.Linear(3, 4), nn.GRUCell(4, 4), nn.Linear(4, 1)
        self.most = 0.62
        self.opt = torch.optim.SGD(self.parameters(), lr=0.1)

    def update(self, h):
        self.opt.zero_grad()
        loss = self.out(h).pow(2).mean()
        loss.backward()
        self.opt.step()
        return loss.detach()


# -- numbers of iterations
# -----------------------------------------------------------------------------------------------


@program(speculated=12, compiles=1)
def a_limit_that_changes():
    def step(x, n):
        h = torch.zeros(2, 3)
        for it in range(n):
            new = torch.tanh(h @ W + x)
            error = (new - h).abs().max()
            h = new
            if error < 1e-3:
                break
        return h, it

    return Program(step, numbers([n + 12 for n in LENGTHS], (1.0, 2.0, 0.7)))


@program(speculated=25, compiles=3)
def a_limit_that_is_come_to_or_not():
    def step(x, n):
        h = x
        for it in range(n):
            h = h * 1.1
            if h.norm() > 4:
                break
        else:
            h = h + 100
        return h, it

    return Program(step, numbers(LONG))


@program(speculated=26, compiles=1)
def training_with_a_limit_that_changes():
    net = Net()

    def step(x, n):
        z = net.proj(x)
        h = torch.zeros(2, 4)
        for _ in range(n):
            h = net.cell(z, h)
            if h.abs().max() > net.most:
                break
        return net.update(h)

    return Program(step, numbers(LONG), state=net)


@program(speculated=25, compiles=3)
def work_after_the_question_of_a_changing_limit():
    def step(x, n):
        for it in range(n):
            if x.abs().max() > 3:
                break
            x = x * 1.3
        return x, it

    return Program(step, numbers(LONG, (0.2, 0.5, 0.3, 0.9)))


@program(speculated=25, compiles=1)
def a_range_that_begins_later():
    def step(x):
        h = x[:, 0]
        for t in range(1, x.size(1)):
            h = h + torch.tanh(h @ W + x[:, t])
            if h.abs().max() > 2.5:
                break
        return h, t

    return Program(step, sequences(LONG))


# -- sequences -------------------------------------------------------------------------------------------------------


@program(speculated=25, compiles=3)
def rows_by_number():
    def step(x):
        h = torch.zeros(2, 3)
        for t in range(x.size(1)):
            h = h + torch.tanh(h @ W + x[:, t])
            if h.abs().max() > 2.5:
                break
        return h, t

    return Program(step, sequences(LONG))


@program(speculated=25, compiles=3)
def rows_of_a_sequence():
    def step(x):
        h = torch.zeros(2, 3)
        for row in x.unbind(1):
            h = h + torch.tanh(h @ W + row)
            if h.abs().max() > 2.5:
                break
        return h

    return Program(step, sequences(LONG))


@program(speculated=25, compiles=3)
def a_tensor_gone_through():
    def step(x):
        h = torch.zeros(2, 3)
        for row in x.transpose(0, 1):
            h = h + torch.tanh(h @ W + row)
            if h.abs().max() > 2.5:
                break
        else:
            h = -h
        return h

    return Program(step, sequences(LONG))


@program(speculated=16, compiles=1)
def rows_of_sequences_of_one_length():
    def step(x):
        h = torch.zeros(2, 3)
        for t in range(x.size(1)):
            h = h + torch.tanh(h @ W + x[:, t])
            if h.abs().max() > 2.5:
                break
        return h, t

    return Program(step, sequences((9,) * 20))


@program(speculated=15, compiles=10)
def short_sequences_beside_longer_ones():
    def step(x):
        h = torch.zeros(2, 3)
        for t in range(x.size(1)):
            h = h + torch.tanh(h @ W + x[:, t])
            if h.abs().max() > 2.5:
                break
        return h, t

    lengths = (5, 7, 6, 9, 1, 2, 1, 6, 2, 3, 1, 8, 2, 5, 1, 2, 7, 1, 3, 2, 6, 1, 2, 9, 3, 1, 2, 5)
    return Program(step, sequences(lengths, (0.8, 1.0, 0.9)))


@program(speculated=27, compiles=2, close=1e-5)
def gradients_of_what_the_rows_were_made_of():
    net = Net()

    def step(x):
        z = net.proj(x)
        h = torch.zeros(2, 4)
        for t in range(z.size(1)):
            h = net.cell(z[:, t], h)
            if h.abs().max() > net.most:
                break
        return net.update(h), t

    return Program(step, sequences(LONG), state=net)


@program(speculated=27, compiles=2, close=1e-5)
def gradients_of_rows_gone_through():
    net = Net()

    def step(x):
        h = torch.zeros(2, 4)
        for row in net.proj(x).unbind(1):
            h = net.cell(row, h)
            if h.abs().max() > net.most:
                break
        return net.update(h)

    return Program(step, sequences(LONG), state=net)


@program(speculated=12, compiles=1)
def never_left():
    def step(x):
        h = torch.zeros(2, 3)
        for t in range(x.size(1)):
            h = h + torch.tanh(h @ W + x[:, t])
            if h.abs().max() > 200:
                break
        return h, t

    return Program(step, sequences())


@program(speculated=7, compiles=9)
def left_in_the_first_iteration():
    def step(x):
        h = torch.zeros(2, 3)
        for t in range(x.size(1)):
            h = h + torch.tanh(h @ W + x[:, t])
            if h.abs().max() > 0.9:
                break
        return h * 2, t

    return Program(step, sequences(LONG, (9.0, 0.7, 0.9, 9.0, 0.8)))


@program(speculated=20, compiles=5)
def two_loops_over_rows():
    def step(x):
        h = torch.zeros(2, 3)
        for t in range(x.size(1)):
            h = h + torch.tanh(h @ W + x[:, t])
            if h.abs().max() > 2.5:
                break
        g = h
        for s in range(x.size(1)):
            g = g * 0.8 - torch.tanh(x[:, s])
            if g.abs().max() < 1.2:
                break
        return h, t, g, s

    return Program(step, sequences(LONG))


@program(speculated=26, compiles=2)
def after_a_loop_that_is_not_left():
    def step(x):
        total = torch.zeros(2, 3)
        for t in range(x.size(1)):
            total = torch.tanh(total + x[:, t])
        h = total
        for t in range(x.size(1)):
            h = h + torch.tanh(h @ W + x[:, t])
            if h.abs().max() > 2.5:
                break
        return total, h, t

    return Program(step, sequences(LONG))


@program(speculated=20, compiles=2)
def more_iterations_than_rows():
    def step(x, n):
        h = torch.zeros(2, 3)
        try:
            for t in range(n):
                h = h + torch.tanh(h @ W + x[:, t])
                if h.abs().max() > 2.5:
                    break
        except IndexError:
            return h, "no row"
        return h, t

    calls = [(x, x.size(1) + (3 if k % 3 else 0)) for k, (x,) in enumerate(sequences(LONG))]
    return Program(step, calls)


@program(speculated=27, compiles=2)
def windows_of_a_sequence():
    def step(x):
        h = torch.zeros(2, 3)
        for t in range(x.size(1) - 2):
            h = h + torch.tanh(h @ W + x[:, t : t + 3].mean(1))
            if h.abs().max() > 2.5:
                break
        return h, t

    return Program(step, sequences(LONG))


# -- what is not rolled, or not all of it ------------------------------------------------------------------------------


@program(speculated=0, compiles=1)
def the_last_row_is_used_afterwards():
    def step(x):
        h = torch.zeros(2, 3)
        for row in x.unbind(1):
            h = h + torch.tanh(h @ W + row)
            if h.abs().max() > 2.5:
                break
        return h, row + 1

    return Program(step, sequences())


@program(speculated=0, compiles=1)
def outputs_are_collected():
    def step(x):
        h, outs = torch.zeros(2, 3), []
        for t in range(x.size(1)):
            h = h + torch.tanh(h @ W + x[:, t])
            outs.append(h)
            if h.abs().max() > 2.5:
                break
        return torch.stack(outs), len(outs)

    return Program(step, sequences())


@program(speculated=0, compiles=3)
def iterations_print():
    def step(x, n):
        for it in range(n):
            x = x * 1.2
            print("round", it)
            if x.norm() > 4:
                break
        return x

    return Program(step, numbers())


@program(speculated=11, compiles=2)
def the_number_of_the_iteration_is_a_factor():
    def step(x, n):
        for it in range(n):
            x = x + it * 0.1
            if x.norm() > 4:
                break
        return x, it

    return Program(step, numbers())


@program(speculated=3, compiles=6)
def the_number_decides_afterwards():
    def step(x, n):
        for it in range(n):
            x = x * 1.2
            if x.norm() > 4:
                break
        if it == n - 1:
            x = -x
        return x

    return Program(step, numbers(LONG))


@program(speculated=5, compiles=12)
def the_limit_is_used_elsewhere():
    def step(x, n):
        for it in range(n):
            x = x * 1.2
            if x.norm() > 4:
                break
        return x / n, [0] * n, it

    return Program(step, numbers(LONG))


@program(speculated=4, compiles=6)
def the_last_number_is_a_factor():
    def step(x, n):
        for it in range(n):
            x = x * 1.2
            if x.norm() > 4:
                break
        return x * it

    return Program(step, numbers((6, 6, 6, 7, 6, 7, 7, 6, 7, 8, 6, 6) * 2))


@program(speculated=0, compiles=5)
def an_answer_that_is_no_reason_to_leave():
    """In the last iteration it is as if it were one."""

    def step(x):
        h = torch.zeros(2, 3)
        for t in range(x.size(1)):
            h = h + torch.tanh(h @ W + x[:, t])
            if h.abs().max() > 2.5:
                h = h * 0.1
        return h, t

    return Program(step, sequences(LONG))


@program(speculated=23, compiles=3)
def other_loops_have_as_many_iterations():
    """What a short one takes for granted of their number holds, though they are merged for any."""

    def step(x, n):
        for _ in range(n):
            x = torch.tanh(x @ W + 1)
        for it in range(n):
            x = x * 1.3
            if x.norm() > 3:
                break
        for last in range(n):
            x = torch.sin(x)
        return x, it, last

    return Program(step, numbers([1 + n % 7 for n in LONG]))


@program(speculated=22, compiles=4)
def sequences_of_batches_of_other_sizes():
    def step(x):
        h = torch.zeros(x.size(0), 3)
        for t in range(x.size(1)):
            h = h + torch.tanh(h @ W + x[:, t])
            if h.abs().max() > 2.5:
                break
        return h, t

    return Program(step, [(torch.randn(1 + k % 4, n, 3),) for k, n in enumerate(LONG)])


@program(speculated=15, compiles=8)
def a_number_of_the_last_iteration_is_returned():
    def step(x, n):
        h, most = torch.zeros(2, 3), 0.0
        for _ in range(n):
            h = h + torch.tanh(h @ W + x)
            most = h.abs().max().item()
            if most > 2.5:
                break
        return h, most

    return Program(step, numbers([n % 7 + 1 for n in LONG]))


# -- lists of tensors ------------------------------------------------------------------------------------------------


@program(speculated=26, compiles=2)
def a_list_of_tensors():
    def step(xs):
        h = torch.zeros(3)
        for x in xs:
            h = h + torch.tanh(h @ W + x)
            if h.abs().max() > 2.5:
                break
        return h

    return Program(step, lists(LONG))


@program(speculated=26, compiles=2)
def a_list_of_tensors_by_number():
    def step(xs):
        h = torch.zeros(3)
        for t in range(len(xs)):
            h = h + torch.tanh(h @ W + xs[t])
            if h.abs().max() > 2.5:
                break
        return h, t

    return Program(step, lists(LONG))


# -- enumerate and zip -----------------------------------------------------------------------------------------------


@program(speculated=0, compiles=6)
def rows_with_their_numbers():
    def step(x):
        h = torch.zeros(2, 3)
        for t, row in enumerate(x.unbind(1)):
            h = h + torch.tanh(h @ W + row)
            if h.abs().max() > 2.5:
                break
        return h, t

    return Program(step, sequences(LONG))


@program(speculated=7, compiles=8)
def rows_of_two_sequences():
    def step(x):
        h = torch.zeros(2, 3)
        for row, other in zip(x.unbind(1), (x * 2).unbind(1), strict=True):
            h = h + torch.tanh(h @ W + row * other)
            if h.abs().max() > 2.5:
                break
        return h

    return Program(step, sequences(LONG))
