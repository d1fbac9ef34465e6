"""Whether a tensor is what it was, however many counts of its changes there are."""

from __future__ import annotations

import torch

from torchjanus.graph.ir.tensor_versions import Changes


def test_a_change_is_seen_under_each_name() -> None:
    changes, x = Changes(), torch.ones(3)
    before = changes.of(x)
    assert changes.are_as(x, before)
    x.detach().add_(1)
    assert not changes.are_as(x, before)


def test_data_counts_for_itself() -> None:
    changes, x = Changes(), torch.ones(3)
    data = x.data
    changes.part(x, data)
    before, view = changes.of(x), x[1:]
    data.add_(1)
    assert not changes.are_as(x, before)
    again, of_data = changes.of(view), changes.of(data)
    x.mul_(2)
    assert not changes.are_as(view, again)
    assert not changes.are_as(data, of_data)


def test_what_was_known_before_there_was_another_count_is_not_relied_on() -> None:
    changes, x = Changes(), torch.ones(3)
    before = changes.of(x)
    changes.part(x, x.data)
    assert not changes.are_as(x, before)


def test_what_is_made_in_inference_mode_does_not_count() -> None:
    changes = Changes()
    with torch.inference_mode():
        x = torch.ones(3)
    assert not changes.are_as(x, changes.of(x))
