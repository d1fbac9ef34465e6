"""Lists, texts and arrays subscripted by tensors: ``data[i : i + size]`` with ``i`` from ``torch.randint``."""

import numpy as np
import torch
from torch import nn

from tests.programs.changes.shapes import Trainer
from tests.programs.harness import Program, program

DATA = np.arange(60).astype(np.uint16)


def batches(count=12):
    return [(torch.randn(3),) for _ in range(count)]


@program(speculated=9, compiles=1)
def windows_of_an_array():
    """As nanoGPT takes its batches."""
    t = Trainer(nn.Embedding(60, 4))

    def step(_):
        places = torch.randint(len(DATA) - 5, (4,))
        x = torch.stack([torch.from_numpy(DATA[i : i + 4].astype(np.int64)) for i in places])
        y = torch.stack([torch.from_numpy(DATA[i + 1 : i + 1 + 4].astype(np.int64)) for i in places])
        return t.update((t.model(x) - t.model(y)).pow(2).mean()), x

    return Program(step, batches(), state=t)


@program(speculated=9, compiles=1)
def elements_of_an_array():
    """One is a number of NumPy's own, several are an array."""
    array = np.random.rand(60)

    def step(x):
        place = (x.abs().sum() * 3).long()
        one, many, some = array[place], array[x.argsort()], array[:3][x > 0]
        table = array.reshape(6, 10)[1, place // 4 :]
        return one, type(one).__name__, f"{one:.3f}", many, some.sum(), array[place[None]], table, x + array[place]

    return Program(step, batches())


@program(speculated=5, compiles=8)
def elements_of_lists_and_texts():
    words, rows = ["a", "b", "c", "d"], [torch.full((3,), float(k)) for k in range(4)]

    def step(x):
        best, many = x[:2].argmax(), (x[:2] > 0).sum()
        reported = words[best], "wxyz"[best], words[best : best + 2], (1, 2, 3, 4)[:many], list(range(many))
        return reported, rows[best] + x, [row + 1 for row in rows[:many]], [1, 2, 3][:: many + 1]

    return Program(step, batches(40))


@program(speculated=5)
def elements_set_by_tensors():
    counts, row = [0, 0, 0], np.zeros(3)

    def step(x):
        best = x[:2].argmax()
        counts[best] += 1
        row[best] += 1
        return counts[best], row[best]

    return Program(step, batches(30), state=(counts, row))


@program(speculated=0, refused="Tensor.__index__")
def a_tensor_that_is_no_index():
    words = ["a", "b", "c"]

    def step(x):
        try:
            return words[x.sum()]
        except TypeError as error:
            return str(error)

    return Program(step, batches())
