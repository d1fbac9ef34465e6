"""MkDocs hook: the modules of a package, with what each owns and which parts it imports, read off the source.

``<!-- modules: graph/loops -->`` in a page becomes a table of the modules in that folder and below. What a module owns
is the first sentence of its docstring, so the pages cannot fall behind the code.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[2] / "torchjanus"

_MODULES = re.compile(r"^<!-- modules: ([\w/.]+) -->$", re.MULTILINE)
_IMPORTS = re.compile(r"<!-- imports: (\w+) -->")


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """The text of a page, with the tables that it asks for."""
    markdown = _MODULES.sub(lambda match: "\n".join(table(match.group(1))), markdown)
    return _IMPORTS.sub(lambda match: ", ".join(f"`{part}`" for part in imports(match.group(1))) or "nothing", markdown)


def table(name: str) -> Iterator[str]:
    """A Markdown table of the modules of a package. Raises FileNotFoundError if there is no such package."""
    folder = PACKAGE / name
    found = sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]
    if not found:
        raise FileNotFoundError(folder)
    yield "| module | what it owns |"
    yield "|---|---|"
    for path in found:
        source = path.read_text()
        if path.name == "__init__.py" and source.count("\n") < 12:
            continue  # says what the folder is about, and exports names
        yield f"| `{path.relative_to(PACKAGE)}` | {_first_sentence(source)} |"


def _first_sentence(source: str) -> str:
    words = " ".join((ast.get_docstring(ast.parse(source)) or "").split("\n\n")[0].split())
    sentence = re.split(r"(?<=[.:]) (?=[A-Z`])", words.replace("``", "`"))[0]
    return sentence.replace("|", "\\|")


def imports(part: str) -> list[str]:
    """The parts of the package that the modules of one part import, itself excepted."""
    folder = PACKAGE / part
    modules = folder.rglob("*.py") if folder.is_dir() else [folder.with_suffix(".py")]
    found = {
        node.module.split(".")[1]
        for path in modules
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torchjanus.")
    }
    return sorted(found - {part})
