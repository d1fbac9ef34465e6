"""Loops of all kinds: over ranges, tensors, lists, dictionaries, generators; while; nested; short and rolled ones."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.harness import CALLS, Program, program

RUN_ONE_IN = 12  # Each takes a second or two, or is much like the others.

LONG = 24


def parameter(*shape, scale=0.3):
    return (torch.randn(*shape) * scale).requires_grad_()


class Net:
    """Weights of a hand-written recurrent cell, and their optimizer."""

    def __init__(self, gates=1, inputs=3, hidden=4):
        self.u, self.w = parameter(inputs, gates * hidden), parameter(hidden, gates * hidden)
        self.b = parameter(gates * hidden)
        self.opt = torch.optim.SGD([self.u, self.w, self.b], lr=0.05)

    def rnn(self, x, h):
        return torch.tanh(x @ self.u + h @ self.w + self.b)

    def lstm(self, x, h, c):
        i, f, g, o = (x @ self.u + h @ self.w + self.b).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c

    def update(self, loss):
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach()


def sequences(steps=LONG, calls=CALLS, batch=2, inputs=3):
    return [(torch.randn(steps, batch, inputs),) for _ in range(calls)]


def lists(*lengths):
    return [([torch.randn(2, 3) for _ in range(n)],) for n in lengths]


# -- long loops ---------------------------------------------------------------------------------------------------


@program(compiles=1)
def rnn_over_a_tensor():
    net = Net()

    def step(xs):
        h = torch.zeros(2, 4)
        for x in xs:
            h = net.rnn(x, h)
        return net.update(h.pow(2).sum())

    return Program(step, sequences(), state=net)


@program(compiles=1)
def rnn_by_index():
    net = Net()

    def step(xs):
        h = torch.zeros(2, 4)
        for t in range(xs.shape[1]):
            h = net.rnn(xs[:, t], h)
        return net.update(h.pow(2).sum())

    return Program(step, [(x.transpose(0, 1).contiguous(),) for (x,) in sequences()], state=net)


@program(compiles=1)
def rnn_over_a_list():
    net = Net()

    def step(xs):
        h = torch.zeros(2, 4)
        for x in xs:
            h = net.rnn(x, h)
        return net.update(h.pow(2).sum())

    return Program(step, lists(*[LONG] * CALLS), state=net)


@program(compiles=1)
def lstm_with_all_outputs():
    net = Net(gates=4)

    def step(xs):
        h = c = torch.zeros(2, 4)
        outs = []
        for x in xs:
            h, c = net.lstm(x, h, c)
            outs.append(h)
        return net.update(torch.stack(outs).pow(2).mean()), c.detach()

    return Program(step, sequences(), state=net)


@program(compiles=1)
def gru_by_hand():
    net = Net(gates=3)

    def step(xs):
        h = torch.zeros(2, 4)
        for x in xs.unbind(0):
            gates, inner = x @ net.u + net.b, h @ net.w
            r = torch.sigmoid(gates[:, :4] + inner[:, :4])
            z = torch.sigmoid(gates[:, 4:8] + inner[:, 4:8])
            h = z * h + (1 - z) * torch.tanh(gates[:, 8:] + r * inner[:, 8:])
        return net.update(h.sum())

    return Program(step, sequences(), state=net)


@program(compiles=1)
def losses_are_added_up():
    net = Net()

    def step(xs, ys):
        h, total = torch.zeros(2, 4), 0.0
        for x, y in zip(xs, ys, strict=True):
            h = net.rnn(x, h)
            total = total + F.mse_loss(h, y)
        return net.update(total / len(xs))

    calls = [(torch.randn(LONG, 2, 3), torch.randn(LONG, 2, 4)) for _ in range(CALLS)]
    return Program(step, calls, state=net)


@program(compiles=1)
def outputs_are_returned():
    net = Net()

    def step(xs):
        h, outs = torch.zeros(2, 4), []
        for x in xs:
            h = net.rnn(x, h)
            outs.append(h)
        net.update(outs[-1].sum())
        return [o.detach() for o in outs]

    return Program(step, sequences(), state=net)


@program(compiles=1)
def numbers_that_depend_on_the_iteration():
    net = Net()

    def step(xs):
        h = torch.zeros(2, 4)
        for t, x in enumerate(xs):
            h = net.rnn(x, h) * 0.95**t
        return net.update(h.sum())

    return Program(step, sequences(), state=net)


@program(compiles=1)
def dropout_in_each_iteration():
    net = Net()

    def step(xs):
        h = torch.zeros(2, 4)
        for x in xs:
            h = F.dropout(net.rnn(x, h), 0.3)
        return net.update(h.sum())

    return Program(step, sequences(), state=net)


@program(compiles=1)
def cell_of_a_module():
    cell, head = nn.LSTMCell(3, 4), nn.Linear(4, 2)
    opt = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=0.05)

    def step(xs, y):
        h = c = torch.zeros(2, 4)
        for x in xs:
            h, c = cell(x, (h, c))
        opt.zero_grad()
        loss = F.cross_entropy(head(h), y)
        loss.backward()
        opt.step()
        return loss.item()

    calls = [(torch.randn(LONG, 2, 3), torch.randint(2, (2,))) for _ in range(CALLS)]
    return Program(step, calls, state=(cell, head))


@program(compiles=1)
def power_iteration():
    a = torch.randn(5, 5)
    a = a @ a.T

    def step(v):
        for _ in range(30):
            v = a @ v
            v = v / v.norm()
        return v, v @ (a @ v)

    return Program(step, [(torch.randn(5),) for _ in range(CALLS)], state=a)


@program(compiles=1)
def fixed_point_without_gradients():
    w = parameter(4, 4, scale=0.1)

    def step(x):
        with torch.no_grad():
            z = torch.zeros_like(x)
            for _ in range(20):
                z = torch.tanh(z @ w + x)
        z = torch.tanh(z @ w + x)
        z.sum().backward()
        g = w.grad.clone()
        w.grad = None
        return g

    return Program(step, [(torch.randn(2, 4),) for _ in range(CALLS)], state=w)


@program(compiles=1)
def truncated_backpropagation():
    net = Net()

    def step(xs):
        h, total = torch.zeros(2, 4), 0.0
        for x in xs:
            h = net.rnn(x, h.detach())
            total = total + h.pow(2).sum()
        return net.update(total)

    return Program(step, sequences(), state=net)


@program(compiles=1)
def state_kept_between_calls():
    net = Net()
    memory = {"h": torch.zeros(2, 4)}

    def step(xs):
        h = memory["h"]
        for x in xs:
            h = net.rnn(x, h)
        memory["h"] = h.detach()
        return net.update(h.sum())

    return Program(step, sequences(), state=(net, memory))


@program(compiles=1)
def gradient_of_the_start():
    w = parameter(4, 4)

    def step(h):
        h = h.detach().requires_grad_()
        z = h
        for _ in range(20):
            z = torch.sin(z @ w)
        (g,) = torch.autograd.grad(z.sum(), [h])
        return g

    return Program(step, [(torch.randn(2, 4),) for _ in range(CALLS)], state=w)


@program(compiles=1)
def two_loops_one_after_the_other():
    net = Net()

    def step(xs):
        h, outs = torch.zeros(2, 4), []
        for x in xs:
            h = net.rnn(x, h)
            outs.append(h)
        k = torch.zeros(2, 4)
        for o in reversed(outs):
            k = torch.sigmoid(k * o)
        return net.update(k.sum())

    return Program(step, sequences(), state=net)


# -- long loops that stay as they are -----------------------------------------------------------------------------


@program(compiles=1)
def outputs_are_changed_afterwards():
    w = torch.randn(3, 4)

    def step(xs):
        outs, h = [], torch.zeros(2, 4)
        for x in xs:
            h = torch.tanh(x @ w + h)
            outs.append(h)
        h.add_(1)
        return torch.stack(outs), h

    return Program(step, sequences(), state=w)


@program(compiles=1)
def gradients_of_what_iterations_made():
    w = parameter(4, 4)

    def step(x):
        states = [x]
        for _ in range(20):
            states.append(torch.tanh(states[-1] @ w))
        return torch.autograd.grad(states[-1].sum(), [states[3], states[10]])

    return Program(step, [(torch.randn(2, 4),) for _ in range(CALLS)], state=w)


@program(compiles=1)
def an_accumulator_is_changed_in_place():
    net = Net()
    total = torch.zeros(())

    def step(xs):
        h = torch.zeros(2, 4)
        for x in xs:
            h = net.rnn(x, h)
            total.add_(h.detach().sum())
        return net.update(h.sum())

    return Program(step, sequences(), state=(net, total))


@program(compiles=1)
def iterations_write_into_a_tensor():
    w = torch.randn(3, 4)

    def step(xs):
        out, h = torch.zeros(LONG, 2, 4), torch.zeros(2, 4)
        for t in range(LONG):
            h = torch.tanh(xs[t] @ w + h)
            out[t] = h
        return out

    return Program(step, sequences(), state=w)


@program(compiles=1)
def layers_of_their_own():
    layers = [parameter(4, 4) for _ in range(20)]

    def step(x):
        for w in layers:
            x = torch.relu(x @ w) + x
        x.sum().backward()
        for w in layers:
            with torch.no_grad():
                w.sub_(w.grad, alpha=0.01)
            w.grad = None
        return x.detach()

    return Program(step, [(torch.randn(2, 4),) for _ in range(CALLS)], state=layers)


@program(compiles=1)
def iterations_differ():
    net = Net()

    def step(xs):
        h = torch.zeros(2, 4)
        for t, x in enumerate(xs):
            h = net.rnn(x, h)
            if t % 5 == 2:
                h = h * 2
        return net.update(h.sum())

    return Program(step, sequences(), state=net)


@program(compiles=1)
def what_is_returned_shares_memory():
    w = torch.randn(3, 4)

    def step(xs):
        outs, h = [], torch.zeros(2, 4)
        for x in xs:
            h = torch.tanh(x @ w + h)
            outs.append(h[:, 1:])
        return outs, h

    return Program(step, sequences(), state=w)


# -- short loops --------------------------------------------------------------------------------------------------


@program(compiles=1)
def nested_loops():
    w = parameter(3, 3)

    def step(x):
        total = 0.0
        for i in range(3):
            for j in range(i + 1):
                x = torch.tanh(x @ w)
            total = total + x.sum() * (i + j)
        total.backward()
        g = w.grad.clone()
        w.grad = None
        return g

    return Program(step, [(torch.randn(2, 3),) for _ in range(CALLS)], state=w)


@program(compiles=1)
def break_continue_and_else():
    def step(x):
        found = None
        for i, row in enumerate(x):
            if i == 1:
                continue
            if i == 3:
                found = row
                break
            x = x + row
        else:
            x = x * 0
        for _ in range(2):
            x = x + 1
        else:
            x = x * 2
        return x, found

    return Program(step, [(torch.randn(5, 3),) for _ in range(CALLS)])


@program(compiles=1)
def over_dictionaries_and_generators():
    weights = {"a": parameter(3), "b": parameter(3), "c": parameter(3)}

    def halves(x):
        for _ in range(3):
            x = x / 2
            yield x

    def step(x):
        total = sum((w * x).sum() for w in weights.values())
        for name, w in weights.items():
            total = total + (w.sum() if name != "b" else -w.sum())
        for half in halves(x):
            total = total + half.sum()
        total.backward()
        gradients = {name: w.grad.clone() for name, w in weights.items()}
        for w in weights.values():
            w.grad = None
        return gradients

    return Program(step, [(torch.randn(3),) for _ in range(CALLS)], state=weights)


@program(compiles=1)
def while_by_a_counter():
    def step(x):
        k = 0
        while k < 4:
            x = torch.cos(x) + k
            k += 1
        return x, k

    return Program(step, [(torch.randn(3),) for _ in range(CALLS)])


@program(compiles=1)
def prints_in_iterations():
    def step(x):
        for t in range(3):
            x = torch.sin(x)
            print("round", t, x.sum().item())
        return x

    return Program(step, [(torch.randn(3),) for _ in range(CALLS)])


@program(compiles=1)
def beam_of_three():
    w = torch.randn(4, 4)

    def step(x):
        scores, states = torch.zeros(1), x.unsqueeze(0)
        for _ in range(4):
            found = torch.log_softmax(states @ w, -1)
            scores, best = (scores.unsqueeze(1) + found).flatten().topk(3)
            states = torch.tanh(states[best // 4] + w[best % 4])
        return scores, states

    return Program(step, [(torch.randn(4),) for _ in range(CALLS)], state=w)


# -- trip counts that change --------------------------------------------------------------------------------------


@program(speculated=2, compiles=4)
def lists_of_three_lengths():
    net = Net()

    def step(xs):
        h = torch.zeros(2, 4)
        for x in xs:
            h = net.rnn(x, h)
        return net.update(h.sum())

    return Program(step, lists(20, 20, 20, 22, 22, 22, 20, 22, 3, 3), state=net)


@program(speculated=2, compiles=4)
def range_of_an_argument():
    w = parameter(3, 3)

    def step(x, n):
        for _ in range(n):
            x = torch.tanh(x @ w)
        x.sum().backward()
        g = w.grad.clone()
        w.grad = None
        return g

    calls = [(torch.randn(2, 3), n) for n in (20, 20, 20, 40, 40, 40, 20, 40, 1, 0)][:9]
    return Program(step, calls, state=w)


@program(speculated=0, compiles=4)
def while_until_it_converges():
    a = torch.tensor([[0.5, 0.1], [0.2, 0.4]])

    def step(x):
        n = 0
        while x.norm() > 0.1:
            x = a @ x
            n += 1
        return x, n

    return Program(step, [(torch.full((2,), float(k)),) for k in (1, 1, 1, 1, 2, 4, 1, 8, 1, 1)], state=a)


# -- one graph for all trip counts --------------------------------------------------------------------------------

LENGTHS = (5, 7, 5, 9, 12, 30, 6, 3, 17, 8)


@program(speculated=7, compiles=1)
def tensors_of_changing_length():
    net = Net()

    def step(xs):
        h = torch.zeros(2, 4)
        for x in xs:
            h = net.rnn(x, h)
        return net.update(h.pow(2).sum())

    return Program(step, [(torch.randn(n, 2, 3),) for n in LENGTHS], state=net)


@program(speculated=7, compiles=1)
def lstm_of_changing_length():
    net = Net(gates=4)

    def step(xs):
        h = c = torch.zeros(2, 4)
        outs = []
        for t in range(xs.shape[1]):
            h, c = net.lstm(xs[:, t], h, c)
            outs.append(h)
        return net.update(torch.stack(outs, 1).pow(2).mean()), c.detach()

    return Program(step, [(torch.randn(2, n, 3),) for n in LENGTHS], state=net)


@program(speculated=7, compiles=1)
def module_cell_of_changing_length():
    cell, head = nn.GRUCell(3, 4), nn.Linear(4, 2)
    opt = torch.optim.Adam([*cell.parameters(), *head.parameters()], lr=0.01)

    def step(xs, y):
        h = torch.zeros(2, 4)
        for x in xs:
            h = cell(x, h)
        opt.zero_grad()
        loss = F.cross_entropy(head(h), y)
        loss.backward()
        opt.step()
        return loss.item()

    calls = [(torch.randn(n, 2, 3), torch.randint(2, (2,))) for n in LENGTHS]
    return Program(step, calls, state=(cell, head))


@program(speculated=7, compiles=1)
def number_of_iterations():
    w = parameter(3, 3)

    def step(x, n):
        for _ in range(n):
            x = torch.tanh(x @ w)
        x.sum().backward()
        g = w.grad.clone()
        w.grad = None
        return g

    return Program(step, [(torch.randn(2, 3), n) for n in LENGTHS], state=w)


@program(speculated=4, compiles=3)
def number_of_iterations_down_to_none():
    a = torch.randn(3, 3)

    def step(x, n):
        for _ in range(n):
            x = torch.sin(a @ x)
        return x * 2

    return Program(step, [(torch.randn(3), n) for n in (4, 5, 6, 4, 1, 0, 2, 30, 5, 4)], state=a)


@program(speculated=7, compiles=1)
def outputs_of_all_iterations_returned():
    def step(x, n):
        outs = []
        for _ in range(n):
            x = torch.sin(x)
            outs.append(x)
        return outs

    return Program(step, [(torch.randn(3), n) for n in (3, 4, 5, 6, 7, 8, 9, 10, 4, 12)])


# -- changing trip counts, where a graph for all of them would be wrong ------------------------------------------


@program(speculated=0, compiles=4)
def iterations_that_know_their_number():
    def step(x, n):
        for t in range(n):
            x = torch.sin(x)
            if t > 6:
                x = x * 2
        return x

    return Program(step, [(torch.randn(3), n) for n in (3, 4, 5, 6, 7, 8, 9, 10, 4, 12)])


@program(speculated=0, compiles=4)
def late_iterations_that_weigh_more():
    def step(x, n):
        for t in range(n):
            x = torch.sin(x) + max(0, t - 6)
        return x

    return Program(step, [(torch.randn(3), n) for n in (3, 4, 5, 6, 7, 8, 9, 10, 4, 12)])


@program(speculated=0, compiles=4)
def first_outputs_only():
    def step(x, n):
        outs = []
        for _ in range(n):
            x = torch.sin(x)
            outs.append(x)
        return torch.stack(outs[:6])

    return Program(step, [(torch.randn(3), n) for n in (3, 4, 5, 6, 7, 8, 9, 10, 4, 12)])


@program(speculated=0, compiles=4)
def how_many_outputs_decides():
    def step(x, n):
        outs = []
        for _ in range(n):
            x = torch.sin(x)
            outs.append(x)
        return x if len(outs) < 7 else x * 2

    return Program(step, [(torch.randn(3), n) for n in (3, 4, 5, 6, 7, 8, 9, 10, 4, 12)])


@program(speculated=0, compiles=4)
def number_of_iterations_used_elsewhere():
    def step(x, n):
        y = torch.zeros(n)
        for _ in range(n):
            x = torch.sin(x)
        return x, y

    return Program(step, [(torch.randn(3), n) for n in (3, 4, 5, 6, 7, 8, 9, 10, 4, 12)])


@program(speculated=0, compiles=4)
def weights_in_turn():
    ws = [torch.randn(3, 3) for _ in range(12)]

    def step(x, n):
        for t in range(n):
            x = torch.sin(ws[t] @ x)
        return x

    return Program(step, [(torch.randn(3), n) for n in (3, 4, 5, 6, 7, 8, 9, 10, 4, 12)], state=ws)


@program(speculated=0, compiles=4)
def a_counter_on_an_object():
    class Counter:
        steps = 0

    counter = Counter()

    def step(x, n):
        for _ in range(n):
            counter.steps += 1
            x = torch.sin(x)
        return x

    return Program(step, [(torch.randn(3), n) for n in (3, 4, 5, 6, 7, 8, 9, 10, 4, 12)], state=counter)


@program(speculated=10, compiles=2)
def iterations_without_operations():
    def step(x):
        for _row in x:
            pass
        return x * 2

    return Program(step, [(torch.ones(4 + k % 2, 3),) for k in range(14)])


@program(speculated=17, compiles=1)
def teacher_forcing_over_sequences_of_other_lengths():
    """What an iteration leaves to the next one is a column of what the loop goes through, and nobody takes the last."""
    embed, cell, score = nn.Embedding(9, 4), nn.GRUCell(4, 4), nn.Linear(4, 9)

    def step(words):
        h = torch.zeros(3, 4)
        given = torch.zeros(3, dtype=torch.long)
        loss = 0.0
        for place in range(words.size(1)):
            h = cell(embed(given), h)
            loss = loss + F.cross_entropy(score(h), words[:, place])
            given = words[:, place]
        loss.backward()
        return loss.item()

    lengths = (5, 5, 7, 5, 6) * 4
    return Program(step, [(torch.randint(9, (3, length)),) for length in lengths], state=(embed, cell, score))


@program(speculated=8, compiles=3, reported="the iterations of a loop whose trip count changes are not all alike")
def a_column_that_is_left_by_the_last_iteration():
    """What the last iteration leaves is a part of what the loop goes through, and the program returns it as that."""
    cell = nn.GRUCell(4, 4)

    def step(xs):
        h, given = torch.zeros(3, 4), torch.zeros(3, 4)
        for place in range(xs.size(1)):
            h = cell(given, h)
            given = xs[:, place]
        h.sum().backward()
        return given

    lengths = (5, 5, 7, 5, 6) * 4
    return Program(step, [(torch.randn(3, length, 4),) for length in lengths], state=cell)
