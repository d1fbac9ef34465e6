"""The way "watched": each test is a call of a speculated function. Knows nothing of what becomes of the tests. Imported
by ``child``.

A test method is a step: it is watched, its trace is taken in, and thrown away with the step. What the test calls runs
rewritten where a user's program would: not unittest, and not what of the standard library is left native. Set-up and
clean-up are Python's. Asynchronous tests are run as they are: a step is a plain function.

The examples of doctests are steps, too, each by itself.
"""

from __future__ import annotations

import doctest
import logging
import sys
import time
import unittest
from collections import Counter
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch
from rewriting import DISPLAY, as_example, as_in_module

import torchjanus
from torchjanus.errors import SourceUnavailable, Unsupported
from torchjanus.hooks import current, rewritten
from torchjanus.semantics.virtualize import RUNS_LATER, underlying

__all__ = ["run"]


# These would not come to an end in time: they go through all objects that there are, or count to millions.
TOO_LONG = frozenset(
    {
        "test.test_descr.ClassPropertiesAndMethods.test_cycle_through_dict",
    }
)


class Watching:
    """Runs tests watched, and counts."""

    def __init__(self) -> None:
        self.watched = 0  # calls
        self.served = 0  # calls that a graph has made
        self.native: Counter[str] = Counter()  # calls that could not be watched, by reason
        self.refused = 0  # calls of which no graph can be made
        self.faults: dict[str, list[str]] = {}  # of torchjanus itself, by test
        self.steps: dict[int, tuple[Any, Any]] = {}  # by test object: itself, and its step
        self.took: dict[str, float] = {}  # seconds, by test

    def call(self, test: unittest.TestCase, method: Callable[[], Any]) -> Any:
        """The test method, as a step."""
        if type(test).__module__ == "doctest":  # its examples are the steps
            return method()
        if test.id() in TOO_LONG:
            self.native["too long"] += 1
            return method()
        try:
            target, _ = underlying(method)
            rewritten(target)
        except (SourceUnavailable, Unsupported) as error:
            self.native[type(error).__name__] += 1
            return method()
        if target.__code__.co_flags & RUNS_LATER:
            self.native["asynchronous"] += 1
            return method()
        known = self.steps.get(id(test))
        if known is None:
            known = self.steps[id(test)] = test, torchjanus.speculate(method, executor="replay")
        return self.step(test.id(), known[1])

    def step(self, name: str, step: Any) -> Any:
        limit = sys.getrecursionlimit()
        before = step.statistics()
        try:
            return step()
        finally:
            sys.setrecursionlimit(limit)
            after = step.statistics()
            self.watched += after.watched - before.watched
            self.served += after.speculated - before.speculated
            self.refused += bool(step.refusals)
            faults = [event.text for event in step.events if event.kind == "fault"]
            if faults:
                self.faults[name] = faults

    def example(self, code: CodeType, namespace: dict[str, Any]) -> None:
        """Stands in for the ``exec`` that doctest calls."""
        function = as_example(code, namespace)
        if function is None or current() is not None:
            exec(code, namespace)
        else:
            function.__code__ = as_in_module(function.__code__)
            try:
                self.step(code.co_filename, torchjanus.speculate(function, executor="replay"))
            finally:
                namespace.pop(DISPLAY, None)


def run(suite: unittest.TestSuite, result: unittest.TestResult, times: int = 1) -> dict[str, Any]:
    """Runs the suite, each test ``times`` times; says how many calls were watched, and what went wrong with that."""
    torch.set_num_threads(1)
    logging.getLogger("torchjanus").setLevel(logging.CRITICAL)
    watching = Watching()
    plain_call = unittest.TestCase.__call__

    def call_method(test: unittest.TestCase, method: Callable[[], Any]) -> None:
        watching.call(test, method)

    def call(test: unittest.TestCase, *args: Any, **kwargs: Any) -> None:
        begin = time.perf_counter()
        print(test.id(), file=sys.__stderr__, flush=True)  # where it stood, if it does not come to its end
        for _ in range(times):
            plain_call(test, *args, **kwargs)
        watching.steps.pop(id(test), None)
        watching.took[test.id()] = time.perf_counter() - begin

    unittest.TestCase._callTestMethod = call_method  # type: ignore[attr-defined]
    unittest.TestCase.__call__ = call  # type: ignore[method-assign]
    doctest.exec = watching.example  # type: ignore[attr-defined]
    suite.run(result)
    return {
        "watched": watching.watched,
        "served": watching.served,
        "refused": watching.refused,
        "not watched": dict(watching.native),
        "faults": watching.faults,
        "seconds": watching.took,
    }
