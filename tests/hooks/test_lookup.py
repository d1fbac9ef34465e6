"""Looking classes up as CPython's own machinery does, asking no metaclass."""

from __future__ import annotations

from typing import Any

import pytest

from torchjanus.hooks.lookup import MISSING, bound_to, derives, mro_of, on_type


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
