"""``python -m tests.structure``: counts what a reader meets: modules, lines, families of names, imports, words.

Prints one table a package (modules, lines), and below it the figures that the layering test does not enforce yet: how
often words of our own are used that docs/glossary.md replaces, by word.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

from tests.terms import uses

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "torchjanus"


def modules() -> list[Path]:
    """The modules of the package, packages' own included."""
    return sorted(PACKAGE.rglob("*.py"))


def families(folder: Path) -> dict[str, list[str]]:
    """The names of three modules or more of one folder that begin with the same word."""
    found: dict[str, list[str]] = {}
    for path in folder.glob("*_*.py"):
        if not path.stem.startswith("__"):
            found.setdefault(path.stem.split("_")[0], []).append(path.stem)
    return {prefix: names for prefix, names in found.items() if len(names) > 2}


def main() -> None:
    """Print the counts."""
    paths = modules()
    folders = sorted({path.parent for path in paths})
    for folder in folders:
        own = [path for path in paths if path.parent == folder and path.stem != "__init__"]
        lines = sum(len(path.read_text().splitlines()) for path in own)
        print(f"{folder.relative_to(ROOT).as_posix():44} {len(own):3} modules {lines:6} lines")
    sizes = {path: len(path.read_text().splitlines()) for path in paths}
    own = [path for path in paths if path.stem != "__init__"]
    print(f"{len(own)} modules, {sum(sizes.values())} lines, {len(folders)} folders")
    print("largest folder:", max(sum(path.parent == folder for path in own) for folder in folders), "modules")
    top = [path for path in PACKAGE.iterdir() if path.suffix in ("", ".py") and not path.stem.startswith("__")]
    print("entries of the top level:", len(top))
    print("modules of more than 400 lines:", sum(size > 400 for size in sizes.values()))
    print("families of names:", [names for folder in folders for names in families(folder).values()] or 0)
    upward = [
        (path, node.module)
        for path in (PACKAGE / "semantics").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torchjanus.graph")
    ]
    print("imports of the middle end by the front end:", len(upward))
    counted = Counter((use.word, use.term) for use in uses())
    print(f"words that the glossary replaces, in the whole repository: {counted.total()}")
    for (word, term), count in counted.most_common():
        print(f"  {word:12} {count:6}  {term}")


if __name__ == "__main__":
    main()
