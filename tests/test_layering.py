"""The package's layers: imports go downward only, at the top of a module, and never in a circle."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1] / "torchjanus"

# From the bottom up. A module may import from its own part and from lower lines; parts on one line are siblings and
# do not import each other.
LAYERS: list[set[str]] = [
    {"core"},
    {"ops"},
    {"rewrite"},
    {"trace"},
    {"tracegraph"},
    {"host"},
    {"graph", "semantics"},
    {"execute"},
    {"runtime"},
    {"testing"},
    {"cli"},
    {"__init__", "__main__"},
]
# The packages of a part, likewise; "" are the modules that lie in the part itself.
PACKAGES: dict[str, list[set[str]]] = {
    "rewrite": [{"syntax"}, {"constructs"}, {""}, {"hooks"}],
    "tracegraph": [{""}, {"text"}],
    "graph": [
        {"ir"},
        {"aten"},
        {"aten.functional"},
        {"operators"},
        {"generalize", "tracing"},
        {"recursion.variants", "regions"},
        {"loops.roll", "recursion.cells"},
        {"loops.analysis", "lowering", "recursion.traversal"},
        {"loops.rewrites"},
        {"recursion.entry_loops", "switches.analysis"},
        {"recursion.grouping", "switches.rewrites"},
        {"", "loops", "printing", "recursion", "switches"},
    ],
    "execute": [
        {"running"},
        {"regions"},
        {""},
        {"compiled"},
        {"cuda_graph", "processes"},
        {"backends"},
        {"backends.expressions"},
    ],
    "semantics": [
        {"known"},
        {"protocols"},
        {"staged.unknown"},
        {"staged"},
        {"record"},
        {"containers"},
        {"torch"},
        {"native"},
        {"calls", "external"},
        {"watch.objects"},
        {"watch.calls", "watch.loops"},
        {"watch"},
        {""},
    ],
    "trace": [{"loops"}, {""}],
    "runtime": [
        {"launch"},
        {"runs"},
        {"coexecution.recording"},
        {"coexecution.graphs"},
        {"coexecution.merging"},
        {"coexecution", "entries"},
        {"pass_log"},
        {"learning"},
        {"parts"},
        {""},
        {"report"},
    ],
    "cli": [{"discovery"}, {""}],
}
STDLIB_ONLY = {"rewrite"}
STDLIB_ONLY_MODULES = {
    "core/access_path.py",
    "core/caches.py",
    "core/collector.py",
    "core/errors.py",
    "core/kinds.py",
    "core/lazy.py",
    "core/slices.py",
    "core/trees.py",
    "core/versions.py",
}
FX_ONLY_IN = {"graph"}
SYMBOLIC_SHAPES = "torch.fx.experimental.symbolic_shapes"  # sizes that are not known: no graphs
MOST_MODULES = 20
MOST_LINES = 400


def part_of(path: Path) -> str:
    relative = path.relative_to(ROOT)
    return relative.parts[0].removesuffix(".py")


def package_of(name: str) -> tuple[str, str] | None:
    """The part and the package of a module or package, as in ``PACKAGES``; None where its part has no packages."""
    pieces = name.split(".")[1:]
    if not pieces or pieces[0] not in PACKAGES:
        return None
    path = ROOT.joinpath(*pieces)
    inner = pieces[1:] if path.is_dir() else pieces[1:-1]
    return pieces[0], ".".join(inner)


def rank(part: str) -> int:
    for level, parts in enumerate(LAYERS):
        if part in parts:
            return level
    raise AssertionError(f"torchjanus/{part} has no layer: add it to LAYERS")


def rank_within(part: str, package: str) -> int:
    for level, packages in enumerate(PACKAGES[part]):
        if package in packages:
            return level
    raise AssertionError(f"torchjanus/{part}/{package.replace('.', '/')} has no layer: add it to PACKAGES")


def imported(node: ast.AST, path: Path) -> list[str]:
    """The absolute names that an import statement asks for, or ``deferred("a.module")``."""
    if isinstance(node, ast.Call):
        return [one.value for one in node.args if isinstance(one, ast.Constant)]
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
PARTS = {part: [path for path in MODULES if part_of(path) == part] for part in sorted(set(map(part_of, MODULES)))}


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """The imports of a module, those that are deferred as well, and its functions."""
    wanted = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, wanted) or is_deferred(node)]


def is_deferred(node: ast.AST) -> bool:
    """Whether it defers the import of a module (see ``core.lazy``)."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "deferred"


@pytest.mark.parametrize("part", PARTS)
def test_imports_go_downward(part: str) -> None:
    assert [found for path in PARTS[part] for found in upward_imports(path)] == []


@pytest.mark.parametrize("part", PARTS)
def test_packages_import_downward(part: str) -> None:
    assert [found for path in PARTS[part] for found in upward_imports_of_packages(path)] == []


@pytest.mark.parametrize("part", PARTS)
def test_torch_is_imported_where_it_may_be(part: str) -> None:
    assert [found for path in PARTS[part] for found in imports_of_torch_not_allowed(path)] == []


def upward_imports(path: Path) -> Iterator[str]:
    """Yield a line for each import of a part that is not below the module's own."""
    part = part_of(path)
    for node in nodes_of(path):
        for name in imported(node, path):
            pieces = name.split(".")
            if pieces[0] == "torchjanus" and len(pieces) > 1:
                target = pieces[1]
                known = (ROOT / target).is_dir() or (ROOT / f"{target}.py").exists()
                if known and target != part and rank(target) >= rank(part):
                    yield f"{path}:{node.lineno} imports {name}: that is not below {part}"


def upward_imports_of_packages(path: Path) -> Iterator[str]:
    """Yield a line for each import of a package of the module's part that is not below its own."""
    name = ".".join(("torchjanus", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
    here = package_of(name)
    if here is None:
        return
    for node in nodes_of(path):
        for target in imported(node, path):
            if not (ROOT.joinpath(*target.split(".")[1:]).is_dir() or is_module(target)):
                continue
            there = package_of(target)
            # An import from a package names the package as well as its module: the module decides.
            if there is None or there[0] != here[0] or there == here or is_parent(there[1], here[1]):
                continue
            if isinstance(node, ast.ImportFrom) and target == node.module and not is_module(target):
                continue
            if rank_within(*there) >= rank_within(*here):
                yield f"{path}:{node.lineno} imports {target}: not below {name}"


def imports_of_torch_not_allowed(path: Path) -> Iterator[str]:
    """Yield a line for each import of torch, NumPy or torch.fx by a module that must do without."""
    part = part_of(path)
    plain = part in STDLIB_ONLY or str(path.relative_to(ROOT)) in STDLIB_ONLY_MODULES
    for node in nodes_of(path):
        for name in imported(node, path):
            if plain and name.split(".")[0] in {"torch", "numpy"}:
                yield f"{path}:{node.lineno} imports {name}: the standard library only"
            if (name == "torch.fx" or name.startswith("torch.fx.")) and not name.startswith(SYMBOLIC_SHAPES):
                if part not in FX_ONLY_IN:
                    yield f"{path}:{node.lineno} imports torch.fx outside of graph/"


def is_module(name: str) -> bool:
    return ROOT.joinpath(*name.split(".")[1:]).with_suffix(".py").exists()


def is_parent(package: str, inner: str) -> bool:
    return package == "" or inner.startswith(f"{package}.")


def test_no_folder_has_many_modules() -> None:
    for folder in sorted({path.parent for path in MODULES}):
        modules = [path.name for path in folder.glob("*.py") if path.name != "__init__.py"]
        assert len(modules) <= MOST_MODULES, f"{folder}: make packages of {len(modules)} modules"


def test_no_three_modules_of_a_folder_begin_with_one_word() -> None:
    assert [names for folder in {path.parent for path in MODULES} for names in families(folder).values()] == []


def families(folder: Path) -> dict[str, list[str]]:
    """Return the names of three modules or more of one folder that begin with the same word, by that word."""
    found: dict[str, list[str]] = {}
    for path in folder.glob("*_*.py"):
        if not path.stem.startswith("__"):
            found.setdefault(path.stem.split("_")[0], []).append(path.stem)
    return {prefix: names for prefix, names in found.items() if len(names) > 2}


def test_no_module_is_long() -> None:
    assert [path for path in MODULES if len(path.read_text().splitlines()) > MOST_LINES] == []


@pytest.mark.parametrize("part", PARTS)
def test_no_import_is_deferred(part: str) -> None:
    for path in PARTS[part]:
        require_no_import_is_deferred(path)


def require_no_import_is_deferred(path: Path) -> None:
    for function in nodes_of(path):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            for node in ast.walk(function):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    names = imported(node, path)
                    assert not any(name.startswith("torchjanus") for name in names), (
                        f"{path}:{node.lineno} defers {names}"
                    )


def test_no_cycle_between_modules() -> None:
    assert list(cycles()) == []


def cycles() -> Iterator[str]:
    """Yield each import that closes a circle of modules, with the circle."""
    graph: dict[str, set[str]] = {}
    names = {".".join(("torchjanus", *p.relative_to(ROOT).with_suffix("").parts)): p for p in MODULES}
    for name, path in names.items():
        graph[name] = {n for node in nodes_of(path) for n in imported(node, path) if n in names and n != name}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> Iterator[str]:
        if name in trail:
            yield " -> ".join((*trail[trail.index(name) :], name))
        elif name not in done:
            for below in sorted(graph[name]):
                yield from visit(below, (*trail, name))
            done.add(name)

    for name in graph:
        yield from visit(name, ())
