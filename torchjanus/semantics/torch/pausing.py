"""A mode that gets torch's calls, and when it does not count them: while torch's own Python or native code runs.

Knows nothing of what is recorded.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, _pop_mode, _pop_mode_temporarily, _push_mode
from torch.utils import _pytree as pytree

from torchjanus.core.kinds import getattr, hasattr, is_one_of, isinstance

__all__ = ["PausableMode", "is_asked_by_parser"]

# What torch's argument parser asks objects for to see whether they are numbers or sequences of numbers.
_ASKED = ("__index__", "__int__", "__float__", "__complex__", "__len__", "__getitem__")
_SUBSCRIPTS = ("__getitem__", "__setitem__")
_PARSED = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.MethodWrapperType,
    types.WrapperDescriptorType,
)
_NATIVE = (torch.Tensor, torch.nn.Parameter, int, float, bool, complex, str, list, tuple, dict, type(None), slice)


class PausableMode(TorchFunctionMode):
    """Subclasses ask whether the mode is paused, what native code was given, and which tensors are shown."""

    def __init__(self) -> None:
        super().__init__()
        self._given: list[set[int]] = []  # the ids of the tensors given to the native code that runs, the latest last
        self._paused = False
        self._shown: frozenset[int] = frozenset()  # the ids of the tensors whose text the caller has recorded

    @contextlib.contextmanager
    def passive(self, given: Iterable[Any]) -> Iterator[None]:
        """While native code runs, do not record what it does with its own tensors or those that it is ``given``."""
        self._given.append(_ids(list(given)))
        try:
            yield
        finally:
            self._given.pop()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Record nothing: torch's Python code runs for one call that is recorded otherwise."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    @contextlib.contextmanager
    def resumed(self) -> Iterator[None]:
        """Record again, during a framework call that calls the user's code."""
        before, self._paused = self._paused, False
        try:
            with self._in_force():
                yield
        finally:
            self._paused = before

    @contextlib.contextmanager
    def _in_force(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            if not any(torch._C._get_function_stack_at(i) is self for i in range(torch._C._len_torch_function_stack())):
                stack.enter_context(self)
            stack.enter_context(torch._C._EnableTorchFunction())
            yield

    @contextlib.contextmanager
    def absent(self) -> Iterator[None]:
        """Remove this mode, and keep those of the program, while unknown native code runs."""
        found = [_pop_mode() for _ in range(torch._C._len_torch_function_stack())]
        for mode in reversed(found):
            if mode is not self:
                _push_mode(mode)
        try:
            yield
        finally:
            for _ in range(torch._C._len_torch_function_stack()):
                _pop_mode()
            for mode in reversed(found):
                _push_mode(mode)

    def unparsed(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any]:
        """Return what to call with these arguments in place of ``fn``, which torch implements in C++.

        Torch parses the arguments before it shows a mode the call, and anew when the mode makes the call. If that asks
        an object of the program's own for a number or a length, this mode is called directly, so that it is asked once.
        """
        depth = torch._C._len_torch_function_stack()
        if not depth or torch._C._get_function_stack_at(depth - 1) is not self:
            return fn
        if not isinstance(fn, _PARSED) or not torch._C._is_torch_function_enabled():
            return fn
        if (
            fn.__name__.startswith("__") and fn.__name__ not in _SUBSCRIPTS
        ):  # an operator that may leave it to the object
            return fn
        given = [*map(_parts, args), *map(_parts, kwargs.values())]
        if not any(is_asked_by_parser(type(part)) for parts in given for part in parts):
            return fn
        if any(_has_own_mode(type(part)) for parts in given for part in parts):
            return fn
        owner = getattr(fn, "__self__", None)
        if not isinstance(owner, torch.Tensor):
            return functools.partial(self._called, fn)
        if _has_own_mode(type(owner)):
            return fn
        return functools.partial(self._called, getattr(torch.Tensor, fn.__name__), owner)

    def _called(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        answer: Any = self.__torch_function__
        with _pop_mode_temporarily():
            return answer(fn, (), args, kwargs)

    @contextlib.contextmanager
    def showing(self, parts: Any) -> Iterator[None]:
        """While these parts are shown, their texts have been recorded by the caller."""
        before = self._shown
        self._shown = before | _ids(parts)
        try:
            yield
        finally:
            self._shown = before


def _ids(tree: Any) -> set[int]:
    """Return the ids of the tensors in a tree."""
    return {id(leaf) for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)}


def _parts(value: Any) -> list[Any]:
    """Return an argument, or the elements of a list, tuple or slice."""
    if is_one_of(type(value), (list, tuple)):
        return list(value)
    return [value.start, value.stop, value.step] if type(value) is slice else [value]


def is_asked_by_parser(kind: type) -> bool:
    """Whether the class has code of the program's own that torch's argument parser may run."""
    if is_one_of(kind, _NATIVE):
        return False
    return any(isinstance(getattr(kind, name, None), types.FunctionType) for name in _ASKED)


def _has_own_mode(kind: type) -> bool:
    """Whether the class may see calls itself."""
    return not is_one_of(kind, _NATIVE) and hasattr(kind, "__torch_function__")
