"""Settings for every test: one thread, so that sums have one order and two cores are not oversubscribed."""

from __future__ import annotations

import os

# Before torch is imported: OpenMP reads it once. Child interpreters inherit it.
os.environ["OMP_NUM_THREADS"] = "1"

import torch

torch.set_num_threads(1)
