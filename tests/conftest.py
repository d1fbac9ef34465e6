"""Settings for every test: one thread, so that sums have one order and two cores are not oversubscribed."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys

# A shell starts what runs in the background with this signal ignored, and processes that tests start would inherit it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Before torch is imported: OpenMP reads it once. Child interpreters inherit it.
os.environ["OMP_NUM_THREADS"] = "1"
# Artifacts of other runs are not used, and none are left behind; tests of that name a folder.
os.environ["TORCHJANUS_CACHE"] = ""

import pytest
import torch

from torchjanus.runtime.learning import policy
from torchjanus.runtime.runs import budget, payback

torch.set_num_threads(1)
# pytest gives each logger that does not propagate a handler. Torch takes a handler of this one for a wish for its
# structured trace: it would describe each fake tensor and graph as text, in each test.
TRACE = logging.getLogger("torch.__trace")
TRACE.propagate = True
for handler in [*TRACE.handlers]:
    TRACE.removeHandler(handler)
# What is learnt must not depend on how busy the machine is; tests of the budget have a clock of their own.
budget.FREE_SECONDS = float("inf")
payback.AT_ONCE = payback.FEW = policy.RARE = sys.maxsize
# Tracing makes objects by the thousand: by its own thresholds, the collector takes a twelfth of the tests' time.
gc.set_threshold(20_000, 20, 20)


@pytest.fixture(autouse=True, scope="module")
def _few_objects_to_scan() -> None:
    """Leave what is there when a module begins out of full collections. Torch and what it imports are a million
    objects, so that a collection takes a second, and some tests make dozens."""
    gc.collect()
    gc.freeze()
