"""Runs the programs of the documentation, and writes what they print into the pages.

A page is a sequence of fenced blocks:

- ```` ```python ```` is a part of the page's program; all parts run in order, in one process.
- ```` ```python title="train.py" ```` is a file that commands of the page can name.
- ```` ```sh ```` is run if an output follows it; ``examples/`` is there.
- ```` ```text title="Output" ```` is what the blocks since the last output have printed; ``...`` stands for any text.

A block behind ``<!-- not run -->`` is only shown. ``python -m tests.docs.pages [PAGE...]`` writes the outputs anew.
"""

from __future__ import annotations

import difflib
import doctest
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.forked import python

__all__ = ["DOCS", "Block", "Output", "blocks", "mismatch", "outputs", "pages"]

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
ELSEWHERE = {"reasons.md"}  # written by a command, whose own tests run the programs
LIMIT = 1800  # seconds: against programs that hang, not a bound on their speed

_FENCE = re.compile(
    r"^(?P<hidden><!-- not run -->\n+)?"
    r'```(?P<kind>\w+)(?: title="(?P<title>[^"]*)")?\n(?P<text>.*?)^```$',
    re.MULTILINE | re.DOTALL,
)
_OF_SHELLS = re.compile(r"[|&;<>$`=\\]|^\s")
_PYTHON = {"python": [], "torchjanus": ["-m", "torchjanus"]}
_END = "\x1e"  # printed at the end of each part of a program
_VARYING = re.compile(r"\b\d+(?:\.\d+)?(?= (?:us|ms|s|seconds)\b)|\b\d+(?=% of their time)")
_TIME = re.compile(r"(?:\.\.\.|\b\d+(?:\.\d+)?) (?:us|ms|s)\b")  # its unit varies, too


@dataclass(frozen=True)
class Block:
    """A fenced block of a page; ``start`` and ``end`` are where its text lies in the page."""

    kind: str
    title: str
    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Output:
    """What a page shows as output, and what was printed."""

    shown: Block
    printed: str


def pages() -> list[Path]:
    """The pages that have programs."""
    own = [page for page in sorted(DOCS.rglob("*.md")) if page.name not in ELSEWHERE]
    return [page for page in own if any(block.kind == "python" for block in blocks(page.read_text()))]


def blocks(page: str) -> list[Block]:
    """The blocks of a page, without those that are only shown."""
    return [
        Block(match["kind"], match["title"] or "", match["text"], match.start("text"), match.end("text"))
        for match in _FENCE.finditer(page)
        if not match["hidden"]
    ]


def outputs(page: Path) -> list[Output]:
    """Run the programs of a page. Raises CalledProcessError if one fails."""
    found = blocks(page.read_text())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "examples").symlink_to(ROOT / "examples")
        for block in found:
            if block.kind == "python" and block.title:
                (folder / block.title).write_text(block.text)
        printed = iter(_run_program([b.text for b in found if b.kind == "python" and not b.title], folder))
        return list(_outputs(found, printed, folder))


def _outputs(found: list[Block], printed: Iterator[str], folder: Path) -> Iterator[Output]:
    waiting = ""
    for before, block in zip([None, *found], found, strict=False):
        if block.kind == "python" and not block.title:
            waiting += next(printed)
        elif block.kind == "text" and block.title == "Output":
            if before is not None and before.kind == "sh":
                waiting += _run_commands(before.text, folder)
            yield Output(block, waiting)
            waiting = ""


def _run_program(parts: list[str], folder: Path) -> list[str]:
    """What each part of a program prints."""
    if not parts:
        return []
    (folder / "page.py").write_text(f"\nprint({_END!r}, end='', flush=True)\n\n".join([*parts, ""]))
    return _printed(python(["page.py"], folder, _environment()), folder).split(_END)[:-1]


def _run_commands(commands: str, folder: Path) -> str:
    """What commands of a shell print, errors included."""
    lines = [shlex.split(line) for line in commands.splitlines() if line]
    installs = any("torchjanus.install(" in path.read_text() for path in folder.glob("*.py"))  # it looks at its callers
    if not installs and not _OF_SHELLS.search(commands) and all(first in _PYTHON for first, *_ in lines):
        ran = (python([*_PYTHON[first], *rest], folder, _environment(), together=True) for first, *rest in lines)
        return "".join(_printed(done, folder) for done in ran)
    for word, command in (("python", sys.executable), ("torchjanus", f"{sys.executable} -m torchjanus")):
        commands = re.sub(rf"^{word}\b", command, commands, flags=re.MULTILINE)
    return _run(["bash", "-e", "-c", f"exec 2>&1\n{commands}"], folder)


def _run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, env=_environment(), capture_output=True, text=True, timeout=LIMIT)
    return _printed(done, folder)


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TORCHJANUS_CACHE": ""}


def _printed(done: subprocess.CompletedProcess[str], folder: Path) -> str:
    if done.returncode:
        sys.stderr.write(done.stdout + done.stderr)
        done.check_returncode()
    return done.stdout.replace(f"{folder}{os.sep}", "")  # the report names files in full where it quotes a refusal


def mismatch(output: Output) -> str:
    """How what is shown differs from what was printed; "" if it does not."""
    # Where a line of a report is wrapped depends on the numbers in it.
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    expected, met = (_TIME.sub("(a time)", text) for text in (output.shown.text, output.printed))
    if doctest.OutputChecker().check_output(expected, met, options):
        return ""
    shown, printed = output.shown.text.splitlines(), output.printed.splitlines()
    return "\n".join(difflib.unified_diff(shown, printed, "page", "printed"))


def rewrite(page: Path) -> None:
    """Write what the programs of a page print into the page. Numbers of seconds become ``...``."""
    text = page.read_text()
    for output in reversed(outputs(page)):
        if mismatch(output):
            printed = _VARYING.sub("...", output.printed)
            text = text[: output.shown.start] + printed + text[output.shown.end :]
            print(f"{page.relative_to(ROOT)}: {len(printed.splitlines())} lines written")
    page.write_text(text)


if __name__ == "__main__":
    for given in [Path(name).resolve() for name in sys.argv[1:]] or pages():
        rewrite(given)
