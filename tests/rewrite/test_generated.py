"""The generated ``__init__`` of a dataclass is rewritten, so that ``__post_init__`` and factories are reached."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import pytest

from torchjanus.core.errors import SourceUnavailable
from torchjanus.rewrite import is_rewritten
from torchjanus.rewrite.hooks import rewritten
from torchjanus.semantics.protocols.imperative import Imperative
from torchjanus.semantics.protocols.virtualize import virtualize


@dataclasses.dataclass
class Plain:
    x: int
    y: int = 2
    z: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Everything(Plain):
    kind: ClassVar[str] = "class"
    given: dataclasses.InitVar[int] = 3
    made: list[int] = dataclasses.field(default_factory=lambda: [1], init=False)
    fixed: int = dataclasses.field(default=9, init=False)
    unset: int = dataclasses.field(init=False)
    named: int = dataclasses.field(default=4, kw_only=True)

    def __post_init__(self, given: int) -> None:
        self.seen = given, is_rewritten(running())


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: int
    self: int = 1
    y: tuple[int, ...] = dataclasses.field(default_factory=tuple)


@dataclasses.dataclass(slots=True)
class Slotted:
    x: int
    fixed: int = dataclasses.field(default=9, init=False)


@dataclasses.dataclass
class Empty:
    pass


class Outer:
    @dataclasses.dataclass
    class Nested:
        x: int


def running() -> Any:
    import sys

    return sys._getframe(1).f_code


@pytest.mark.parametrize(
    ("cls", "args", "kwargs"),
    [
        (Plain, (1,), {}),
        (Plain, (1, 3), {"z": [4]}),
        (Frozen, (1,), {}),
        (Frozen, (1, 2, (3,)), {}),
        (Slotted, (5,), {}),
        (Empty, (), {}),
        (Outer.Nested, (1,), {}),
    ],
)
def test_generated_init_is_rewritten(cls: Any, args: Any, kwargs: Any) -> None:
    twin = rewritten(cls.__init__)
    made = cls.__new__(cls)
    twin(made, *args, **kwargs)
    assert made == cls(*args, **kwargs)


def test_a_local_class_is_found_among_all_there_are() -> None:
    class Silent(type):
        def __getattribute__(cls, name: str) -> Any:
            raise AssertionError(f"asked for {name}")

    class Asked(metaclass=Silent):
        pass

    def classes(first: int) -> Any:
        @dataclasses.dataclass
        class Local:
            x: int
            made: list[int] = dataclasses.field(default_factory=lambda: [first])
            code: Any = dataclasses.field(default_factory=running)

        return Local

    one, other = classes(1), classes(2)
    for cls, first in ((one, 1), (other, 2)):
        made = cls.__new__(cls)
        rewritten(cls.__init__)(made, 5)
        assert (made.x, made.made) == (5, [first])
        assert made.code is not cls.__init__.__code__  # who called it is the rewritten one


def test_post_init_is_reached() -> None:
    def make() -> Any:
        return Everything(1, given=5, named=6)

    expected, got = make(), virtualize(make, Imperative())()
    assert vars(got) == vars(expected) | {"seen": (5, True)}
    assert (got.made, got.fixed, got.named, expected.seen) == ([1], 9, 6, (5, False))


def test_errors_in_it_are_blamed_as_before() -> None:
    @dataclasses.dataclass
    class Gone:
        x: int

    init = Gone.__init__
    del Gone.__init__  # no class has it any more: left native
    with pytest.raises(SourceUnavailable, match="no source"):
        rewritten(init)  # type: ignore[arg-type]

    def wrong() -> Any:
        return Everything(1, given=[].missing)  # type: ignore[attr-defined]

    with pytest.raises(AttributeError, match="missing"):
        virtualize(wrong, Imperative())()
    with pytest.raises(TypeError, match=r"__init__\(\) missing 1 required positional argument: 'x'"):
        virtualize(lambda: Plain(), Imperative())()  # type: ignore[call-arg]
