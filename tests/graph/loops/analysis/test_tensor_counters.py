"""Tensors that iterations count with: by which form the numbers are come by that are fetched from them."""

import torch

from torchjanus.graph.loops.analysis.tensor_counters import Counters
from torchjanus.trace.actions import Op
from torchjanus.trace.events import Trace
from torchjanus.trace.loops.records import LoopInstance
from torchjanus.trace.loops.recurrences import column
from torchjanus.trace.modes import Modes
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import Fetch, Read

START = ("const", 0.5)


def counted(steps, before, values, dtype=torch.float32, memory=(1, 2)):
    """Three iterations that take these steps with a tensor, which is fetched behind so many of them."""
    events, starts, row = [], [], []
    for number in range(3):
        starts.append(len(events))
        row.append(Fetch(0, len(events) + before, float))
        events += (Op(None, name, (TensorRef(0), *args), {}, (TensorRef(0),), Modes()) for name, *args in steps)
    trace = Trace(events=events, tensors=[None, None], access_paths={}, memory=list(memory))
    trace.kinds[0] = ((), (), dtype, torch.device("cpu"), False)
    trace.fetched.update((one.token, value) for one, value in zip(row, values, strict=True))
    counters = Counters(trace, LoopInstance(tuple(starts), len(events), Read(None)))
    return counters.form(row, START) if counters.tensor(row) else None


def test_before_between_and_behind_the_steps():
    tensor, found = torch.tensor(0.5), {0: [], 1: [], 2: []}
    for _ in range(3):
        for behind, act in ((0, lambda: tensor.add_(0.1)), (1, lambda: tensor.mul_(1.01)), (2, lambda: tensor)):
            found[behind].append(tensor.item())
            act()
    steps = [("Tensor.add_", 0.1), ("Tensor.mul_", 1.01)]
    for behind, values in found.items():
        form = counted(steps, behind, values)
        assert column(form, 3) == values
        assert counted(steps, behind, [*values[:2], values[2] + 1]) is None  # something else has changed it


def test_steps_that_are_no_constants():
    assert counted([("Tensor.add_", 1)], 1, [1.5, 2.5, 3.5]) is not None
    assert counted([("Tensor.add_", TensorRef(1))], 1, [1.5, 2.5, 3.5]) is None
    assert counted([("Tensor.exp_",)], 1, [1.5, 2.5, 3.5]) is None
    assert counted([("Tensor.add_", 0.5)], 1, [1, 1, 1], torch.int64) is None
    assert counted([("Tensor.add_", 1)], 1, [1.5, 2.5, 3.5], torch.bfloat16) is None


def test_another_tensor_in_its_memory():
    steps = [("Tensor.add_", 1)]
    assert counted(steps, 1, [1.5, 2.5, 3.5], memory=(0, 2)) is not None
    trace = Trace(
        events=[Op(None, "Tensor.add_", (TensorRef(0), 1), {}, (TensorRef(0),), Modes())] * 3
        + [Op(None, "Tensor.view", (TensorRef(1),), {}, (), Modes())],
        tensors=[None, None],
        access_paths={},
        memory=[3, 3],
    )
    trace.kinds[0] = ((), (), torch.float32, torch.device("cpu"), False)
    assert Counters(trace, LoopInstance((0, 1, 2), 4, Read(None)))._steps_of(0) is None
