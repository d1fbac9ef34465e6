"""Parts forced on the corpus: each program runs with something in its step that no graph of the whole can hold.

    python -m benchmarks.robustness.parted [NAME ...] [--every N] [--offset K] [--seed S] [--keep FOLDER]

A call of a function that is refused is put at a random place of the step, and at random places of other functions of
the program. It looks at a weak reference (then the record of the run lets go of all objects) or at the names of its
frame (then the run is recorded as before). So the statements and calls around it have to become graphs of their own.
Each program runs eager and with ``executor="replay"`` from the same seeds, its calls three times one after the other.
Results, state, output, what was raised and the generators have to be the same, bit by bit.

The table says how many calls were made with graphs of parts, or with a graph of the statements that a cut leaves.
``--every N`` takes each Nth program of the corpus, from the Kth on. ``--keep`` keeps the changed files of programs that
differ. Names are ``category-program``.

Takes about two seconds a program.
"""

from __future__ import annotations

import argparse
import ast
import random
import sys
import tempfile
import traceback
import warnings
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from tests.programs import harness

__all__ = ["Row", "changed", "main", "row"]

REPEATED = 3  # times that the calls of a program are made: parts are made from about the seventh call on
OTHERS = 0.3  # of the other functions of a program that get a refused call
REFUSED = {
    "_looked_at_weakly": "import weakref as _weakref\n"
    "class _Passing:\n    pass\n"
    "def _looked_at_weakly():\n    return _weakref.ref(_Passing())() is None\n",
    "_looked_at_by_name": "def _looked_at_by_name():\n    return len(locals())\n",
}


@dataclass(frozen=True)
class Row:
    """One program. ``different``: where it is not eager's; ``parted``: calls with graphs of parts or of a cut."""

    name: str
    different: tuple[str, ...]
    calls: int
    parted: int

    def __str__(self) -> str:
        verdict = "DIFFERS" if self.different else "equal"
        return f"{self.name:64.64} {verdict}  {self.parted:3} of {self.calls:3} calls with graphs"


class _Places(ast.NodeVisitor):
    """Finds the functions of one program, and the lists of statements of each."""

    def __init__(self) -> None:
        self.functions: list[ast.FunctionDef] = []

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if not node.name.startswith("__"):
            self.functions.append(node)
        self.generic_visit(node)

    @staticmethod
    def blocks(function: ast.FunctionDef) -> list[list[ast.stmt]]:
        """Return the lists of statements of a function that are not those of a function or class in it."""
        found, waiting = [], [function.body]
        while waiting:
            block = waiting.pop()
            found.append(block)
            for statement in block:
                if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Match):
                    lists = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
                    lists += [handler.body for handler in getattr(statement, "handlers", ())]
                    waiting += [one for one in lists if one]
        return found


def changed(source: str, name: str, seed: int) -> str:
    """Return the source of a file of the corpus, in which the program ``name`` calls what is refused."""
    drawn = random.Random(zlib.crc32(f"{name} {seed}".encode()))
    tree = ast.parse(source)
    called = drawn.choice([*REFUSED])
    maker = next(one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == name)
    places = _Places()
    for statement in maker.body:
        places.visit(statement)
    steps = [one for one in places.functions if one.name in ("step", "forward", "training_step", "train_step")]
    steps = steps[-1:] or places.functions[-1:]
    for function in places.functions:
        if function in steps or drawn.random() < OTHERS:
            block = drawn.choice(_Places.blocks(function))
            least = sum(isinstance(one, ast.Global | ast.Nonlocal) for one in block)
            least += isinstance(block[0], ast.Expr) and isinstance(block[0].value, ast.Constant)
            block.insert(drawn.randint(least, len(block)), ast.parse(f"{called}()").body[0])
    at = next(n for n, one in enumerate(tree.body) if not _is_first(one))
    tree.body[at:at] = ast.parse(REFUSED[called]).body
    return ast.unparse(ast.fix_missing_locations(tree))


def _is_first(statement: ast.stmt) -> bool:
    is_docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return is_docstring or (isinstance(statement, ast.ImportFrom) and statement.module == "__future__")


def row(category: str, name: str, seed: int, folder: Path) -> Row:
    """Run one program, whose changed file is written into the folder."""
    path = folder / f"{category}_{name}_{seed}.py"
    path.write_text(changed(harness.files()[category].read_text(), name, seed))
    runs = [harness.run_in(harness.load_file(path), name, executor, repeated=REPEATED) for executor in (None, "replay")]
    close = getattr(harness.load(category), name).spec.close  # batched recursion rounds differently
    different = harness.compare(*runs, close)
    if different and harness.compare(runs[0], harness.run_in(harness.load_file(path), name, None, repeated=REPEATED)):
        different = []  # eager differs from itself
    counts = [step.statistics() for step in runs[1].steps]
    parted = sum(count.partly + count.speculated for count in counts)
    return Row(f"{category}-{name}", tuple(different), sum(count.calls for count in counts), parted)


def _chosen(options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    for number, (category, name) in enumerate(harness.programs()):
        is_next = not options.names and number % options.every == options.offset
        if is_next or f"{category}-{name}" in options.names:
            yield category, name


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--every", type=int, default=1, metavar="N")
    parser.add_argument("--offset", type=int, default=0, metavar="K")
    parser.add_argument("--seed", type=int, default=1, metavar="S")
    parser.add_argument("--keep", type=Path, metavar="FOLDER")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows: list[Row] = []
    failed = 0
    with tempfile.TemporaryDirectory() as made:
        folder = options.keep or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        for category, name in _chosen(options):
            try:
                one = row(category, name, options.seed, folder)
            except Exception:
                failed += 1
                print(f"{category}-{name}: the changed program cannot run\n{traceback.format_exc(limit=-2)}")
                continue
            rows.append(one)
            print(one, flush=True)
            for text in one.different:
                print(f"    {text}")
            if not one.different:
                (folder / f"{category}_{name}_{options.seed}.py").unlink()
    wrong = sum(bool(one.different) for one in rows)
    print(f"{len(rows)} programs: {sum(one.parted > 0 for one in rows)} with graphs, {wrong} different from eager")
    print(f"{sum(one.parted for one in rows)} of {sum(one.calls for one in rows)} calls with graphs; {failed} not run")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
