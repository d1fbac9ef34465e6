"""Operations that raise where a condition on tensors fails that the graph has not asserted yet."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.harness import Program, program

CALLS = 24


def inputs(*shape, count=CALLS):
    return [(torch.randn(*shape),) for _ in range(count)]


@program(speculated=4, compiles=8)
def codes_revived():
    """Vector quantisation: codes that nobody uses are put where points are."""
    book = torch.randn(8, 4)

    def step(x):
        nearest = torch.cdist(x, book).argmin(1)
        count = torch.bincount(nearest, minlength=8).float()
        weak = count < 0.5
        pick = torch.arange(int(weak.sum()))
        book[weak] = x[pick]
        return (book[nearest] - x).square().mean()

    return Program(step, inputs(15, 4), state=book)


@program(speculated=4, compiles=12)
def rows_written_by_a_mask_and_a_number():
    held = torch.zeros(6, 3)

    def step(x):
        mask = x[:, 0] > 0.3
        held[mask] = x[: int(mask.sum())]
        return held.sum()

    return Program(step, inputs(6, 3), state=held)


@program(speculated=4, compiles=12)
def selected_and_cut_to_so_many():
    def step(x):
        mask = x[:, 0] > 0.3
        return (x[mask] * x[: int(mask.sum())]).sum()

    return Program(step, inputs(6, 3))


@program(speculated=4, compiles=12)
def selected_and_viewed_as_so_many():
    def step(x):
        mask = x[:, 0] > 0
        count = int(mask.sum())
        return x[mask].view(count, 3).sum(0) + count

    return Program(step, inputs(4, 3))


@program(speculated=10, compiles=4)
def labels_asked_before_the_loss():
    model = nn.Linear(3, 4)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, y):
        if (y < 4).all():
            loss = F.cross_entropy(model(x), y)
        else:
            loss = F.cross_entropy(model(x), y.clamp(max=3))
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.item()

    calls = [(torch.randn(5, 3), torch.randint(0, 5 if number % 8 == 7 else 4, (5,))) for number in range(CALLS)]
    return Program(step, calls, state=model)


@program(speculated=10, compiles=4)
def words_asked_before_they_are_looked_up():
    table = nn.Embedding(5, 3)

    def step(words):
        if (words >= 5).any():
            words = words % 5
        return table(words).detach().sum(1)

    calls = [(torch.randint(0, 7 if number % 6 == 5 else 5, (4,)),) for number in range(CALLS)]
    return Program(step, calls, state=table)


@program(speculated=10, compiles=4)
def weights_asked_before_a_draw():
    def step(w):
        if w.sum() > 0:
            return torch.multinomial(w, 2)
        return torch.zeros(2, dtype=torch.int64)

    calls = [(torch.zeros(5) if number % 7 == 6 else torch.rand(5),) for number in range(CALLS)]
    return Program(step, calls)


@program(speculated=10, compiles=4)
def definiteness_asked_before_it_is_needed():
    total = torch.zeros(3, 3)

    def step(x):
        if (torch.linalg.eigvalsh(x) > 0).all():
            made = torch.linalg.cholesky(x)
        else:
            made = x.abs().sqrt()
        total.add_(made)
        return made.sum()

    def matrix(number):
        x = torch.randn(3, 3)
        return x @ x.t() + 0.1 * torch.eye(3) - (9.0 if number % 7 == 6 else 0.0) * torch.eye(3)

    return Program(step, [(matrix(number),) for number in range(CALLS)], state=total)


@program(speculated=10, compiles=4)
def divisor_asked_before_it_divides():
    def step(n, d):
        if (d == 0).any():
            return n
        return n // d

    def call(number):
        d = torch.randint(1, 5, (4,))
        if number % 7 == 6:
            d[1] = 0
        return torch.randint(0, 50, (4,)), d

    return Program(step, [call(number) for number in range(CALLS)])


@program(speculated=4, compiles=12)
def number_of_rows_in_a_training_step():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x):
        kept = x[:, 0] > -0.8
        aim = x[: int(kept.sum())]
        loss = (model(x)[kept] - aim).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.item()

    return Program(step, inputs(4, 3), state=model)


@program(speculated=10, compiles=4)
def asked_after_it_was_looked_up():
    """The error is the program's own where it handles it."""
    table = torch.randn(5, 3)

    def step(words):
        try:
            return table.index_select(0, words).sum()
        except IndexError:
            return table.sum()

    calls = [(torch.randint(0, 9 if number % 8 == 7 else 5, (4,)),) for number in range(CALLS)]
    return Program(step, calls)
