"""A mode that gets torch's calls, and when it does not count them: while torch's own Python or native code runs.

Knows nothing of what is recorded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode
from torch.utils import _pytree as pytree

from torchjanus.core.kinds import isinstance

__all__ = ["PausableMode"]


class PausableMode(TorchFunctionMode):
    """Subclasses ask whether the mode is paused, what native code was given, and which tensors are shown."""

    def __init__(self) -> None:
        super().__init__()
        self._given: list[set[int]] = []  # the ids of the tensors given to the native code that runs, the latest last
        self._paused = False
        self._shown: frozenset[int] = frozenset()  # the ids of the tensors whose text the caller has recorded

    @contextlib.contextmanager
    def passive(self, given: Iterable[Any]) -> Iterator[None]:
        """While native code runs, do not record what it does with its own tensors or those that it is ``given``."""
        self._given.append(_ids(list(given)))
        try:
            yield
        finally:
            self._given.pop()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Record nothing: torch's Python code runs for one call that is recorded otherwise."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    @contextlib.contextmanager
    def resumed(self) -> Iterator[None]:
        """Record again, during a framework call that calls the user's code."""
        before, self._paused = self._paused, False
        try:
            with self._in_force():
                yield
        finally:
            self._paused = before

    @contextlib.contextmanager
    def _in_force(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            if not any(torch._C._get_function_stack_at(i) is self for i in range(torch._C._len_torch_function_stack())):
                stack.enter_context(self)
            stack.enter_context(torch._C._EnableTorchFunction())
            yield

    @contextlib.contextmanager
    def absent(self) -> Iterator[None]:
        """Remove this mode, and keep those of the program, while unknown native code runs."""
        found = [_pop_mode() for _ in range(torch._C._len_torch_function_stack())]
        for mode in reversed(found):
            if mode is not self:
                _push_mode(mode)
        try:
            yield
        finally:
            for _ in range(torch._C._len_torch_function_stack()):
                _pop_mode()
            for mode in reversed(found):
                _push_mode(mode)

    @contextlib.contextmanager
    def showing(self, parts: Any) -> Iterator[None]:
        """While these parts are shown, their texts have been recorded by the caller."""
        before = self._shown
        self._shown = before | _ids(parts)
        try:
            yield
        finally:
            self._shown = before


def _ids(tree: Any) -> set[int]:
    """Return the ids of the tensors in a tree."""
    return {id(leaf) for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)}
