"""Virtualized generators and coroutines run under their semantics, which is in force only while they run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from typing import Any

import pytest

from torchjanus.rewrite import Site
from torchjanus.rewrite.hooks import Semantics, current
from torchjanus.semantics.protocols.virtualize import virtualize


class Subtracting(Semantics):
    def binary(self, at: Site, op: str, a: Any, b: Any) -> Any:
        return a - b


def counting(start: int) -> Generator[int, int | None, str]:
    try:
        while True:
            got = yield start
            start = start + (got or 1)
    except KeyError as error:
        yield f"caught {error}"  # type: ignore[misc]
    finally:
        closed.append(current())
    return "done"


closed: list[Semantics | None] = []


def test_a_generator_runs_under_its_semantics() -> None:
    semantics = Subtracting()
    generator = virtualize(counting, semantics)(10)
    assert [next(generator), generator.send(3), next(generator)] == [10, 7, 6]
    assert current() is None
    assert generator.throw(KeyError("k")) == "caught 'k'"
    with pytest.raises(StopIteration) as stop:
        next(generator)
    assert stop.value.value == "done"
    assert closed.pop() is semantics


def test_closing_a_generator() -> None:
    semantics = Subtracting()
    generator = virtualize(counting, semantics)(10)
    next(generator)
    generator.close()
    assert closed.pop() is semantics


def test_an_error_in_a_generator_shows_no_frame_of_ours() -> None:
    def fails(x: int) -> Generator[float, None, None]:
        yield 1 / x

    with pytest.raises(ZeroDivisionError) as caught:
        next(virtualize(fails)(0))
    assert caught.traceback[-1].name == "fails"


async def adding(x: int) -> int:
    await asyncio.sleep(0)
    assert isinstance(current(), Subtracting)
    return x + 1


async def ticking(x: int) -> AsyncGenerator[int, None]:
    for n in range(3):
        await asyncio.sleep(0)
        yield x + n


def test_a_coroutine_runs_under_its_semantics() -> None:
    async def main() -> tuple[Any, Any]:
        value, none = await asyncio.gather(virtualize(adding, Subtracting())(5), asyncio.sleep(0, current()))
        return value, none

    assert asyncio.run(main()) == (4, None)


def test_an_asynchronous_generator_runs_under_its_semantics() -> None:
    async def main() -> list[Any]:
        return [(x, current()) async for x in virtualize(ticking, Subtracting())(5)]

    assert asyncio.run(main()) == [(5, None), (4, None), (3, None)]
