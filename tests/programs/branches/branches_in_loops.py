"""Loops whose iterations take arms that tensors decide: ``if norm > 1``, ``continue``, ``elif``."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.harness import Program, program

RUN_ONE_IN = 32  # Each takes a second or more: a loop or a recursive function is compiled for any trip count or tree.

MANY = 24


class Net(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.ModuleList(layers or (nn.Linear(4, 4),))
        self.opt = torch.optim.SGD(self.layers.parameters(), lr=0.05)

    def update(self, loss):
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach()


def sequences(calls=MANY, low=4, high=10):
    """Tensors of changing length."""
    return [(torch.randn(low + (5 * n) % (high - low), 2, 4),) for n in range(calls)]


def batches(calls=MANY):
    return [(torch.randn(2, 4),) for _ in range(calls)]


# -- which sides there are -----------------------------------------------------------------------------------------


@program(speculated=18, compiles=2)
def normalised_where_large():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        for x in xs:
            h = torch.tanh(layer(h) + x)
            if h.norm() > 1.9:
                h = h / h.norm()
        return net.update(h.sum())

    return Program(step, sequences(), state=net)


@program(speculated=18, compiles=2)
def a_list_of_changing_length():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        for x in xs:
            h = torch.tanh(layer(h) + x)
            if h.sum() > 0:
                h = h - h.mean()
        return net.update(h.pow(2).sum())

    return Program(step, [(list(xs.unbind(0)),) for (xs,) in sequences()], state=net)


@program(speculated=14, compiles=4)
def layers_on_either_side():
    net = Net(nn.Linear(4, 4), nn.Linear(4, 4))
    a, b = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        for x in xs:
            h = torch.tanh(a(h) + x) if x.sum() > 0 else torch.sigmoid(b(h) - x)
        return net.update(h.sum())

    return Program(step, sequences(low=7, high=12), state=net)


@program(speculated=20, compiles=10)
def a_parameter_that_some_calls_do_not_use():
    net = Net(nn.Linear(4, 4), nn.Linear(4, 4))
    a, b = net.layers
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1)

    def step(xs):
        h = torch.zeros(2, 4)
        for x in xs:
            if x.sum() > 2.5:
                h = b(h) * x
            else:
                h = torch.tanh(a(h) + x)
        opt.zero_grad()
        h.sum().backward()
        opt.step()
        return h.detach()

    return Program(step, sequences(40), state=(net, opt))


@program(speculated=20, compiles=10)
def a_result_that_later_iterations_overwrite():
    net = Net(nn.Linear(4, 4), nn.Linear(4, 4))
    a, b = net.layers

    def step(xs):
        h = torch.ones(2, 4)
        best = h
        for x in xs:
            h = torch.tanh(a(h) + x)
            if x.sum() > 1.0:
                best = b(h)
            elif x.sum() < -1.0:
                best = h * 2
        return net.update(best.sum() + h.sum())

    return Program(step, sequences(40), state=net)


@program(speculated=16, compiles=3)
def iterations_that_are_skipped():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        for x in xs:
            if x.sum() < 0:
                continue
            h = torch.tanh(layer(h) + x)
        return net.update((h + xs[0]).sum())

    return Program(step, sequences(), state=net)


@program(speculated=12, compiles=5)
def elif_in_a_called_function():
    net = Net()
    (layer,) = net.layers

    def act(h, g):
        if g > 1:
            return torch.tanh(h)
        elif g > -1:
            return torch.relu(h)
        return h * 0.5

    def step(xs):
        h = torch.zeros(2, 4)
        for t in range(xs.shape[0]):
            x = xs[t]
            h = act(layer(h) + x, x.sum().item())
        return net.update(h.pow(2).mean())

    return Program(step, sequences(30), state=net)


@program(speculated=12, compiles=5)
def two_decisions_and_a_list_that_grows():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h, outs = torch.zeros(2, 4), []
        for x in xs:
            h = torch.tanh(layer(h) + x)
            if h.sum() > 0:
                h = h - 0.5
            h = h * 2 if h.max() < 0.7 else h
            outs.append(h)
        return net.update(torch.stack(outs).pow(2).mean())

    return Program(step, sequences(30), state=net)


@program(speculated=18, compiles=4)
def and_or_not():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        for x in xs:
            g = torch.tanh(layer(h) + x)
            if not (g.sum() > 0 and x.sum() > 0) or g.max() > 0.99:
                h = g * 0.5
            else:
                h = h + g
        return net.update(h.pow(2).mean())

    return Program(step, sequences(30), state=net)


# -- what is carried ---------------------------------------------------------------------------------------------


@program(speculated=16, compiles=2, close=0.0001)
def several_variables():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h, c = torch.zeros(2, 4), torch.ones(2, 4)
        for x in xs:
            if x.sum() > 0:
                c = torch.sigmoid(layer(h)) * c + x
            else:
                h, c = c, h + x
        return net.update((h * c + layer(h)).mean())

    return Program(step, sequences(), state=net)


@program(speculated=16, compiles=2, close=0.0001)
def the_one_before():
    """A chain of variables that begin with the same."""
    net = Net()
    (layer,) = net.layers

    def step(xs):
        a = b = c = torch.ones(2, 4)
        for x in xs:
            if x.sum() > 0:
                a, b, c = b, c, torch.tanh(layer(a) + x)
            else:
                a = a * 0.9
        return net.update((a + 2 * b + 3 * c).mean() + layer(a).mean())

    return Program(step, sequences(), state=net)


@program(speculated=10, compiles=6)
def what_is_reset():
    net = Net(nn.Linear(4, 4), nn.Linear(4, 4))
    first, layer = net.layers

    def step(x0, xs):
        h0 = first(x0)
        h = h0
        for x in xs:
            h = torch.tanh(layer(h) + x)
            if h.sum() > 1.5:
                h = h0
        return net.update(h.pow(2).sum())

    return Program(step, [(torch.randn(2, 4), xs) for (xs,) in sequences()], state=net)


@program(speculated=16)
def a_sum_in_place():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h, total = torch.zeros(2, 4), torch.zeros(())
        for x in xs:
            h = torch.tanh(layer(h) + x)
            if x.sum() > 0:
                h = h * 0.5
            total += h.pow(2).sum()
        return net.update(total)

    return Program(step, sequences(), state=net)


@program(speculated=0, compiles=24)
def the_best_so_far():
    # What is returned may be a part of what was given: a loop node's results are tensors of their own.
    def step(xs):
        best, where = xs[0], xs[0].sum()
        for x in xs:
            if x.sum() > where:
                best, where = x, x.sum()
        return best, where

    return Program(step, sequences())


@program(speculated=16, compiles=3)
def random_numbers_on_one_side():
    net = Net()
    (layer,) = net.layers

    def step(xs):
        h = torch.zeros(2, 4)
        for x in xs:
            h = torch.tanh(layer(h) + x)
            if x.sum() > 0:
                h = F.dropout(h, 0.3)
            else:
                h = h + 0.1 * torch.randn(2, 4)
        return net.update(h.sum())

    return Program(step, sequences(), state=net)


@program(speculated=16, compiles=3)
def many_iterations_of_a_constant_number():
    net = Net()
    (layer,) = net.layers

    def step(x):
        h = x
        for _ in range(12):
            h = torch.tanh(layer(h) + x * 0.5)
            if h.sum() > 0:
                h = h - h.mean()
        return net.update(h.pow(2).sum())

    return Program(step, batches(), state=net)


@program(speculated=16, compiles=3, close=0.0001)
def two_such_loops():
    net = Net()
    (layer,) = net.layers

    def step(xs, ys):
        h = torch.zeros(2, 4)
        for x in xs:
            h = torch.tanh(layer(h) + x)
            if h.sum() > 0:
                h = h - 1
        k = h
        for y in ys:
            if (y * k).sum() > 0:
                k = k + torch.relu(layer(k) * y)
            else:
                k = k * 0.5
        return net.update((h * k).mean())

    return Program(step, list(zip(*zip(*sequences()), *zip(*sequences(low=5)))), state=net)


@program(speculated=16)
def without_gradients():
    net = Net()
    (layer,) = net.layers

    @torch.no_grad()
    def step(xs):
        h = torch.zeros(2, 4)
        for i, x in enumerate(xs):
            h = torch.tanh(layer(h) + x)
            if h.abs().max().item() > 0.9:
                h = h / 2
        return h

    return Program(step, sequences(), state=net)


@program(speculated=16)
def part_of_what_is_left_is_differentiated():
    net = Net(nn.Linear(4, 4), nn.Linear(4, 4))
    a, _ = net.layers

    def step(xs):
        h, log = torch.zeros(2, 4), torch.zeros(2, 4)
        for x in xs:
            h = torch.tanh(a(h) + x)
            if h.sum() > 0:
                log = h
        return net.update(h.sum()), log.detach()

    return Program(step, sequences(), state=net)


# -- what is not rolled ----------------------------------------------------------------------------------------------


@program(speculated=0, compiles=24)
def a_state_that_is_no_tensor():
    def step(xs):
        h, seen = torch.zeros(2, 4), False
        for x in xs:
            if x.sum() > 3:
                seen = True
            h = h - x if seen else h + x
        return h

    return Program(step, sequences())


@program(speculated=0, compiles=24)
def a_count_of_decisions():
    def step(xs):
        h, count = torch.zeros(2, 4), 0
        for x in xs:
            h = h + x
            if x.sum() > 1:
                count += 1
                h = h * count
        return h

    return Program(step, sequences())


@program(speculated=0, compiles=24)
def a_number_of_another_iteration():
    def step(xs):
        h, g = torch.zeros(2, 4), 1.0
        for x in xs:
            h = h + x
            if x.sum() > 1:
                h = h * g
                g = x.mean().item()
        return h

    return Program(step, sequences())


@program(speculated=0, compiles=24)
def elements_of_some_iterations():
    def step(xs):
        outs = [xs[0]]
        for x in xs:
            if x.sum() > 0:
                outs.append(x * 2)
        return torch.stack(outs).sum(0)

    return Program(step, sequences())


@program(speculated=0, compiles=24)
def the_number_of_the_iteration_on_one_side():
    def step(xs):
        h = torch.zeros(2, 4)
        for t in range(xs.shape[0]):
            h = h + xs[t]
            if h.sum() > 0:
                h = h - t
        return h

    return Program(step, sequences())


# -- integers that happen to be the number of an iteration
# ------------------------------------------------------------------


@program(speculated=18, compiles=2, slow=True)
def constants_beside_the_number_of_the_iteration():
    net = Net(nn.Linear(4, 4))
    (layer,) = net.layers
    table = torch.arange(32.0).reshape(8, 4) / 32

    def step(xs):
        h = torch.zeros(2, 4)
        for t in range(xs.shape[0]):
            h = torch.tanh(layer(h) + xs[t] + table[5, :3].sum() + xs[t, :, 2:3])
            if h.sum() > 0:
                h = h * table[4] - xs[t, 1, 3]
        return net.update(h.sum())

    return Program(step, sequences(), state=net)


# -- what rounds collect -----------------------------------------------------------------------------------------------


@program(speculated=16, compiles=3, close=1e-5)
def outputs_of_another_layer_are_collected():
    net = Net(nn.Linear(4, 4), nn.Linear(4, 4))
    cell, out = net.layers

    def step(xs):
        h, outs = torch.zeros(2, 4), []
        for x in xs:
            h = torch.tanh(cell(h) + x)
            if h.abs().max() > 0.9:
                h = h * 0.9
            elif h.mean() < 0:
                h = h + 0.1
            outs.append(out(h))
        return net.update(torch.stack(outs).square().sum())

    return Program(step, sequences(), state=net)


# -- what rounds show ----------------------------------------------------------------------------------------------


@program(speculated=18, compiles=2)
def numbers_appended_in_each_iteration():
    net = Net(nn.Linear(4, 4))
    norms = []

    def step(xs):
        h = torch.zeros(2, 4)
        for x in xs:
            h = torch.tanh(net.layers[0](h) + x)
            if h.sum() > 0:
                h = h * 0.9
            norms.append(h.norm().item())
        return net.update(h.sum())

    return Program(step, sequences(), state=(net, norms))


@program(speculated=18, compiles=2)
def printed_in_each_iteration():
    net = Net(nn.Linear(4, 4))

    def step(xs):
        h = torch.zeros(2, 4)
        for t in range(xs.shape[0]):
            h = torch.tanh(net.layers[0](h) + xs[t])
            if h.sum() > 0:
                h = h * 0.9
            elif h.norm() > 1.5:
                h = h / 2
            print(f"{t}: {h.sum().item():.4f} of {h.norm().item():.3f}")
        return net.update(h.sum())

    return Program(step, sequences(), state=net)


@program(speculated=0, compiles=99)
def printed_on_one_side():
    net = Net(nn.Linear(4, 4))

    def step(xs):
        h = torch.zeros(2, 4)
        for x in xs:
            h = torch.tanh(net.layers[0](h) + x)
            if h.sum() > 0:
                h = h * 0.9
                print(f"cut to {h.norm().item():.3f}")
        return net.update(h.sum())

    return Program(step, sequences(), state=net)


@program(speculated=0, compiles=99)
def shown_before_it_is_changed():
    net = Net(nn.Linear(4, 4))
    norms = []

    def step(xs):
        h = torch.zeros(2, 4)
        for x in xs:
            with torch.no_grad():
                h = torch.tanh(net.layers[0](h) + x)
                norms.append(h[0, 0].item())
                if h.sum() > 0:
                    h.mul_(0.5)
        return h

    return Program(step, sequences(), state=(net, norms))


@program(speculated=16, compiles=4)
def loops_after_a_loop_in_which_tensors_decide():
    """Trip counts of later loops are sizes of tensors from before it, and of tensors made after it."""

    def step(x, rows):
        total = x.new_zeros(3)
        for row in x:
            if row.sum() > 0:
                total = ((total + row).tanh() * 2 + 0.1 * row).sigmoid().sin().cos() - 0.2
            else:
                total = ((total - 0.5 * row).sin() * 3 - 0.2 * row).tanh().cos().sin() + 0.3
        y = torch.cat([rows, total[None]])
        seen = []
        for k in range(y.size(0)):
            total = total + y[k].tanh() * (k + 1)
            seen.append(total)
        for row in rows:
            total = total * row.sigmoid()
        return total, torch.stack(seen)

    return Program(step, [(torch.randn(4, 3), torch.randn(2 + call % 4, 3)) for call in range(24)])
