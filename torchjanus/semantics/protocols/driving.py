"""Runs generators and coroutines of rewritten code under a semantics, which is current only while they run."""

from __future__ import annotations

import types
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import Any

from torchjanus.core.kinds import isinstance
from torchjanus.rewrite.hooks import Semantics, hide_frames, using

__all__ = ["drive", "driven"]

# A generator shares its context with its caller, so the semantics cannot stay current over a yield.


def drive(inner: Any, semantics: Semantics) -> Generator[Any, Any, Any]:
    """Forward values and exceptions to and from a generator, or anything with ``send``, ``throw``, ``close``."""
    resume: Callable[..., Any] = inner.send
    given: Any = None
    while True:
        try:
            with using(semantics):
                out = resume(given)
        except StopIteration as stop:
            return stop.value
        except BaseException as error:
            hide_frames(error)
            raise
        try:
            given = yield out
            resume = inner.send
        except GeneratorExit:
            with using(semantics):
                inner.close()
            raise
        except BaseException as error:
            given, resume = error, inner.throw


_awaiting = types.coroutine(drive)


async def drive_coroutine(inner: Coroutine[Any, Any, Any], semantics: Semantics) -> Any:
    return await _awaiting(inner, semantics)


async def drive_async_generator(inner: AsyncGenerator[Any, Any], semantics: Semantics) -> AsyncGenerator[Any, Any]:
    resume: Callable[..., Any] = inner.asend
    given: Any = None
    while True:
        try:
            out = await _awaiting(resume(given), semantics)
        except StopAsyncIteration:
            return
        try:
            given = yield out
            resume = inner.asend
        except GeneratorExit:
            await _awaiting(inner.aclose(), semantics)
            raise
        except BaseException as error:
            given, resume = error, inner.athrow


def driven(result: Any, semantics: Semantics) -> Any:
    """Return the result of a call. A generator or coroutine is wrapped so that it runs under the semantics."""
    match result:
        case _ if isinstance(result, types.GeneratorType):
            return drive(result, semantics)
        case _ if isinstance(result, types.CoroutineType):
            return drive_coroutine(result, semantics)
        case _ if isinstance(result, types.AsyncGeneratorType):
            return drive_async_generator(result, semantics)
        case _:
            return result
