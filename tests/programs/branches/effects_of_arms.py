"""Loops in which tensors decide, where only some arms print, write, append or count: effects of the host."""

import torch
from torch import nn

from tests.programs.harness import Program, program

RUN_ONE_IN = 32  # Each takes a second or more: a loop or a recursive function is compiled for any trip count or tree.

T = 1.9


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4)])
        self.opt = torch.optim.SGD(self.layers.parameters(), lr=0.05)
        self.hits = 0
        self.log = []

    def update(self, loss):
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach()


class Stats:
    def __init__(self):
        self.hits, self.last = 0, -1


STATS = Stats()


def sequences(calls=40, low=4, high=10):
    return [(torch.randn(low + (5 * n) % (high - low), 2, 4),) for n in range(calls)]


def fixed(calls=40, n=6):
    return [(torch.randn(n, 2, 4),) for _ in range(calls)]


@program(speculated=34, compiles=2, close=0.0001)
def attribute_counter():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        for x in xs:
            h = torch.tanh(layer(h) + x)
            if h.norm() > T:
                h = h / h.norm()
                net.hits += 1
        return net.update(h.sum())

    return Program(step, sequences(), state=net)


@program(speculated=34, compiles=2, close=0.0001)
def local_counter():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        count = 0
        for x in xs:
            h = torch.tanh(layer(h) + x)
            if h.norm() > T:
                count += 1
        return net.update(h.sum()), count

    return Program(step, sequences(), state=net)


@program(speculated=34, compiles=2, close=0.0001)
def local_counter_forward():
    layer = nn.Linear(4, 4).requires_grad_(False)

    def step(xs):
        h = torch.zeros(2, 4)
        count = 0
        for t in range(xs.shape[0]):
            h = torch.tanh(layer(h) + xs[t])
            if h.norm() > T:
                count += 1
                h = h * 0.5
        return h, count

    return Program(step, sequences())


@program(speculated=34, compiles=2, close=0.0001)
def log_from_before():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        for t, x in enumerate(xs):
            h = torch.tanh(layer(h) + x)
            if h.norm() > T:
                net.log.append(t)
        return net.update(h.sum())

    return Program(step, sequences(), state=net)


@program(speculated=34, compiles=2, close=0.0001)
def printed_on_one_side():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        for t in range(len(xs)):
            h = torch.tanh(layer(h) + xs[t])
            if h.norm() > T:
                print("large", t, h.norm().item())
        return net.update(h.sum())

    return Program(step, sequences(), state=net)


@program(speculated=34, compiles=2, close=0.0001)
def printed_on_both_sides():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        for t in range(len(xs)):
            h = torch.tanh(layer(h) + xs[t])
            if h.norm() > T:
                print("large")
            else:
                print("small", t)
                h = h * 2
        return net.update(h.sum())

    return Program(step, sequences(), state=net)


@program(speculated=34, compiles=2, close=0.0001)
def items_summed_on_one_side():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        total = 0.0
        for t in range(len(xs)):
            h = torch.tanh(layer(h) + xs[t])
            if h.norm() > T:
                total += h.sum().item()
        return net.update(h.sum()), total

    return Program(step, sequences(), state=net)


@program(speculated=28, compiles=3, close=0.0001)
def skip_and_count():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        skipped = 0
        for x in xs:
            if x.sum() < 0:
                skipped += 1
                continue
            h = torch.tanh(layer(h) + x)
        return net.update((h + xs[0]).sum()), skipped

    return Program(step, sequences(), state=net)


@program(speculated=34, compiles=2, close=0.0001)
def skipped_batches():
    # inner optimisation steps in a loop of changing length, with skipping of bad losses
    net = Net()
    (layer,) = net.layers

    def step(xs):
        skipped = 0
        total = torch.zeros(())
        for x in xs:
            loss = (layer(x) - x).pow(2).mean()
            if loss > 1.5:
                skipped += 1
                net.hits += 1
                continue
            total = total + loss
        if True:
            return net.update(total + 0 * (layer(xs[0])).sum()), skipped

    return Program(step, sequences(), state=net)


@program(speculated=34, compiles=2, close=0.0001)
def fixed_length_counter():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        count = 0
        for t in range(6):
            h = torch.tanh(layer(h) + xs[t])
            if h.norm() > T:
                count += 1
        return net.update(h.sum()), count

    return Program(step, fixed(), state=net)


@program(speculated=34, compiles=2, close=0.0001)
def dict_counts():
    net = Net()
    (layer,) = net.layers
    counts = {"up": 0, "down": 0}

    def step(xs):
        h = torch.zeros(2, 4)
        for x in xs:
            h = torch.tanh(layer(h) + x)
            if h.sum() > 0:
                counts["up"] += 1
            else:
                counts["down"] += 1
        return net.update(h.sum())

    return Program(step, sequences(), state=(net, counts))


@program(speculated=34, compiles=2, close=0.0001)
def last_turn_kept():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        last = -1
        for t in range(len(xs)):
            h = torch.tanh(layer(h) + xs[t])
            if h.norm() > T:
                last = t
        return net.update(h.sum()), last

    return Program(step, sequences(), state=net)


@program(speculated=30, compiles=2, close=0.0001)
def count_resets():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        count = 0
        for t in range(len(xs)):
            h = torch.tanh(layer(h) + xs[t])
            if h.norm() > T:
                count += 1
            else:
                count = 0
        loss = net.update(h.sum())
        return loss, count

    return Program(step, sequences(), state=net)


@program(speculated=34, compiles=2, close=0.0001)
def two_counters():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        a = b = 0
        for t in range(len(xs)):
            h = torch.tanh(layer(h) + xs[t])
            if h.norm() > T:
                a += 1
            else:
                b += 1
        loss = net.update(h.sum())
        return loss, a, b

    return Program(step, sequences(), state=net)


@program(speculated=34, compiles=2, close=0.0001)
def attribute_printed():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        for t in range(len(xs)):
            h = torch.tanh(layer(h) + xs[t])
            if h.norm() > T:
                net.hits += 1
                print("hit", net.hits, t)
            else:
                print("miss", net.hits)
        loss = net.update(h.sum())
        return loss, net.hits

    return Program(step, sequences(), state=net)


@program(speculated=34, compiles=2, close=0.0001)
def attribute_reset():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        net.hits = 0
        for t in range(len(xs)):
            h = torch.tanh(layer(h) + xs[t])
            if h.norm() > T:
                net.hits += 1
        loss = net.update(h.sum())
        return loss, net.hits

    return Program(step, sequences(), state=net)


@program(speculated=30, compiles=2, close=0.0001)
def a_total_that_each_side_changes():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        total = 0.0
        for t in range(len(xs)):
            h = torch.tanh(layer(h) + xs[t])
            if h.norm() > T:
                total += h.sum().item() * 2
            else:
                total -= 1
        loss = net.update(h.sum())
        return loss, total

    return Program(step, sequences(), state=net)


@program(speculated=34, compiles=2, close=0.0001)
def a_number_that_is_kept():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        best = -1.0
        for t in range(len(xs)):
            h = torch.tanh(layer(h) + xs[t])
            if h.norm() > T:
                best = h.norm().item()
        loss = net.update(h.sum())
        return loss, best

    return Program(step, sequences(), state=net)


@program(speculated=34, compiles=2, close=0.0001)
def texts_on_some_ways():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        for t in range(len(xs)):
            h = torch.tanh(layer(h) + xs[t])
            if h.norm() > T:
                print(f"{t}: {h.norm().item():.3f}")
            elif h.sum() > 0:
                print(f"up {h.sum().item():.2f}")
        loss = net.update(h.sum())
        return loss, 0

    return Program(step, sequences(), state=net)


@program(speculated=34, compiles=2, close=0.0001)
def beside_numbers_of_the_text():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        count = 2
        for t in range(len(xs)):
            h = torch.tanh(layer(h) + xs[t])
            if h.norm() > T:
                count += 1
        loss = net.update(h.sum())
        return loss, count, 4, 5

    return Program(step, sequences(), state=net)


@program(speculated=34, compiles=2, close=0.0001)
def object_counts():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        stats = Stats()
        for t in range(len(xs)):
            h = torch.tanh(layer(h) + xs[t])
            if h.norm() > T:
                stats.hits += 1
                stats.last = t
        loss = net.update(h.sum())
        return loss, stats.hits, stats.last

    return Program(step, sequences(), state=net)


@program(speculated=34, compiles=2, close=0.0001)
def object_before():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        for t in range(len(xs)):
            h = torch.tanh(layer(h) + xs[t])
            if h.norm() > T:
                STATS.hits += 1
                STATS.last = t
        loss = net.update(h.sum())
        return loss, STATS.hits, STATS.last

    return Program(step, sequences(), state=net)


@program(speculated=34, compiles=2, close=0.0001)
def elements_of_a_list_that_count():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        cells = [0, 0]
        for t in range(len(xs)):
            h = torch.tanh(layer(h) + xs[t])
            if h.norm() > T:
                cells[0] += 1
            else:
                cells[1] += 1
        loss = net.update(h.sum())
        return loss, cells

    return Program(step, sequences(), state=net)


# -- where a number decides, or is used by tensors: each call as in eager -------------------------------------------


@program(speculated=0, compiles=12, close=0.0001)
def history_of_turns():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        history = []
        for t in range(len(xs)):
            h = torch.tanh(layer(h) + xs[t])
            if h.norm() > T:
                history.append(t)
        return net.update(h.sum()), history

    return Program(step, sequences(), state=net)


@program(speculated=0, compiles=12, close=0.0001, slow=True)
def count_decides():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        count = 0
        for t in range(len(xs)):
            h = torch.tanh(layer(h) + xs[t])
            if h.norm() > T and count < 3:
                count += 1
                h = h * 0.5
        loss = net.update(h.sum())
        return loss, count

    return Program(step, sequences(), state=net)


@program(speculated=0, compiles=12, close=0.0001)
def count_indexes_directly():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        count = 0
        for t in range(len(xs)):
            h = torch.tanh(layer(h) + xs[t])
            h = h + xs[count] * 0.1
            if h.norm() > T:
                count += 1
        loss = net.update(h.sum())
        return loss, count

    return Program(step, sequences(), state=net)


@program(speculated=0, compiles=12, close=0.0001)
def range_after():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        count = 0
        for t in range(len(xs)):
            h = torch.tanh(layer(h) + xs[t])
            if h.norm() > T:
                count += 1
        loss = net.update(h.sum())
        return loss, [h.sum().item() * 0 for _ in range(count)]

    return Program(step, sequences(), state=net)


@program(speculated=0, compiles=12, close=0.0001)
def decides_after():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        count = 0
        for t in range(len(xs)):
            h = torch.tanh(layer(h) + xs[t])
            if h.norm() > T:
                count += 1
        loss = net.update(h.sum())
        return loss, "many" if count > 3 else "few"

    return Program(step, sequences(), state=net)


@program(speculated=0, compiles=12, close=0.0001)
def flag_inside():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        flag = False
        for t in range(len(xs)):
            h = torch.tanh(layer(h) + xs[t])
            if flag:
                h = h * 0.7
            if h.norm() > T + 0.6:
                flag = True
        loss = net.update(h.sum())
        return loss, flag

    return Program(step, sequences(), state=net)


@program(speculated=0, compiles=12, close=0.0001)
def intflag_inside():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        flag = 0
        for t in range(len(xs)):
            h = torch.tanh(layer(h) + xs[t])
            if flag:
                h = h * 0.7
            if h.norm() > T + 0.6:
                flag = 1
        loss = net.update(h.sum())
        return loss, flag

    return Program(step, sequences(), state=net)


@program(speculated=0, compiles=12, close=0.0001)
def multiplied_plainly():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        count = 0
        for t in range(len(xs)):
            h = torch.tanh(layer(h) + xs[t])
            if h.norm() > T:
                count += 1
            h = h * count
        loss = net.update(h.sum())
        return loss, count

    return Program(step, sequences(), state=net)


@program(speculated=0, compiles=12, close=0.0001, slow=True)
def two_numbers_swapped():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        a, b = 0, 1
        for t in range(len(xs)):
            h = torch.tanh(layer(h) + xs[t])
            if h.norm() > T:
                a, b = b, a + b
        loss = net.update(h.sum())
        return loss, a, b

    return Program(step, sequences(), state=net)


@program(speculated=0, compiles=12, close=0.0001)
def total_used():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        total = 0.0
        for t in range(len(xs)):
            h = torch.tanh(layer(h) + xs[t])
            if h.norm() > T:
                total += h.sum().item()
            h = h + total * 0.001
        loss = net.update(h.sum())
        return loss, total

    return Program(step, sequences(), state=net)


@program(speculated=0, compiles=12, close=0.0001)
def attribute_decides():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        net.hits = 0
        for t in range(len(xs)):
            h = torch.tanh(layer(h) + xs[t])
            if h.norm() > T:
                net.hits += 1
            if net.hits > 2:
                h = h * 0.5
        loss = net.update(h.sum())
        return loss, net.hits

    return Program(step, sequences(), state=net)


@program(speculated=0, compiles=12, close=0.0001)
def dict_grows():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        found = {}
        for t in range(len(xs)):
            h = torch.tanh(layer(h) + xs[t])
            if h.norm() > T:
                found[t] = 1
        loss = net.update(h.sum())
        return loss, found

    return Program(step, sequences(), state=net)


@program(speculated=0, compiles=12, close=0.0001)
def flag_after():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        flag = False
        for t in range(len(xs)):
            h = torch.tanh(layer(h) + xs[t])
            if h.norm() > T + 0.6:
                flag = True
        loss = net.update(h.sum())
        return loss, "some" if flag else "none"

    return Program(step, sequences(), state=net)
