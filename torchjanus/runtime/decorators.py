"""``speculate()`` and ``vary()``, the decorators of a training step (JANUS 3).

In: a function and its options. Out: a ``Speculated`` (see ``speculated``), which is called as the function is.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any, TypeVar, overload

from torchjanus.core.errors import Unsupported
from torchjanus.execute.backends.dynamo import executor_of
from torchjanus.runtime.entries.engine import check_executor
from torchjanus.runtime.speculated_function import P, R, Speculated

__all__ = ["speculate", "vary"]

S = TypeVar("S", bound="Speculated[Any, Any]")


@overload
def speculate(
    fn: Callable[P, R],
    *,
    watch: int = 3,
    executor: str | None = None,
    verify: int = 0,
    backend: str | Callable[..., Any] | None = None,
) -> Speculated[P, R]: ...
@overload
def speculate(
    fn: None = None,
    *,
    watch: int = 3,
    executor: str | None = None,
    verify: int = 0,
    backend: str | Callable[..., Any] | None = None,
) -> Callable[[Callable[P, R]], Speculated[P, R]]: ...
def speculate(
    fn: Any = None,
    *,
    watch: int = 3,
    executor: str | None = None,
    verify: int = 0,
    backend: str | Callable[..., Any] | None = None,
) -> Any:
    """Return ``fn`` as a speculated function: after ``watch`` watched calls it runs as one graph, with eager's results
    (JANUS 3).

    Use it as a decorator (``@speculate`` or ``@speculate(watch=2)``) or as a call. ``fn`` is a function, a method, a
    lambda, an ``nn.Module`` or any callable written in Python; it should be a whole training step, with
    ``zero_grad()``, ``backward()`` and ``optimizer.step()`` inside. ``executor``: "auto" (the fastest by measurement),
    "replay" (ATen calls, bitwise eager), "inductor", "cudagraph" (the calls of ATen captured on a GPU: one launch), or
    "coexecute" (Python runs the program without its tensor work, which a graph does: nothing is assumed of the
    program's objects). ``verify=N``: every Nth call that a graph could
    make is made twice, by the graph on copies and by ``fn`` for real; a graph that differs is reported and not used any
    more.

    ``backend``, instead of ``executor``: the name of a back end of ``torch.compile``, of those that
    ``torch._dynamo.list_backends()`` has, or a function that takes an FX graph of ATen operators and example inputs and
    returns a function. It has to agree
    with replay on a few calls before it is used; where it cannot take the graph, replay runs it.

    Raises Unsupported if ``fn`` is not callable, ``watch`` is less than 1, ``verify`` is negative or there is no such
    executor or back end.

        >>> import torch, torchjanus
        >>> double = torchjanus.speculate(lambda x: x * 2, executor="replay")
        >>> [double(torch.tensor(float(k))).item() for k in range(6)]
        [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
        >>> double.statistics().speculated
        3
    """
    if isinstance(watch, bool) or not isinstance(watch, int) or watch < 1:
        raise Unsupported(f"speculate(watch={watch!r}): the number of watched calls is an integer of at least 1.")
    if isinstance(verify, bool) or not isinstance(verify, int) or verify < 0:
        raise Unsupported(f"speculate(verify={verify!r}): every how many calls to check, an integer; 0 for never.")
    if backend is not None:
        if executor is not None:
            raise Unsupported("speculate() takes an executor or a back end, not both.")
        executor = executor_of(backend)
    if executor is not None:
        check_executor(executor)
    if fn is None:
        return functools.partial(speculate, watch=watch, executor=executor, verify=verify)
    if not callable(fn):
        raise Unsupported(
            f"speculate({fn!r}): expected a function, a method, an nn.Module or another callable, "
            f"not {type(fn).__name__}. Put the work of one step into a function and speculate on that."
        )
    return Speculated(_program_of(fn), watch=watch, executor=executor, verify=verify)


def _program_of(fn: Any) -> Any:
    """Return what a speculated function, or a method that is one, is made of; anything else as it is."""
    if isinstance(fn, Speculated):
        return fn.fn
    if isinstance(fn, types.MethodType) and isinstance(fn.__func__, Speculated):
        return types.MethodType(fn.__func__.fn, fn.__self__)
    return fn


def vary(*names: str) -> Callable[[S], S]:
    """Mark numbers and sizes of a speculated function that vary: they are inputs from the first graph on, and no call
    has to miss for that.

    ``names``: as a report prints them; ``*`` stands for any text. Returns a decorator that stands above ``speculate``.
    Raises Unsupported for what is not a speculated function.

        >>> import torch, torchjanus
        >>> @torchjanus.vary("x.shape[0]", "factor")
        ... @torchjanus.speculate(executor="replay")
        ... def scaled(x, factor):
        ...     return x * factor
        >>> for size in (4, 4, 4, 5, 6):
        ...     _ = scaled(torch.ones(size), 2.0 * size)
        >>> scaled.statistics().missed
        0
    """
    if not names or not all(isinstance(name, str) for name in names):
        raise Unsupported(f"vary{names!r}: name what varies as the report does, like 'images.shape[0]'.")

    def mark(step: S) -> S:
        if not isinstance(step, Speculated):
            raise Unsupported(f"vary(...) stands above speculate: it takes no {type(step).__name__}.")
        step._marks.add(names)
        return step

    return mark
