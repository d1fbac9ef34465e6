"""What is made and kept is old at once, and nothing else about the collector changes."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from torchjanus.core import collector
from torchjanus.core.collector import uncollected


@pytest.fixture(autouse=True)
def _thawed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is there is not frozen, as in a program (see ``tests.conftest``)."""
    monkeypatch.setattr(collector, "_program_freezes", False)
    gc.unfreeze()
    yield
    gc.collect()
    gc.freeze()


class Made:
    pass


def is_old(made: Made) -> bool:
    return any(one is made for one in gc.get_objects(generation=2))


@pytest.mark.parametrize("kept", [False, True])
def test_what_is_kept_is_old(kept: bool) -> None:
    with uncollected(kept=kept):
        assert not gc.isenabled()
        made = Made()
    old = is_old(made)
    assert gc.isenabled()
    assert old == kept
    assert not gc.get_freeze_count()


def test_cycles_are_found_all_the_same() -> None:
    with uncollected(kept=True):
        made = Made()
        made.itself = made  # type: ignore[attr-defined]
    number = id(made)
    del made
    gc.collect()
    assert not any(id(one) == number and isinstance(one, Made) for one in gc.get_objects())


def test_what_somebody_has_frozen_stays_so() -> None:
    gc.freeze()
    try:
        count = gc.get_freeze_count()
        with uncollected(kept=True):
            Made()
        # What is frozen may go where nothing refers to it any more, and nothing has been let loose.
        assert count - 100 < gc.get_freeze_count() <= count
    finally:
        gc.unfreeze()


def test_a_collector_that_is_switched_off_stays_off() -> None:
    gc.disable()
    try:
        with uncollected(kept=True):
            made = Made()
        assert not gc.isenabled() and not is_old(made)
    finally:
        gc.enable()


def test_frozen_objects_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(gc, "get_freeze_count", lambda: asked.append(1) or 5)
    for _ in range(3):
        with uncollected(kept=True):
            Made()
    assert len(asked) == 1
