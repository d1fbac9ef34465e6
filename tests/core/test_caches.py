"""Tables that live as long as the process are bounded, and each is listed here with what bounds it."""

from __future__ import annotations

import ast
import gc
from pathlib import Path

from tests.test_layering import MODULES, ROOT
from torchjanus.core.caches import Identities, Interned, Recent
from torchjanus.core.collector import uncollected

# Containers of modules and classes that something writes to, and functions cached without a bound; what bounds them.
BOUNDED = {
    "the program's source": [
        "rewrite/source.py:_files",  # forgotten by ``forget``
        "runtime/pass_log/files.py:Folder._taken",  # a folder for each function that is dumped
        "semantics/record/recording.py:HELD_NUMBERS",
    ],
    "what is alive: entries go with their keys, values or frames": [
        "execute/processes/orders.py:_ORDERED",
        "execute/replay.py:_ALIVE",
        "graph/operators/loop_op.py:_KEYED",
        "graph/recursion/cells/invoke_op.py:_KEYED",
        "graph/regions/partition.py:_MADE",
        "rewrite/hooks/slots.py:_holding",
        "rewrite/build.py:_templates",
        "rewrite/build.py:_twins",
        "rewrite/build.py:_unhooked",
        "rewrite/lifting.py:_templates",
        "rewrite/source.py:_adopted",
        "runtime/coexecution/recording/placeholders.py:_owners",
        "runtime/runs/registry.py:_live",
        "semantics/known/foreign.py:_numpy_scalars",
        "semantics/known/foreign.py:_verdicts",
        "semantics/protocols/depth.py:_limits",
        "semantics/watch/objects/classes.py:_kinds",
        "semantics/watch/objects/classes.py:_lasting",
        "semantics/watch/objects/classes.py:_libraries",
    ],
    "the modules, operators and functions of this process": [
        "execute/backends/expressions/interpreter.py:_found",
        "runtime/coexecution/recording/composites.py:_changed",
        "runtime/coexecution/recording/composites.py:_wrapped",
        "runtime/coexecution/recording/kinds.py:_called",
        "runtime/launch/results.py:_freed",  # names of autograd's nodes
        "runtime/coexecution/recording/observer.py:_is_numeric",
        "runtime/coexecution/recording/observer.py:_is_plain",
        "runtime/coexecution/recording/observer.py:_of_file",
        "ops/aten.py:_read",
        "semantics/known/closed.py:_is_communicating",
        "semantics/known/foreign.py:_is_foreign_package",
        "semantics/known/foreign_effects.py:_is_users",
        "semantics/known/foreign.py:is_foreign_module",
        "semantics/known/framework_calls.py:_ACCESSORS",
        "semantics/known/framework_calls.py:_may_raise",
    ],
    "lines of the program that warn": ["semantics/torch/user_lines.py:_VERSIONS"],
    "it is filled once, or has one element": [
        "execute/backends/dynamo.py:_given",  # back ends that the program has given
        "runtime/runs/records.py:LISTENERS",
        "execute/cuda_graph/device.py:_CUDA",  # devices
        "execute/cuda_graph/device.py:_OTHER",  # a stand-in, while it is used
        "execute/compiled/store.py:_OPEN",  # a folder for each process that is forked
        "execute/compiled/worker.py:_PROBES",  # kinds of processors that Inductor tests for
        "graph/recursion/traversal/schedule.py:_COUNTED",
        "semantics/known/consumers.py:CONSUMERS",
    ],
}
CONTAINERS = set(
    """dict set list defaultdict deque OrderedDict Counter WeakKeyDictionary WeakValueDictionary WeakSet
    ClassTable Identities""".split()
)
WRITING = set(
    """append add setdefault update pop popitem clear insert extend discard remove put appendleft __setitem__""".split()
)


def name_of(node: ast.AST) -> str:
    """The name in ``name``, ``module.name`` and ``name[parameters]``."""
    if isinstance(node, ast.Subscript):
        return name_of(node.value)
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def is_container(value: ast.AST | None) -> bool:
    literal = (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp)
    return isinstance(value, literal) or (isinstance(value, ast.Call) and name_of(value.func) in CONTAINERS)


def is_empty(value: ast.AST | None) -> bool:
    match value:
        case ast.Dict(keys=parts) | ast.List(elts=parts) | ast.Set(elts=parts) | ast.Call(args=parts):
            return not parts
    return False


def written_in(tree: ast.AST) -> set[str]:
    """The names of what a module writes to."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            found.add(name_of(node.value))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in WRITING:
            found.add(name_of(node.func.value))
        elif isinstance(node, ast.Global):
            found.update(node.names)
    return found


def tables_of(tree: ast.Module, written: set[str]) -> list[str]:
    """The containers of a module and of its classes that are written to, and its functions with an unbounded cache."""
    found: list[str] = []

    def look(body: list[ast.stmt], within: str) -> None:
        for node in body:
            match node:
                case (
                    ast.Assign(targets=[ast.Name(id=name)], value=value)
                    | ast.AnnAssign(target=ast.Name(id=name), value=value)
                ):
                    constant = isinstance(node, ast.AnnAssign) and name_of(node.annotation) == "Mapping"
                    grows = name in written or (is_empty(value) and not constant)
                    if name != "__all__" and is_container(value) and grows:
                        found.append(f"{within}{name}")
                case ast.ClassDef(name=name, body=inner):
                    look(inner, f"{within}{name}.")
                case ast.If(body=inner) | ast.Try(body=inner) | ast.With(body=inner):
                    look(inner, within)
                case ast.FunctionDef(name=name, args=arguments, decorator_list=decorators):
                    if any(name_of(one) == "cache" for one in decorators) and (arguments.args or arguments.posonlyargs):
                        found.append(f"{within}{name}")

    look(tree.body, "")
    return found


def test_each_table_of_the_process_is_listed_with_its_bound() -> None:
    with uncollected():  # a million objects
        trees = {path: ast.parse(path.read_text()) for path in MODULES}
    imported = {
        alias.name
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    written = {path: written_in(tree) for path, tree in trees.items()}
    anywhere = set().union(*written.values()) & imported
    found = [
        f"{path.relative_to(ROOT)}:{name}"
        for path in MODULES
        for name in tables_of(trees[path], written[path] | anywhere)
    ]
    assert sorted(found) == sorted(name for names in BOUNDED.values() for name in names)


def test_a_table_is_noticed(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        "_known: dict[int, int] = {}\nTABLE = {1: 2}\nGROWS = [1]\nGROWS.append(2)\n"
        "class Class:\n    rows = set[int]()\n@functools.cache\ndef one(a): ...\n@functools.cache\ndef other(): ...\n"
    )
    tree = ast.parse(module.read_text())
    assert tables_of(tree, written_in(tree)) == ["_known", "GROWS", "Class.rows", "one"]


def test_the_least_recently_used_value_goes_first() -> None:
    table: Recent[int] = Recent(2)
    assert [table.get(key, lambda key=key: key * 10) for key in (1, 2, 1, 3)] == [10, 20, 10, 30]  # type: ignore[misc]
    assert [table.find(key) for key in (1, 2, 3)] == [10, None, 30]
    assert len(table) == 2
    assert table.put(3, 31) == 31
    assert table.get(3, lambda: 0) == 31


class Thing:
    pass


def test_an_interned_object_is_one_as_long_as_it_is_used() -> None:
    table: Interned[Thing] = Interned(most=1)
    first = table.get("first", Thing)
    assert table.get("second", Thing) is not first  # and the first is no longer among the last used
    assert table.get("first", Thing) is first
    table.get("third", Thing)
    del first
    gc.collect()
    assert list(table._alive) == ["third"]
    assert len(table._recent) == 1


def test_equal_objects_have_values_of_their_own_as_long_as_they_live() -> None:
    first, second = (compile("1 + 1", "file", "eval") for _ in range(2))
    assert first == second and first is not second
    table: Identities[str | None] = Identities()
    assert table.get(first, lambda: "first") == table.get(first, lambda: "other") == table.find(first) == "first"
    assert table.find(second) is None
    assert table.get(second, lambda: None) is None
    assert table.get(second, lambda: "other") is None  # None is a value, too
    assert len(table._known) == 2
    del first
    gc.collect()
    assert len(table._known) == 1
