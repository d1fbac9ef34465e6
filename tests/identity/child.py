"""Runs one test module of CPython once, as it is or rewritten, and writes down what became of each test.

    python tests/identity/child.py test.test_heapq twins outcomes.json --subjects heapq
    echo test.test_heapq outcomes.json 60 | python tests/identity/child.py serve          # watched

Owns what an outcome is. Knows nothing of how functions come to run rewritten, of the list of modules or of known
differences. Needs no torch but where tests are watched; run as it is, it imports nothing of torchjanus.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import signal
import sys
import tempfile
import time
import traceback
import unittest
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
WAYS = ("plain", "twins", "in place", "protocols", "watched")


class Outcomes(unittest.TestResult):
    """What became of each test, by its id: a word, and the type of the exception."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: dict[str, str] = {}
        self.details: dict[str, str] = {}

    def note(self, test: Any, word: str, error: Any = None) -> None:
        name = re.sub(r"0x[0-9a-f]+", "0x", test.id())  # a subtest is named by its parameters
        if error is not None:
            word = f"{word} {error[0].__name__}"
            self.details[name] = self._exc_info_to_string(error, test)  # type: ignore[attr-defined]
        known = self.outcomes.get(name)
        # A test may end several times: by its parts, by what its clean-up does, or because two tests share a name.
        self.outcomes[name] = word if known is None else f"{known}, {word}"

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
    """Runs modules watched, each in a fork of this process, which imports torch once. Reads lines: a module, a file to
    write, seconds. Says of each how it ended; what goes wrong is in a file beside."""
    sys.path[:0] = [str(HERE), str(HERE.parents[1])]  # this torchjanus, and no installed one
    importlib.import_module("watching")
    for line in sys.stdin:
        module, into, limit = line.split()
        begin = time.monotonic()
        child = os.fork()
        if child == 0:
            errors = os.open(Path(into).with_suffix(".err"), os.O_WRONLY | os.O_CREAT)
            nothing = os.open(os.devnull, os.O_RDWR)
            for old, new in ((0, nothing), (1, nothing), (2, errors)):
                os.dup2(new, old)
            sys.stdin = open(os.devnull)
            sys.argv = [str(HERE / "child.py")]
            status = 1
            try:
                run(module, "watched", Path(into))
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        ended, status = os.waitpid(child, os.WNOHANG)
        while not ended:
            time.sleep(0.05)
            if time.monotonic() - begin > float(limit):
                os.kill(child, signal.SIGKILL)
            ended, status = os.waitpid(child, os.WNOHANG)
        print(f"ended with status {os.waitstatus_to_exitcode(status)}", flush=True)
    return 0


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
        elif way == "watched":
            counted = importlib.import_module("watching").run(suite, result)
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
