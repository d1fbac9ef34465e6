"""That numbers read one by one and counted on by Python are those that tensors would have counted."""

import itertools

import pytest
import torch

from torchjanus.graph.generalize.generalize import HostBatch
from torchjanus.runtime.launch.reading import reader

STEPS = {
    "none": (),
    "a step more": ((torch.add, 1),),
    "two steps": ((torch.add, 1), (torch.mul, 3)),
    "back": ((torch.sub, 2),),
    "a fraction": ((torch.add, 0.1),),
    "more than the type holds": ((torch.add, 16777217), (torch.sub, 16777216)),
    "to nothing": ((torch.mul, 0),),
    "a decay": ((torch.mul, 0.9),),
}
VALUES = [
    0.0,
    -0.0,
    1.0,
    7.0,
    -5.0,
    0.3,
    255.0,
    256.0,
    2047.0,
    16777215.0,
    16777216.0,
    1e30,
    float("inf"),
    float("nan"),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64])
@pytest.mark.parametrize("steps", STEPS)
def test_every_number_is_what_the_tensor_would_count(steps, dtype):
    read = reader(HostBatch((0, 1, 2), STEPS[steps], ()))
    values = VALUES if dtype.is_floating_point else [0, 1, -7, 2**40]
    for several in itertools.chain(((v, v, v) for v in values), itertools.permutations(values[:5], 3)):
        if len(several) < 3:
            continue
        tensors = [torch.tensor(value, dtype=dtype) for value in several]
        made = []
        for tensor in tensors:
            for func, amount in STEPS[steps]:
                tensor = func(tensor, amount)
            made.append(tensor.item())
        assert [(type(x), repr(x)) for x in read(*tensors)] == [(type(x), repr(x)) for x in made]


def test_a_gradient_is_no_hindrance():
    read = reader(HostBatch((0, 1), STEPS["a step more"], ()))
    assert read(torch.tensor(2.0, requires_grad=True), torch.tensor(3.0)) == [3.0, 4.0]
