"""A simulated link between processes: a process group that passes collectives on to gloo, and delays their results; and
on paper, what a link costs many processes.

    python -m benchmarks.speed.link --forward 40 --backward 80 --update 10 --megabytes 440 --buckets 18

Transfers of a process follow each other: each takes ``latency`` seconds and its bytes over ``rate``, after all of them
have come to it. It also counts what goes out. For measurements only.

Takes a second: it computes on paper.
"""

from __future__ import annotations

import argparse
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["Link", "Rate", "Step", "main", "register"]

_distributed: Any = dist


@dataclass
class Rate:
    """Seconds for each transfer, and bytes a second."""

    latency: float = 0.0
    rate: float = float("inf")

    def seconds(self, size: int) -> float:
        return self.latency + size / self.rate


@dataclass
class Sent:
    """What has gone out: the collectives with their bytes, in order, and the seconds that the link took for them."""

    collectives: list[tuple[str, int]] = field(default_factory=list)
    seconds: float = 0.0


# By process group: lists that a group holds itself would be changed by each collective that is given it.
_SENT: dict[int, Sent] = {}


class _Transfer(_distributed.Work):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.future: torch.futures.Future[Any] = torch.futures.Future()

    def wait(self, timeout: Any = None) -> bool:
        self.future.wait()
        return True

    def is_completed(self) -> bool:
        return self.future.done()

    def get_future(self) -> Any:
        return self.future


class Link(_distributed.ProcessGroup):  # type: ignore[misc]
    """Passes collectives on to ``inner``, one after the other, in a thread."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner.rank(), inner.size())
        self.inner = inner
        self.rate: Rate | None = None  # no delay
        _SENT[id(self)] = Sent()
        self._waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._transfer, daemon=True).start()

    @property
    def sent(self) -> Sent:
        """What has gone out."""
        return _SENT[id(self)]

    def _transfer(self) -> None:
        while True:
            begin, size, tensors, transfer = self._waiting.get()
            try:
                begin().wait()
                if self.rate is not None:
                    time.sleep(self.rate.seconds(size))
            except Exception as error:
                transfer.future.set_exception(error)
            else:
                transfer.future.set_result(tensors)

    def _send(self, name: str, tensors: list[Tensor], begin: Callable[[], Any]) -> Any:
        size = sum(tensor.nbytes for tensor in tensors)
        self.sent.collectives.append((name, size))
        if self.rate is None:
            return begin()
        self.sent.seconds += self.rate.seconds(size)
        transfer = _Transfer()
        self._waiting.put((begin, size, tensors, transfer))
        return transfer

    @torch.compiler.disable
    def allreduce(self, tensors: Any, options: Any = None) -> Any:
        given = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        options = dist.AllreduceOptions() if options is None else options
        return self._send("allreduce", given, lambda: self.inner.allreduce(given, options))

    @torch.compiler.disable
    def broadcast(self, tensors: Any, options: Any = None) -> Any:
        given = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        options = dist.BroadcastOptions() if options is None else options
        return self._send("broadcast", given, lambda: self.inner.broadcast(given, options))

    @torch.compiler.disable
    def allgather(self, outputs: Any, inputs: Any, options: Any = None) -> Any:
        options = dist.AllgatherOptions() if options is None else options
        begin = lambda: self.inner.allgather(outputs, inputs, options)  # noqa: E731
        return self._send("allgather", list(inputs), begin)

    @torch.compiler.disable
    def barrier(self, options: Any = None) -> Any:
        return self._send("barrier", [], lambda: self.inner.barrier(dist.BarrierOptions()))

    def getBackendName(self) -> str:
        return "link"


def register() -> None:
    """Make ``torch.distributed.new_group(backend="link")`` give a Link."""

    def create(store: Any, rank: int, size: int, timeout: Any) -> Link:
        return Link(_distributed.ProcessGroupGloo(store, rank, size, timeout))

    dist.Backend.register_backend("link", create, devices=["cpu"])


@dataclass(frozen=True)
class Step:
    """A data-parallel step: milliseconds of its parts, and its gradients, in equal buckets."""

    forward: float
    backward: float
    update: float
    megabytes: float
    buckets: int

    def reduced(self, ranks: int, rate: Rate) -> float:
        """Return the milliseconds of one bucket's ring all-reduce: each rank sends 2 (n - 1) pieces of 1 / n."""
        size = self.megabytes * 1e6 / self.buckets
        return 1e3 * 2 * (ranks - 1) * rate.seconds(int(size / ranks))

    def taken(self, ranks: int, rate: Rate, *, overlapped: bool) -> float:
        """Return the milliseconds of a step. ``overlapped``: a bucket's reduction begins when its gradients are there,
        behind those before it."""
        each, reduced = self.reduced(ranks, rate), 0.0
        computed = self.forward + self.backward
        for bucket in range(self.buckets):
            ready = self.forward + self.backward * (bucket + 1) / self.buckets if overlapped else computed
            reduced = max(ready, reduced) + each
        return max(reduced, computed) + self.update


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a step's time on 1 to 1,024 ranks."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.link", description=__doc__)
    for name in ("forward", "backward", "update", "megabytes"):
        parser.add_argument(f"--{name}", type=float, required=True)
    parser.add_argument("--buckets", type=int, required=True)
    parser.add_argument("--latency", type=float, default=10.0, help="microseconds of a message")
    parser.add_argument("--rate", type=float, default=12500.0, help="megabytes a second")
    asked = parser.parse_args(arguments)
    step = Step(asked.forward, asked.backward, asked.update, asked.megabytes, asked.buckets)
    rate = Rate(asked.latency / 1e6, asked.rate * 1e6)
    alone = step.forward + step.backward + step.update
    print("ranks  link (ms)  in turn (ms)  overlapped (ms)  hidden  efficiency")
    for ranks in (1, 8, 64, 1024):
        link = step.buckets * step.reduced(ranks, rate)
        turn, overlapped = (step.taken(ranks, rate, overlapped=way) for way in (False, True))
        hidden = 1 - (overlapped - alone) / link if link else 1.0
        print(
            f"{ranks:5}  {link:9.1f}  {turn:12.1f}  {overlapped:15.1f}  {100 * hidden:4.0f} %"
            f"  {100 * alone / overlapped:8.0f} %"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
