"""``DistributedDataParallel`` in a watched run: its forward and backward passes, as operations and collectives.

The watched run uses torch's own reducer. A process group in place of its own sees which buckets it reduces, and in
which order. What another attempt of the same call has reduced is taken from the journal. Knows nothing of graphs.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from torchjanus.core.errors import Refusal
from torchjanus.core.kinds import isinstance
from torchjanus.host.collectives import (
    BEGINNING_EARLY,
    COMMUNICATING,
    Started,
    buffers_broadcast,
    collective,
    completed,
    of_buckets,
)
from torchjanus.host.journal import Journal
from torchjanus.semantics.external.collectives import Collectives
from torchjanus.trace.actions import Extern
from torchjanus.trace.values import plain

__all__ = ["DataParallel", "is_forward", "is_passing"]

_TENSOR: Any = torch.Tensor
_GRADIENT = _TENSOR.grad.__get__
# What the options must be, and what is said of others.
_OPTIONS: tuple[tuple[str, Any, str], ...] = (
    ("find_unused_parameters", False, "it looks for unused parameters (find_unused_parameters)"),
    ("static_graph", False, "it assumes a static graph (static_graph)"),
    ("gradient_as_bucket_view", False, "gradients are views of its buckets (gradient_as_bucket_view)"),
    ("mixed_precision", None, "it casts parameters (mixed_precision)"),
    ("device_ids", None, "it moves its inputs (device_ids)"),
    ("_use_python_reducer", False, "its reducer is written in Python"),
    ("_delay_all_reduce_all_params", False, "it delays reductions"),
)
_SORTS = "it sorts its buckets by its first backward pass; graphs are made of later calls."
_EMPTY = (("_comm_hooks", "it has a communication hook"), ("_accum_grad_hooks", "it has hooks of its own"))


def is_forward(fn: Any) -> bool:
    """Whether this is the forward method of ``DistributedDataParallel``."""
    return torch.distributed.is_available() and fn is torch.nn.parallel.DistributedDataParallel.forward


def is_passing(refusal: Refusal) -> bool:
    """Whether the refusal says of a model only that it has not reduced gradients yet: a later call may be otherwise."""
    return refusal.why == _SORTS


@dataclass(slots=True, eq=False)
class _Model:
    """A data-parallel model that the run has called. ``armed``: its next backward pass reduces the gradients."""

    ddp: Any
    buckets: list[list[torch.Tensor]]  # the parameters in each
    armed: bool = False


class DataParallel:
    """The data-parallel models of one run."""

    def __init__(self, collectives: Collectives, journal: Journal) -> None:
        self.collectives, self.journal = collectives, journal
        self.framework, self.watch = collectives.framework, collectives.watch
        self.recording = collectives.recording
        self._models: dict[int, _Model] = {}
        self._reduced: list[tuple[_Model, torch.Tensor]] = []  # in this backward pass: bucket, and what it held then
        self._events = 0

    # -- forward ----------------------------------------------------------------------------------------------------

    def hindrance(self, ddp: Any) -> str:
        """Return why a graph cannot hold this model's reductions, or "". What is asked becomes an assumption."""
        for name, value, why in _OPTIONS:
            if plain(self.watch.load_attr(None, ddp, name)) is not value:
                return f"{why}."
        for name, why in _EMPTY:
            if self._holds(self.watch.load_attr(None, ddp, name)):
                return f"{why}."
        if self._holds(self.watch.call(None, hasattr, (ddp, "buffer_hook"), {})):
            return "it has a hook for its buffers."
        # ``join()`` puts another configuration there; each forward pass then begins with a reduction.
        if self._holds(self.watch.load_attr(None, self.watch.load_attr(None, ddp, "_join_config"), "enable")):
            return "it runs under join()."
        with torch._C.DisableTorchFunction():  # parameters, or buckets in a process group written in Python
            contiguous = all(p.is_contiguous() and p.layout is torch.strided for p in ddp._module_parameters)
            rebuilt = ddp._has_rebuilt_buckets or self._rebuild(ddp)
        if not contiguous:
            return "it has parameters that are not contiguous."
        if not rebuilt:
            return _SORTS
        if not self._holds(self.watch.load_attr(None, ddp, "_has_rebuilt_buckets")):
            return "its buckets are not sorted yet."
        return ""

    def _holds(self, value: Any) -> bool:
        """Return whether a value is true, which becomes an assumption."""
        return bool(self.watch.branch(None, self.watch.truth(None, value)))

    @staticmethod
    def _rebuild(ddp: Any) -> bool:
        """Let the reducer rebuild its buckets, as the forward pass in progress does first of all."""
        if torch.is_grad_enabled() and ddp._lazy_init_ran and ddp.reducer._rebuild_buckets():
            ddp._has_rebuilt_buckets = True
        return bool(ddp._has_rebuilt_buckets)

    def forward(self, ddp: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Do what ``DistributedDataParallel.forward`` does."""
        watch = self.watch
        syncs = torch.is_grad_enabled() and bool(self._flag(ddp, "require_backward_grad_sync"))
        if syncs:
            ddp.logger.set_runtime_stats_and_log()
            ddp.reducer.prepare_for_forward()
        self._sync_buffers(ddp)
        output = watch.call(None, watch.load_attr(None, ddp, "module"), args, kwargs)
        if bool(self._flag(ddp, "require_forward_param_sync")) is not syncs:
            watch.store_attr(None, ddp, "require_forward_param_sync", syncs)
        model = self._models.get(id(ddp))
        if model is None:
            buckets = sorted(ddp.reducer._get_zeros_like_grad_buckets(), key=lambda bucket: bucket.index())
            model = self._models[id(ddp)] = _Model(ddp, [bucket.parameters() for bucket in buckets])
        if syncs:
            ddp.reducer.prepare_for_backward([])
            model.armed = True
        return output

    def _flag(self, ddp: Any, name: str) -> Any:
        return self.recording.pin(self.watch.load_attr(None, ddp, name), "decides whether processes communicate")

    def _sync_buffers(self, ddp: Any) -> None:
        watch = self.watch
        syncs = "forward_sync_buffers" if "forward_sync_buffers" in vars(ddp) else "broadcast_buffers"  # older PyTorch
        if not ddp.modules_buffers or not self._flag(ddp, syncs):
            return
        if not self._flag(ddp, "require_forward_param_sync"):
            return
        buffers = list(watch.iterate(None, watch.load_attr(None, ddp, "modules_buffers")))
        func = collective(buffers_broadcast, (("tensors", len(buffers), True),), False, ())
        group = watch.load_attr(None, ddp, "process_group")
        size = self._flag(ddp, "broadcast_bucket_size")
        real: list[torch.Tensor] = []

        def really(*_: Any, **__: Any) -> Any:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                buffers_broadcast(buffers, group, int(size))
                real.extend(buffers)
                return func.gives(None, [buffer.detach().clone() for buffer in buffers], [])

        self.collectives.record_collective(func, buffers, {"group": group, "size": int(size)}, really, real)

    # -- backward ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def reducing(self) -> Iterator[None]:
        """Within a backward pass: see which buckets are reduced."""
        if not self._models:
            yield
            return
        self._reduced.clear()
        self._events = len(self.recording.trace.events)
        known = iter(self.journal.awaiting(of_buckets()))
        observing = []  # keeps them alive: the reducer holds only their parts in C++
        for model in self._models.values():
            observing.append(_observing(model.ddp.process_group, functools.partial(self._reduce, model, known)))
            model.ddp.reducer._update_process_group(observing[-1])
        try:
            yield
        finally:
            for model in self._models.values():
                model.ddp.reducer._update_process_group(model.ddp.process_group)

    def _reduce(self, model: _Model, known: Iterator[Any], tensor: torch.Tensor) -> None:
        """Reduce a bucket for the reducer: really, or as another attempt of the call did."""
        record = next(known, None)
        with torch._C.DisableTorchFunction(), torch.no_grad():
            if record is not None:
                if record.error is not None:
                    raise record.error
                tensor.copy_(completed(record.result)[0])
            else:
                model.ddp.process_group.allreduce([tensor]).wait()
            self._reduced.append((model, tensor.clone()))

    def record_reduction(self) -> None:
        """Record what the backward pass has reduced. The gradients hold the results already."""
        if not self._reduced:
            return
        events = self.recording.trace.events[self._events :]
        if any(isinstance(event, Extern) and event.effects.writes & COMMUNICATING.writes for event in events):
            self._refuse("hooks communicate while its gradients are reduced")
        counts: dict[int, int] = {}
        begun: list[tuple[list[torch.Tensor], Any]] = []
        for model, result in self._reduced:
            index = counts[id(model)] = counts.get(id(model), -1) + 1
            if index < len(model.buckets):
                begun += self._begin(model, model.buckets[index], result)
        for grads, started in begun:
            self._complete(grads, started)
        for model in self._models.values():
            met = counts.get(id(model), -1) + 1
            if met and (met != len(model.buckets) or not model.armed):
                self._refuse("it reduces the gradients of some of its parameters only")
            model.armed = model.armed and not met
        self._reduced.clear()

    def _begin(
        self, model: _Model, parameters: list[torch.Tensor], result: torch.Tensor
    ) -> list[tuple[list[torch.Tensor], Any]]:
        """Record that the reduction of a bucket begins. Return its gradients and the handle; nothing if it refuses."""
        call = self.framework.call
        share = 1.0 / model.ddp.process_group.size()
        with torch.no_grad(), torch._C.DisableTorchFunction():
            grads = [call(_GRADIENT, (parameter,), {}) for parameter in parameters]
            if any(type(grad) is not torch.Tensor or not grad.is_contiguous() for grad in grads):
                self._refuse("it has gradients that are not contiguous tensors")
                return []
            parts = [call(torch.Tensor.reshape, (grad, (-1,)), {}) for grad in grads]
            # Of its own, in memory that nothing else reads: the reduction overwrites it.
            flat = call(torch.mul, (call(torch.cat, (parts,), {}), share), {})
        group = self.watch.load_attr(None, model.ddp, "process_group")
        func = of_buckets()
        begun = Started(None, [result])
        started = self.collectives.externs.make(
            func, (flat,), {"group": group}, BEGINNING_EARLY, really=lambda *_, **__: begun
        )
        return [(grads, started)]

    def _complete(self, grads: list[torch.Tensor], started: Any) -> None:
        """Record that the program waits for the reduction, and what it gives."""
        call = self.framework.call
        result = self.collectives.externs.make(completed, (started,), {}, COMMUNICATING)
        total = self.watch.load_item(None, result, 0)
        with torch.no_grad(), torch._C.DisableTorchFunction():
            parts = call(torch.split, (total, [grad.numel() for grad in grads]), {})
            for grad, part in zip(grads, parts, strict=True):
                self.collectives.record_write(grad, call(torch.Tensor.view, (part, tuple(grad.shape)), {}), True)

    def _refuse(self, why: str) -> None:
        self.recording.refuse(
            "distributed", "trains a DistributedDataParallel model", f"{why}.", "Call the module that it holds."
        )


def _observing(group: Any, reduce: Callable[[torch.Tensor], None]) -> Any:
    """Return a process group that reduces one tensor by ``reduce``."""
    return _classes()[0](group, reduce)


@functools.cache
def _classes() -> Any:
    """Define the classes, where there is torch.distributed: the process group, and its handles."""
    distributed: Any = torch.distributed

    class Done(distributed.Work):  # type: ignore[misc]
        def __init__(self, tensors: list[torch.Tensor]) -> None:
            super().__init__()
            self.future: torch.futures.Future[Any] = torch.futures.Future()
            self.future.set_result(tensors)

        def wait(self, timeout: Any = None) -> bool:
            return True

        def get_future(self) -> Any:
            return self.future

    class Observing(distributed.ProcessGroup):  # type: ignore[misc]
        def __init__(self, group: Any, reduce: Callable[[torch.Tensor], None]) -> None:
            super().__init__(group.rank(), group.size())
            self.reduce = reduce

        def allreduce(self, tensors: list[torch.Tensor], options: Any = None) -> Any:
            self.reduce(tensors[0])
            return Done(tensors)

    return Observing, Done
