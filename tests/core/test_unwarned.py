"""Warnings that are ignored for a while, and those that Python has shown before that."""

from __future__ import annotations

import sys
import warnings

import pytest
import torch

import torchjanus
from torchjanus.core.unwarned import unnoticed, unwarned


def warn() -> None:
    warnings.warn("shown once", UserWarning, stacklevel=1)


def test_ignored_warnings_are_not_shown_and_others_not_again(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = lambda message, *_: print(message, file=sys.stdout)
        warn()
        with unwarned():
            warnings.warn("never", UserWarning, stacklevel=1)
        with unnoticed(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
        warn()
    assert capsys.readouterr().out == "shown once\n"


def test_learning_shows_no_warning_again(capsys: pytest.CaptureFixture[str]) -> None:
    def step(x: torch.Tensor, first: bool) -> torch.Tensor:
        if first:
            warn()
        return x * 2

    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = lambda message, *_: print(message, file=sys.stdout)
        warn()
        speculated = torchjanus.speculate(step, executor="replay")
        for call in range(12):
            speculated(torch.ones(1 + call // 5), call % 4 == 0)
    assert capsys.readouterr().out == "shown once\n"
