"""Functions of which the expressions of texts consist. They make the texts when the graph has run.

The history that a text shows of a tensor is known beforehand. Knows nothing of runs.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch

from torchjanus.core.caches import Interned
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

_LEAF = "leaf"  # in place of a backward function's name: a leaf that requires a gradient


def history_of(tensor: torch.Tensor) -> str | None:
    """Return a tensor's history in its text: a backward function's name, _LEAF or ""; None if unreadable."""
    try:
        function = tensor.grad_fn
    except RuntimeError:
        return None
    if function is None:
        return _LEAF if tensor.requires_grad else ""
    name = type(function).__name__
    return function.name().rsplit("::", 1)[-1] if name == "CppFunction" else name


@functools.lru_cache(256)
def _function_named(name: str) -> Any:
    """Return an identity whose results show a backward function of this name."""

    class Shown(torch.autograd.Function):
        @staticmethod
        def forward(state: Any, value: torch.Tensor) -> torch.Tensor:
            return value.view_as(value)

    Shown._backward_cls.__name__ = name
    return Shown


def shown(value: torch.Tensor, parameter: bool, history: str) -> torch.Tensor:
    """Return a tensor whose text, made by torch itself, is the text in eager."""
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
    """Return ``template.format()`` of the parts, the last of which have these names."""
    at = len(parts) - len(names)
    return template.format(*parts[:at], **dict(zip(names, parts[at:], strict=True)))


def escaped(text: str) -> str:
    """Return what ``ascii()`` makes of a result of ``repr()``."""
    return text.encode("ascii", "backslashreplace").decode()


def call_method(name: str, owner: str, *args: Any) -> Any:
    """Return ``owner.name(*args)``."""
    return getattr(owner, name)(*args)


def joined(separator: str, *parts: str) -> str:
    """Return ``separator.join(parts)``."""
    return separator.join(parts)


def filled(template: str, *parts: Any) -> str:
    """Return ``template % parts``."""
    return template % parts


def filled_by_one(template: str, part: Any) -> str:
    """Return ``template % part``."""
    return str(operator.mod(template, part))


def as_list(*parts: Any) -> list[Any]:
    """Return a list of the parts."""
    return [*parts]


def as_tuple(*parts: Any) -> tuple[Any, ...]:
    """Return a tuple of the parts."""
    return parts


def as_size(*parts: Any) -> torch.Size:
    """Return a ``torch.Size`` of the parts."""
    return torch.Size(parts)


def exception_of(cls: Any) -> Callable[..., BaseException]:
    """Return a function that makes exceptions of this class that were not raised."""
    base = plain_exception(cls)

    def made(*args: Any) -> BaseException:
        return make_exception(cls, base, *args)  # type: ignore[no-any-return]

    return _EXCEPTIONS.get(cls, lambda: made)


_EXCEPTIONS: Interned[Callable[..., BaseException]] = Interned()  # by class; recipes are compared by them


def as_dict(*parts: Any) -> dict[Any, Any]:
    """Return a dictionary of alternating keys and values."""
    return dict(zip(parts[::2], parts[1::2], strict=True))
