"""Large tables of cases that are much alike: ``make test`` runs every nth case, ``make test-all`` runs all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

__all__ = ["every"]


def every(nth: int, cases: Iterable[Any]) -> list[Any]:
    """Return the cases for ``pytest.mark.parametrize``, all but every ``nth`` of them marked as slow. A tuple is the
    values of several parameters."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow if number % nth else ())
        for number, case in enumerate(cases)
    ]
