"""Runs one test module of CPython once, as it is or rewritten, and writes down what became of each test.

    python tests/identity/child.py test.test_heapq twins outcomes.json --subjects heapq
    python tests/identity/child.py serve                         # watched: reads requests, see ``serve``

Owns what an outcome is. Knows nothing of how functions come to run rewritten, of the list of modules or of known
differences. Needs no torch but where tests are watched; run as it is, it imports nothing of torchjanus.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
import unittest
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
WAYS = ("plain", "twins", "in place", "protocols")
MEMORY = 6 << 30  # bytes that a module may take while it is run watched


def with_word(known: str | None, word: str) -> str:
    """A test may end several times: by its parts, by what its clean-up does, or because two tests share a name."""
    return word if known is None else f"{known}, {word}"


class Outcomes(unittest.TestResult):
    """What became of each test, by its id: a word, and the type of the exception."""

    def __init__(self, tell: Callable[[dict[str, Any]], None] = lambda reported: None) -> None:
        super().__init__()
        self.outcomes: dict[str, str] = {}
        self.details: dict[str, str] = {}
        self.tell = tell

    def note(self, test: Any, word: str, error: Any = None) -> None:
        name = re.sub(r"0x[0-9a-f]+", "0x", test.id())  # a subtest is named by its parameters
        if error is not None:
            word = f"{word} {error[0].__name__}"
            self.details[name] = self._exc_info_to_string(error, test)  # type: ignore[attr-defined]
        self.outcomes[name] = with_word(self.outcomes.get(name), word)
        self.tell({"outcome": [name, word, "" if error is None else self.details[name]]})

    def addSuccess(self, test: Any) -> None:
        self.note(test, "ok")

    def addError(self, test: Any, err: Any) -> None:
        self.note(test, "error", err)

    def addFailure(self, test: Any, err: Any) -> None:
        self.note(test, "fail", err)

    def addSkip(self, test: Any, reason: str) -> None:
        self.note(test, "skipped")

    def addExpectedFailure(self, test: Any, err: Any) -> None:
        self.note(test, "expected failure")

    def addUnexpectedSuccess(self, test: Any) -> None:
        self.note(test, "unexpected success")

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            self.note(subtest, "fail" if issubclass(err[0], test.failureException) else "error", err)


def tests_in(suite: Any) -> Iterator[Any]:
    if isinstance(suite, unittest.TestSuite):
        for each in suite:
            yield from tests_in(each)
    else:
        yield suite


def serve() -> int:
    """Runs modules watched, in forks of this process, which imports torch once. Reads requests, a line each: what
    ``Request`` is made of, as JSON. Answers each with a line when its outcomes are written."""
    sys.path[:0] = [str(HERE), str(HERE.parents[1])]  # this torchjanus, and no installed one
    importlib.import_module("watching")
    for line in sys.stdin:
        request = Request(**json.loads(line))
        reported = Reported()
        while not served(request, reported):
            pass
        Path(request.into).write_text(json.dumps(reported.all()))
        print("done", flush=True)
    return 0


@dataclass(frozen=True)
class Request:
    """A module to run watched."""

    module: str
    into: str  # the file to write
    cpu: float  # seconds that one test may take
    real: float  # seconds in which one test has to come to its end
    native: list[str]  # the tests that are run as they are


class Reported:
    """What the forks tell of their tests, a line of JSON each; a fork that dies has said with which test."""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}
        self.details: dict[str, str] = {}
        self.tests: dict[int, dict[str, Any]] = {}  # what is known of each that came to its end, by its number
        self.begun: tuple[int, str] | None = None  # the number and the id of the test that runs
        self.held: list[tuple[str, str, str]] = []  # its outcomes so far

    def take(self, lines: Iterable[str]) -> None:
        for line in lines:
            reported = json.loads(line)
            if "outcome" in reported:
                self.held.append(tuple(reported["outcome"]))
                if self.begun is None:  # of the set-up of a class
                    self.keep()
            elif "begun" in reported:
                self.begun = tuple(reported["begun"])
            else:
                self.end(reported["ended"])

    def end(self, reported: dict[str, Any]) -> None:
        assert self.begun is not None
        self.tests[self.begun[0]] = reported
        if reported.get("too long"):
            self.held = [(self.begun[1], "not done in time", "")]
        self.begun = None
        self.keep()

    def keep(self) -> None:
        for name, word, detail in self.held:
            self.outcomes[name] = with_word(self.outcomes.get(name), word)
            self.details.update({name: detail} if detail else {})
        self.held = []

    def died(self, module: str, how: str, errors: str) -> bool:
        """Whether it was a test that ended the fork, so that others may be left."""
        name = module if self.begun is None else self.begun[1]
        self.held = [(name, how, errors)]
        if self.begun is None:
            self.keep()
            return False
        self.end({"id": name})
        return True

    def all(self) -> dict[str, Any]:
        tests = self.tests.values()
        return {
            "outcomes": self.outcomes,
            "details": self.details,
            "watched": sum(each.get("watched", 0) for each in tests),
            "served": sum(each.get("served", 0) for each in tests),
            "refused": sum(each.get("refused", 0) for each in tests),
            "not watched": dict(Counter(each["native"] for each in tests if each.get("native"))),
            "faults": {each["id"]: each["faults"] for each in tests if each.get("faults")},
            "seconds": {each["id"]: each.get("seconds", 0) for each in tests},
        }


def served(request: Request, reported: Reported) -> bool:
    """Runs the tests that are left of a module, in a fork; whether that was all of them."""
    lines, errors = Path(request.into).with_suffix(".lines"), Path(request.into).with_suffix(".err")
    child = os.fork()
    if child == 0:
        nothing = os.open(os.devnull, os.O_RDWR)
        for old, new in ((0, nothing), (1, nothing), (2, os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC))):
            os.dup2(new, old)
        sys.stdin = open(os.devnull)
        sys.argv = [str(HERE / "child.py")]
        status = 1
        try:
            with lines.open("w", buffering=1) as into:
                run_watched(request, set(reported.tests), lambda reported: print(json.dumps(reported), file=into))
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    ended, status, how = 0, 0, ""
    while not ended:
        ended, status = os.waitpid(child, os.WNOHANG)
        time.sleep(0.05)
        # What it tells, and so the time of that file, is all that is known of where it stands.
        if lines.exists() and time.time() - lines.stat().st_mtime > request.real and not how:
            how = "not done in time"
            os.kill(child, signal.SIGKILL)
    reported.take(lines.read_text().splitlines() if lines.exists() else [])
    code = os.waitstatus_to_exitcode(status)
    lines.unlink(missing_ok=True)
    if code == 0:
        return True
    return not reported.died(
        request.module, how or f"ended with status {code}", errors.read_text(errors="replace")[-4000:]
    )


def run_watched(request: Request, done: set[int], tell: Callable[[dict[str, Any]], None]) -> None:
    """Runs the tests of a module but for those that are done, and tells of each."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        suite = unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(request.module))
        numbered = [(number, test) for number, test in enumerate(tests_in(suite)) if number not in done]
        # Of the profiling timer, what the process starts has none.
        importlib.import_module("watching").run(numbered, Outcomes(tell), tell, request.cpu, frozenset(request.native))
        os.chdir("/")


def main() -> int:
    if sys.argv[1:] == ["serve"]:
        return serve()
    parser = argparse.ArgumentParser()
    parser.add_argument("module")
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("into", type=Path, help="the file to write")
    parser.add_argument("--subjects", nargs="*", default=[], help="modules whose functions are rewritten in place, too")
    parser.add_argument("--only", default="", help="the id of the one test to run")
    arguments = parser.parse_args()
    run(arguments.module, arguments.way, arguments.into.resolve(), arguments.subjects, arguments.only)
    return 0


def run(module: str, way: str, into: Path, subjects: Sequence[str] = (), only: str = "") -> None:
    result = Outcomes()
    counted: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # the tests write files into where they are
        suite = unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(module))
        if only:
            suite = unittest.TestSuite([test for test in tests_in(suite) if test.id() == only])
        if way == "plain":
            suite.run(result)
        else:
            # Where the parts that need no torch are, and what lets them be imported without it.
            sys.path += [str(HERE), str(HERE.parent / "rewrite"), str(HERE.parents[1])]
            importlib.import_module("differ").without_torch()
            rewriting = importlib.import_module("rewriting")
            in_place = [module, *subjects] if way == "in place" else []
            counted = rewriting.run(suite, result, way, in_place)
        os.chdir("/")
    into.write_text(json.dumps({"outcomes": result.outcomes, "details": result.details, **counted}))


if __name__ == "__main__":
    sys.exit(main())
