"""Masks with no, one or more elements set: where torch treats these cases differently, and where not."""

import random

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.harness import Program, program

RUN_ONE_IN = 32  # Each takes a second or more: a loop or a recursive function is compiled for any trip count or tree.

N = 24


class Trainer:
    def __init__(self, *modules):
        self.opt = torch.optim.SGD([p for m in modules for p in m.parameters()], lr=0.05)
        self.modules = modules

    def update(self, loss):
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach()


def masks(least=0, rows=6):
    """Rows, and which of them: none, one or several."""
    drawn = random.Random(3)
    calls = []
    for _ in range(N):
        mask = torch.zeros(rows, dtype=torch.bool)
        mask[torch.randperm(rows)[: max(least, drawn.choice([0, 1, 1, 2, 3, 4]))]] = True
        calls.append((torch.randn(rows, 4), mask))
    return calls


def training(body, least=0):
    m = nn.Linear(4, 3)
    o = Trainer(m)

    def step(x, mask):
        return o.update(body(m, x, mask))

    return Program(step, masks(least), state=o)


@program(speculated=18, compiles=4)
def three_masks_at_once():
    def body(m, x, mask):
        out, kind = m(x), (x[:, 0] * 2).round()
        return out[kind == 0].pow(2).sum() + out[kind == 1].abs().sum() + out[mask].sum()

    return training(body)


@program(speculated=20, compiles=2)
def mean_of_the_chosen():
    return training(lambda m, x, mask: m(x[mask]).mean())


@program(speculated=20, compiles=2)
def cross_entropy_of_the_chosen():
    return training(lambda m, x, mask: F.cross_entropy(m(x[mask]), x[mask].argmax(1) % 3))


@program(speculated=20, compiles=2)
def chosen_and_others_multiplied():
    return training(lambda m, x, mask: (x[mask] @ x[~mask].t()).sum() + m(x).sum())


@program(speculated=20, compiles=2)
def chosen_joined_with_others():
    return training(lambda m, x, mask: m(torch.cat([x[mask], x[~mask], x[mask]])).pow(2).mean())


@program(speculated=18, compiles=3)
def chosen_written_into_zeros():
    def body(m, x, mask):
        out = torch.zeros(6, 3)
        out[mask] = m(x[mask])
        return out.pow(2).mean()

    return training(body)


@program(speculated=20, compiles=2)
def divided_by_how_many():
    def body(m, x, mask):
        idx = mask.nonzero().squeeze(1)
        return m(x[idx]).sum() / max(idx.numel(), 1)

    return training(body)


@program(speculated=16, compiles=4)
def squeezed_all_over():
    def body(m, x, mask):
        y = m(x[mask]).squeeze()
        return y.pow(2).sum() * y.dim()

    return training(body)


@program(speculated=16, compiles=4)
def positions_squeezed():
    return training(lambda m, x, mask: m(x[mask.nonzero().squeeze()]).pow(2).sum())


@program(speculated=16, compiles=4)
def reshaped_and_written():
    def body(m, x, mask):
        y = x[mask] * 1
        z = y.t().reshape(-1)
        z.add_(1)
        return m(y).sum() + z.sum()

    return training(body)


@program(speculated=16, compiles=4)
def made_contiguous_and_written():
    def body(m, x, mask):
        y = x[mask] * 1
        z = y.t().contiguous()
        z.mul_(3)
        return m(y).sum() + z.sum()

    return training(body)


@program(speculated=16, compiles=4)
def flattened_and_written():
    def body(m, x, mask):
        y = (x[mask] * 1).t()
        z = y.flatten()
        z.mul_(3)
        return m(y.t()).sum() + z.sum()

    return training(body)


@program(speculated=17, compiles=4)
def what_was_chosen_leaves():
    m = nn.Linear(4, 3)

    def step(x, mask):
        y = x[mask]
        u = m(y).detach()
        return (
            y,
            y.t().reshape(-1),
            y.t().contiguous(),
            y.squeeze(),
            u,
            u.t(),
            y[:, 0],
            y.unsqueeze(0).expand(2, -1, -1),
        )

    return Program(step, masks(), state=m)


@program(speculated=18, compiles=2)
def largest_of_none_raises():
    return training(lambda m, x, mask: m(x[mask]).max())


@program(speculated=18, compiles=2)
def largest_of_each_column_of_none_raises():
    return training(lambda m, x, mask: m(x[mask]).max(0).values.sum())


@program(speculated=5, compiles=4)
def rows_of_unlike_masks_added():
    def body(m, x, mask):
        return (m(x[mask]) * m(x[x[:, 0] > 0])).sum()

    return training(body)


@program(speculated=18, compiles=2)
def view_of_none_is_ambiguous():
    return training(lambda m, x, mask: m(x[mask]).reshape(x[mask].size(0), -1).sum())


@program(speculated=12, compiles=3)
def batch_norm_of_one_raises():
    m = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    o = Trainer(m)

    def step(x, mask):
        return o.update(m(x[mask]).pow(2).sum())

    return Program(step, masks(), state=o)


@program(speculated=16, compiles=4)
def running_sums_of_the_chosen():
    return training(lambda m, x, mask: m(x[mask]).cumsum(0).sum() + m(x[mask]).diff(dim=0).sum())


@program(speculated=20, compiles=2)
def normalised_along_the_chosen():
    def body(m, x, mask):
        return F.layer_norm(m(x[mask]), (3,)).pow(2).sum() + F.normalize(m(x[mask]), dim=0).sum()

    return training(body)


@program(speculated=13, compiles=4)
def iterations_over_the_chosen():
    cell = nn.RNNCell(4, 3)
    o = Trainer(cell)

    def step(x, mask, n):
        y = x[mask]
        h = torch.zeros(y.size(0), 3)
        for _ in range(n):
            h = cell(y, h)
        return o.update(h.sum())

    drawn = random.Random(1)
    return Program(step, [(*call, drawn.randint(3, 6)) for call in masks()], state=o)


def batches():
    """Batches of many sizes, one row among them."""
    return [(torch.randn(rows, 3),) for rows in (4, 5, 3, 6, 4, 7, 2, 5, 1, 8, 3, 9, 1, 2)]


@program(speculated=10, compiles=2)
def gradients_by_a_transform():
    w = torch.randn(3)

    def step(x):
        return torch.func.grad(lambda w: (x @ w).pow(2).mean())(w)

    return Program(step, batches(), state=w)


@program(speculated=10, compiles=2)
def gradients_of_each_row_by_transforms():
    w = torch.randn(3)

    def step(x):
        return torch.func.vmap(torch.func.grad(lambda w, row: (row * w).sum().tanh()), in_dims=(None, 0))(w, x)

    return Program(step, batches(), state=w)


@program(speculated=10, compiles=2)
def trained_on_each_row_by_a_transform():
    w = torch.randn(3, requires_grad=True)
    opt = torch.optim.SGD([w], lr=0.1)

    def step(x):
        loss = torch.func.vmap(lambda row: (row * w).sum().tanh())(x).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    return Program(step, batches(), state=(w, opt))
