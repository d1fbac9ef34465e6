"""``python -m tests.structure``: counts what a reader meets: modules, lines, families of names, imports, words.

Prints one table a package (modules, lines), and below it the figures that the layering test does not enforce yet: how
often words of our own are used that docs/glossary.md replaces, by word.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "torchjanus"
# Words of our own and the standard term that replaces each. Only words that have no other meaning in this package.
REPLACED = {
    "round": "iteration",
    "rounds": "iterations",
    "told": "merged",
    "untold": "unrolled",
    "vain": "speculative, wasted",
    "reckoned": "recurrence",
    "reckoning": "recurrence",
    "handed": "loop-carried",
    "halves": "partition",
    "grove": "call group",
    "groves": "call groups",
    "planting": "call grouping",
    "repertoire": "variant table",
    "ways": "arms, variants, paths",
    "turned": "reverse",
    "choice": "switch",
    "choices": "switches",
    "origin": "access path",
    "origins": "access paths",
}


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


def words(path: Path) -> Iterator[str]:
    """The words of a module's names, comments and texts, in lower case."""
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type in (tokenize.NAME, tokenize.COMMENT, tokenize.STRING):
            for piece in re.findall(r"[A-Z]?[a-z]+", token.string):
                yield piece.lower()


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
    counted = Counter(word for path in paths for word in words(path) if word in REPLACED)
    print(f"words that the glossary replaces: {counted.total()}")
    for word, count in counted.most_common():
        print(f"  {word:12} {count:6}  {REPLACED[word]}")


if __name__ == "__main__":
    main()
