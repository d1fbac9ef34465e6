"""Taking our frames out of tracebacks."""

from __future__ import annotations

import pytest

from torchjanus.rewrite.hooks import hide_frames, native_unpack
from torchjanus.rewrite.hooks.frames import without_own


def names(error: BaseException) -> list[str]:
    out, step = [], error.__traceback__
    while step is not None:
        out.append(step.tb_frame.f_code.co_name)
        step = step.tb_next
    return out


def failing() -> BaseException:
    try:
        native_unpack(5, 2, False, 0)
    except TypeError as error:
        return error
    raise AssertionError


def test_frames_of_ours_go_and_the_others_stay() -> None:
    error = failing()
    assert len(names(error)) > 1
    hide_frames(error)
    assert names(error) == ["failing"]
    hide_frames(error)
    assert names(error) == ["failing"]


def test_a_traceback_of_our_frames_alone_becomes_none() -> None:
    error = failing()
    assert error.__traceback__ is not None
    inner = error.__traceback__.tb_next
    assert inner is not None
    assert without_own(inner) is None
    error.__traceback__ = inner
    hide_frames(error)
    assert error.__traceback__ is None


def test_causes_contexts_and_groups_are_seen_to() -> None:
    cause, member = failing(), failing()
    with pytest.raises(ExceptionGroup) as caught:
        raise ExceptionGroup("g", [member]) from cause  # type: ignore[list-item]
    hide_frames(caught.value)
    assert names(cause) == names(member) == ["failing"]


def test_exceptions_that_hang_together_in_a_circle() -> None:
    one, other = failing(), failing()
    one.__context__, other.__context__ = other, one
    hide_frames(one)
    assert names(one) == names(other) == ["failing"]
