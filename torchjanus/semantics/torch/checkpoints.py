"""``torch.utils.checkpoint``, recorded as a plain call of its function, since recomputation changes nothing.

The watched run does checkpoint, and verifies this: what the function changed, and what changed before it ran again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import checkpoint as torch_checkpoint

from torchjanus.core.kinds import getattr, hasattr, isinstance
from torchjanus.semantics.torch.framework import FrameworkRecorder
from torchjanus.semantics.torch.torch_state import generator_state
from torchjanus.trace.actions import ContainerMutation, Extern, HeapWrite
from torchjanus.trace.values import plain

__all__ = ["Checkpoints", "is_checkpoint"]

_CODE = torch_checkpoint.checkpoint
while hasattr(_CODE, "__wrapped__"):
    _CODE = _CODE.__wrapped__


def is_checkpoint(fn: Any) -> bool:
    """Whether this is torch's checkpoint() itself, without its wrappers."""
    return getattr(fn, "__code__", None) is _CODE.__code__


class Checkpoints:
    """Watches the checkpointed calls of one run."""

    def __init__(self, framework: FrameworkRecorder) -> None:
        self.framework = framework
        self.recording = framework.recording
        self._code = framework.code

    def run(self, checkpoint: Any, function: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Return ``checkpoint(function, *args, **options)``."""
        recording = self.recording
        if options.get("use_reentrant") is not False or options.keys() & {"context_fn", "debug"}:
            recording.refuse(
                "checkpoint-form",
                "checkpoint() with use_reentrant or context_fn",
                "only its plain form is known to compute what the function itself does.",
                "Pass use_reentrant=False, and neither context_fn nor debug.",
            )
            return checkpoint(function, *args, **options)
        after: list[tuple[int, list[int]]] = []

        self._code.keep(function, args, options)

        def watched(*given: Any, **named: Any) -> Any:
            if self._code.over:  # autograd's graph has outlived the step
                return function(*map(plain, given), **{name: plain(value) for name, value in named.items()})
            if after:
                return self._again(*after[0], function, given, named)
            events, versions, draws = len(recording.trace.events), self._versions(), generator_state()
            with self.framework.resumed():
                result = self._code.call(function, given, named)
            random = generator_state() != draws
            if self._written_since(events) or versions != self._versions()[: len(versions)]:
                self._refuse("it would be changed twice", "something that was there before")
            elif random and not options.get("preserve_rng_state", True):
                self._refuse("other numbers are drawn when it runs again", "preserve_rng_state=False and draws numbers")
            after.append((len(recording.trace.events), self._versions()))
            return result

        with self.framework.paused():
            return checkpoint(watched, *args, **options)

    def _again(
        self, events: int, versions: list[int], function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Recompute for autograd. Refuse the trace if the inputs have changed or the function changes state."""
        recording = self.recording
        if self._written_since(events) or versions != self._versions()[: len(versions)]:
            self._refuse("it may give something else when it runs again", "state that changes before backward()")
        if recording.trace.refusals:  # its writes must be visible to later reads
            with self.framework.resumed():
                return self._code.call(function, args, kwargs)
        state = [recording.trace.tensors[number] for number in recording.trace.access_paths]
        with self.framework.paused():
            before = [tensor.detach().clone() for tensor in state]
            try:
                return function(*args, **kwargs)
            finally:
                same = (torch.equal(_bits(old), _bits(new)) for old, new in zip(before, state, strict=True))
                if not all(same):
                    self._refuse("it would be changed twice", "a tensor that was there before")

    def _written_since(self, events: int) -> bool:
        return any(
            isinstance(event, HeapWrite | ContainerMutation | Extern) for event in self.recording.trace.events[events:]
        )

    def _versions(self) -> list[int]:
        with torch._C.DisableTorchFunction():
            return [0 if t.is_inference() else t._version for t in self.recording.trace.tensors]

    def _refuse(self, why: str, what: str) -> None:
        self.recording.refuse(
            "checkpoint-effects",
            f"checkpoint() of a function with effects ({what})",
            f"{why}.",
            "Do that outside of the function.",
        )


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the contents as bytes, so that a NaN equals itself."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
