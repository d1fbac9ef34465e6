"""``python -m tests.programs [--write]``: prints the index of the corpus, or writes it to ``README.md``.

A topic is described by the docstring of its package, a category by the first line of its file's docstring.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
INDEX = HERE / "README.md"


def about(path: Path) -> str:
    """The first line of a module's docstring."""
    return (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]


def index() -> str:
    """The text of the index."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# The corpus"
    yield ""
    yield "Written by `python -m tests.programs --write`; do not edit. A program is named `category-program`, as in"
    yield '`pytest tests/test_programs.py -k "branches-plain_if"`; the category is the name of its file.'
    for package in sorted(HERE.glob("*/__init__.py")):
        folder = package.parent
        yield from ("", f"## {folder.name}", "", about(package), "")
        yield from ("| category | what its programs are about |", "| --- | --- |")
        for path in sorted(folder.glob("*.py")):
            if path != package:
                text = about(path).replace("``", "`").replace("|", "\\|")
                yield f"| [{path.stem}]({folder.name}/{path.name}) | {text} |"


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        INDEX.write_text(index())
    else:
        print(index(), end="")
