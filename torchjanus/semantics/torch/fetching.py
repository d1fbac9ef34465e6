"""Fetches: elements of tensors that Python reads become traced numbers; truth values are asserted.

Knows nothing of the functions that fetch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchjanus.core.kinds import is_one_of, isinstance
from torchjanus.semantics.record.recording import Recording
from torchjanus.semantics.torch.sizes import Sizes
from torchjanus.trace.facts import TensorPredicate
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import Fetch, plain, trace_value

__all__ = ["Fetching"]


class Fetching:
    """The fetches of one run. ``ref`` numbers a tensor that is used; ``call`` records a framework call."""

    def __init__(
        self,
        recording: Recording,
        sizes: Sizes,
        ref: Callable[[torch.Tensor, str], TensorRef | None],
        call: Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any],
    ) -> None:
        self.recording = recording
        self._sizes = sizes
        self._ref = ref
        self._call = call

    def number(self, func: Callable[..., Any], tensor: torch.Tensor, kind: type | None) -> Any:
        """Return the only element as a number of this kind, or of its own if ``kind`` is None."""
        ref = self._ref(tensor, "Tensor.item")
        value = plain(func(tensor))  # float(tensor) calls item(), which may have been recorded already
        assert ref is not None
        if isinstance(value, bool):
            self.recording.note(TensorPredicate(ref, value, self.recording.ops, self.recording.place))
            return value
        if not is_one_of(type(value), (int, float)):
            self.recording.refuse(
                "number-of-tensor", f"item() gives a {type(value).__name__}", "only int and float are carried on.", ""
            )
            return value
        kind = type(value) if kind is None else kind
        return self._fetched(value, Fetch(ref.number, self.recording.ops, kind, place=self.recording.place))

    def elements(self, func: Callable[..., Any], tensor: torch.Tensor) -> Any:
        """Return all elements in nested lists."""
        ref = self._ref(tensor, "Tensor.tolist")
        assert ref is not None
        self._sizes.pin(tensor, "its elements become a list")
        value = func(tensor)
        after, place = self.recording.ops, self.recording.place
        counter = iter(range(10**9))

        if tensor.dtype == torch.bool:
            self._hold_all(tensor, value)
            return value

        def carry(part: Any) -> Any:
            if isinstance(part, list):
                return [carry(p) for p in part]
            index = next(counter)
            if not is_one_of(type(part), (int, float)):
                self.recording.refuse(
                    "number-of-tensor",
                    f"tolist() gives {type(part).__name__}s",
                    "only int and float are carried on.",
                    "",
                )
            return self._fetched(part, Fetch(ref.number, after, type(part), index, place=place))

        return carry(value)

    def _hold_all(self, tensor: torch.Tensor, values: Any) -> None:
        """Assert all truths. They decide what Python does next, and no expression can represent them."""
        if not tensor.numel():
            return
        with torch.no_grad():
            expected = self._call(torch.tensor, (values,), {})
            same = self._call(torch.eq, (tensor, expected), {})
            self.truth(torch.Tensor.__bool__, self._call(torch.all, (same,), {}))

    def truth(self, func: Callable[..., Any], tensor: torch.Tensor) -> bool:
        """Return whether the only element is true, and assert it."""
        ref = self._ref(tensor, "bool")
        outcome = bool(func(tensor))
        assert ref is not None
        self.recording.note(TensorPredicate(ref, outcome, self.recording.ops, self.recording.place))
        return outcome

    def _fetched(self, value: Any, fetch: Fetch) -> Any:
        self.recording.fetch(fetch, value)
        return trace_value(value, fetch)
