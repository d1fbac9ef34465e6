"""A thread that computes beside Python, one order after the other. Knows nothing of graphs."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import torch

__all__ = ["Order", "Worker"]


class Order:
    """Something to compute. ``seconds``: how long it took."""

    __slots__ = ("_cancelled", "_done", "_error", "_threads", "_value", "_work", "seconds")

    def __init__(self, work: Callable[[], Any]) -> None:
        self.seconds = 0.0
        self._work: Callable[[], Any] | None = work
        self._threads = torch.get_num_threads()
        self._cancelled = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._done = threading.Lock()
        self._done.acquire()

    def make(self) -> None:
        """Compute it, in the thread of the worker. Errors are kept for who waits."""
        begun = time.perf_counter()
        work, self._work = self._work, None
        try:
            if not self._cancelled:
                assert work is not None
                if torch.get_num_threads() != self._threads:  # torch has one for each thread of Python
                    torch.set_num_threads(self._threads)
                self._value = work()
        except BaseException as error:
            self._error = error
        finally:
            self.seconds = time.perf_counter() - begun
            self._done.release()

    @property
    def is_done(self) -> bool:
        """Whether it is computed, or has failed."""
        return not self._done.locked()

    def wait(self) -> Any:
        """Return what it gives. Raises what it has raised."""
        self._done.acquire()
        self._done.release()
        if self._error is not None:
            raise self._error
        return self._value

    def end(self) -> None:
        """Wait until it is over, and do not begin it if it has not begun."""
        self._cancelled = True
        self._done.acquire()
        self._done.release()


class Worker:
    """The thread. It begins with the first order, and ends with this object."""

    def __init__(self) -> None:
        self._orders: SimpleQueue[Order | None] | None = None
        self._process = 0
        self._keeps: bool | None = None  # what the thread does with them; None if it has not been asked

    def order(self, work: Callable[[], Any]) -> Order:
        """Have something computed once all earlier orders are."""
        order = Order(work)
        self._queue().put(order)
        return order

    def treats_denormals_alike(self) -> bool:
        """Whether the thread treats numbers near zero as the caller's does: ``torch.set_flush_denormal`` is for one
        thread alone, and those that it begins later."""
        if self._keeps is None or self._process != os.getpid():
            self._keeps = bool(self.order(_keeps_denormals).wait())
        return _keeps_denormals() is self._keeps

    def _queue(self) -> SimpleQueue[Order | None]:
        if self._orders is None or self._process != os.getpid():  # a fork has no threads
            self._orders, self._process = SimpleQueue(), os.getpid()
            thread = threading.Thread(target=_work, args=(self._orders,), name="torchjanus co-execution", daemon=True)
            thread.start()
            weakref.finalize(self, self._orders.put, None)
        return self._orders


def _work(orders: SimpleQueue[Order | None]) -> None:
    torch._C._set_grad_enabled(False)
    while (order := orders.get()) is not None:
        order.make()
        del order


def _keeps_denormals() -> bool:
    """Whether a number below the least normal one is kept."""
    with torch._C.DisableTorchFunction():
        return bool(torch.tensor([2.0**-100]).mul_(2.0**-30).item())
