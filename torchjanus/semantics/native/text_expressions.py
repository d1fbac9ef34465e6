"""Texts, made when the graph has run: the functions of which their expressions are made.

What a text says of a tensor's history is told beforehand. Knows nothing of runs.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch

from torchjanus.host.deferred_writes import make_exception
from torchjanus.semantics.containers.parts import plain_exception

__all__ = [
    "as_dict",
    "as_list",
    "as_size",
    "as_tuple",
    "call_method",
    "escaped",
    "exception_of",
    "filled",
    "filled_by_one",
    "formatted",
    "history_of",
    "joined",
    "shown",
]

_LEAF = "leaf"  # in place of a backward function's name: requires_grad, and nothing computed it


def history_of(tensor: torch.Tensor) -> str | None:
    """What a text says of where the tensor came from: a backward function's name, _LEAF or nothing."""
    try:
        function = tensor.grad_fn
    except RuntimeError:
        return None
    if function is None:
        return _LEAF if tensor.requires_grad else ""
    name = type(function).__name__
    return function.name().rsplit("::", 1)[-1] if name == "CppFunction" else name


@functools.cache
def _function_named(name: str) -> Any:
    """An identity whose results say that they come from a backward function of this name."""

    class Shown(torch.autograd.Function):
        @staticmethod
        def forward(state: Any, value: torch.Tensor) -> torch.Tensor:
            return value.view_as(value)

    Shown._backward_cls.__name__ = name
    return Shown


def shown(value: torch.Tensor, parameter: bool, history: str) -> torch.Tensor:
    """A tensor that looks like the program's: its text, made by torch itself, is what eager would have made."""
    bare = value.detach()
    if parameter:
        return torch.nn.Parameter(bare, requires_grad=history == _LEAF)
    if not history:
        return bare
    bare.requires_grad_()
    if history == _LEAF:
        return bare
    with torch.enable_grad():
        made: torch.Tensor = _function_named(history).apply(bare)
    return made


def formatted(template: str, names: tuple[str, ...], *parts: Any) -> str:
    """``template.format()`` of parts of which the last have these names."""
    at = len(parts) - len(names)
    return template.format(*parts[:at], **dict(zip(names, parts[at:], strict=True)))


def escaped(text: str) -> str:
    """What ``ascii()`` makes of what ``repr()`` gave."""
    return text.encode("ascii", "backslashreplace").decode()


def call_method(name: str, owner: str, *args: Any) -> Any:
    """``owner.name(*args)``"""
    return getattr(owner, name)(*args)


def joined(separator: str, *parts: str) -> str:
    """``separator.join(parts)``"""
    return separator.join(parts)


def filled(template: str, *parts: Any) -> str:
    """``template % parts``"""
    return template % parts


def filled_by_one(template: str, part: Any) -> str:
    """``template % part``"""
    return str(operator.mod(template, part))


def as_list(*parts: Any) -> list[Any]:
    """A list of these."""
    return [*parts]


def as_tuple(*parts: Any) -> tuple[Any, ...]:
    """A tuple of these."""
    return parts


def as_size(*parts: Any) -> torch.Size:
    """A ``torch.Size`` of these."""
    return torch.Size(parts)


@functools.cache
def exception_of(cls: Any) -> Callable[..., BaseException]:
    """Makes exceptions of this class that were not raised."""
    base = plain_exception(cls)

    def made(*args: Any) -> BaseException:
        return make_exception(cls, base, *args)  # type: ignore[no-any-return]

    return made


def as_dict(*parts: Any) -> dict[Any, Any]:
    """A dictionary of keys and values by turns."""
    return dict(zip(parts[::2], parts[1::2], strict=True))
