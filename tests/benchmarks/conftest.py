"""What benchmarks' commands silence is heard again in the tests that come after."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def loggers() -> Iterator[None]:
    """Put the levels of loggers back."""
    levels = {name: logging.getLogger(name).level for name in ("torch", "torchjanus")}
    yield
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
