"""Settings for every test: one thread, so that sums have one order and two cores are not oversubscribed."""

from __future__ import annotations

import os

import pytest

# Before torch is imported: OpenMP reads it once. Child interpreters inherit it.
os.environ["OMP_NUM_THREADS"] = "1"

import torch

torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The fuzzer's finds and injection into graphs that run in parts are open faults: they are run on demand."""
    for item in items:
        if "tests/fuzz/test_fuzz.py" in item.nodeid or "tests/injection" in item.nodeid:
            item.add_marker(pytest.mark.slow)
