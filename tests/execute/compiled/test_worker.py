"""Faults of a compiler in another process come back as refusals, and it can be given up."""

from __future__ import annotations

import pytest
import torch

from torchjanus.core.errors import Refused
from torchjanus.execute.compiled.worker import Compilation, Request


def test_a_fault_of_the_compiler_is_a_refusal() -> None:
    pending = Compilation([Request(b"no graph", (), {}, 1, torch.float32)])
    with pytest.raises(Refused, match="Inductor cannot compile the step"):
        pending.result(timeout=600)


def test_a_compilation_can_be_given_up() -> None:
    pending = Compilation([Request(b"no graph", (), {}, 1, torch.float32)])
    pending.cancel()
    assert pending.ready()
