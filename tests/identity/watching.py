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
import signal
import sys
import time
import unittest
from collections.abc import Callable, Collection, Sequence
from types import CodeType
from typing import Any

import torch
from rewriting import DISPLAY, as_example, as_in_module

import torchjanus
from torchjanus.core.errors import SourceUnavailable, Unsupported
from torchjanus.rewrite.hooks import current, rewritten
from torchjanus.semantics.protocols.virtualize import RUNS_LATER, underlying

__all__ = ["run"]


class TooLong(BaseException):
    """A test has computed for too long. Nothing but the end of the test is to catch it."""


class Watching:
    """Runs tests watched, and counts."""

    def __init__(self, native: Collection[str]) -> None:
        self.native = native  # the ids of tests that are run as they are, and of classes of such tests
        self.steps: dict[int, tuple[Any, Any]] = {}  # by test object: itself, and its step
        self.reported: dict[str, Any] = {}  # of the test that runs: the counts of its calls, and what went wrong

    def end(self, number: int, frame: Any) -> None:
        """Handles the signal of the profiling timer."""
        self.reported["too long"] = True
        raise TooLong

    def call(self, test: unittest.TestCase, method: Callable[[], Any]) -> Any:
        """The test method, as a step."""
        if type(test).__module__ == "doctest":  # its examples are the steps
            return method()
        if test.id() in self.native or test.id().rpartition(".")[0] in self.native:
            self.reported["native"] = "too long"
            return method()
        try:
            target, _ = underlying(method)
            rewritten(target)
        except (SourceUnavailable, Unsupported) as error:
            self.reported["native"] = type(error).__name__
            return method()
        if target.__code__.co_flags & RUNS_LATER:
            self.reported["native"] = "asynchronous"
            return method()
        known = self.steps.get(id(test))
        if known is None:
            known = self.steps[id(test)] = test, torchjanus.speculate(method, executor="replay")
        return self.step(known[1])

    def step(self, step: Any) -> Any:
        limit = sys.getrecursionlimit()
        before = step.statistics()
        try:
            return step()
        finally:
            sys.setrecursionlimit(limit)
            after = step.statistics()
            counted = {
                "watched": after.watched - before.watched,
                "served": after.speculated - before.speculated,
                "refused": int(bool(step.refusals)),
            }
            for name, count in counted.items():
                self.reported[name] = self.reported.get(name, 0) + count
            faults = [event.text for event in step.events if event.kind == "fault"]
            if faults:
                self.reported.setdefault("faults", []).extend(faults)

    def example(self, code: CodeType, namespace: dict[str, Any]) -> None:
        """Stands in for the ``exec`` that doctest calls."""
        function = as_example(code, namespace)
        if function is None or current() is not None:
            exec(code, namespace)
        else:
            function.__code__ = as_in_module(function.__code__)
            try:
                self.step(torchjanus.speculate(function, executor="replay"))
            finally:
                namespace.pop(DISPLAY, None)


def run(
    numbered: Sequence[tuple[int, unittest.TestCase]],
    result: unittest.TestResult,
    tell: Callable[[dict[str, Any]], None],
    cpu: float,
    native: Collection[str],
) -> None:
    """Runs the tests; tells when each begins (its number and id) and ends (how many of its calls were watched, and what
    went wrong with that). One that computes for more than ``cpu`` seconds is broken off, and reported as ``too
    long``."""
    torch.set_num_threads(1)
    logging.getLogger("torchjanus").setLevel(logging.CRITICAL)
    watching = Watching(native)
    plain_call = unittest.TestCase.__call__
    signal.signal(signal.SIGPROF, watching.end)
    numbers = {id(test): number for number, test in numbered}

    def call_method(test: unittest.TestCase, method: Callable[[], Any]) -> None:
        watching.call(test, method)

    def call(test: unittest.TestCase, *args: Any, **kwargs: Any) -> None:
        number = numbers.get(id(test))
        if number is None:  # a test that a test runs
            plain_call(test, *args, **kwargs)
            return
        begin = time.perf_counter()
        watching.reported = reported = {"id": test.id()}
        tell({"begun": [number, test.id()]})
        limit = sys.getrecursionlimit()
        try:
            signal.setitimer(signal.ITIMER_PROF, cpu, cpu / 4)  # again, where it was swallowed: by a __del__, say
            plain_call(test, *args, **kwargs)
            signal.setitimer(signal.ITIMER_PROF, 0)
        except TooLong:  # behind the test, or before it
            signal.setitimer(signal.ITIMER_PROF, 0)
        sys.setrecursionlimit(limit)
        watching.steps.pop(id(test), None)
        tell({"ended": {**reported, "seconds": time.perf_counter() - begin}})

    unittest.TestCase._callTestMethod = call_method  # type: ignore[attr-defined]
    unittest.TestCase.__call__ = call  # type: ignore[method-assign]
    doctest.exec = watching.example  # type: ignore[attr-defined]
    unittest.TestSuite([test for _, test in numbered]).run(result)
