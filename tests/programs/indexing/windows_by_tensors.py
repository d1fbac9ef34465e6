"""Windows bounded by tensors of one integer, and elements at fetched ones: ``data[i : i + 8]``, ``table[int(k)]``."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.changes.shapes import Trainer
from tests.programs.harness import Program, program

RUN_ONE_IN = 12  # Each takes a second or two, or is much like the others.

CALLS = [(k,) for k in range(20)]


class Language(Trainer):
    def __init__(self):
        super().__init__(nn.Sequential(nn.Embedding(12, 6), nn.Linear(6, 12)))
        self.text = torch.randint(12, (100,))

    def learn(self, x, y):
        return self.update(F.cross_entropy(self.model(x).flatten(0, -2), y.flatten()))


@program(speculated=17, compiles=1, slow=True)
def a_batch_of_windows():
    t = Language()

    def step(_):
        starts = torch.randint(len(t.text) - 9, (3,))
        x = torch.stack([t.text[i : i + 8] for i in starts])
        return t.learn(x, torch.stack([t.text[i + 1 : i + 9] for i in starts]))

    return Program(step, CALLS, state=t)


@program(speculated=17, compiles=1)
def a_window_at_a_fetched_place():
    t = Language()

    def step(_):
        i = torch.randint(90, (1,)).item()
        return t.learn(t.text[i : i + 8], t.text[i + 1 : i + 9])

    return Program(step, CALLS, state=t)


@program(speculated=17, compiles=1)
def an_element_at_a_fetched_place():
    t = Trainer()
    t.table = nn.Parameter(torch.randn(5, 5))
    t.opt.add_param_group({"params": [t.table]})

    def step(x):
        k = int(t.model(x).sum(0).argmax())
        return t.update((t.model(x) + t.table[k, :3] + t.table[k, int(x[0].argmax())]).square().mean())

    return Program(step, [(torch.randn(4, 5),) for _ in range(20)], state=t)


@program(speculated=17, compiles=1)
def crops_by_tensors():
    t = Trainer(nn.Sequential(nn.Flatten(), nn.Linear(16, 3)))
    t.picture = nn.Parameter(torch.randn(2, 7, 7))
    t.opt.add_param_group({"params": [t.picture]})

    def step(_):
        i, j = torch.randint(4, (2,))
        return t.update(t.model(t.picture[..., i : i + 4, j : j + 4]).square().mean())

    return Program(step, CALLS, state=t)


@program(speculated=0, compiles=3)
def windows_of_changing_width():
    t = Language()

    def step(_):
        i, n = torch.randint(40, (2,))
        return t.learn(t.text[i : i + n + 1], t.text[i + 1 : i + n + 2])

    return Program(step, CALLS, state=t)


@program(speculated=4, compiles=1)
def windows_beyond_the_end_and_below_zero():
    t = Language()
    places = [3, 5, 8, 95, 2, -3, -6, 7, 99, 1, 120, 4, 96, 0, 6, -8, 10]

    def step(i):
        return t.text[i : i + 6].clone(), t.text[i - 1 : i + 1].sum()

    return Program(step, [(torch.tensor(i),) for i in places], state=t)


@program(speculated=17, compiles=1)
def a_window_is_written():
    t = Language()
    t.memory = torch.zeros(30)

    def step(x):
        i = x.argmax()
        t.memory[i : i + 4] = x[:4]
        part = t.memory[i : i + 3]
        part.mul_(2.0)
        return t.memory.sum(), part.sum()

    return Program(step, [(torch.randn(20),) for _ in range(20)], state=t)


@program(refused="leaves the step")
def a_window_leaves_the_step():
    t = Language()

    def step(x):
        i = x.argmax()
        return t.text[i : i + 4]

    return Program(step, [(torch.randn(20),) for _ in range(20)], state=t)


@program(speculated=13, compiles=1)
def an_element_at_a_place_that_is_not_there():
    t = Language()

    def step(x):
        try:
            return t.text[int(x.argmax())] * 2
        except IndexError as error:
            return str(error)

    return Program(step, [(torch.randn(120),) for _ in range(20)], state=t)


@program(speculated=23, compiles=3)
def a_row_at_a_fetched_place_is_returned():
    t = Language()

    def step(x):
        return t.text.view(50, 2)[int(x.argmax())]

    return Program(step, [(torch.eye(4)[k % 3],) for k in range(30)], state=t)


@program(speculated=30, compiles=5)
def a_table_of_values_is_learnt():
    t = Trainer()
    t.values = torch.zeros(3, 4)

    def step(state, reward):
        action = int(t.values[state].argmax())
        t.values[state, action] += 0.1 * (reward - t.values[state, action])
        return action

    return Program(step, [(k % 2, torch.randn(())) for k in range(40)], state=t)
