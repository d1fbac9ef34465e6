"""Which variables may still be read follows from a function's bytecode."""

from __future__ import annotations

import dis
from typing import Any

from torchjanus.semantics.record.liveness import live_after


def _at_loop(fn: Any) -> frozenset[str]:
    offset = next(one.offset for one in dis.get_instructions(fn) if one.opname == "FOR_ITER")
    return live_after(fn.__code__, offset)


def test_what_each_iteration_sets_first_is_left_over() -> None:
    def step(xs: Any, flags: Any) -> Any:
        h, before = 0, False
        for t in range(3):
            use = flags[t]
            if use and not before:
                h += xs[t]
            before = use
        return h

    assert _at_loop(step) == {"xs", "flags", "h", "before"}


def test_what_is_read_after_the_loop_is_live() -> None:
    def step(flags: Any) -> Any:
        use = None
        for flag in flags:
            use = flag
        return use

    assert _at_loop(step) == {"use"}


def test_what_a_handler_reads_is_live() -> None:
    def step(xs: Any) -> Any:
        last = 0
        for x in xs:
            try:
                last = x()
            except ValueError:
                print(last)

    assert "last" in _at_loop(step)


def test_what_is_set_on_one_way_only_is_live() -> None:
    def step(xs: Any) -> Any:
        seen = 0
        for x in xs:
            if x > 3:
                seen = x
            print(seen)

    assert "seen" in _at_loop(step)


def test_variables_of_other_functions_are_live() -> None:
    def step(xs: Any) -> Any:
        shown = 0

        def show() -> None:
            print(shown)

        for x in xs:
            shown = x
        show()

    assert "shown" in _at_loop(step)


def test_nothing_is_known_of_other_offsets() -> None:
    def step(a: Any, b: Any) -> Any:
        return a

    assert "a" in live_after(step.__code__, -7)
