"""Numbers as places of windows are found before torch may leave the window out."""

from __future__ import annotations

import itertools

import torch

from torchjanus.core.errors import NOWHERE
from torchjanus.graph.ir.program import Node, Ref, Slot
from torchjanus.graph.operators.dynamic_index import pick, picked_by, put, put_by, windows_by
from torchjanus.trace.modes import Modes


def node(func: object, *args: object) -> Node:
    return Node(func, (Ref(0), *args), {}, (Ref(1),), Modes(), NOWHERE)  # type: ignore[arg-type]


def test_places_of_windows() -> None:
    taking = torch.Tensor.__getitem__
    assert windows_by(node(taking, slice(None, Slot(2)))) == (2,)
    assert windows_by(node(taking, (slice(None), slice(Slot(1), Slot(0), None)))) == (1, 0)
    assert windows_by(node(torch.Tensor.__setitem__, (3, slice(Slot(4), None)), 1.0)) == (4,)


def test_elements_and_other_calls_are_none() -> None:
    assert windows_by(node(torch.Tensor.__getitem__, Slot(0))) == ()
    assert windows_by(node(torch.Tensor.__getitem__, slice(0, 3))) == ()
    assert windows_by(node(torch.add, Slot(0))) == ()


def test_elements_are_set_by_slots_beside_constants() -> None:
    setting = torch.Tensor.__setitem__
    assert put_by(node(setting, (Slot(1), 0, slice(1, 3)), 2.0)) == (1,)
    assert put_by(node(setting, Slot(3), Slot(0))) == (3,)
    assert put_by(node(setting, (Slot(1), slice(Slot(0), 3)), 2.0)) == ()
    assert put_by(node(torch.Tensor.__getitem__, Slot(1))) == ()
    assert picked_by(node(setting, Slot(1), 2.0)) == ()


def test_what_is_put_is_what_is_picked() -> None:
    parts = [Slot(0), -1, slice(None), slice(1, 3), None, Ellipsis]
    more = [(0, Slot(0), Ellipsis, Slot(1)), (Slot(1), slice(0, 2), Slot(0))]
    keys = [Slot(0), *itertools.product(parts, repeat=2), *more]
    for key in keys:
        found = [part for part in (key if isinstance(key, tuple) else (key,)) if isinstance(part, Slot)]
        if not found or (isinstance(key, tuple) and key.count(Ellipsis) > 1):
            continue
        bare = substitute(key)
        for value in (2.5, torch.tensor(3.5), torch.arange(6.0)[None, 1:2].double()):
            expected, made = torch.zeros(3, 4, 5), torch.zeros(3, 4, 5)
            expected[bare] = value
            put(made, key, value, [2, 1])
            assert torch.equal(made, expected), key
            assert torch.equal(pick(made, key, [2, 1], ()), expected[bare]), key


def substitute(key: object) -> object:
    if isinstance(key, tuple):
        return tuple(map(substitute, key))
    return [2, 1][key.index] if isinstance(key, Slot) else key
