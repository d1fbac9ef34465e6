"""Results whose sizes depend on data: masks, positions, counts, experts, and numbers computed from counts."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.harness import Program, program

RUN_ONE_IN = 32  # Each takes a second or more: a loop or a recursive function is compiled for any trip count or tree.

CALLS = 24


class Trainer:
    def __init__(self, model=None):
        self.model = model or nn.Linear(6, 4)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)

    def update(self, loss):
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach()


def rows(count=12, calls=CALLS):
    return [(torch.randn(count, 6),) for _ in range(calls)]


@program(speculated=18, compiles=4)
def positions_of_what_the_model_says():
    t = Trainer()

    def step(x):
        p = t.model(x)
        index = (p.argmax(1) < 2).nonzero().squeeze(1)
        return t.update(p[index].pow(2).sum() + p.mean()), index

    return Program(step, rows(), state=t)


@program(speculated=15, compiles=4)
def elements_under_a_mask():
    t = Trainer()

    def step(x):
        p = t.model(x)
        return t.update(p[p > 0.1].pow(2).sum() + p.mean())

    return Program(step, rows(), state=t)


@program(speculated=18, compiles=3)
def rows_under_a_mask_and_their_number():
    t = Trainer()

    def step(x):
        p = t.model(x)
        keep = x[:, 0] > 0
        chosen = p[keep]
        loss = F.mse_loss(chosen, x[keep][:, :4], reduction="sum") / max(1, int(keep.sum()))
        return t.update(loss), chosen.shape[0], len(chosen)

    return Program(step, rows(), state=t)


@program(speculated=12, compiles=6)
def a_mask_among_other_subscripts():
    t = Trainer()

    def step(x):
        p = t.model(x).view(3, 4, 4)
        keep = x[:4, 1] > 0
        return t.update(
            p[:, keep].pow(2).sum() + p[0, :, 0][keep].sum() + p[..., keep].mean() + p[None, :, keep, 1].sum()
        )

    return Program(step, rows(), state=t)


@program(speculated=18, compiles=3)
def masked_select_both_ways():
    t = Trainer()

    def step(x):
        p = t.model(x)
        return t.update(torch.masked_select(p, x[:, :1] > 0).pow(2).sum() + p.masked_select(p > 0.5).sum())

    return Program(step, rows(), state=t)


@program(speculated=12, compiles=4)
def elements_set_under_a_mask():
    t = Trainer()

    def step(x):
        p = t.model(x)
        keep = p.detach() > 0
        y = torch.zeros_like(p)
        y[keep] = p[keep] * 2
        y[~keep] = -1.0
        t.update(y.sum())
        return y.detach()

    return Program(step, rows(), state=t)


@program(speculated=18, compiles=3)
def where_of_a_condition():
    t = Trainer()

    def step(x):
        p = t.model(x)
        row, column = torch.where(p > 0.2)
        places = torch.nonzero(p > 1, as_tuple=True)
        return t.update((p[row, column] * x[row, column]).sum() + p[places].sum()), row.shape[0], torch.argwhere(x > 1)

    return Program(step, rows(), state=t)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(6, 3)
        self.experts = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def forward(self, x):
        weights, chosen = self.gate(x).softmax(-1).topk(2, -1)
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            row, place = torch.where(chosen == number)
            if row.numel() == 0:
                continue
            y.index_add_(0, row, expert(x[row]) * weights[row, place, None])
        return y


@program(speculated=15, compiles=4)
def mixture_of_experts():
    t = Trainer(Experts())

    def step(x):
        return t.update((t.model(x) - x.flip(1)).pow(2).mean())

    return Program(step, rows(16), state=t)


@program(speculated=12, compiles=9)
def experts_that_nobody_wants():
    t = Trainer(Experts())

    def step(x):
        return t.update((t.model(x) - x.flip(1)).pow(2).mean())

    return Program(step, rows(2, calls=40), state=t)


@program(speculated=18, compiles=3)
def counts_and_repetitions():
    t = Trainer()

    def step(x):
        p = t.model(x)
        best = p.argmax(1)
        count = torch.bincount(best, minlength=4)
        weighted = torch.bincount(best, weights=x[:, 0], minlength=4)
        spread = p.repeat_interleave(count[best], dim=0)
        return (
            t.update(spread.pow(2).sum() / count.sum()),
            count,
            weighted,
            torch.arange(3).repeat_interleave(count[:3]),
        )

    return Program(step, rows(), state=t)


@program(speculated=18, compiles=3)
def a_mask_that_is_given():
    t = Trainer()

    def step(x, mask):
        return t.update(t.model(x)[mask].pow(2).sum())

    return Program(step, [(x, torch.rand(12) > 0.3) for (x,) in rows()], state=t)


@program(speculated=0)
def a_mask_that_does_not_fit():
    def step(x, mask):
        try:
            return x[mask]
        except IndexError as error:
            return str(error)

    return Program(step, [(x, torch.rand(11) > 0.3) for (x,) in rows(calls=6)])


@program(speculated=8, compiles=3)
def a_mask_that_stops_fitting():
    def step(x, mask):
        try:
            return x[mask]
        except IndexError as error:
            return str(error)

    fitting = [(x, torch.rand(12) > 0.3) for (x,) in rows(calls=12)]
    return Program(step, [*fitting, (torch.randn(12, 6), torch.rand(11) > 0.3), *fitting[:3]])


@program(speculated=18, compiles=3)
def numbers_made_of_counts():
    t = Trainer()

    def step(x):
        p = t.model(x)
        n = int((p > 0).sum())
        k, half, odd = max(n, 1), n // 2, n % 3
        scale = min(max(0.1, p.abs().max().item()), 2.5)
        t.update(p.pow(2).sum() / k + p.sum() * half * 1e-3 / scale)
        return k, half, odd, scale, -n // 4, (-n) % 5, max(n, 3, 20), min(n, half)

    return Program(step, rows(), state=t)


@program(speculated=12, compiles=3)
def a_count_that_may_be_zero_divides():
    t = Trainer()

    def step(x):
        p = t.model(x)
        n = int((p > 1.2).sum())
        t.update(p.pow(2).mean())
        try:
            return p.detach() * (12 // n)
        except ZeroDivisionError:
            return "nobody"

    return Program(step, rows(4), state=t)


@program(speculated=6, compiles=6)
def nothing_is_selected_at_first():
    t = Trainer()
    with torch.no_grad():
        t.model.bias.fill_(-3.0)

    def step(x):
        p = t.model(x)
        return t.update(p[p > 0].sum() - p.mean()), (p > 0).nonzero().shape[0]

    return Program(step, rows(calls=40), state=t)


@program(speculated=14, compiles=3)
def a_mask_that_changes_afterwards():
    t = Trainer()

    def step(x):
        p = t.model(x)
        keep = p.detach() > 0
        first = p[keep]
        keep = keep & (x[:, :1] > 0)
        return t.update(first.sum() + p[keep].pow(2).sum())

    return Program(step, rows(), state=t)


@program(speculated=0, compiles=0)
def a_mask_is_changed_in_place_afterwards():
    t = Trainer()

    def step(x):
        p = t.model(x)
        keep = p.detach() > 0
        first = p[keep]
        keep &= x[:, :1] > 0
        return t.update(first.sum() + p[keep].pow(2).sum())

    return Program(step, rows(calls=8), state=t)


@program(speculated=8, compiles=2)
def what_there_is_once():
    net = nn.Linear(4, 8)

    def step(x):
        codes = net(x).argmax(1)
        kinds, where = torch.unique(codes, return_inverse=True)
        runs, count = codes.unique_consecutive(return_counts=True)
        loss = net(x).pow(2).sum() / len(kinds)
        net.zero_grad()
        loss.backward()
        return codes.unique().numel(), kinds.sum(), where.clone(), runs * count, loss.detach()

    return Program(step, [(torch.randn(12, 4),) for _ in range(12)], state=net)
