"""Makes what watches a program fail, function by function: before it has done anything, or when it has done its work.

The program must not notice: its outcome is eager's.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.programs import harness
from torchjanus.rewrite.hooks import Semantics
from torchjanus.semantics.protocols import falling_back
from torchjanus.semantics.watch.watch import Watch

__all__ = ["EVERYDAY", "HOOKS", "Internal", "broken", "differences", "uses"]

EVERYDAY = Path(__file__).with_name("everyday.py")
HOOKS = [name for name, hook in vars(Semantics).items() if isinstance(hook, types.FunctionType)]


class Internal(Exception):
    """What a function of torchjanus raises that is made to raise."""


class _Breaking:
    """Counts the uses of a function, and fails in one of them."""

    def __init__(self, at: int, after: bool) -> None:
        self.at = at
        self.after = after
        self.count = 0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def breaking(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            due = self.count == self.at
            if due and not self.after:
                raise Internal("before")
            made = function(*args, **kwargs)
            if due:
                raise Internal("after")
            return made

        return breaking


@contextlib.contextmanager
def broken(owner: type, name: str, at: int = 0, after: bool = False) -> Iterator[_Breaking]:
    """Within, use number ``at`` (counted from 1) of a method fails. A hook fails inside of what guards it."""
    breaking, before = _Breaking(at, after), vars(owner)[name]
    if owner is Watch and name in HOOKS:
        failing = falling_back._guarded(name, breaking.around(before.__wrapped__))
    elif hasattr(before, "__noted__"):
        failing = falling_back._noting(name, breaking.around(before.__wrapped__), before.__noted__)
    else:
        failing = breaking.around(before)
    setattr(owner, name, failing)
    try:
        yield breaking
    finally:
        setattr(owner, name, before)


def uses(program: str, owner: type, name: str) -> int:
    """How often the first call of a program uses a method."""
    with broken(owner, name) as breaking, contextlib.suppress(KeyboardInterrupt):
        module = harness.load_file(EVERYDAY)
        harness.run_in(module, program, "replay", lambda number, _: _ending(number, breaking))
    return breaking.count


@contextlib.contextmanager
def _ending(number: int, breaking: _Breaking) -> Iterator[None]:
    yield
    if number == 0:
        raise KeyboardInterrupt


def differences(program: str, owner: type, name: str, at: int, after: bool) -> list[str]:
    """How a run of a program differs from eager where a use of a method fails."""
    module = harness.load_file(EVERYDAY)
    eager = _eager(program)
    with broken(owner, name, at, after):
        other = harness.run_in(module, program, "replay")
    return harness.compare(eager, other, 0.0)


def check(program: str, owner: type, name: str) -> None:
    """The program does what it does in eager, whichever use of the method fails: the first, one between, the last."""
    count = uses(program, owner, name)
    for at in sorted({1, (count + 1) // 2, count} - {0}):
        for after in (False, True):
            assert differences(program, owner, name, at, after) == [], (at, count, after)


@functools.cache
def _eager(program: str) -> Any:
    return harness.run_in(harness.load_file(EVERYDAY), program, None)
