"""Walks through a composite event in which numbers vary: torch's own code runs for one parameter of each kind, and its
calls are matched against those of the path. Knows no graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from torchjanus.runtime.coexecution.graphs.composite_plans import Composite
from torchjanus.runtime.coexecution.graphs.matching import MISS, Matcher
from torchjanus.runtime.coexecution.recording.composites import Aborted, one_of_each

__all__ = ["Walk"]


class _Run(Protocol):
    """What matchers ask of a run: the tensors and the slots' numbers of the call."""

    values: list[Any]
    numbers: list[Any]


class Walk:
    """One walk, of the composite event ``one`` of a path with these matchers."""

    def __init__(self, one: Composite, matchers: list[Matcher]) -> None:
        assert one.following is not None
        self._one, self._matchers = one, matchers
        self._following = one.following
        self._position = one.first
        self._aborted = False

    def matches(self, run: _Run, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Run torch's code. Returns whether it did what the path has; if not, the run is as before."""
        one, section = self._one, self._one.section
        gradients = torch.is_grad_enabled()
        try:
            section.func(one_of_each(section.first, one.chosen), *args, **kwargs)
            matched = self._position == section.end
        except (Aborted, Exception):
            matched = False
        if matched:
            for slot, other in one.numbers:
                run.numbers[slot] = run.numbers[other]
        else:
            for n in one.made:
                run.values[n] = None
            with torch._C.DisableTorchFunction():  # the call that restores it may be the one that differed
                torch.set_grad_enabled(gradients)
        return matched

    def answer(self, run: _Run, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answer one of torch's calls within. Raises Aborted where it is another one than the path has."""
        k = self._position
        if not self._aborted and k < self._one.section.end:
            result = self._matchers[k](run, func, args, kwargs)
            if result is not MISS:
                self._position = self._following[k]
                return result
        if not self._aborted:
            self._aborted = True
            raise Aborted
        return func(*args, **kwargs)  # what torch does for its own state on the way out
