"""Windows between integers that tensors hold, ``text[i : i + length]``, whose width is a number of the program."""

import torch
from torch import nn

from tests.programs.harness import Program, program

RUN_ONE_IN = 12

TEXT = torch.arange(60) % 9
LENGTHS = [(3 + call * call % 4,) for call in range(16)]


@program(speculated=9, compiles=2)
def windows_at_rows():
    def step(length):
        at = torch.randint(len(TEXT) - length - 1, (4,))
        x = torch.stack([TEXT[i : i + length] for i in at])
        y = torch.stack([TEXT[i + 1 : i + length + 1] for i in at])
        return x, y, (x == y).sum()

    return Program(step, LENGTHS)


@program(speculated=9, compiles=2)
def as_many_windows_as_they_are_wide():
    def step(length):
        return torch.stack([TEXT[i : i + length] for i in torch.randint(50, (length,))])

    return Program(step, LENGTHS)


@program(speculated=9, compiles=2)
def windows_at_fetched_numbers():
    def step(length):
        at = torch.randint(40, (3,)).tolist()
        return torch.stack([TEXT[2 + i : i + length + 5] for i in at]), TEXT[at[0] - 0 : length + at[0]].clone()

    return Program(step, LENGTHS)


@program(speculated=9, compiles=2)
def windows_between_differences():
    """Both ends are computed; what they share is a tensor that is computed, too."""

    def step(length):
        centre = torch.randint(10, 40, (3,)).sum() // 3
        low, high = centre - length, centre + 2
        return TEXT[low:high].sum(), TEXT[low - 1 : high + length].clone()

    return Program(step, LENGTHS)


@program(speculated=7, compiles=4)
def windows_beyond_the_end():
    """Some windows reach beyond the text, and are shorter in eager: no graph for whole windows may serve those."""

    def step(length):
        at = torch.randint(52, 59, (2,))
        return [TEXT[i : i + length].sum() for i in at], TEXT[at[0] : at[0] + length].size(0)

    return Program(step, [(2 if call < 9 else 4,) for call in range(24)])


@program(speculated=9, compiles=2)
def windows_in_nested_loops():
    table = torch.randn(5, 30)

    def step(length):
        found = []
        for row in range(3):
            for i in torch.randint(20, (2,)):
                found.append(table[row, i : i + length].sum())
        return torch.stack(found)

    return Program(step, LENGTHS)


@program(speculated=1, compiles=8)
def windows_until_one_is_large():
    """The loop is left early, by what a window holds."""

    def step(length):
        total = torch.zeros(())
        for i in torch.randint(50, (5,)):
            part = TEXT[i : i + length].float()
            total = total + part.mean()
            if part.max() > 7:
                break
        return total

    return Program(step, [(2,)] * 20)


@program(speculated=9, compiles=3)
def windows_in_iterations_with_arms():
    """Tensors decide in the iterations that cut windows: what is asserted of the windows belongs to both arms."""

    def step(length):
        total = torch.zeros(())
        for i in torch.randint(50, (4,)):
            part = TEXT[i : i + length].float()
            if part.sum() > 4 * length:
                total = total + part.mean()
            else:
                total = total - 1
        return total

    return Program(step, [(3,)] * 24)


@program(speculated=12, compiles=3)
def characters_by_a_recurrent_cell():
    """The loop after the windows counts along their width."""
    embedding, cell = nn.Embedding(9, 4), nn.GRUCell(4, 4)
    optimizer = torch.optim.SGD([*embedding.parameters(), *cell.parameters()], lr=0.1)

    def step(length):
        at = torch.randint(len(TEXT) - length - 1, (3,))
        x = torch.stack([TEXT[i : i + length] for i in at])
        h = torch.zeros(3, 4)
        for t in range(x.size(1)):
            h = cell(embedding(x[:, t]), h)
        loss = h.pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return Program(step, [(2 + call % 4,) for call in range(24)], state=[embedding, cell])
