"""Looking classes up as CPython's own machinery does, asking no metaclass."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import torchjanus.rewrite.hooks
import torchjanus.rewrite.hooks.lookup
from torchjanus.rewrite.hooks.lookup import MISSING, bound_to, derives, imported_names, mro_of, on_type


class Guarded(type):
    """Lets nobody ask its classes anything."""

    def __getattribute__(cls, name: str) -> Any:
        raise AssertionError(f"asked for {name}")

    def __subclasscheck__(cls, other: type) -> bool:
        raise AssertionError("asked for its subclasses")


class Base(metaclass=Guarded):
    def method(self) -> str:
        return "method"

    plain = 3


class Derived(Base):
    pass


def test_metaclasses_are_not_asked() -> None:
    with pytest.raises(AssertionError, match="asked for __mro__"):
        _ = Derived.__mro__
    assert mro_of(Derived) == (Derived, Base, object)
    assert on_type(Derived, "plain") == 3
    assert on_type(Derived, "absent") is MISSING
    assert derives(Derived, Base)
    assert not derives(Base, Derived)


def test_a_class_without_an_order_yet_has_nothing() -> None:
    seen: list[Any] = []

    class Meta(type):
        def mro(cls) -> list[type]:
            seen.append((mro_of(cls), on_type(cls, "f")))
            return super().mro()

    class Made(metaclass=Meta):
        def f(self) -> None:
            pass

    assert seen == [((), MISSING)]
    assert on_type(Made, "f") is not MISSING


def test_binding() -> None:
    obj = Derived()
    assert bound_to(obj, on_type(Derived, "method"))() == "method"
    assert bound_to(obj, on_type(Derived, "plain")) == 3


@pytest.mark.parametrize(
    ("module", "level", "meant"),
    [
        ("torchjanus.rewrite.hooks", 0, torchjanus.rewrite.hooks),
        ("", 1, torchjanus.rewrite.hooks),
        ("lookup", 1, torchjanus.rewrite.hooks.lookup),
        ("", 3, torchjanus),
        ("rewrite.hooks.lookup", 3, torchjanus.rewrite.hooks.lookup),
    ],
)
def test_the_module_that_an_import_means_has_its_variables(module: str, level: int, meant: Any) -> None:
    variables = vars(torchjanus.rewrite.hooks.lookup)
    assert imported_names(module, level, variables) is vars(meant)
    if level:  # an old module, or one made by hand, says only one of the two
        spec = {"__spec__": variables["__spec__"], "__package__": None}
        assert imported_names(module, level, spec) is vars(meant)
        assert imported_names(module, level, {"__package__": variables["__package__"]}) is vars(meant)
        assert imported_names(module, level, {}) == {}


def test_what_is_no_module_has_no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "stands_for_one", Derived())  # type: ignore[arg-type]
    assert imported_names("stands_for_one", 0, {}) == {}
    assert imported_names("never_imported", 0, {}) == {}
