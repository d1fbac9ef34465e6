"""Watch operations that raise: specialise on their operands, or refuse the run (JANUS, appendix A.1).

The program may handle an error and continue. Its path then depends on the operands of the operation that raised, which
has no event of its own. Errors that the program raises itself need no guard: the decisions before them are recorded.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import _StopRecomputationError

from torchjanus.core.kinds import getattr, isinstance
from torchjanus.rewrite import Site
from torchjanus.semantics.known.framework_calls import call_name
from torchjanus.semantics.protocols.falling_back import failed
from torchjanus.semantics.torch.framework import FrameworkRecorder
from torchjanus.semantics.watch.objects.items import ItemWatch
from torchjanus.semantics.watch.objects.values import ValueWatch
from torchjanus.trace.values import Traced, plain

__all__ = ["ErrorRecorder", "ErrorWatch"]

F = TypeVar("F", bound=Callable[..., Any])
_INDEXED = (list, tuple, collections.deque)
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
        for tensor in tensors:
            self.sizes.pin(tensor, f"{name} raised")
        if name in _ONE_ELEMENT and len(tensors) == 1:
            return tensors[0].numel() != 1
        changes = name.endswith("_") or name in ("backward", "grad", "__set__", "__setitem__") or "out" in kwargs
        return not changes and _raises_without_data(error, func, args, kwargs)


def _held(leaf: F) -> F:
    """Return the hook extended so that it specialises on its operands where it raises."""

    @functools.wraps(leaf)
    def attempt(watch: ErrorWatch, at: Site, *operands: Any) -> Any:
        try:
            return leaf(watch, at, *operands)
        except Exception as error:
            watch.failed(error, operands)
            raise

    return cast(F, attempt)


class ErrorWatch(ItemWatch, ValueWatch):
    """The hooks whose errors may depend on more than types."""

    recorder = ErrorRecorder
    framework: ErrorRecorder

    native_binary = _held(ValueWatch.native_binary)
    native_inplace = _held(ValueWatch.native_inplace)
    native_unary = _held(ValueWatch.native_unary)
    native_compare = _held(ValueWatch.native_compare)
    native_format = _held(ValueWatch.native_format)
    truth = _held(ValueWatch.truth)

    def load_item(self, at: Site, obj: Any, key: Any) -> Any:
        try:
            return super().load_item(at, obj, key)
        except IndexError:
            self._hold_length(obj)
            raise

    def store_item(self, at: Site, obj: Any, key: Any, value: Any) -> None:
        try:
            super().store_item(at, obj, key, value)
        except IndexError:
            self._hold_length(obj)
            raise

    def call_failed(self, error: Exception, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record that a native callee has raised."""
        owner = getattr(fn, "__self__", None)
        self.failed(error, (owner, *args, *kwargs.values()))

    def failed(self, error: Exception, operands: tuple[Any, ...]) -> None:
        """Specialise on the operands of an operation that raised, unless an inner operation has done so."""
        if not self.framework.is_new(error):
            return
        self.recording.trace.failures += 1
        for value in operands:
            self.natives.expose(value, pin=True)

    def _hold_length(self, obj: Any) -> None:
        if isinstance(obj, _INDEXED) and self.recording.owner(obj) is not None:
            self.natives.whole_length(obj)


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
