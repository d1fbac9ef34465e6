"""What traces, programs and graphs have in common as text: types, places in the source, functions and values."""

from __future__ import annotations

import linecache
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.overrides import resolve_name
from torch.utils._dtype_abbrs import dtype_abbrs

from torchjanus.core.errors import NOWHERE, Place
from torchjanus.trace.actions import name_of

__all__ = ["Sources", "call_text", "function_name", "tensor_type", "type_text", "value_text"]

_LONGEST = 60  # characters of a constant


def type_text(sizes: Iterable[Any], dtype: torch.dtype) -> str:
    """``f32[3, 4]``."""
    return f"{dtype_abbrs.get(dtype, str(dtype).removeprefix('torch.'))}[{', '.join(map(str, sizes))}]"


def tensor_type(tensor: torch.Tensor) -> str:
    """``f32[3, 4] leaf``: the type of a tensor, and what autograd says of it."""
    with torch._C.DisableTorchFunction():  # no mode or subclass of the program sees the query
        text = type_text(tensor.size(), tensor.dtype)
        device = "" if tensor.device.type == "cpu" else f" {tensor.device}"
        grad = " requires grad" if tensor.requires_grad else ""
    return f"{text}{device}{grad}"


def function_name(func: Any) -> str:
    """``torch.relu``, ``torch.Tensor.add``: as a person would write it."""
    try:
        name = resolve_name(func)
    except (TypeError, ValueError):  # no function of torch that can be overridden
        name = None
    if name:
        return str(name)
    own = getattr(func, "__name__", None)
    return name_of(func) if own is None or isinstance(func, type) or hasattr(func, "__module__") else str(own)


def value_text(value: Any) -> str:
    """Return an argument: numbered values by their names, containers by their elements, other objects by their
    class."""
    if isinstance(value, torch.Tensor):
        return f"<{tensor_type(value)}>"
    if isinstance(value, list | tuple):
        inner = ", ".join(map(value_text, value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if len(value) == 1 else ''})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{value_text(key)}: {value_text(part)}" for key, part in value.items()) + "}"
    if isinstance(value, slice):
        parts = ("" if part is None else value_text(part) for part in (value.start, value.stop, value.step))
        return ":".join(parts).removesuffix(":") or ":"
    if isinstance(value, bool | int | float | complex | str | bytes | None | torch.dtype | torch.device):
        text = repr(value)
    elif type(value).__module__.startswith("torchjanus."):
        text = str(value)
    elif callable(value):
        text = function_name(value)
    else:
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def call_text(outs: Iterable[str], func: str, args: Iterable[Any], kwargs: Mapping[str, Any]) -> str:
    """``%3: f32[8] = torch.relu(%2)``."""
    words = [*map(value_text, args), *(f"{key}={value_text(part)}" for key, part in kwargs.items())]
    left = ", ".join(outs)
    return f"{left + ' = ' if left else ''}{func}({', '.join(words)})"


class Sources:
    """Lines of the user's files, each shown before the first event that comes from it."""

    def __init__(self) -> None:
        self._last = NOWHERE

    def heading(self, place: Place) -> Iterator[str]:
        """``step.py:12  loss = f(x)`` if that is not the line shown last."""
        if place == NOWHERE or (place.file, place.line) == (self._last.file, self._last.line):
            return
        self._last = place
        line = linecache.getline(place.file, place.line).strip()
        yield f"{os.path.basename(place.file)}:{place.line}  {line}".rstrip()
