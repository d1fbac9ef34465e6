"""Finding the source of a code object, and never taking other source for it."""

from __future__ import annotations

import functools
import importlib.util
import linecache
import sys
import weakref
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest

from torchjanus.core.errors import SourceUnavailable
from torchjanus.rewrite import forget_sources, is_rewritten, sites_of, source
from torchjanus.rewrite.hooks import rewritten


def imported(path: Path, text: str) -> ModuleType:
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_lambdas_on_one_line_are_distinguished() -> None:
    first, second, third = (lambda: 1), (lambda: 2), (lambda: 1)
    assert [rewritten(each)() for each in (first, second, third)] == [1, 2, 1]  # type: ignore[arg-type]
    same = (lambda x: x.a, lambda x: x.a)
    columns = [sites_of(each)[0].column for each in same]  # type: ignore[arg-type]
    assert columns[0] < columns[1]


def test_code_that_its_module_has_renamed_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = imported(tmp_path / "renamed.py", "def f(x):\n    return x + 1\n\ndef g(x):\n    return x + 2\n")
    module.f.__code__ = module.f.__code__.replace(co_name="shown", co_qualname="shown")
    with pytest.raises(SourceUnavailable):
        source.find(module.f)
    monkeypatch.setattr(source, "_RENAMING", frozenset({"renamed"}))
    assert source.find(module.f).node.name == "f"  # type: ignore[union-attr]
    module.f.__code__ = module.g.__code__.replace(co_name="shown", co_firstlineno=1)
    with pytest.raises(SourceUnavailable):
        source.find(module.f)


def test_definitions_on_one_line_are_distinguished(tmp_path: Path) -> None:
    module = imported(tmp_path / "oneline.py", "if True:\n    f = lambda a, b=(lambda a: a * 2): b(a) + 1\n")
    assert rewritten(module.f)(3) == 7
    assert rewritten(module.f.__defaults__[0])(3) == 6


def test_decorators_are_neither_unwrapped_nor_applied_again(tmp_path: Path) -> None:
    module = imported(
        tmp_path / "decorated.py",
        "import functools\n"
        "applied = []\n"
        "def decorate(fn):\n"
        "    applied.append(fn.__name__)\n"
        "    @functools.wraps(fn)\n"
        "    def wrapper(*args):\n"
        "        return ('wrapped', fn(*args))\n"
        "    return wrapper\n"
        "@decorate\n"
        "@decorate\n"
        "def f(x):\n"
        "    return x\n",
    )
    twin = rewritten(module.f)
    assert twin(1) == ("wrapped", ("wrapped", 1))
    assert twin.__code__.co_name == "wrapper"
    inner = module.f.__wrapped__.__wrapped__
    assert rewritten(inner)(1) == 1
    assert module.applied == ["f", "f"]


def test_a_deleted_file_is_said(tmp_path: Path) -> None:
    path = tmp_path / "deleted.py"
    module = imported(path, "def f(x):\n    return x\n")
    path.unlink()
    with pytest.raises(SourceUnavailable, match=r"deleted\.py:1: no source for f\(\): the file cannot be read"):
        rewritten(module.f)


@pytest.mark.parametrize(
    "text",
    [
        "def f(x):\n    return x + 2\n",  # another constant
        "def f(x):\n    return x - 1\n",  # another operator
        "def f(x):\n    return y + 1\n",  # another variable
        "def f(y):\n    return y + 1\n",
        "\ndef f(x):\n    return x + 1\n",  # moved
        "def g(x):\n    return x + 1\n",
        "def f(x):\n    return (lambda: x + 1)()\n",
    ],
)
def test_a_changed_file_is_never_taken_for_the_source(tmp_path: Path, text: str) -> None:
    path = tmp_path / "changed.py"
    module = imported(path, "def f(x):\n    return x + 1\n")
    path.write_text(text)
    with pytest.raises(SourceUnavailable, match=r"changed\.py:1: the source of f\(\) is not what it was compiled from"):
        rewritten(module.f)


def test_a_file_that_no_longer_parses(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    module = imported(path, "def f(x):\n    return x + 1\n")
    path.write_text("def f(x:\n")
    with pytest.raises(SourceUnavailable, match="no longer parses"):
        rewritten(module.f)


def test_a_change_elsewhere_in_the_file_does_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "elsewhere.py"
    module = imported(path, "def f(x):\n    return x + 1\n")
    path.write_text("def f(x):\n    return x + 1\n\ndef g():\n    pass\n")
    assert rewritten(module.f)(1) == 2


def test_code_without_source() -> None:
    namespace: dict[str, Any] = {}
    exec("def f(x):\n    return x\n", namespace)
    with pytest.raises(SourceUnavailable, match=r"<string>:1: no source for f\(\)"):
        rewritten(namespace["f"])


def test_registered_source_of_executed_code() -> None:
    text = "def f(x):\n    return [n for n in range(x)]\n"
    linecache.cache["<typed 1>"] = len(text), None, text.splitlines(True), "<typed 1>"
    namespace: dict[str, Any] = {}
    exec(compile(text, "<typed 1>", "exec"), namespace)
    twin = rewritten(namespace["f"])
    assert twin(3) == [0, 1, 2]
    assert is_rewritten(twin.__code__)


def test_asserts_rewritten_by_pytest_do_not_stand_in_the_way() -> None:
    def checks(x: int) -> int:
        assert x > 1, "small"
        return x

    assert "@pytest_ar" in checks.__code__.co_names  # else this test is about nothing
    assert rewritten(checks)(2) == 2  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="small"):
        rewritten(checks)(1)  # type: ignore[arg-type]


def test_future_statements_hold() -> None:
    def f() -> dict[str, Any]:
        def inner(x: not_a_name) -> None:  # type: ignore[name-defined]  # noqa: F821
            pass

        return inner.__annotations__

    assert rewritten(f)() == {"x": "not_a_name", "return": "None"}  # type: ignore[arg-type]


def test_names_as_the_class_and_the_function_themselves(tmp_path: Path) -> None:
    module = imported(
        tmp_path / "named.py",
        "class V:\n"
        "    def __add__(self, other):\n"
        "        return V, V.__add__ is self.__class__.__add__\n"
        "    def V(self):\n"
        "        return V\n"
        "def f(n):\n"
        "    return f if n else None\n"
        "class __Odd:\n"
        "    def m(self):\n"
        "        self.__x = 1\n"
        "        return vars(self)\n",
    )
    assert rewritten(module.V.__add__)(module.V(), 1) == (module.V, True)
    assert rewritten(module.V.V)(None) is module.V
    assert rewritten(module.f)(1) is module.f
    odd = getattr(module, "__Odd")
    assert rewritten(odd.m)(odd()) == {"_Odd__x": 1}


def test_every_function_of_the_standard_library_is_found() -> None:
    """Real code in every style: argparse, collections, contextlib, dataclasses, functools, typing and more."""
    missed = []
    for name in (
        "argparse",
        "collections",
        "contextlib",
        "dataclasses",
        "functools",
        "typing",
        "inspect",
        "enum",
        "csv",
    ):
        module = importlib.import_module(name)
        for fn in functions_of(module):
            try:
                rewritten(fn)
            except SourceUnavailable as error:
                if not fn.__code__.co_filename.startswith("<"):
                    missed.append(str(error))
    assert not missed


def functions_of(module: ModuleType) -> list[FunctionType]:
    found: list[FunctionType] = []
    for value in vars(module).values():
        if isinstance(value, FunctionType) and value.__module__ == module.__name__:
            found.append(value)
        elif isinstance(value, type) and value.__module__ == module.__name__:
            for member in vars(value).values():
                plain = member.__func__ if isinstance(member, staticmethod | classmethod) else member
                if isinstance(plain, FunctionType):
                    found.append(plain)
    assert found
    return found


def test_wrappers_share_code_but_not_cells() -> None:
    def wrapping(fn: Any) -> Any:
        @functools.wraps(fn)
        def wrapper() -> Any:
            return fn()

        return wrapper

    one, two = wrapping(lambda: 1), wrapping(lambda: 2)
    assert one.__code__ is two.__code__
    assert [rewritten(one)(), rewritten(two)()] == [1, 2]


def test_recompiled_modules_with_equal_code_keep_their_own_files(tmp_path: Path) -> None:
    text = "def f(x):\n    return x.missing\n"
    modules = [imported(tmp_path / f"equal{number}.py", text) for number in range(2)]
    assert modules[0].f.__code__ == modules[1].f.__code__
    files = [sites_of(module.f)[0].file for module in modules]
    assert files == [str(tmp_path / "equal0.py"), str(tmp_path / "equal1.py")]
    assert sys.getrefcount(modules[0].f.__code__) < 20


def test_a_loader_that_fails_means_no_source(tmp_path: Path) -> None:
    module = imported(tmp_path / "loaded.py", "def f(x):\n    return x\n")
    (tmp_path / "loaded.py").unlink()
    linecache.checkcache()

    class Loader:
        def get_source(self, name: str) -> str:
            raise RuntimeError("no connection")

    module.__loader__ = Loader()  # type: ignore[assignment]
    module.__spec__ = None
    with pytest.raises(SourceUnavailable, match=r"cannot be read: RuntimeError\('no connection'\)"):
        rewritten(module.f)


def test_trees_of_files_are_let_go_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "large.py"
    module = imported(path, "def f(x):\n    return x.one\n\n\ndef g(x):\n    return x.two\n")
    assert is_rewritten(rewritten(module.f).__code__)
    trees = [weakref.ref(one.node) for found in source._files[str(path)].definitions.values() for one in found]
    assert len(trees) == 2
    forget_sources()
    assert not any(one() for one in trees)
    assert is_rewritten(rewritten(module.g).__code__) and str(path) in source._files
