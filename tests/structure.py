"""``python -m tests.structure``: counts what a reader meets: modules, lines, families of names, imports, words.

Prints the modules and lines of each package, and below them the figures that tests/test_layering.py and
tests/test_terms.py keep: the largest folder, families of names, upward imports, cycles, and how often a word is used
that docs/glossary.md replaces, by word.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.terms import uses
from tests.test_layering import MOST_LINES, cycles, families, upward_imports, upward_imports_of_packages

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "torchjanus"


def modules() -> list[Path]:
    """The modules of the package, packages' own included."""
    return sorted(PACKAGE.rglob("*.py"))


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
    print(f"modules of more than {MOST_LINES} lines:", sum(size > MOST_LINES for size in sizes.values()))
    print("families of names:", [names for folder in folders for names in families(folder).values()] or 0)
    upward = [*map(upward_imports, paths), *map(upward_imports_of_packages, paths)]
    print("upward imports:", sum(len(list(found)) for found in upward))
    print("cycles of imports:", len(list(cycles())))
    counted = Counter((use.word, use.term) for use in uses())
    print(f"words that the glossary replaces, in the whole repository: {counted.total()}")
    for (word, term), count in counted.most_common():
        print(f"  {word:12} {count:6}  {term}")


if __name__ == "__main__":
    main()
