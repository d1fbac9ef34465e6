"""Collectives of a watched run: extern calls on the values of tensors, whose results are then written to the tensors.

The watched run itself makes the program's own call. Knows nothing of how extern calls are scheduled.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.grad_mode import _unsafe_preserve_version_counter as preserve_version_counter
from torch.autograd.graph import increment_version

from torchjanus.core.access_path import AccessPath
from torchjanus.core.kinds import is_one_of, isinstance
from torchjanus.host.collectives import BEGINNING, COMMUNICATING, Started, collective, completed
from torchjanus.host.journal import method
from torchjanus.ops.collectives import Facts
from torchjanus.semantics.external.extern_calls import ExternCalls
from torchjanus.semantics.native.containers import WatchHooks
from torchjanus.semantics.torch.framework import FrameworkRecorder
from torchjanus.trace.values import plain

__all__ = ["Collectives"]

_PLAIN = (torch.Tensor, torch.nn.Parameter)


@dataclass(frozen=True, slots=True, eq=False)
class _Handle:
    """A collective that the run has started, and the tensors that it writes."""

    started: Started
    written: list[torch.Tensor]
    real: bool  # whether it writes to the tensors themselves


class Collectives:
    """The collectives of one run."""

    def __init__(self, framework: FrameworkRecorder, externs: ExternCalls, watch: WatchHooks) -> None:
        self.framework, self.externs, self.watch = framework, externs, watch
        self.recording = framework.recording
        self._handles: dict[int, _Handle] = {}  # by id of the program's handle, of those not waited for

    def hindrance(self, fn: Any, facts: Facts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return why a graph cannot make this call, or ""."""
        try:
            given = inspect.signature(fn).bind(*args, **kwargs).arguments
        except TypeError:
            return "its arguments are wrong."
        for name in (*facts.written, *facts.read):
            values = given.get(name)
            if values is None:
                continue
            for tensor in [values] if isinstance(values, torch.Tensor) else values:
                if not is_one_of(type(tensor), _PLAIN) or tensor.layout is not torch.strided:
                    return f"it is given a {type(tensor).__name__}, not a plain dense tensor."
                with torch._C.DisableTorchFunction():
                    followed = tensor.requires_grad and torch.is_grad_enabled()
                if followed and name in facts.written:
                    return "autograd follows the tensor that it writes to."
        if any(not is_one_of(type(given.get(name)), (list, type(None))) for name in facts.objects):
            return "it fills something that is no plain list."
        return ""

    def call(self, fn: Any, facts: Facts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make the call for real, or take what it gave from the journal, and record it."""
        given = dict(inspect.signature(fn).bind(*args, **kwargs).arguments)
        starts = facts.starts or bool(self.recording.pin(given.get("async_op", False), "decides whether to wait"))
        layout: list[tuple[str, int, bool]] = []
        tensors: list[torch.Tensor] = []
        written: list[torch.Tensor] = []
        for name in (*facts.written, *facts.read):
            values = given.pop(name, None)
            if values is None:
                continue
            single = isinstance(values, torch.Tensor)
            several = [values] if single else list(self.watch.iterate(None, values))
            layout.append((name, -1 if single else len(several), name in facts.written))
            tensors += several
            written += several if name in facts.written else []
        func = collective(fn, tuple(layout), starts, facts.objects)
        made: list[Any] = []  # what the program's own call returned, if the journal did not know it

        def really(*_: Any, **__: Any) -> Any:
            with torch._C.DisableTorchFunction():
                made.append(self.framework.out(fn, *map(plain, args), **{key: plain(kwargs[key]) for key in kwargs}))
            if starts:
                return Started(made[0], [])
            return func.gives(made[0], _copies(written), [list(given[name]) for name in facts.objects])

        for owner in (given.get("group"),):
            self._claim(owner)
        values = [self._value(tensor) for tensor in tensors]
        # Nothing is read of the result then, so the call may be made when the graph has run.
        self.externs.dropped = not (written or starts or facts.objects or facts.returns)
        lists = {name: [*self.watch.iterate(None, given[name])] for name in facts.objects}
        effects = BEGINNING if starts else COMMUNICATING
        result = self.externs.make(func, tuple(values), {**given, **lists}, effects, really=really)
        if starts:
            work = result.work
            if work is not None:
                self.recording.keep(work)
                self._handles[id(work)] = _Handle(result, written, bool(made))
                self.recording.unfinished.append(self._check_waited)
            return work
        if facts.objects:
            for name in facts.objects:
                for index in range(len(given[name])):
                    self.watch.store_item(None, given[name], index, self.watch.load_item(None, result, index))
            return None
        if len(written) == 1 and not facts.returns:
            self.record_write(written[0], result, bool(made))
            return None
        for index, tensor in enumerate(written, int(facts.returns)):
            self.record_write(tensor, self.watch.load_item(None, result, index), bool(made))
        return self.watch.load_item(None, result, 0) if facts.returns else None

    def record_collective(
        self, func: Any, written: list[torch.Tensor], rest: dict[str, Any], really: Callable[..., Any], real: list[Any]
    ) -> None:
        """Record a collective that writes to tensors. ``real``: not empty if ``really`` has done it."""
        values = [self._value(tensor) for tensor in written]
        result = self.externs.make(func, tuple(values), rest, COMMUNICATING, really=really)
        for index, tensor in enumerate(written):
            value = result if len(written) == 1 else self.watch.load_item(None, result, index)
            self.record_write(tensor, value, bool(real))

    # -- handles ----------------------------------------------------------------------------------------------------

    def knows(self, owner: Any) -> bool:
        """Whether it is the handle of a collective that the run has started and not waited for."""
        return id(owner) in self._handles

    def wait(self, owner: Any) -> Any:
        """Wait for the collective of a handle."""
        handle = self._handles.pop(id(owner))
        started = handle.started

        def really(*_: Any) -> Any:
            if not handle.real:
                return completed(started)
            with torch._C.DisableTorchFunction():
                self.framework.out(started.work.wait)
            return _copies(handle.written)

        result = self.externs.make(completed, (started,), {}, COMMUNICATING, really=really)
        for index, tensor in enumerate(handle.written):
            self.record_write(tensor, self.watch.load_item(None, result, index), handle.real)
        return True

    def ask_store(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method of a store."""
        self._claim(args[0])
        return self.externs.make(method(name), args, kwargs, COMMUNICATING)

    def _check_waited(self) -> None:
        if self._handles:
            self._handles.clear()
            self.recording.refuse(
                "distributed",
                "a collective is started, and its handle outlives the step",
                "a graph writes what it gives when the program has waited for it.",
                "Call wait() in the same step.",
            )

    # -- tensors ----------------------------------------------------------------------------------------------------

    def _claim(self, value: Any) -> None:
        if value is not None and self.recording.owner(value) is None:
            self.recording.claim(value, AccessPath.const(value))

    def _value(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a recorded copy of a tensor."""
        with torch.no_grad(), torch._C.DisableTorchFunction():
            copy: torch.Tensor = self.framework.call(torch.clone, (tensor,), {})
        return copy

    def record_write(self, tensor: torch.Tensor, value: torch.Tensor, done: bool) -> None:
        """Record that a collective has written ``value`` to the tensor. ``done``: it has, for real.

        As in eager, autograd does not notice; at the end of the run the tensor's version tells that it has changed."""

        def really() -> torch.Tensor:
            if not done:
                with preserve_version_counter(tensor):
                    tensor.copy_(value)
            return tensor

        with torch.no_grad(), torch._C.DisableTorchFunction():
            self.framework.recorded_as(really, torch.Tensor.copy_, (tensor, value))
        if not tensor.is_inference():
            self.recording.unfinished.append(lambda: increment_version(tensor))


def _copies(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    with torch._C.DisableTorchFunction(), torch.no_grad():
        return [tensor.detach().clone() for tensor in tensors]
