"""Selections whose size no Python code reads: the graph makes them, forward and backward, and updates."""

import random

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.harness import Program, program

RUN_ONE_IN = 32  # Each takes a second or more: a loop or a recursive function is compiled for any trip count or tree.

N = 18
WITHIN = "selected inside the graph"


class Trainer(nn.Module):
    def __init__(self, *modules, opt=torch.optim.SGD, **options):
        super().__init__()
        self.parts = nn.ModuleList(modules)
        self.opt = opt(self.parameters(), lr=0.05, **options)

    def update(self, loss):
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach()


def drawn(*sizes, calls=N):
    return [(torch.randn(*sizes),) for _ in range(calls)]


@program(speculated=15, reported=WITHIN)
def masked_language_model():
    t = Trainer(nn.Embedding(20, 8), nn.Linear(8, 20), opt=torch.optim.Adam)

    def step(words, labels):
        mask = labels != -100
        logits = t.parts[1](F.gelu(t.parts[0](words)))
        return t.update(F.cross_entropy(logits[mask], labels[mask]))

    def call():
        words = torch.randint(20, (3, 7))
        return words, torch.where(torch.rand(3, 7) < 0.3, words, -100)

    return Program(step, [call() for _ in range(N)], state=t)


@program(speculated=15, reported=WITHIN)
def focal_loss_of_both_kinds():
    t = Trainer(nn.Linear(5, 1), momentum=0.9)

    def step(x, y):
        logit = t.parts[0](x).squeeze(1)
        p, positive, negative = logit.sigmoid(), y > 0.4, y <= 0.4
        gained = -((1 - p[positive]) ** 2 * F.logsigmoid(logit[positive])).sum()
        lost = -(p[negative] ** 2 * F.logsigmoid(-logit[negative])).sum()
        return t.update((gained + lost) / positive.sum().clamp(min=1))

    return Program(step, [(torch.randn(16, 5), torch.rand(16)) for _ in range(N)], state=t)


@program(speculated=15, reported=WITHIN)
def boxes_that_hold_something():
    t = Trainer(nn.Conv2d(2, 7, 3, padding=1))

    def step(image, objects, box, kind):
        out, m = t.parts[0](image).permute(0, 2, 3, 1), objects > 0.7
        chosen = out[m]
        loss = F.mse_loss(chosen[:, :4], box[m]) + F.cross_entropy(chosen[:, 4:6], kind[m])
        return t.update(loss + F.binary_cross_entropy_with_logits(out[..., 6][~m], objects[~m]))

    def call():
        return torch.randn(2, 2, 5, 5), torch.rand(2, 5, 5), torch.rand(2, 5, 5, 4), torch.randint(2, (2, 5, 5))

    return Program(step, [call() for _ in range(N)], state=t)


@program(speculated=15, reported=WITHIN)
def pairs_that_are_alike():
    t = Trainer(nn.Linear(6, 4))

    def step(x, kind):
        h = F.normalize(t.parts[0](x), dim=1)
        alike, other = h @ h.t(), kind[:, None] != kind[None, :]
        same = (kind[:, None] == kind[None, :]) & ~torch.eye(10, dtype=torch.bool)
        return t.update((1 - alike[same]).mean() + F.relu(alike[other] - 0.2).mean())

    return Program(step, [(torch.randn(10, 6), torch.randint(3, (10,))) for _ in range(N)], state=t)


@program(speculated=15, reported=WITHIN)
def their_number_as_a_factor():
    t = Trainer(nn.Linear(6, 1))

    def step(x, y):
        chosen = t.parts[0](x).squeeze(1)[y + 0 > 0.2]
        return t.update(chosen.pow(2).sum() / max(chosen.shape[0], 1) + chosen.sum() * 0.1 / x.size(0))

    return Program(step, [(torch.randn(12, 6), torch.randn(12)) for _ in range(N)], state=t)


@program(speculated=14, reported=WITHIN)
def batches_of_several_sizes():
    t = Trainer(nn.Linear(6, 3))

    def step(x):
        keep = x[:, 0] > -0.5
        return t.update(F.cross_entropy(t.parts[0](x[keep]), x[keep].argmax(1) % 3) / x.shape[0])

    return Program(step, [(torch.randn(9 + call % 3, 6),) for call in range(N)], state=t)


@program(speculated=14)
def a_mask_that_is_changed_by_another_name():
    t = Trainer(nn.Linear(6, 3))

    def step(x):
        keep, p = x[:, 0] > -1, t.parts[0](x)
        first = p.detach()[keep].sum()
        keep.data[:2] = True
        keep.view(3, 3)[2] = False
        return t.update(first + p[keep].pow(2).sum())

    return Program(step, drawn(9, 6), state=t)


@program(speculated=15)
def an_argument_that_is_changed_in_between():
    t = Trainer(nn.Linear(6, 3))

    def step(x, keep):
        known = t.parts[0](x).detach()
        first = known[keep].sum()
        keep &= x[:, 1] > 0
        second = known[keep].sum()
        keep.logical_not_()
        return t.update(first * second + t.parts[0](x)[keep].sum() + t.parts[0](x).mean()), keep

    return Program(step, [(torch.randn(9, 6), torch.rand(9) > 0.3) for _ in range(N)], state=t)


@program(speculated=15, reported=WITHIN)
def a_mask_that_is_changed_in_between():
    t = Trainer(nn.Linear(6, 3))

    def step(x):
        keep, p = x[:, 0] > -1, t.parts[0](x)
        known = p.detach()
        first = known[keep].sum()
        keep &= x[:, 1] > 0
        second = known[keep].sum() + x[keep].sum()
        return t.update(first + second * 2 + p[keep].pow(2).sum())

    return Program(step, drawn(9, 6), state=t)


@program(speculated=15, reported=WITHIN)
def assigned_under_a_mask():
    t = Trainer(nn.Linear(6, 3))

    def step(x):
        p = t.parts[0](x)
        keep, out = p.detach() > -0.5, torch.zeros(9, 3)
        out[keep] = p[keep] * 2
        out.masked_fill_(p > 1, 0.5)
        t.update(out.sum())
        return out.detach()

    return Program(step, drawn(9, 6), state=t)


@program(speculated=15, reported="the host makes selections between parts of the graph")
def what_is_selected_selects():
    t = Trainer(nn.Linear(6, 3))

    def step(x):
        p = t.parts[0](x)
        chosen = p[p[:, 0] > 0]
        return t.update(chosen[chosen[:, 1] > 0].pow(2).sum() + p.mean())

    return Program(step, drawn(14, 6), state=t)


@program(speculated=15, reported=WITHIN)
def counted_and_repeated():
    t = Trainer(nn.Embedding(5, 3))

    def step(kind):
        counts = torch.bincount(kind % 4, minlength=5)
        rows = t.parts[0].weight.repeat_interleave(counts, 0)
        return t.update(rows.pow(2).sum() / counts.sum() + (counts * 0.1).mean())

    return Program(step, [(torch.randint(8, (12,)),) for _ in range(N)], state=t)


@program(speculated=15, reported=WITHIN)
def masked_select_and_positions():
    t = Trainer(nn.Linear(6, 3))

    def step(x):
        p = t.parts[0](x)
        row, column = torch.where(p.detach() > 0)
        return t.update(p.masked_select(x[:, :1] > 0).mean() + (p[row, column] * x[row, column]).sum())

    return Program(step, drawn(9, 6), state=t)


@program(speculated=15, reported=WITHIN)
def selected_without_gradients():
    t = Trainer(nn.Linear(6, 3))

    def step(x):
        p = t.parts[0](x)
        with torch.no_grad():
            target = torch.full((9,), 0.25)
            keep = p[:, 0] > 0
            target[keep] = p[keep].max(1).values + x[keep, 0]
        return t.update(F.smooth_l1_loss(p[:, 1], target))

    return Program(step, drawn(9, 6), state=t)


@program(speculated=14, reported=WITHIN)
def dropped_out_after_it_was_selected():
    t = Trainer(nn.Linear(6, 3))

    def step(x):
        p = t.parts[0](x)
        return t.update(F.dropout(p[p[:, 0] > -0.5], 0.3).pow(2).sum() + p.mean())

    return Program(step, drawn(14, 6), state=t)


@program(speculated=15, reported=WITHIN)
def printed_in_the_end():
    t = Trainer(nn.Linear(6, 3))

    def step(x):
        p = t.parts[0](x)
        loss = t.update(p[p > 0.1].pow(2).sum() + p.mean())
        print(f"{loss.item():.3f}")
        return loss

    return Program(step, drawn(9, 6), state=t)


@program(speculated=15, reported=WITHIN)
def their_number_is_returned_kept_and_shown():
    t = Trainer(nn.Linear(6, 3))
    t.seen, t.counts = 0, []

    def step(x):
        p = t.parts[0](x)
        keep = x[:, 0] > -0.3
        chosen = p[keep]
        t.counts.append(len(chosen))
        t.last = x[keep].shape
        t.seen += chosen.size(0)
        print(f"{chosen.shape[0]} of {x.shape[0]}")
        loss = t.update(chosen.pow(2).sum())
        return loss, chosen.shape[0] * 2 + 1, chosen.detach()

    return Program(step, drawn(9, 6), state=t)


@program(speculated=15, reported=WITHIN)
def a_share_of_them_is_returned():
    t = Trainer(nn.Linear(6, 3))

    def step(x):
        wrong = t.parts[0](x).argmax(1) != 1
        loss = t.update(F.cross_entropy(t.parts[0](x), torch.ones(9, dtype=torch.long)))
        return loss, x[wrong].shape[0] / x.shape[0], x[wrong].numel(), tuple(x[wrong].shape), x[wrong]

    return Program(step, drawn(9, 6), state=t)


@program(speculated=8, compiles=4)
def the_mean_of_none_raises():
    t = Trainer(nn.Linear(6, 3))

    def step(x, limit):
        chosen = t.parts[0](x)[torch.arange(8) < limit]
        t.update(chosen.sum())
        try:
            return chosen.sum().item() / chosen.shape[0]
        except ZeroDivisionError as error:
            return str(error)

    calls = [(torch.randn(8, 6), torch.tensor(0 if call in (8, 14) else 2 + call % 5)) for call in range(N)]
    return Program(step, calls, state=t)


@program(speculated=14, reported=WITHIN)
def only_where_the_loss_is_finite():
    t = Trainer(nn.Linear(6, 3), opt=torch.optim.Adam)

    def step(x):
        keep = x[:, 0] > -1
        loss = F.mse_loss(t.parts[0](x)[keep], x[keep][:, :3])
        if torch.isfinite(loss) and (x[:, 1] < 9).all():
            return t.update(loss)
        return loss.detach()

    return Program(step, drawn(9, 6), state=t)


@program(speculated=9, compiles=4)
def two_ways_with_selections():
    t = Trainer(nn.Linear(6, 3))

    def step(x):
        p, keep = t.parts[0](x), x[:, 0] > -1
        chosen = p[keep]
        if p.mean() > 0:
            return t.update(F.mse_loss(chosen, x[keep][:, :3]))
        return t.update(chosen.pow(2).sum() + p[~keep].sum()), len(chosen)

    return Program(step, drawn(9, 6), state=t)


def seldom(none):
    drawn = random.Random(5)
    return [
        (torch.randn(8, 6), torch.tensor(0 if call in none else drawn.choice([2, 3, 5, 6]))) for call in range(3 * N)
    ]


def under_a_limit(body, none=()):
    t = Trainer(nn.Linear(6, 3), opt=torch.optim.Adam)

    def step(x, limit):
        return t.update(body(t.parts[0](x), torch.arange(8) < limit, x))

    return Program(step, seldom(none), state=t)


@program(speculated=48, reported=WITHIN)
def none_once_in_a_while():
    return under_a_limit(lambda p, keep, x: F.mse_loss(p[keep], x[keep][:, :3]), none=(30, 44))


@program(speculated=24, compiles=4, reported="the host makes selections")
def none_every_other_call():
    return under_a_limit(lambda p, keep, x: F.mse_loss(p[keep], x[keep][:, :3]), none=range(8, 60, 2))


@program(speculated=48, compiles=4)
def none_from_the_beginning():
    return under_a_limit(lambda p, keep, x: F.cross_entropy(p[keep], x[keep].argmax(1) % 3), none=range(0, 60, 2))


@program(speculated=48, reported=WITHIN, slow=True)
def sums_over_none():
    return under_a_limit(lambda p, keep, x: p[keep].sum() + p[~keep].mean(), none=range(6, 60, 4))


@program(speculated=14, reported="the host makes selections")
def their_number_decides():
    t = Trainer(nn.Linear(6, 3))

    def step(x):
        p = t.parts[0](x)
        chosen = p[p[:, 0] > -9]
        if len(chosen) > 3:
            return t.update(chosen.sum())
        return t.update(p.sum())

    return Program(step, drawn(9, 6), state=t)


@program(speculated=12, compiles=3)
def a_mask_that_does_not_fit():
    t = Trainer(nn.Linear(6, 3))

    def step(x, mask):
        try:
            return t.update(t.parts[0](x)[mask > 0].sum())
        except IndexError as error:
            return str(error)

    calls = [(torch.randn(9, 6), torch.randn(9 if call % 9 != 8 else 7)) for call in range(N)]
    return Program(step, calls, state=t)


@program(speculated=12, compiles=3)
def labels_out_of_range():
    t = Trainer(nn.Linear(6, 3))

    def step(x, labels):
        keep = labels >= 0
        try:
            return t.update(F.cross_entropy(t.parts[0](x)[keep], labels[keep]))
        except IndexError as error:
            return str(error)

    calls = [(torch.randn(9, 6), torch.randint(-1, 3 if call % 9 != 8 else 5, (9,))) for call in range(N)]
    return Program(step, calls, state=t)
