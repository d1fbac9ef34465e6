"""Each sample of PyTorch's databases as a speculated step under executor="replay", bitwise against eager.

    python -m benchmarks.robustness.torch_databases --jobs 2 --record         # all three
    python -m benchmarks.robustness.torch_databases ops --only add --limit 4  # four samples of one operator
    python -m benchmarks.robustness.torch_databases ops --shard 3/8           # a piece
    python -m benchmarks.robustness.torch_databases --keep build/rows.jsonl   # goes on where it was broken off
    python -m benchmarks.robustness.torch_databases strides                   # which operators' fake strides are wrong

Takes hours; seconds an operator.

Ends with status 1 where a difference is not listed with its reason in ``exceptions.toml``, or where a listed one is
gone.
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from benchmarks.record import RESULTS, write
from benchmarks.robustness.torch_databases import modules, ops, optimizers, strides
from benchmarks.robustness.torch_databases.playing import CALLS, WATCHED, Case, Outcome, outcomes

__all__ = ["main"]

DATABASES: dict[str, ModuleType] = {"ops": ops, "modules": modules, "optimizers": optimizers}
EXCEPTIONS = Path(__file__).with_name("exceptions.toml")
AT_ONCE = 60  # entries that one process looks at: what it has used of memory goes with it
MOST_SECONDS = 7200  # for one process

Row = dict[str, Any]
Show = Callable[[Row], None]


def listed(database: str) -> list[dict[str, str]]:
    """The exceptions of one database."""
    with EXCEPTIONS.open("rb") as file:
        return [one for one in tomllib.load(file).get("exception", []) if one["database"] == database]


def exception_of(row: Row, exceptions: Sequence[dict[str, str]]) -> dict[str, str] | None:
    """The one that refers to this row."""
    for one in exceptions:
        if re.fullmatch(one["name"], row["name"]) and re.fullmatch(one.get("way", ".*"), row["way"]):
            return one
    return None


def _looked_at_here(database: str, names: Sequence[str], limit: int | None, way: str) -> None:
    """Print what becomes of the samples of these entries, a line each, and the name of each entry when it is done."""
    for name in names:
        for outcome in outcomes(list(DATABASES[database].cases(name, limit, way))):
            print(json.dumps(outcome.as_data()), flush=True)
        print(json.dumps({"done": name}), flush=True)


def _elsewhere(database: str, names: Sequence[str], limit: int | None, way: str, show: Show) -> list[Row]:
    """The same in processes of their own: an entry that brings one down is a fault, and another goes on behind it."""
    rows: list[Row] = []
    left = list(names)
    while left:
        command = [sys.executable, "-m", "benchmarks.robustness.torch_databases", database, "--rows", "--way", way]
        command += ["--only", *left, *([] if limit is None else ["--limit", str(limit)])]
        with tempfile.TemporaryFile("w+") as errors:
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as child:
                stop = threading.Timer(MOST_SECONDS, child.kill)
                stop.start()
                assert child.stdout is not None
                for line in child.stdout:
                    row = json.loads(line) if line.startswith("{") else {}
                    if "done" in row:
                        left.remove(row["done"])
                        show(row)
                    elif row:
                        rows.append(row)
                        show(row)
            stop.cancel()
            errors.seek(max(0, errors.seek(0, 2) - 300))
            if left:
                reported = f"the process ended with {child.returncode}: {errors.read()}"
                row = Outcome(Case(left.pop(0), "any", 0, dict), "fault", reported).as_data()  # type: ignore[arg-type]
                rows.append(row)
                show(row)
                show({"done": row["name"]})
    return rows


def kept(database: str, keep: Path | None) -> tuple[list[Row], set[str]]:
    """The rows of a file that an earlier run has written, and which entries it had come to the end of."""
    if keep is None or not keep.exists():
        return [], set()
    rows = [row for row in map(json.loads, keep.read_text().splitlines()) if row["database"] == database]
    done = {row["done"] for row in rows if "done" in row}
    return [row for row in rows if row.get("name") in done], done


def looked_at(database: str, names: Sequence[str], limit: int | None, way: str, jobs: int, show: Show) -> list[Row]:
    """All rows of a database; each is shown when it is there."""
    pieces = [names[start : start + AT_ONCE] for start in range(0, len(names), AT_ONCE)]
    with ThreadPoolExecutor(jobs) as pool:
        found = pool.map(lambda piece: _elsewhere(database, piece, limit, way, show), pieces)
        return [row for some in found for row in some]


def counted(database: str, rows: Sequence[Row], names: Sequence[str], whole: bool) -> dict[str, Any]:
    """The numbers of a database, and what is amiss."""
    exceptions = listed(database)
    bad = [row for row in rows if row["kind"] in ("differs", "fault")]
    explained = [(row, exception_of(row, exceptions)) for row in bad]
    met = [one for _, one in explained if one is not None]
    gone = [one for one in exceptions if one not in met and any(re.fullmatch(one["name"], name) for name in names)]
    comparable = [row for row in rows if row["kind"] != "not comparable"]
    possible = CALLS - WATCHED
    refused = collections.Counter(_general(row["refused"]) for row in comparable if row["served"] < possible)
    unsuited = collections.Counter(row["reported"] for row in rows if row["kind"] == "not comparable")
    return {
        "entries": len(names),
        "names": list(names),
        "samples run": len(comparable),
        "equal": sum(row["kind"] == "equal" for row in comparable),
        "served": sum(row["served"] == possible for row in comparable),
        "calls served": sum(row["served"] for row in comparable),
        "calls that could be": possible * len(comparable),
        "refused": dict(refused.most_common(40)),
        "not comparable": dict(unsuited.most_common()),
        "listed": [f"{row['name']}, {row['way']}, {row['sample']}: {one['reason']}" for row, one in explained if one],
        "unexplained": [_said(row) for row, one in explained if one is None],
        "listed, but agree": [one["name"] for one in gone] if whole else [],
    }


def _general(refused: str) -> str:
    """A reason without the names and numbers that make it one of many."""
    return re.sub(r"\d+", "N", re.sub(r"(?:torch|Tensor|aten|F)\.[\w.]+", "...", refused))[:100]


def _said(row: Row) -> str:
    return f"{row['name']}, {row['way']}, sample {row['sample']}: {row['kind']}: {row['reported']}"


def _show(database: str, keep: Path | None) -> Show:
    exceptions = listed(database)

    def show(row: Row) -> None:
        if keep is not None:
            with keep.open("a") as file:
                file.write(f"{json.dumps({'database': database, **row})}\n")
        if row.get("kind") in ("differs", "fault"):
            known = exception_of(row, exceptions)
            print(f"  {'listed: ' if known else ''}{_said(row)[:400]}", flush=True)

    return show


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("databases", nargs="*", choices=[*DATABASES, "strides", []], default=[])
    parser.add_argument("--only", nargs="+", help="these entries only")
    parser.add_argument("--way", default="", help="only ways with this in their name")
    parser.add_argument("--limit", type=int, help="so many samples of each way")
    parser.add_argument("--shard", default="1/1", help="K/N: the K-th of N pieces")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument(
        "--record", action="store_true", help="write benchmarks/results/torch_databases.json; others stay as they are"
    )
    parser.add_argument("--rows", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument(
        "--keep", type=Path, help="write all rows to this file, one a line; entries in it are not run again"
    )
    parser.add_argument("--done", action="store_true", help="only entries that are in that file: count what there is")
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if asked.databases == ["strides"]:
        return strides.main(asked.only, asked.limit, list(arguments or sys.argv[1:]) if asked.record else None)
    if asked.rows:
        _looked_at_here(asked.databases[0], asked.only, asked.limit, asked.way)
        return 0
    part, parts = map(int, asked.shard.split("/"))
    given = [
        Path(argument).name if Path(argument).is_absolute() else argument for argument in arguments or sys.argv[1:]
    ]
    how = {"limit": asked.limit, "way": asked.way, "calls": CALLS, "watched": WATCHED, "command": given}
    content = recorded()
    amiss = False
    for database in asked.databases or DATABASES:
        begin = time.perf_counter()
        names = [
            name for name in dict.fromkeys(DATABASES[database].names()) if asked.only is None or name in asked.only
        ]
        names = names[part - 1 :: parts]
        rows, done = kept(database, asked.keep)
        names = [name for name in names if name in done or not asked.done]
        left = [name for name in names if name not in done]
        rows += looked_at(database, left, asked.limit, asked.way, asked.jobs, _show(database, asked.keep))
        found = counted(database, rows, names, whole=not asked.way and asked.limit is None)
        content[database] = how | found | {"seconds": round(time.perf_counter() - begin)}
        amiss |= bool(found["unexplained"] or found["listed, but agree"])
        _print(database, found)
    if asked.record:
        print(write("torch_databases", given, "cpu", content))
    return int(amiss)


def recorded() -> dict[str, dict[str, Any]]:
    """What is recorded of each database, each with the command that made it."""
    path = RESULTS / "torch_databases.json"
    content = json.loads(path.read_text()) if path.exists() else {}
    return {database: content[database] for database in DATABASES if "command" in content.get(database, {})}


def _print(database: str, found: dict[str, Any]) -> None:
    served = f"{found['served']} served ({found['calls served']} of {found['calls that could be']} calls)"
    run = f"{found['entries']} entries, {found['samples run']} samples run, {found['equal']} equal"
    print(f"\n{database}: {run}, {served}")
    for what in ("refused", "not comparable"):
        print(f"  {what}: {sum(found[what].values())}")
        for reason, count in list(found[what].items())[:12]:
            print(f"    {count:5d} {reason}")
    for what in ("listed", "unexplained", "listed, but agree"):
        print(f"  {what}: {len(found[what])}")


if __name__ == "__main__":
    sys.exit(main())
