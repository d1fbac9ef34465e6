"""The mark of functions that staging makes functions of the graph. Called as always, they are as always: watching
enters this module, and so what is behind the mark."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torchjanus.semantics.staged.programs import GraphFunction

__all__ = ["Stage", "stage"]


class Stage(GraphFunction):
    """A function whose calls in staged programs are calls of a graph function. Called as always, it is as always."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__(fn)
        functools.update_wrapper(self, fn)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)


def stage(fn: Callable[..., Any]) -> Stage:
    """Mark a function to be a function of the graph, too (the paper's ``@rep_fun``): needed where it calls itself and a
    staged value decides whether it does."""
    return Stage(fn)
