"""Backward passes of timed calls: each is counted once, and those that cannot be attributed to one call are given
up."""

from __future__ import annotations

import torch

from torchjanus.runtime.parts.backward_time import LATE, BackwardTime


def followed(times: BackwardTime, reported: list[float]) -> torch.Tensor:
    w = torch.ones(3, requires_grad=True)
    result = (w * torch.randn(3)).sum()
    assert times.follow({"loss": result}, reported.append)
    return result


def test_one_pass_after_each_call_is_timed() -> None:
    gone: list[bool] = []
    times, reported = BackwardTime(lambda: gone.append(True)), list[float]()
    for _ in range(LATE + 3):
        followed(times, reported).backward()
    assert len(reported) == LATE + 3
    assert min(reported) > 0
    assert gone == []


def test_results_without_gradients_have_no_pass() -> None:
    times = BackwardTime(lambda: None)
    assert not times.follow([torch.ones(3), 1, None], [].append)
    assert times.is_timed


def test_one_pass_of_several_calls_is_not_attributed_to_any() -> None:
    gone: list[bool] = []
    times, reported = BackwardTime(lambda: gone.append(True)), list[float]()
    (followed(times, reported) + followed(times, reported)).backward()
    assert reported == []
    assert gone == [True]
    assert not times.follow(torch.ones(3, requires_grad=True) * 2, reported.append)


def test_passes_that_do_not_come_are_given_up() -> None:
    gone: list[bool] = []
    times = BackwardTime(lambda: gone.append(True))
    results = [torch.ones(3, requires_grad=True) * 2 for _ in range(LATE + 1)]
    assert [times.follow(result, [].append) for result in results] == [True] * LATE + [False]
    assert gone == [True]


def test_hooks_of_the_program_keep_their_numbers() -> None:
    w = torch.ones(3, requires_grad=True)
    before = w.register_hook(lambda grad: None).id
    followed(BackwardTime(lambda: None), [])
    assert w.register_hook(lambda grad: None).id == before + 1
