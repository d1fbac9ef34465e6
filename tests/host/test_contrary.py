"""The contrary of an identity is another object, made without running the program's code."""

from __future__ import annotations

import collections

import pytest

from torchjanus.core.access_path import AccessPath
from torchjanus.core.errors import NOWHERE
from torchjanus.host.assumption import Identity
from torchjanus.host.contrary import contrary

ran: list[str] = []


class Stack(list):
    def __init__(self, *items):
        ran.append("init")
        super().__init__(items)
        self.name = "stack"

    def append(self, item):
        ran.append("append")

    def extend(self, items):
        ran.append("extend")

    def __iter__(self):
        ran.append("iter")
        return super().__iter__()


class Table(collections.OrderedDict):
    def __setitem__(self, key, value):
        ran.append("setitem")
        super().__setitem__(key, value)

    def __getitem__(self, key):
        ran.append("getitem")
        return super().__getitem__(key)


class Plain:
    def __init__(self):
        self.n = 1

    def __copy__(self):
        ran.append("copy")
        return self

    def __getstate__(self):
        ran.append("getstate")
        return {}


class Mortal:
    def __del__(self):
        ran.append("del")


def another(value):
    return contrary(Identity(NOWHERE, AccessPath.arg(0), value)).value


@pytest.mark.parametrize("value", [Stack(1, 2), Table(a=1), Plain(), [1], {"a": 1}], ids=lambda v: type(v).__name__)
def test_a_copy_is_alike_and_none_of_its_code_has_run(value) -> None:
    ran.clear()
    other = another(value)
    assert ran == []
    assert other is not value
    assert type(other) is type(value)
    assert getattr(other, "__dict__", None) == getattr(value, "__dict__", None)
    if not isinstance(value, Plain):
        assert other == value


def test_what_is_reported_of_its_end_is_not_copied() -> None:
    value = Mortal()
    ran.clear()
    assert type(another(value)) is object
    assert ran == []
