"""Record calls of torch that raise: specialise on metadata that explains the error, or refuse (JANUS, appendix A.1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import _StopRecomputationError

from torchjanus.core.kinds import getattr, isinstance
from torchjanus.semantics.known.framework_calls import call_name
from torchjanus.semantics.protocols.falling_back import failed
from torchjanus.semantics.torch.framework import FrameworkRecorder
from torchjanus.semantics.torch.pausing import is_asked_by_parser
from torchjanus.trace.values import Traced, plain

__all__ = ["ErrorRecorder"]

_ONE_ELEMENT = frozenset({"item", "__float__", "__int__", "__bool__", "is_nonzero", "__index__"})


class ErrorRecorder(FrameworkRecorder):
    """Records framework calls. A call whose error may depend on more than its operands' metadata is refused."""

    _last: Exception | None = None

    def is_new(self, error: Exception) -> bool:
        """Whether this error object has not been recorded yet."""
        new, self._last = error is not self._last, error
        return new

    def call(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """See FrameworkRecorder.call."""
        try:
            return super().call(func, args, kwargs)
        except _StopRecomputationError:
            raise  # the early stop of checkpoint() is no error
        except Exception as error:
            try:
                self._raised(error, func, args, kwargs)
            except Exception as failure:
                failed(self.recording, "on a call that raised", failure)
            raise

    def _raised(
        self, error: Exception, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Record the failure of a framework call. Refuse it if metadata does not explain the error."""
        if self.is_new(error):
            self.recording.trace.failures += 1
        if not self._explained(error, func, args, kwargs):
            self.recording.refuse(
                "operation-raises",
                f"{call_name(func)} raises {type(error).__name__}",
                "whether it does may depend on the contents of tensors.",
                "Test the contents beforehand.",
            )

    def _explained(
        self, error: Exception, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> bool:
        """Whether shapes, dtypes and numbers explain the error. The graph specialises on them."""
        name = getattr(func, "__name__", "")
        leaves = pytree.tree_leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        for leaf in leaves:
            if isinstance(leaf, Traced):
                self.recording.pin(leaf, f"{name} raised")
        if any(map(is_lazy, tensors)) or any(self.ref(tensor, name) is None for tensor in tensors):
            return False
        if any(is_asked_by_parser(type(leaf)) for leaf in leaves):
            return False  # what the program's own object answered may have decided, and it must not be asked again
        for tensor in tensors:
            self.sizes.pin(tensor, f"{name} raised")
        if name in _ONE_ELEMENT and len(tensors) == 1:
            return tensors[0].numel() != 1
        changes = name.endswith("_") or name in ("backward", "grad", "__set__", "__setitem__") or "out" in kwargs
        return not changes and _raises_without_data(error, func, args, kwargs)


def _raises_without_data(
    error: Exception, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
    """Whether the call raises the same class of error on meta tensors. Messages may differ: the kernels do."""

    def bare(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            empty = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="meta")
            return empty.requires_grad_(value.requires_grad)
        return plain(value)

    try:
        with torch.no_grad():  # saved-tensor hooks may run code of the program
            func(*pytree.tree_map(bare, args), **pytree.tree_map(bare, kwargs))
    except Exception as other:
        return type(other) is type(error) and "meta" not in str(other)
    return False
