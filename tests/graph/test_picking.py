"""Numbers as places of windows are found before torch may leave the window out."""

from __future__ import annotations

import torch

from torchjanus.errors import NOWHERE
from torchjanus.graph.picking import windows_by
from torchjanus.graph.program import Modes, Node, Ref, Slot


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
