"""The identity corpus: CPython's own tests, as they are and rewritten, on every interpreter found; one table for each.

    python -m benchmarks.robustness.identity --jobs 2                 # the whole corpus
    python -m benchmarks.robustness.identity test_scope test_heapq    # these modules only; writes no record
    python -m benchmarks.robustness.identity test_scope --record      # and puts them into the record
    python -m benchmarks.robustness.identity --ways watched           # each test a call of a speculated function

Takes half an hour an interpreter.

Ends with status 1 where a difference is not listed with its reason in ``tests/identity/differences.toml``, or where a
listed one is gone.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks.record import RESULTS, write
from tests.identity.corpus import MODULES, WAYS, Comparison, compare, lacks_tests, version_of, ways_for
from tests.interpreters import interpreters

__all__ = ["main"]


def row(compared: Comparison) -> dict[str, Any]:
    return {
        "module": compared.module,
        "way": compared.way,
        "tests": compared.tests,
        "equal": compared.equal,
        "passed as it is": compared.passed,
        "functions rewritten": len(compared.functions),
        "functions left native": compared.native,
        **(
            {"watched": compared.watched, "refused": compared.refused, "not done in time": compared.late}
            if compared.way == "watched"
            else {}
        ),
        "faults": compared.faults,
        "differences": [{"test": each.test, "reason": each.reason} for each in compared.known],
        "unexplained": compared.unknown,
        "listed, but agree": compared.settled,
    }


def compared_all(interpreter: str, ways: Sequence[str], module: str) -> list[tuple[Comparison, float]]:
    """The comparisons of one module, each with the seconds it took; the first includes the run of it as it is."""
    out: list[tuple[Comparison, float]] = []
    for way in ways:
        if way in ways_for(module):
            begin = time.perf_counter()
            compared = compare(module, way, interpreter)
            out.append((compared, time.perf_counter() - begin))
    return out


def measured(interpreter: str, modules: Sequence[str], ways: Sequence[str], jobs: int) -> dict[str, Any]:
    """All comparisons on one interpreter, printed as they come."""
    print(f"\n{interpreter}\n\n| module | way | tests | functions rewritten | differences | unexplained | seconds |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    rows: list[dict[str, Any]] = []
    functions: set[tuple[str, int, str]] = set()
    with ThreadPoolExecutor(jobs) as pool:
        for compared, took in chain.from_iterable(
            pool.map(functools.partial(compared_all, interpreter, ways), modules)
        ):
            functions |= compared.functions
            rows.append(row(compared))
            counts = f"{compared.tests} | {len(compared.functions)} | {len(compared.known)}"
            unexplained = len(compared.differ) - len(compared.known)
            print(f"| {compared.module} | {compared.way} | {counts} | {unexplained} | {took:.0f} |", flush=True)
    whole = {**summary(version_of(interpreter), ways, rows), "functions rewritten": len(functions)}
    print(f"\n{whole}")
    return {**whole, "rows": rows}


def summary(python: str, ways: Sequence[str], rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the rows of one interpreter come to."""
    tests = {each["module"]: each["tests"] for each in rows}
    explained = {each["test"] for one in rows for each in one["differences"]}
    return {
        "python": python,
        "ways": list(ways),
        "modules": len(tests),
        "tests": sum(tests.values()),
        "equal": sum(one.get("equal", 0) for one in rows),  # in each of the ways
        "tests watched": sum(one.get("watched", 0) for one in rows),
        "not done in time": sum(len(one.get("not done in time", ())) for one in rows),
        "faults": [fault for one in rows for reported in one["faults"].values() for fault in reported],
        "differences": len(explained),
        "unexplained": [one["unexplained"] for one in rows if one["unexplained"]],
        "listed, but agree": [test for one in rows for test in one["listed, but agree"]],
    }


def recorded(folder: Path = RESULTS) -> list[dict[str, Any]]:
    """What the record holds, for each interpreter."""
    record = folder / "identity.json"
    known: list[dict[str, Any]] = json.loads(record.read_text())["interpreters"] if record.exists() else []
    return known


def kept(results: Sequence[dict[str, Any]], folder: Path = RESULTS) -> list[dict[str, Any]]:
    """What the record holds already of other ways, or of other interpreters."""
    new = {(each["python"], way) for each in results for way in each["ways"]}
    # Records of old do not say it of a whole, but of each row.
    return [one for one in recorded(folder) if not new & {(one["python"], row["way"]) for row in one["rows"]}]


def completed(result: dict[str, Any], folder: Path = RESULTS) -> dict[str, Any]:
    """A run of some modules, with what the record holds of the others in the same ways."""
    rows = {
        (row["module"], row["way"]): row
        for one in recorded(folder)
        for row in one["rows"]
        if one["python"] == result["python"] and one.get("ways") == result["ways"]
    }
    rows |= {(row["module"], row["way"]): row for row in result["rows"]}
    order = list(MODULES)
    inorder = sorted(rows.values(), key=lambda row: (order.index(row["module"]), WAYS.index(row["way"])))
    return {**summary(result["python"], result["ways"], inorder), "rows": inorder}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", default=[], help="test modules; all of the corpus by default")
    parser.add_argument("--ways", choices=WAYS, nargs="+", help="all on this interpreter, one on others")
    parser.add_argument("--python", action="append", help="an interpreter; by default this one and others found")
    parser.add_argument("--record", action="store_true", help="puts what is asked of some modules into the record")
    parser.add_argument("--jobs", type=int, default=1, help="modules run at the same time")
    arguments = parser.parse_args()
    unknown = set(arguments.modules) - MODULES.keys()
    if unknown:
        parser.error(f"not in the corpus: {', '.join(sorted(unknown))}")
    results = []
    for interpreter in arguments.python or [sys.executable, *interpreters()]:
        lacking = lacks_tests(interpreter)
        if lacking:
            print(lacking)
            continue
        ways = arguments.ways or (WAYS if interpreter == sys.executable else ["in place"])
        if interpreter != sys.executable:  # tests are watched by this interpreter, which has torch
            ways = [way for way in ways if way != "watched"]
        if not ways:
            continue
        results.append(measured(interpreter, arguments.modules or list(MODULES), ways, arguments.jobs))
    if arguments.record or not arguments.modules:
        if arguments.modules:
            results = [completed(each) for each in results]
        reported = {"interpreters": [*kept(results), *results]}
        print(f"\nwrote {write('identity', sys.argv[1:], 'cpu', reported, RESULTS)}")
    failed = any(each["unexplained"] or each["listed, but agree"] for each in results)
    return 1 if failed or not results else 0


if __name__ == "__main__":
    sys.exit(main())
