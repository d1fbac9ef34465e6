"""One call of a step whose calls never take the same path twice, as the mode that gets torch's calls.

Python runs the program on placeholders. Operators that are known are deferred, in program order; they are made when
Python needs contents, or makes something that is not known to be an operator: then all that is pending is made first.
So whatever branch a call takes, and however often it goes through a loop, nothing is ever undone.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from torchjanus.core.default_device import without_function_modes
from torchjanus.core.errors import InternalFault, Place
from torchjanus.runtime.coexecution.graphs.matching import undisturbed
from torchjanus.runtime.coexecution.graphs.run import restored, saved
from torchjanus.runtime.coexecution.merging.operators import ANSWERED, Call, Operator, Operators, may_change
from torchjanus.runtime.coexecution.recording.arrays import copied, same_bits
from torchjanus.runtime.coexecution.recording.composites import Form, listed
from torchjanus.runtime.coexecution.recording.events import Meta, here
from torchjanus.runtime.coexecution.recording.kinds import called
from torchjanus.runtime.coexecution.recording.lines import call_from_line
from torchjanus.runtime.coexecution.recording.observer import Observer
from torchjanus.runtime.coexecution.recording.outside_modes import outside_modes
from torchjanus.runtime.coexecution.recording.placeholders import Placeholder, fill, placeholder, register, unregister
from torchjanus.semantics.torch.torch_state import generator_state

__all__ = ["MergedRun"]

_LARGEST = 1 << 16  # bytes that are copied for a pending call
_AT_ONCE = frozenset({"_set_grad_enabled", "_record_function_enter_new", "_record_function_exit"})


@dataclass(slots=True)
class _Pending:
    """``results``: what Python has been given, for each result; ``versions``: of tensors from outside, when the call
    came; ``contents``: copies of those that share memory with arrays."""

    call: Call
    operator: Operator
    results: list[torch.Tensor | None]
    versions: list[tuple[torch.Tensor, int]]
    contents: list[tuple[torch.Tensor, torch.Tensor]]


class MergedRun(TorchFunctionMode):
    """``exposed``: whether the program has code that no recorded call has run, and that may ask for what a placeholder
    cannot answer. ``deferred``, ``native``: how many calls were deferred, and made at once; ``seconds``: what the
    pending ones took; ``points``: where Python needed them, and for how many seconds it waited each time."""

    def __init__(self, operators: Operators, exposed: bool) -> None:
        super().__init__()
        self.operators = operators
        self.deferred = self.native = 0
        self.seconds = 0.0
        self.points: list[tuple[Place, str, float]] = []
        self.refusal: tuple[str, str, str, Place] | None = None
        self._pending: deque[_Pending] = deque()
        self._changing: set[int] = set()  # the memory that pending calls change
        self._states: list[torch.Tensor] | None = None  # the generators' when the first pending call that draws came
        self._drawn = b""
        self._lock = threading.RLock()
        self._observer = Observer(self._seen) if exposed else None
        register(self)
        if self._observer is not None:
            self._observer.start()

    # -- calls of torch -------------------------------------------------------------------------------------------

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Answer one of torch's calls."""
        with self._lock:
            kwargs = kwargs or {}
            short = called(func).short
            if short in ANSWERED:
                if args and type(args[0]) is Placeholder:
                    with torch._C.DisableTorchFunctionSubclass():
                        return func(*args, **kwargs)
                return func(*args, **kwargs)
            if short in _AT_ONCE:
                return func(*args, **kwargs)
            call = self.operators.call(func, args, kwargs) if self.refusal is None and undisturbed() else None
            if call is not None:
                is_known, operator = self.operators.get(call)
                if operator is not None and self._may_defer(call, operator):
                    return self._defer(call, operator)
                if operator is not None and self._may_precede(call, operator):
                    self.native += 1
                    return call_from_line(func, args, kwargs)
                if not is_known:
                    self._make_pending(short)
                    self.native += 1
                    return self.operators.observe(call)
            self._make_pending(short)
            self.native += 1
            return call_from_line(func, args, kwargs)

    def composite(self, func: Callable[..., Any], first: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call of torch's own optimizers and the like. See ``Composer``."""
        first = listed(first)
        with self._lock:
            self._make_pending(getattr(func, "__name__", "an optimizer"))
            if Form.of(first) is None or args or kwargs.get("closure") is not None:
                return func(first, *args, **kwargs)
            self.native += 1
            with without_function_modes():
                return func(first, *args, **kwargs)

    def _may_defer(self, call: Call, operator: Operator) -> bool:
        if operator.mutated and not all(may_change(call.tensors[k]) for k in operator.mutated):
            return False
        if not call.shared:
            return True
        # A view of memory that an array has is made at once, and so is what need not wait for anything.
        small = sum(tensor.nbytes for tensor in call.shared) <= _LARGEST
        return small and any(type(tensor) is Placeholder for tensor in call.tensors)

    def _may_precede(self, call: Call, operator: Operator) -> bool:
        """Whether an operator may be made before the pending ones: they do not change what it takes, nor it theirs."""
        return not (operator.mutated or operator.draws) and all(
            type(tensor) is not Placeholder and tensor.untyped_storage()._cdata not in self._changing
            for tensor in call.tensors
        )

    def _defer(self, call: Call, operator: Operator) -> Any:
        """Note the call, and return placeholders."""
        if operator.draws:
            if self._states is not None and generator_state() != self._drawn:
                self._make_pending("a generator that is set")
            if self._states is None:
                self._states, self._drawn = saved(), generator_state()
        changing = self._changing
        with torch._C.DisableTorchFunctionSubclass():
            versions = [
                (tensor, tensor._version)
                for tensor in call.tensors
                if type(tensor) is not Placeholder and not (changing and tensor.untyped_storage()._cdata in changing)
            ]
        self._changing.update(call.tensors[k].untyped_storage()._cdata for k in operator.mutated)
        results = [
            placeholder(one) if isinstance(one, Meta) else None if one is None else call.tensors[one]
            for one in operator.results
        ]
        contents = [(tensor, copied(tensor)) for tensor in call.shared]
        self._pending.append(_Pending(call, operator, results, versions, contents))
        self.deferred += 1
        return results[0] if operator.kind is torch.Tensor else operator.kind(results)

    # -- making what is pending -----------------------------------------------------------------------------------

    def _make_pending(self, what: str) -> None:
        """Make all pending calls, in their order: their placeholders become real tensors."""
        if not self._pending:
            return
        begun = time.perf_counter()
        pending, self._pending = self._pending, deque()
        states, self._states = self._states, None
        self._changing.clear()
        with outside_modes():
            moved = None
            if states is not None and generator_state() != self._drawn:  # the program has set the generator meanwhile
                moved = saved()
                restored(states)
            try:
                while pending:
                    _make(pending.popleft())
            finally:
                if moved is not None:
                    restored(moved)
        seconds = time.perf_counter() - begun
        self.seconds += seconds
        self.points.append((here(), what, seconds))

    # -- what is seen besides torch's calls -----------------------------------------------------------------------

    def owns(self, tensor: torch.Tensor) -> bool:
        """See ``Owner``."""
        return any(tensor is one for pending in self._pending for one in pending.results)

    def touched(self) -> None:
        """See ``Owner``."""
        with self._lock:
            self._make_pending("what torch's calls do not show")

    def _seen(self, reason: str, what: str, why: str, place: Place) -> None:
        """Give the program real tensors from now on, before it does what a placeholder cannot answer."""
        with self._lock:
            if self.refusal is None:
                self.refusal = reason, what, why, place
            self._make_pending(what)

    def finish(self) -> None:
        """Complete the call, whose program has returned."""
        with self._lock:
            self._make_pending("the end of the step")

    def close(self) -> None:
        """End the call: no placeholder is left."""
        with self._lock:
            if self._observer is not None:
                self._observer.stop()
            try:
                self._make_pending("the error of the step")
            finally:
                unregister(self)


def _make(one: _Pending) -> None:
    call, operator = one.call, one.operator
    if any(tensor._version != version for tensor, version in one.versions):
        raise InternalFault("a tensor was written to, unseen, before an operation that reads it was made")
    torch._C._set_grad_enabled(call.key[1])
    if torch.get_default_dtype() is not call.key[2]:
        torch._C._set_default_dtype(call.key[2])
    later = [(tensor, copied(tensor)) for tensor, then in one.contents if not same_bits(tensor, then)]
    for tensor, then in one.contents if later else ():
        tensor.data.copy_(then)  # the program has written to an array since
    try:
        result = call.func(*call.args, **call.kwargs)
    finally:
        for tensor, now in later:
            tensor.data.copy_(now)
    made = (result,) if operator.kind is torch.Tensor else result
    for given, real, known in zip(one.results, made, operator.results, strict=True):
        if isinstance(known, Meta):
            if type(given) is not Placeholder or not _is_as(real, known):
                raise InternalFault(f"{call.func} gives another kind of tensor than before")
            fill(given, real)


def _is_as(tensor: torch.Tensor, meta: Meta) -> bool:
    return (
        tensor.size() == meta.size
        and tensor.stride() == meta.stride
        and tensor.dtype is meta.dtype
        and tensor.requires_grad is meta.requires_grad
    )
