"""The package's layers: imports go downward only, at the top of a module, and never in a circle."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1] / "torchjanus"

# From the bottom up. A module may import from its own part and from lower lines; parts on one line are siblings and
# do not import each other.
LAYERS: list[set[str]] = [
    {"collector", "default_device", "dynamo", "errors", "kinds", "slices"},
    {"origin"},
    {"rewrite", "versions"},
    {"hooks"},
    {"trace"},
    {"assumptions", "journal"},
    {"heap"},
    {"graph"},
    {"execute"},
    {"semantics"},
    {"runtime"},
    {"report", "testing"},
    {"cli"},
    {"__init__", "__main__"},
]
STDLIB_ONLY = {"collector", "errors", "kinds", "origin", "slices", "rewrite", "versions"}
FX_ONLY_IN = {"graph"}


def part_of(path: Path) -> str:
    relative = path.relative_to(ROOT)
    return relative.parts[0].removesuffix(".py")


def rank(part: str) -> int:
    for level, parts in enumerate(LAYERS):
        if part in parts:
            return level
    raise AssertionError(f"torchjanus/{part} has no layer: add it to LAYERS")


def imported(node: ast.AST, path: Path) -> list[str]:
    """The absolute names that an import statement asks for."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        if node.level == 0:
            base = node.module or ""
        else:
            package = ("torchjanus", *path.relative_to(ROOT).parts[:-1])
            base = ".".join((*package[: len(package) - node.level + 1], *((node.module,) if node.module else ())))
        return [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return []


MODULES = sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_downward(path: Path) -> None:
    part = part_of(path)
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        for name in imported(node, path):
            pieces = name.split(".")
            if pieces[0] == "torchjanus" and len(pieces) > 1:
                target = pieces[1]
                known = (ROOT / target).is_dir() or (ROOT / f"{target}.py").exists()
                if known and target != part:
                    assert rank(target) < rank(part), f"{path}:{node.lineno} imports {name}: that is not below {part}"
            elif pieces[0] in {"torch", "numpy"}:
                assert part not in STDLIB_ONLY, f"{path}:{node.lineno} imports {name}; {part} is stdlib only"
            if name == "torch.fx" or name.startswith("torch.fx."):
                assert part in FX_ONLY_IN, f"{path}:{node.lineno} imports torch.fx outside of graph/"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_import_is_deferred(path: Path) -> None:
    tree = ast.parse(path.read_text())
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            for node in ast.walk(function):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    names = imported(node, path)
                    assert not any(name.startswith("torchjanus") for name in names), (
                        f"{path}:{node.lineno} defers {names}"
                    )


def test_no_cycle_between_modules() -> None:
    graph: dict[str, set[str]] = {}
    names = {".".join(("torchjanus", *p.relative_to(ROOT).with_suffix("").parts)): p for p in MODULES}
    for name, path in names.items():
        wanted: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            wanted.update(n for n in imported(node, path) if n in names and n != name)
        graph[name] = wanted
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, "import cycle: " + " -> ".join((*trail, name))
        if name not in done:
            for below in graph[name]:
                visit(below, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())
