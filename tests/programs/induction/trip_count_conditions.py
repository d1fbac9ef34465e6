"""Loops of changing length that compare the index with the trip count: the last iteration, those before it."""

import torch
from torch import nn

from tests.programs.harness import Program, program

RUN_ONE_IN = 32  # Each takes a second or more: a loop or a recursive function is compiled for any trip count or tree.


class Net(nn.Module):
    def __init__(self, n=2):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(n))
        self.opt = torch.optim.SGD(self.layers.parameters(), lr=0.05)
        self.hits = 0
        self.seen = []

    def update(self, loss):
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach()


# From 3 to 12 iterations at first, so that loops are rolled; then 1, 2 and 0 among others.
LENGTHS = [5, 7, 4, 9, 6, 3, 8, 12, 5, 10, 7, 11, 4, 6, 1, 8, 2, 9, 5, 1, 3, 12, 2, 7, 6, 1]


def sequences(lengths=LENGTHS):
    return [(torch.randn(n, 2, 4),) for n in lengths]


def batches(lengths=LENGTHS):
    return [(torch.randn(2, n, 4),) for n in lengths]


@program(speculated=19, compiles=2, close=0.0001)
def last_iteration_differs():
    net = Net()
    a, b = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        n = len(xs)
        for t in range(n):
            h = torch.tanh(a(h) + xs[t])
            if t == n - 1:
                h = b(h)
        return net.update(h.sum())

    return Program(step, sequences(), state=net)


@program(speculated=19, compiles=2, close=0.0001)
def all_but_last():
    net = Net()
    a, b = net.layers

    def step(x):
        h = torch.zeros(2, 4)
        for t in range(x.size(1)):
            h = a(h) + x[:, t]
            if t < x.size(1) - 1:
                h = torch.relu(b(h))
        return net.update(h.sum())

    return Program(step, batches(), state=net)


@program(speculated=19, compiles=2, close=0.0001)
def next_is_there():
    net = Net()
    a, b = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        loss = torch.zeros(())
        for i in range(len(xs)):
            h = torch.tanh(a(h) + xs[i])
            if i + 1 < len(xs):
                loss = loss + (b(h) - 0.5).pow(2).mean()
        return net.update(loss + h.sum())

    return Program(step, sequences(), state=net)


@program(speculated=19, compiles=2, close=0.0001)
def enumerated():
    net = Net()
    a, b = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        for t, x in enumerate(xs):
            h = torch.tanh(a(h) + x)
            if t == len(xs) - 1:
                h = b(h)
        return net.update(h.sum())

    return Program(step, sequences(), state=net)


@program(speculated=19, compiles=2, close=0.0001)
def enumerated_list():
    net = Net()
    a, b = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        for t, x in enumerate(xs):
            h = torch.tanh(a(h) + x)
            if t == len(xs) - 1:
                h = b(h)
        return net.update(h.sum())

    return Program(step, [([*x.unbind()],) for (x,) in sequences()], state=net)


@program(speculated=0, compiles=30, close=0.0001)
def list_by_index():
    net = Net()
    a, b = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        for t in range(len(xs)):
            h = torch.tanh(a(h) + xs[t])
            if t != len(xs) - 1:
                h = b(h)
        return net.update(h.sum())

    return Program(step, [([*x.unbind()],) for (x,) in sequences()], state=net)


@program(speculated=17, compiles=4, close=0.0001)
def first_and_last():
    net = Net(3)
    a, b, c = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        n = xs.shape[0]
        for t in range(n):
            if t == 0:
                h = torch.tanh(a(xs[t]))
            elif t == n - 1:
                h = c(h) + xs[t]
            else:
                h = torch.relu(b(h) + xs[t])
        return net.update(h.sum())

    return Program(step, sequences(), state=net)


@program(speculated=19, compiles=2, close=0.0001)
def first_and_last_apart():
    net = Net(3)
    a, b, c = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        n = len(xs)
        for t in range(n):
            h = torch.tanh(a(h) + xs[t])
            if t == 0:
                h = h + b(h)
            if t == n - 1:
                h = c(h)
        return net.update(h.sum())

    return Program(step, sequences(), state=net)


@program(speculated=17, compiles=4, close=0.0001)
def positive_and_even():
    net = Net()
    a, b = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        for t in range(len(xs)):
            h = torch.tanh(a(h) + xs[t])
            if t > 0 and t % 2 == 0:
                h = h + b(h)
        return net.update(h.sum())

    return Program(step, sequences(), state=net)


@program(speculated=19, compiles=2, close=0.0001)
def plain_count_last():
    net = Net()
    a, b = net.layers

    def step(x, n):
        h = torch.zeros(2, 4)
        for t in range(n):
            h = torch.tanh(a(h) + x)
            if t < n - 1:
                h = h + b(h)
        return net.update(h.sum())

    return Program(step, [(torch.randn(2, 4), n) for n in LENGTHS], state=net)


@program(speculated=19, compiles=2, close=0.0001)
def plain_count_first():
    net = Net()
    a, b = net.layers

    def step(x, n):
        h = torch.zeros(2, 4)
        for t in range(n):
            h = torch.tanh(a(h) + x)
            if t == 0:
                h = h + b(h)
        return net.update(h.sum())

    return Program(step, [(torch.randn(2, 4), n) for n in LENGTHS], state=net)


@program(speculated=19, compiles=2, close=0.0001)
def plain_count_even_forward():
    a = nn.Linear(4, 4).requires_grad_(False)

    def step(x, n):
        for t in range(n):
            if t % 2 == 0:
                x = torch.tanh(a(x))
            else:
                x = x * 0.5
        return x

    return Program(step, [(torch.randn(2, 4), n) for n in LENGTHS])


@program(speculated=0, compiles=30, close=0.0001)
def triangle():
    net = Net()
    a, b = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        for i in range(len(xs)):
            s = torch.zeros(2, 4)
            for j in range(i):
                s = s + torch.tanh(a(xs[j]))
            h = torch.tanh(b(h) + s)
        return net.update(h.sum())

    return Program(step, sequences(), state=net)


@program(speculated=0, compiles=30, close=0.0001)
def kept_in_one_iteration():
    net = Net()
    a, b = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        kept = []
        n = len(xs)
        for t in range(n):
            h = torch.tanh(a(h) + xs[t])
            if t == n - 1:
                kept.append(b(h))
        return net.update(h.sum() + kept[-1].sum())

    return Program(step, sequences(), state=net)


@program(speculated=19, compiles=2, close=0.0001)
def logged_at_the_end():
    net = Net()
    a, b = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        n = len(xs)
        for t in range(n):
            h = torch.tanh(a(h) + xs[t])
            if t == n - 1:
                net.seen.append(h.norm().item())
                print("last", t)
        return net.update(b(h).sum())

    return Program(step, sequences(), state=net)


@program(speculated=19, compiles=2, close=0.0001)
def filled_rows():
    net = Net()
    a, b = net.layers

    def step(x):
        out = torch.zeros(2, x.size(1), 4)
        h = torch.zeros(2, 4)
        for t in range(x.size(1)):
            h = torch.tanh(a(h) + x[:, t])
            if t < x.size(1) - 1:
                h = h + b(h)
            out[:, t] = h
        return net.update(out.pow(2).sum())

    return Program(step, batches(), state=net)


@program(speculated=18, compiles=2, close=0.0001)
def filled_rows_first():
    net = Net()
    a, b = net.layers

    def step(x):
        out = torch.zeros(2, x.size(1), 4)
        h = torch.zeros(2, 4)
        for t in range(x.size(1)):
            h = torch.tanh(a(h) + x[:, t])
            if t == 0:
                h = h + b(h)
            out[:, t] = h
        return net.update(out.pow(2).sum())

    return Program(step, batches(), state=net)


@program(speculated=19, compiles=2, close=0.0001)
def collected():
    net = Net()
    a, b = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        outs = []
        n = len(xs)
        for t in range(n):
            h = torch.tanh(a(h) + xs[t])
            if t == n - 1:
                h = b(h)
            outs.append(h)
        return net.update(torch.stack(outs).pow(2).sum())

    return Program(step, sequences(), state=net)


@program(speculated=19, compiles=2, close=0.0001)
def layers_of_a_list():
    layers = [nn.Linear(4, 4) for _ in range(12)]
    for layer in layers:
        layer.requires_grad_(False)

    def step(x, ws):
        for i, w in enumerate(ws):
            x = x @ w
            if i < len(ws) - 1:
                x = torch.relu(x)
        return x

    return Program(
        step, [(torch.randn(2, 4), [layer.weight.detach().clone() for layer in layers[:n]]) for n in LENGTHS]
    )


@program(speculated=19, compiles=2, close=0.0001)
def feeds_the_next():
    net = Net()
    a, b = net.layers

    def step(xs, ys):
        h = torch.zeros(2, 4)
        loss = 0.0
        for t in range(len(xs)):
            h = torch.tanh(a(h) + xs[t])
            if t == 0:
                y = ys[t]
            else:
                y = ys[t] + ys[t - 1]
            loss = loss + (b(h) - y).pow(2).mean()
        return net.update(loss)

    return Program(step, [(x, torch.randn_like(x)) for (x,) in sequences()], state=net)


@program(speculated=19, compiles=2, close=0.0001)
def half():
    net = Net()
    a, b = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        for t in range(len(xs)):
            if t < len(xs) // 2:
                h = torch.tanh(a(h) + xs[t])
            else:
                h = torch.relu(b(h) + xs[t])
        return net.update(h.sum())

    return Program(step, sequences(), state=net)


@program(speculated=0, compiles=30, close=0.0001, slow=True)
def every_second_and_last():
    net = Net()
    a, b = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        n = len(xs)
        for t in range(n):
            h = torch.tanh(a(h) + xs[t])
            if t % 2 == 0 or t == n - 1:
                h = h + b(h)
        return net.update(h.sum())

    return Program(step, sequences(), state=net)


@program(speculated=0, compiles=30, close=0.0001)
def last_forward():
    a = nn.Linear(4, 4).requires_grad_(False)

    def step(xs):
        h = torch.zeros(2, 4)
        for t in range(len(xs)):
            h = a(h) + xs[t]
            if t == len(xs) - 1:
                break
            h = torch.relu(h)
        return h

    return Program(step, sequences())


@program(speculated=21, compiles=4, close=0.0001)
def zero_iterations():
    net = Net()
    a, b = net.layers

    def step(xs):
        h = b(torch.ones(2, 4))
        n = len(xs)
        for t in range(n):
            h = torch.tanh(a(h) + xs[t])
            if t == n - 1:
                h = b(h)
        return net.update(h.sum())

    return Program(step, sequences([*LENGTHS, 0, 5, 0, 1]), state=net)


@program(speculated=19, compiles=2, close=0.0001)
def skipped():
    net = Net()
    a, b = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        for t in range(len(xs)):
            if t == 0:
                h = a(xs[t])
                continue
            h = torch.tanh(a(h) + xs[t])
        return net.update(b(h).sum())

    return Program(step, sequences(), state=net)


@program(speculated=19, compiles=2, close=0.0001)
def another_length():
    net = Net()
    a, b = net.layers

    def step(xs, ys):
        h = torch.zeros(2, 4)
        for t in range(len(xs)):
            h = torch.tanh(a(h) + xs[t])
            if t < len(ys):
                h = h + b(h)
        return net.update(h.sum() + ys.sum())

    return Program(step, [(x, torch.randn(1 + len(x) // 2, 2)) for (x,) in sequences()], state=net)


@program(speculated=19, compiles=2, close=0.0001)
def looks_at_the_next():
    net = Net()
    a, b = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        loss = torch.zeros(())
        for t in range(len(xs)):
            h = torch.tanh(a(h) + xs[t])
            if t + 1 < len(xs):
                loss = loss + (b(h) - xs[t + 1]).pow(2).mean()
        return net.update(loss + h.sum())

    return Program(step, sequences(), state=net)


@program(speculated=19, compiles=2, close=0.0001)
def next_of_a_batch_with_gradients():
    net = Net()
    a, b = net.layers

    def step(x):
        x = torch.tanh(a(x))
        h = torch.zeros(2, 4)
        loss = 0
        for t in range(x.size(1)):
            h = torch.tanh(b(h) + x[:, t])
            if t < x.size(1) - 1:
                loss = loss + (h - x[:, t + 1]).pow(2).mean()
        return net.update(loss + h.sum())

    return Program(step, batches(), state=net)


@program(speculated=17, compiles=4, close=0.0001)
def rows_of_a_shorter_one():
    net = Net()
    a, b = net.layers

    def step(xs, ys):
        h = torch.zeros(2, 4)
        for t in range(len(xs)):
            h = torch.tanh(a(h) + xs[t])
            if t < len(ys):
                h = h + b(ys[t])
        return net.update(h.sum())

    return Program(step, [(x, torch.randn((1 + len(x)) // 2, 2, 4)) for (x,) in sequences()], state=net)


@program(speculated=16, compiles=4, close=0.0001)
def a_row_that_is_not_there():
    net = Net()
    a, b = net.layers

    def step(xs, ys, n):
        h = torch.zeros(2, 4)
        for t in range(len(xs)):
            h = torch.tanh(a(h) + xs[t])
            if t < n:
                h = h + b(ys[t])
        return net.update(h.sum())

    return Program(
        step,
        [
            (x, torch.randn((1 + len(x)) // 2, 2, 4), (1 + len(x)) // 2 + (i == 15))
            for i, (x,) in enumerate(sequences())
        ],
        state=net,
    )


@program(speculated=19, compiles=2, close=0.0001)
def before_the_first():
    net = Net()
    a, b = net.layers

    def step(xs, ys):
        h = torch.zeros(2, 4)
        for t in range(len(xs)):
            h = torch.tanh(a(h) + xs[t])
            if t != 1:
                h = h + b(ys[t - 1])
        return net.update(h.sum())

    return Program(step, [(x, torch.randn(len(x) + 1, 2, 4)) for (x,) in sequences()], state=net)


@program(speculated=19, compiles=2, close=0.0001)
def two_loops():
    net = Net()
    a, b = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        n = len(xs)
        for t in range(n):
            h = torch.tanh(a(h) + xs[t])
            if t == n - 1:
                h = h * 0.5
        for t in range(n):
            h = torch.tanh(b(h) + xs[t])
            if t < n - 1:
                h = h * 0.9
        return net.update(h.sum())

    return Program(step, sequences(), state=net)


@program(speculated=18, compiles=4, close=0.0001)
def warm_up_of_an_object():
    net = Net()
    net.warm = 2
    a, b = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        for t in range(len(xs)):
            h = torch.tanh(a(h) + xs[t])
            if t >= net.warm:
                h = h + b(h)
        return net.update(h.sum())

    def set_warm(k):
        def change():
            net.warm = k

        return change

    return Program(step, sequences(), state=net, before={n: set_warm(n % 4 - 1) for n in range(3, 26)})


@program(speculated=19, compiles=2, close=0.0001)
def embedded():
    net = Net()
    net.emb = nn.Embedding(7, 4)
    net.opt = torch.optim.Adam(net.parameters(), lr=0.01)
    a, b = net.layers

    def step(ids):
        x = net.emb(ids)
        h = torch.zeros(2, 4)
        for t in range(x.size(1)):
            h = torch.tanh(a(h) + x[:, t])
            if t == x.size(1) - 1:
                h = b(h)
        return net.update(h.pow(2).sum())

    return Program(step, [(torch.randint(7, (2, n)),) for n in LENGTHS], state=net)


@program(speculated=19, compiles=2, close=0.0001)
def two_loops_over_the_same():
    net = Net()
    a, b = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        n = len(xs)
        for t in range(n):
            h = torch.tanh(a(h) + xs[t])
            if t == 0:
                h = h * 0.5
        for t in range(n):
            h = torch.tanh(b(h) + xs[t])
            if t % 2 == 0:
                h = h * 0.9
        return net.update(h.sum())

    return Program(step, sequences(), state=net)


@program(speculated=19, compiles=2, close=0.0001)
def a_plain_loop_before():
    net = Net()
    a, b = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        n = len(xs)
        for t in range(n):
            h = torch.tanh(a(h) + xs[t])
        for t in range(n):
            h = torch.tanh(b(h) + xs[t])
            if t % 2 == 0:
                h = h * 0.9
        return net.update(h.sum())

    return Program(step, sequences(), state=net)


@program(speculated=19, compiles=2, close=0.0001)
def two_loops_of_two_lengths():
    net = Net()
    a, b = net.layers

    def step(xs, ys):
        h = torch.zeros(2, 4)
        for t in range(len(xs)):
            h = torch.tanh(a(h) + xs[t])
            if t == len(xs) - 1:
                h = h * 0.5
        for t in range(len(ys)):
            h = torch.tanh(b(h) + ys[t])
            if t == len(ys) - 1:
                h = h * 0.9
        return net.update(h.sum())

    return Program(
        step,
        [
            (
                torch.randn(n, 2, 4),
                torch.randn((n + 2) % 7 + 2, 2, 4),
            )
            for n in LENGTHS
        ],
        state=net,
    )


@program(speculated=0, compiles=30, close=0.0001)
def the_last_number_of_an_earlier_loop():
    net = Net()
    a, b = net.layers

    def step(xs, ys):
        h = torch.zeros(2, 4)
        for t in range(len(xs)):
            h = torch.tanh(a(h) + xs[t])
        last = t
        for s in range(len(ys)):
            h = torch.tanh(b(h) + ys[s])
            if s == last:
                h = h * 0.5
        return net.update(h.sum())

    return Program(step, [(torch.randn(1 + n % 5, 2, 4), y) for n, (y,) in enumerate(sequences())], state=net)


@program(speculated=16, compiles=4, close=0.0001)
def by_chance_the_last():
    net = Net()
    a, b = net.layers

    def step(xs, k):
        h = torch.zeros(2, 4)
        for t in range(len(xs)):
            h = torch.tanh(a(h) + xs[t])
            if t == k:
                h = b(h)
        return net.update(h.sum())

    return Program(step, [(x, len(x) - 1 if n < 8 else n % 5) for n, (x,) in enumerate(sequences())], state=net)


@program(speculated=8, compiles=4, close=0.0001)
def by_chance_the_last_constant():
    net = Net()
    a, b = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        for t in range(len(xs)):
            h = torch.tanh(a(h) + xs[t])
            if t == 4:
                h = b(h)
        return net.update(h.sum())

    return Program(step, sequences([5, 5, 5, 5, 5, 4, 7, 3, 5, 8, 9, 5, 12, 1, 6, 5, 7]), state=net)


@program(speculated=0, compiles=30, close=0.0001)
def the_number_in_an_iteration_of_its_own():
    def step(xs):
        h = torch.zeros(2, 4)
        n = len(xs)
        for t in range(n):
            h = torch.tanh(h + xs[t])
            if t == 2:
                h = h * (t + 1) + 2
            if t == n - 1:
                h = h * t + n
        return h

    return Program(step, sequences())


@program(speculated=0, compiles=30, close=0.0001)
def may_come_out_as_it_is():
    def step(xs, h):
        given = h
        for t in range(len(xs)):
            if t < len(xs) - 2:
                h = h * 0.5 + xs[t]
        return h, h is given

    return Program(step, [(x, torch.ones(2, 4)) for (x,) in sequences()])


@program(speculated=19, compiles=2, close=0.0001)
def may_stay_a_number():
    net = Net()
    a, b = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        loss = 0
        for t in range(len(xs)):
            h = torch.tanh(a(h) + xs[t])
            if t < len(xs) - 1:
                loss = loss + b(h).sum()
        net.update(h.sum() + loss)
        return loss.detach() if isinstance(loss, torch.Tensor) else loss

    return Program(step, sequences(), state=net)


@program(speculated=19, compiles=2, close=0.0001)
def adds_from_the_second_on():
    net = Net()
    a, b = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        loss = 0
        for t in range(len(xs)):
            h = torch.tanh(a(h) + xs[t])
            if t > 0:
                loss = loss + b(h).sum()
        return net.update(h.sum() + loss)

    return Program(step, sequences(), state=net)


@program(speculated=19, compiles=2, close=0.0001)
def dropped_out():
    net = Net()
    a, b = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        for t in range(len(xs)):
            h = torch.tanh(a(h) + xs[t])
            if t < len(xs) - 1:
                h = torch.nn.functional.dropout(h, 0.3)
        return net.update(b(h).sum())

    return Program(step, sequences(), state=net)


@program(speculated=0, compiles=30, close=0.0001)
def every_so_many():
    net = Net()
    a, b = net.layers

    def step(xs, k):
        h = torch.zeros(2, 4)
        for t in range(len(xs)):
            h = torch.tanh(a(h) + xs[t])
            if t % k == 0:
                h = h + b(h)
        return net.update(h.sum())

    return Program(step, [(x, (2, 3, 2, 1, 0, 4)[n % 6]) for n, (x,) in enumerate(sequences())], state=net)


@program(speculated=0, compiles=30, close=0.0001)
def by_a_fraction():
    net = Net()
    a, b = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        for t in range(len(xs)):
            h = torch.tanh(a(h) + xs[t])
            if t < 0.5 * len(xs):
                h = h + b(h)
        return net.update(h.sum())

    return Program(step, sequences(), state=net)


@program(speculated=16, compiles=2, close=0.0001)
def from_one_to_the_last():
    net = Net()
    a, b = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        n = len(xs)
        for t in range(1, n):
            h = torch.tanh(a(h) + xs[t] - xs[t - 1])
            if t == n - 1:
                h = b(h)
        return net.update(h.sum())

    return Program(step, sequences(), state=net)


@program(speculated=0, compiles=30, close=0.0001)
def backwards_to_the_first():
    net = Net()
    a, b = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        for t in range(len(xs) - 1, -1, -1):
            h = torch.tanh(a(h) + xs[t])
            if t == 0:
                h = b(h)
        return net.update(h.sum())

    return Program(step, sequences(), state=net)


@program(speculated=0, compiles=30, close=0.0001, slow=True)
def batches_of_any_size():
    net = Net()
    a, b = net.layers

    def step(x):
        h = torch.zeros(x.size(0), 4)
        steps = x.size(1)
        outs = []
        for t in range(steps):
            h = torch.tanh(a(h) + x[:, t])
            if t == 0:
                h = h + b(h)
            elif t == steps - 1:
                h = h * 0.5
            outs.append(h)
        return net.update(torch.stack(outs, 1).pow(2).mean())

    return Program(step, [(torch.randn(1 + i % 4, n, 4),) for i, n in enumerate(LENGTHS)], state=net)


@program(speculated=18, compiles=2, close=0.0001)
def a_tensor_decides_too():
    net = Net()
    a, b = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        n = len(xs)
        for t in range(n):
            h = torch.tanh(a(h) + xs[t])
            if t < n - 1 and h.norm() > 1.7:
                h = b(h)
                net.hits += 1
        return net.update(h.sum())

    return Program(step, sequences(), state=net)


@program(speculated=19, compiles=2, close=0.0001)
def attributes_written_in_the_last_iteration():
    net = Net()
    a, b = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        n = len(xs)
        for t in range(n):
            h = torch.tanh(a(h) + xs[t])
            if t == n - 1:
                net.hits = t
            if t == 0:
                net.seen.append(h.sum().item())
        return net.update(b(h).sum())

    return Program(step, sequences(), state=net)


@program(speculated=19, compiles=2, close=0.0001)
def the_length_changes_from_outside():
    net = Net()
    net.steps = 4
    a, b = net.layers

    def change(k):
        def do():
            net.steps = k

        return do

    def step(x):
        h = torch.zeros(2, 4)
        for t in range(net.steps):
            h = torch.tanh(a(h) + x)
            if t == net.steps - 1:
                h = b(h)
        return net.update(h.sum())

    calls = [(torch.randn(2, 4),) for _ in LENGTHS]
    return Program(step, calls, state=net, before={n: change(k) for n, k in enumerate(LENGTHS)})


@program(speculated=0, compiles=30, close=0.0001)
def within_outer_iterations():
    net = Net()
    a, b = net.layers

    def step(x):
        total = torch.zeros(())
        for i in range(x.size(0)):
            h = torch.zeros(4)
            for t in range(x.size(1)):
                h = torch.tanh(a(h) + x[i, t])
                if t == x.size(1) - 1:
                    h = b(h)
            total = total + h.sum()
        return net.update(total)

    return Program(step, batches(), state=net)
