"""The public way to run a function under a semantics of one's own."""

from __future__ import annotations

import inspect
import pickle
from pathlib import Path
from typing import Any

import pytest

from torchjanus.core.errors import SourceUnavailable, Unsupported
from torchjanus.rewrite import Site
from torchjanus.rewrite.hooks import Semantics
from torchjanus.semantics.protocols.imperative import Imperative
from torchjanus.semantics.protocols.virtualize import Virtualized, virtualize


class Doubling(Semantics):
    """Returns everything twice as large."""

    def returned(self, at: Site, value: Any) -> Any:
        return value * 2


class Adder:
    def __init__(self, n: int) -> None:
        self.n = n

    def add(self, x: int) -> int:
        return self.n + x

    def __call__(self, x: int) -> int:
        """Adds."""
        return self.n + x

    @classmethod
    def made(cls, n: int) -> int:
        return cls(n).n


def add_one(x: int, *, by: int = 1) -> int:
    """Adds one."""
    return x + by


virtual_add_one = virtualize(add_one, Imperative())


@pytest.mark.parametrize(
    ("fn", "expected"),
    [(add_one, 4), (lambda x: x + 1, 4), (Adder(1).add, 4), (Adder(1), 4), (Adder.made, 3)],
    ids=["function", "lambda", "method", "callable object", "class method"],
)
def test_what_can_be_virtualized(fn: Any, expected: int) -> None:
    assert virtualize(fn)(3) == expected
    assert virtualize(fn, Doubling())(3) == expected * 2


def test_metadata() -> None:
    virtual = virtualize(add_one)
    assert inspect.signature(virtual) == inspect.signature(add_one)
    assert (virtual.__name__, virtual.__doc__, virtual.__module__) == ("add_one", "Adds one.", __name__)  # type: ignore[attr-defined]
    assert inspect.getsource(virtual) == inspect.getsource(add_one)  # type: ignore[arg-type]
    assert "add_one" in repr(virtual)


def test_pickling() -> None:
    again = pickle.loads(pickle.dumps(virtualize(add_one, Doubling())))
    assert isinstance(again, Virtualized)
    assert again(1) == 4


def test_as_a_method() -> None:
    class C:
        n = 3

        def plain(self, x: int) -> int:
            return self.n + x

        virtual = virtualize(plain, Doubling())

    assert C().virtual(1) == 8


def test_errors_show_no_frame_of_ours_below_the_call() -> None:
    def fails(x: int) -> float:
        return 1 / x

    with pytest.raises(ZeroDivisionError) as caught:
        virtualize(fails)(0)
    names = [entry.name for entry in caught.traceback]
    assert names[-1] == "fails"
    step, files = caught.value.__traceback__, []
    while step is not None:
        files.append(Path(step.tb_frame.f_code.co_filename).name)
        step = step.tb_next
    assert set(files) <= {Path(__file__).name, "virtualize.py"}
    assert files[-1] == Path(__file__).name


@pytest.mark.parametrize("wrong", [3, None, "text"])
def test_what_cannot_be_called(wrong: Any) -> None:
    with pytest.raises(Unsupported, match=r"virtualize\(\) takes a function, a method or a callable object"):
        virtualize(wrong)


@pytest.mark.parametrize("native", [len, int, print])
def test_native_callables(native: Any) -> None:
    with pytest.raises(Unsupported, match="is not written in Python"):
        virtualize(native)(1)


def test_no_source() -> None:
    namespace: dict[str, Any] = {}
    exec("def f(x):\n    return x\n", namespace)
    with pytest.raises(SourceUnavailable, match=r"no source for f\(\)"):
        virtualize(namespace["f"])(1)
