"""Loops of changing trip counts within the iterations of loops of changing trip counts."""

import random

import torch
from torch import nn

from tests.programs.harness import Program, program

RUN_ONE_IN = 32  # Each takes a second or more: a loop or a recursive function is compiled for any trip count or tree.

N = 14


def sizes(least, most, seed=0):
    drawn = random.Random(seed)
    return [drawn.randint(least, most) for _ in range(N)]


PAIRS = list(zip(sizes(3, 7), sizes(3, 7, seed=1), strict=True))


class Trainer:
    def __init__(self, *modules):
        self.opt = torch.optim.SGD([p for m in modules for p in m.parameters()], lr=0.05)
        self.modules = modules

    def update(self, loss):
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach()


def grids(pairs=PAIRS):
    return [(torch.randn(a, b, 4),) for a, b in pairs]


@program(speculated=11, compiles=1, close=1e-4)
def passed_through_both():
    cell = nn.GRUCell(4, 5)
    o = Trainer(cell)

    def step(x):
        h = torch.zeros(1, 5)
        for i in range(x.size(0)):
            for t in range(x.size(1)):
                h = cell(x[i, t].unsqueeze(0), h)
        return o.update(h.pow(2).mean())

    return Program(step, grids(), state=o)


@program(speculated=11, compiles=1, close=1e-4)
def begun_anew_in_each_row():
    cell = nn.GRUCell(4, 5)
    o = Trainer(cell)

    def step(x):
        outs = []
        for i in range(x.size(0)):
            h = torch.zeros(1, 5)
            for t in range(x.size(1)):
                h = cell(x[i, t].unsqueeze(0), h)
            outs.append(h)
        return o.update(torch.cat(outs).pow(2).mean())

    return Program(step, grids(), state=o)


@program(speculated=11, compiles=1, close=1e-4)
def rows_of_rows():
    cell = nn.GRUCell(4, 5)
    o = Trainer(cell)

    def step(x):
        total = 0
        for row in x:
            h = torch.zeros(1, 5)
            for word in row:
                h = cell(word.unsqueeze(0), h)
            total = total + h.pow(2).mean()
        return o.update(total)

    return Program(step, grids(), state=o)


@program(speculated=11, compiles=1, close=1e-4)
def columns_and_part_of_each():
    lin = nn.Linear(6, 3)
    o = Trainer(lin)

    def step(x):
        h = torch.zeros(3)
        for t in range(x.size(1)):
            for i in range(x.size(0)):
                h = torch.tanh(lin(torch.cat([x[i, t, 1:], h])))
        return o.update(h.sum())

    return Program(step, grids(), state=o)


@program(speculated=11, compiles=1, close=1e-4)
def refined_several_times():
    """The inner number of iterations is a plain number."""
    net = nn.Linear(8, 4)
    o = Trainer(net)

    def step(x, k):
        z = torch.zeros(4)
        total = 0
        for t in range(x.size(0)):
            for _ in range(k):
                z = torch.tanh(net(torch.cat([x[t], z])))
            total = total + z.pow(2).mean()
        return o.update(total)

    return Program(step, [(torch.randn(a, 4), b) for a, b in PAIRS], state=o)


@program(speculated=10, compiles=1, close=1e-4)
def both_are_plain_numbers():
    net = nn.Linear(4, 4)
    o = Trainer(net)

    def step(x, n, k):
        z = x
        for _ in range(n):
            y = z
            for _ in range(k):
                y = torch.tanh(net(y))
            z = z + y
        return o.update(z.pow(2).mean())

    return Program(step, [(torch.randn(4), a, b) for a, b in PAIRS], state=o)


@program(speculated=11, compiles=1, close=1e-4)
def all_pairs():
    """One number says how often both turn."""
    lin = nn.Linear(4, 4)
    o = Trainer(lin)

    def step(x):
        total = 0
        n = x.size(0)
        for i in range(n):
            for j in range(n):
                total = total + (lin(x[i]) - x[j]).pow(2).sum()
        return o.update(total)

    return Program(step, [(torch.randn(a, 4),) for a, _ in PAIRS], state=o)


@program(speculated=11, compiles=1)
def without_gradients():
    def step(x):
        h = x.new_zeros(4)
        for i in range(x.size(0)):
            for t in range(x.size(1)):
                h = torch.tanh(h + x[i, t])
        return h

    return Program(step, grids())


@program(speculated=10, compiles=2)
def three_deep():
    def step(x):
        h = x.new_zeros(2)
        for i in range(x.size(0)):
            for j in range(x.size(1)):
                for k in range(x.size(2)):
                    h = torch.tanh(h + x[i, j, k])
            h = h * 0.5
        return h

    cubes = zip(sizes(3, 5, 2), sizes(3, 5, 3), sizes(3, 5, 4), strict=True)
    return Program(step, [(torch.randn(a, b, c, 2),) for a, b, c in cubes])


@program(speculated=11, compiles=1)
def two_within_one():
    def step(x, y):
        h = x.new_zeros(4)
        for i in range(x.size(0)):
            for t in range(x.size(1)):
                h = torch.tanh(h + x[i, t])
            for t in range(y.size(0)):
                h = torch.sin(h + y[t])
        return h

    return Program(step, [(torch.randn(a, b, 4), torch.randn(c, 4)) for (a, b), c in zip(PAIRS, sizes(3, 6, 5))])


@program(speculated=11, compiles=1, close=1e-4)
def gradient_of_what_is_gone_through():
    def step(x):
        x = x.clone().requires_grad_()
        h = x.new_zeros(4)
        for i in range(x.size(0)):
            for t in range(x.size(1)):
                h = torch.tanh(h + x[i, t]) * x[i, 0]
        (found,) = torch.autograd.grad(h.sum(), [x])
        return found

    return Program(step, grids())


@program(speculated=6, compiles=3)
def appended_row_by_row():
    """What iterations of the outer loop show the world."""
    log = []

    def step(x):
        for i in range(x.size(0)):
            h = x.new_zeros(4)
            for t in range(x.size(1)):
                h = torch.tanh(h + x[i, t])
            log.append(h.sum().item())
            print(i, "done")

    return Program(step, grids(), state=log)


# Only one of the two changes: the inner one is unrolled as long as it does not.


@program(speculated=11, compiles=1, close=1e-4)
def inner_stays():
    cell = nn.GRUCell(4, 5)
    o = Trainer(cell)

    def step(x):
        h = torch.zeros(1, 5)
        for i in range(x.size(0)):
            for t in range(x.size(1)):
                h = cell(x[i, t].unsqueeze(0), h)
        return o.update(h.pow(2).mean())

    return Program(step, grids([(a, 4) for a, _ in PAIRS]), state=o)


@program(speculated=11, compiles=1, close=1e-4)
def outer_stays():
    cell = nn.GRUCell(4, 5)
    o = Trainer(cell)

    def step(x):
        h = torch.zeros(1, 5)
        for i in range(x.size(0)):
            for t in range(x.size(1)):
                h = cell(x[i, t].unsqueeze(0), h)
        return o.update(h.pow(2).mean())

    return Program(step, grids([(4, b) for _, b in PAIRS]), state=o)


@program(speculated=2, compiles=3)
def few_iterations_and_none():
    def step(x):
        h = x.new_zeros(4)
        for i in range(x.size(0)):
            for t in range(x.size(1)):
                h = torch.tanh(h + x[i, t])
            h = h + 1
        return h

    pairs = [
        (4, 5),
        (5, 3),
        (3, 6),
        (0, 4),
        (4, 0),
        (1, 5),
        (5, 1),
        (2, 4),
        (4, 2),
        (6, 6),
        (1, 1),
        (7, 3),
        (4, 1),
        (0, 0),
    ]
    return Program(step, grids(pairs))


# The index of the iteration decides something within, so that the iterations of the outer loop differ.


@program(speculated=2, compiles=6)
def as_often_as_the_number_of_the_iteration():
    def step(x):
        h = x.new_zeros(4)
        for i in range(x.size(0)):
            for t in range(i):
                h = torch.tanh(h + x[t, i - t])
        return h

    return Program(step, [(torch.randn(a, a, 4),) for a, _ in PAIRS])


@program(speculated=1, compiles=8)
def weighted_by_both_numbers():
    def step(x):
        h = x.new_zeros(4)
        for i in range(x.size(0)):
            for t in range(x.size(1)):
                h = torch.tanh(h + x[i, t] * (i + 2 * t))
        return h

    return Program(step, grids())


@program(speculated=1, compiles=8)
def flat_index():
    def step(x, n, m):
        h = x.new_zeros(4)
        for i in range(n):
            for t in range(m):
                h = torch.tanh(h + x[i * m + t])
        return h

    return Program(step, [(torch.randn(a * b, 4), a, b) for a, b in PAIRS])


@program(speculated=1, compiles=8)
def counted_in_both():
    def step(x):
        h, seen = x.new_zeros(4), 0
        for i in range(x.size(0)):
            for t in range(x.size(1)):
                h = torch.tanh(h + x[i, t])
                seen += 1
            h = h / seen
        return h, seen

    return Program(step, grids())


@program(speculated=1, compiles=8)
def broken_off_within():
    def step(x):
        h = x.new_zeros(4)
        for i in range(x.size(0)):
            for t in range(x.size(1)):
                if t > i:
                    break
                h = torch.tanh(h + x[i, t])
        return h

    return Program(step, grids())


@program(speculated=1, compiles=8)
def left_out_within():
    def step(x):
        h = x.new_zeros(4)
        for i in range(x.size(0)):
            if i == 2:
                continue
            for t in range(x.size(1)):
                if t == 1:
                    continue
                h = torch.tanh(h + x[i, t])
        return h

    return Program(step, grids())


@program(speculated=1, compiles=8)
def last_number_is_used():
    def step(x):
        h = x.new_zeros(4)
        for i in range(x.size(0)):
            for t in range(x.size(1)):
                h = torch.tanh(h + x[i, t])
            h = h + t
        return h, i, t

    return Program(step, grids())


@program(speculated=11, compiles=1)
def drawn_within():
    def step(x):
        h = x.new_zeros(4)
        for i in range(x.size(0)):
            for t in range(x.size(1)):
                h = torch.tanh(h + x[i, t]) + torch.rand(4)
            h = torch.dropout(h, 0.3, True)
        return h

    return Program(step, grids())


@program(speculated=1, compiles=8)
def changed_in_place_within():
    def step(x):
        x = x.clone()
        for i in range(x.size(0)):
            for t in range(x.size(1)):
                x[i, t].mul_(0.5)
                x[0, t] += x[i, t]
        return x

    return Program(step, grids())


@program(speculated=1, compiles=8, slow=True)
def filled_within():
    def step(x):
        out = torch.zeros(x.size(0), x.size(1))
        for i in range(x.size(0)):
            for t in range(x.size(1)):
                out[i, t] = x[i, t].sum()
        return out

    return Program(step, grids())


@program(speculated=1, compiles=8)
def shown_within():
    seen = []

    def step(x):
        h = x.new_zeros(4)
        for i in range(x.size(0)):
            for t in range(x.size(1)):
                h = torch.tanh(h + x[i, t])
                seen.append((i, t))
                print(i, t)
        return h

    return Program(step, grids(), state=seen)


@program(speculated=1, compiles=8)
def collected_in_lists_of_lists():
    def step(x):
        rows = []
        for i in range(x.size(0)):
            row, h = [], x.new_zeros(4)
            for t in range(x.size(1)):
                h = torch.tanh(h + x[i, t])
                row.append(h)
            rows.append(row)
        return rows

    return Program(step, grids())


@program(speculated=0, compiles=8)
def taken_from_the_row_above():
    def step(x):
        zero = x.new_zeros(4)
        above = [zero for _ in range(x.size(1))]
        for i in range(x.size(0)):
            left, row = zero, []
            for j in range(x.size(1)):
                left = torch.tanh(x[i, j] + left + above[j])
                row.append(left)
            above = row
        return left

    return Program(step, grids())


@program(speculated=0, compiles=6)
def decided_within():
    def step(x):
        h = x.new_zeros(4)
        for i in range(x.size(0)):
            for t in range(x.size(1)):
                h = h + x[i, t]
                if h.sum() > 2:
                    h = h * 0.5
        return h

    return Program(step, grids())


@program(speculated=8, compiles=1)
def ended_by_tensors_within():
    def step(x):
        outs = []
        for i in range(x.size(0)):
            z = x[i, 0]
            while z.norm() > 1.0:
                z = z * 0.7
            outs.append(z)
        return torch.stack(outs)

    return Program(step, [(4 * one,) for (one,) in grids()])


@program(speculated=10, compiles=1)
def raises_within():
    def step(x, index):
        h = x.new_zeros(4)
        for i in range(x.size(0)):
            for t in range(x.size(1)):
                h = torch.tanh(h + x[i, t] + x[i].index_select(0, index)[0])
        return h

    def caught(x, index):
        try:
            return step(x, index)
        except IndexError:
            return None

    calls = [(torch.randn(a, b, 4), torch.tensor([6 if n == 9 else 1])) for n, (a, b) in enumerate(PAIRS)]
    return Program(caught, calls)


@program(speculated=11, compiles=1)
def sum_that_is_a_number_elsewhere():
    """A sum that begins with 0 is asked for where it still is a number."""

    def step(x):
        total = 0
        for i in range(x.size(0)):
            for t in range(x.size(1)):
                total = total + x[i, t].sum()
            y = x[i, 0] * total
        return total, y, -0.0 + total

    return Program(step, grids())


@program(speculated=9, compiles=2)
def other_module_in_later_calls():
    box = {"net": nn.Linear(4, 4)}

    def step(x):
        h = x.new_zeros(4)
        for i in range(x.size(0)):
            for t in range(x.size(1)):
                h = torch.tanh(box["net"](h) + x[i, t])
        return h.detach()

    def change():
        box["net"] = nn.Linear(4, 4, bias=False)

    return Program(step, grids(), before={9: change}, state=box)


def changing_in_turn():
    """First the one changes, then the other, then both."""
    pairs = (
        [(a, 5) for a in (6, 4, 7, 3, 6)] + [(4, b) for b in (7, 4, 6, 3, 8)] + [(5, 6), (3, 7), (6, 3), (7, 5), (4, 4)]
    )
    return grids([*pairs, (5, 3), (6, 7), (3, 3)])


@program(speculated=1, compiles=8)
def last_inner_number_is_used():
    def step(x):
        h = x.new_zeros(4)
        for i in range(x.size(0)):
            for t in range(x.size(1)):
                h = torch.tanh(h + x[i, t])
            h = h + t
        return h

    return Program(step, changing_in_turn())


@program(speculated=1, compiles=8)
def last_outer_number_is_used():
    def step(x):
        h = x.new_zeros(4)
        for i in range(x.size(0)):
            for t in range(x.size(1)):
                h = torch.tanh(h + x[i, t])
        return h * i

    return Program(step, changing_in_turn())


@program(speculated=14, compiles=2)
def last_numbers_are_returned():
    def step(x):
        h = x.new_zeros(4)
        for i in range(x.size(0)):
            for t in range(x.size(1)):
                h = torch.tanh(h + x[i, t])
        return h, i, t

    return Program(step, changing_in_turn())


@program(speculated=1, compiles=8)
def last_number_of_one_of_two():
    def step(x, y):
        h = x.new_zeros(4)
        for i in range(x.size(0)):
            for t in range(x.size(1)):
                h = torch.tanh(h + x[i, t])
            for s in range(y.size(0)):
                h = torch.sin(h + y[s])
            h = h + s
        return h

    lengths = [4] * 10 + [3, 6, 5, 4, 7, 3, 5, 6]
    return Program(step, [(x, torch.randn(c, 4)) for (x,), c in zip(changing_in_turn(), lengths, strict=True)])


@program(speculated=1, compiles=8)
def last_number_three_deep():
    def step(x):
        h = x.new_zeros(2)
        for i in range(x.size(0)):
            for j in range(x.size(1)):
                for k in range(x.size(2)):
                    h = torch.tanh(h + x[i, j, k])
                h = h + k
        return h

    lengths = [4] * 10 + [3, 6, 5, 4, 7, 3, 5, 6]
    return Program(
        step, [(torch.randn(*x.shape[:2], c, 2),) for (x,), c in zip(changing_in_turn(), lengths, strict=True)]
    )


@program(speculated=14, compiles=2)
def shape_of_a_row_that_is_made():
    emb = nn.Embedding(9, 4)

    def step(words):
        x = emb(words)
        h = x.new_zeros(4)
        for i in range(len(x)):
            row = x[i]
            for t in range(row.size(0)):
                h = torch.tanh(h + row[t] * row.size(0))
        return h.detach()

    return Program(step, [(torch.randint(9, x.shape[:2]),) for (x,) in changing_in_turn()], state=emb)


@program(speculated=13, compiles=2, close=1e-4)
def stacked_in_both():
    cell = nn.GRUCell(4, 5)
    head = nn.Linear(5, 2)
    o = Trainer(cell, head)

    def step(x):
        rows = []
        for row in x:
            outs, h = [], torch.zeros(1, 5)
            for word in row:
                h = cell(word.unsqueeze(0), h)
                outs.append(head(h))
            rows.append(torch.cat(outs))
        scores = torch.stack(rows)
        return o.update(scores.logsumexp(-1).mean()), scores.detach()

    return Program(step, changing_in_turn(), state=o)


@program(speculated=13, compiles=2)
def enumerated_in_both():
    emb = nn.Embedding(9, 4)

    def step(words, weights):
        total = 0.0
        for i, sentence in enumerate(words):
            h = torch.zeros(4)
            for t, word in enumerate(sentence):
                h = torch.tanh(h + emb(word) * weights[t])
            total += h.sum() * weights[i]
        return total.detach()

    return Program(step, [(torch.randint(9, x.shape[:2]), torch.randn(9)) for (x,) in changing_in_turn()], state=emb)


class Scan(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.GRUCell(4, 4), nn.GRUCell(4, 4)

    def summary(self, words):
        h = words.new_zeros(1, 4)
        for t in range(words.shape[0]):
            h = self.inner(words[t][None], h)
        return h

    def forward(self, document):
        d = document.new_zeros(1, 4)
        for i in range(document.shape[0]):
            d = self.outer(self.summary(document[i]), d)
        return d


@program(speculated=13, compiles=2, close=1e-4)
def in_methods_of_a_module():
    model = Scan()
    o = Trainer(model)

    def step(x):
        return o.update(model(x).pow(2).mean())

    return Program(step, changing_in_turn(), state=o)


@program(speculated=13, compiles=2, close=1e-4)
def batches_of_rows():
    """Columns of a batch, within rounds over time."""
    cell = nn.GRUCell(4, 4)
    o = Trainer(cell)

    def step(x):
        h = x.new_zeros(3, 4)
        loss = 0.0
        for t in range(x.size(1)):
            h = cell(x[:, t], h)
            y = h
            for k in range(x.size(0)):
                y = torch.sin(y) + x[k, 0]
            loss = loss + y.mean()
        return o.update(loss / x.size(1))

    return Program(step, grids([(3, b) for _, b in PAIRS] + [(3, 4), (3, 6)]), state=o)


@program(speculated=1, compiles=8)
def backwards_within():
    def step(x):
        h = x.new_zeros(4)
        for i in range(x.size(0)):
            for t in reversed(range(x.size(1))):
                h = torch.tanh(h + x[i, t])
        return h

    return Program(step, changing_in_turn())


@program(speculated=13, compiles=2, close=1e-4)
def losses_added_up_and_taken_off():
    lin = nn.Linear(4, 2)
    o = Trainer(lin)

    def step(x):
        loss, gain = 0, 0.0
        for row in x:
            h = torch.zeros(2)
            for word in row:
                h = torch.tanh(h + lin(word))
                loss += h.pow(2).sum()
            gain -= h.sum()
        return o.update((loss + 0.1 * gain) / x.numel()), gain.detach()

    return Program(step, changing_in_turn(), state=o)


@program(speculated=0, compiles=8)
def row_that_was_picked_within():
    """It leaves the step as a view of what was given, which changes later."""
    given = []

    def step(x):
        h = x.new_zeros(4)
        for i in range(x.size(0)):
            for t in range(x.size(1)):
                row = x[i]
                h = torch.tanh(h + row[t])
        x.mul_(2)
        given.append(x)
        return h, row, x[i, t]

    return Program(step, changing_in_turn(), state=given, between=lambda result: result[1].add_(1))


@program(speculated=0, compiles=8)
def gone_through_while_changed():
    def step(x):
        x = x.clone()
        h = x.new_zeros(4)
        for i in range(x.size(0)):
            for t in range(x.size(1)):
                h = torch.tanh(h + x[i, t])
            x.add_(h)
        return h, x

    return Program(step, changing_in_turn())


@program(speculated=5, compiles=8)
def other_types_and_switched_gradients():
    lin = nn.Linear(4, 4)

    def step(x, grad):
        h = torch.zeros(4)
        with torch.set_grad_enabled(grad):
            for i in range(x.size(0)):
                for t in range(x.size(1)):
                    h = torch.tanh(h + lin(x[i, t].float()))
        return h.requires_grad, h.detach()

    calls = [(x.double() if n % 3 == 1 else x, n % 2 == 0) for n, (x,) in enumerate(changing_in_turn())]
    return Program(step, calls, state=lin)


@program(speculated=11, compiles=1, close=1e-4)
def filled_by_the_iterations_around():
    """What each row comes to is written into a tensor of the step."""
    cell = nn.GRUCell(4, 5)
    o = Trainer(cell)

    def step(x):
        out = torch.zeros(x.size(0), 5)
        for i in range(x.size(0)):
            h = torch.zeros(1, 5)
            for t in range(x.size(1)):
                h = cell(x[i, t].unsqueeze(0), h)
            out[i] = h[0]
        return o.update(out.pow(2).mean())

    return Program(step, grids(), state=o)


@program(speculated=11, compiles=1)
def filled_by_both():
    """The rows of the inner loop's own tensor, too."""

    def step(x):
        out = torch.zeros(x.size(0), x.size(1))
        for i in range(x.size(0)):
            row = torch.zeros(x.size(1))
            for t in range(x.size(1)):
                row[t] = x[i, t].pow(2).sum()
            out[i] = row
        return out

    return Program(step, grids())


@program(speculated=11, compiles=1)
def growing_around():
    def step(x):
        ys = torch.zeros(1, 4)
        for i in range(x.size(0)):
            h = torch.zeros(4)
            for t in range(x.size(1)):
                h = torch.tanh(x[i, t] + h)
            ys = torch.cat([ys, ys[-1:] * 0.5 + h])
        return ys

    return Program(step, grids())


@program(speculated=1, compiles=8)
def filled_and_looked_at_within():
    """The inner rounds look at what is being filled."""

    def step(x):
        out = torch.zeros(x.size(0), 4)
        for i in range(x.size(0)):
            h = torch.zeros(4)
            for t in range(x.size(1)):
                h = torch.tanh(x[i, t] + h + out.sum(0))
            out[i] = h
        return out

    return Program(step, grids())


@program(speculated=1, compiles=8)
def filled_twice():
    def step(x):
        out, last = torch.zeros(x.size(0), 4), torch.zeros(x.size(0), 4)
        for i in range(x.size(0)):
            for t in range(x.size(1)):
                last[i] = x[i, t]
            out[i] = last[i] * 2
        return out, last

    return Program(step, grids())


@program(speculated=1, compiles=8)
def filled_by_iterations_that_stay():
    """The inner loop turns as often in all calls, and has gradients."""
    w = torch.ones(4, requires_grad=True)

    def step(x):
        out = torch.zeros(x.size(0), 3)
        for i in range(x.size(0)):
            row = torch.zeros(3)
            for t in range(3):
                row[t] = (x[i, t] * w).sum()
            out[i] = torch.tanh(row)
        out.pow(2).mean().backward()
        with torch.no_grad():
            w.sub_(0.1 * w.grad)
        w.grad = None
        return out.detach()

    return Program(step, [(torch.randn(n, 3, 4),) for n, _ in PAIRS], state=w)


@program(speculated=11, compiles=2, close=1e-4)
def rows_filled_with_gradients():
    cell = nn.GRUCell(4, 5)
    o = Trainer(cell)

    def step(x):
        out = torch.zeros(x.size(0), 5)
        for i in range(x.size(0)):
            h, row = torch.zeros(1, 5), torch.zeros(x.size(1), 5)
            for t in range(x.size(1)):
                h = cell(x[i, t].unsqueeze(0), h)
                row[t] = h[0]
            out[i] = row.mean(0)
        return o.update(out.pow(2).mean())

    return Program(step, grids([*PAIRS, (2, 1), (1, 2), (0, 3), (3, 0)]), state=o)
