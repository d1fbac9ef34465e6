"""The program that is lowered before a process is forked is lowered like any other, and leaves nothing behind."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest
import torch

from tests.forked import python
from torchjanus.execute.processes.lowering import Lowering, lower_request, unpack_made
from torchjanus.execute.processes.warm_up import small_step, warm_up
from torchjanus.execute.replay import Replay
from torchjanus.graph.lowering.graph_bytes import signature
from torchjanus.graph.operators.loop_op import new_key, unused_keys

ALONE = """
import os, sys
import torch
import torchjanus.execute.processes.lowering
from torchjanus.execute.processes.warm_up import warm_up

def threads():
    return len(os.listdir("/proc/self/task"))

before = threads()
warm_up()
assert threads() == before, "a process that has other threads must not be forked"
assert "torch._inductor.pattern_matcher" in sys.modules, "what the partition of loops imports is there"
"""


def test_its_graph_computes_the_step() -> None:
    program = small_step()
    with unused_keys() as keys:
        text = signature(program)
        assert text is not None
        request = Lowering.request(program, text, keys)
        assert request is not None
        made = unpack_made(lower_request(request), program, reserved=True)
    assert made is not None
    torch.manual_seed(0)
    h, x, w = torch.randn(2, 4), torch.randn(3, 2, 4), torch.randn(4, 4)
    weight = w.clone().requires_grad_()
    state, rows = h, []
    for row in x:
        state = torch.tanh(row + torch.nn.functional.linear(state, weight))
        rows.append(state)
    loss = torch.stack(rows).pow(2).mean()
    loss.backward()
    assert weight.grad is not None
    given = [h, x, w.clone()]
    values = Replay(made).run(given, (-0.1,))
    assert isinstance(values, list)
    outputs = [values[result.source.index] for result in made.outputs]  # type: ignore[union-attr]
    torch.testing.assert_close(outputs, [loss.detach(), state.detach()])
    updated = w - 0.1 * weight.grad
    torch.testing.assert_close(given[2], updated)  # in place, as by an optimizer


def test_keys_are_assigned_as_if_it_had_not_been() -> None:
    first = new_key()
    warm_up()
    assert new_key() == first + 2


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_it_starts_no_thread(tmp_path: Path) -> None:
    done = python(["-c", ALONE], tmp_path)
    assert not done.returncode, done.stderr


def test_a_request_for_other_settings_is_not_lowered() -> None:
    program = small_step()
    with unused_keys() as keys:
        request = Lowering.request(program, "another program", keys)
    assert request is not None
    with pytest.raises(Exception, match="under other settings"):
        pickle.loads(lower_request(request))
