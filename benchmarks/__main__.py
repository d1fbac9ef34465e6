"""List all benchmarks: what each shows, how long it takes, the command that runs it.

    python -m benchmarks [WORD ...]

With words, only those whose name or description holds one of them. The docstring of each command is the source: its
first paragraph says what it shows, the indented lines how it is run, and the paragraph that begins with "Takes" how
long that is on two cores. A module without such a paragraph is part of a benchmark, or a process that one starts.
"""

from __future__ import annotations

import ast
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["GROUPS", "Benchmark", "benchmarks", "main"]

HERE = Path(__file__).parent
GROUPS = {
    "speed": "how fast steps and trainings are",
    "cost": "what torchjanus takes for itself",
    "robustness": "whether results stay eager's",
    "gpu": "what one launch a step gains on a GPU",
}


@dataclass(frozen=True)
class Benchmark:
    """A command of this folder. ``name`` is the module that ``python -m`` runs."""

    name: str
    shows: str
    takes: str
    commands: tuple[str, ...]

    @property
    def group(self) -> str:
        return self.name.split(".")[1]


def benchmarks() -> list[Benchmark]:
    """All commands, by group and name. Nothing is imported: their docstrings are read."""
    return [found for group in GROUPS for found in sorted(_in_group(group), key=lambda found: found.name)]


def _in_group(group: str) -> Iterator[Benchmark]:
    for file in (HERE / group).rglob("*.py"):
        module = ".".join(("benchmarks", *file.relative_to(HERE).with_suffix("").parts)).removesuffix(".__main__")
        text = ast.get_docstring(ast.parse(file.read_text())) or ""
        shows, *paragraphs = (" ".join(part.split()) for part in text.split("\n\n"))
        takes = [part for part in paragraphs if part.startswith("Takes ")]
        if takes:
            commands = tuple(line.strip() for line in text.splitlines() if line.startswith("    python -m "))
            yield Benchmark(module, shows, takes[0], commands)


def main(words: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if words is None else words
    for group, about in GROUPS.items():
        chosen = [found for found in benchmarks() if found.group == group]
        if words:
            chosen = [found for found in chosen if any(word in f"{found.name} {found.shows}" for word in words)]
        if chosen:
            print(f"{group}: {about}\n")
        for found in chosen:
            print(textwrap.indent(textwrap.fill(found.shows, 112), "  "))
            print(textwrap.indent(textwrap.fill(found.takes, 112), "  "))
            print(*(f"      {command}" for command in found.commands), "", sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
