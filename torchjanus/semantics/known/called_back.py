"""Refuses reads of what native code may have changed by running the program's own code.

The call is made before the graph or after it, and the heap is read before the graph. So the step must not read later
what such code may have changed. Knows nothing of how ``own_code`` finds what code may change.
"""

from __future__ import annotations

import collections
import contextvars
import functools
import types
from collections.abc import Callable
from typing import Any

import torch

from torchjanus.core.kinds import isinstance
from torchjanus.semantics.known.details import memory_of, version_of
from torchjanus.semantics.known.own_code import Reach

__all__ = ["CallbackEffects", "seen_tensors"]

_CONTAINERS = (list, dict, set, bytearray, collections.deque, contextvars.ContextVar, torch.Tensor)


class CallbackEffects:
    """What the calls of one run so far may have changed."""

    def __init__(self, refuse: Callable[[str, str, str, str], None]) -> None:
        self.refuse = refuse
        self._reaches: list[tuple[Reach, str]] = []
        self.any = False  # whether such a call was made

    def add(self, call: str, reached: Reach) -> None:
        """A call was made that may have run this code."""
        if reached.changes:
            self._reaches.append((reached, call))
            self.any = True

    def look(self, value: Any) -> None:
        """The program reads a container's contents, or a tensor."""
        if not issubclass(type(value), _CONTAINERS):
            return
        for reached, call in self._reaches:
            if reached.items and id(value) in reached.objects:
                self._found(f"a {type(value).__name__}", call)
            elif reached.sets and type(value) is dict and self._is_namespace(value, reached):
                self._found("the attributes of an object", call)

    def look_at_attribute(self, obj: Any, name: str) -> None:
        """The program reads an attribute of an object, which may be its class's."""
        for reached, call in self._reaches:
            if not (reached.anything or name in reached.sets):
                continue
            if any(id(part) in reached.objects for part in (obj, *_classes(obj))):
                self._found(f"the attribute '{name}' of a {type(obj).__name__}", call)

    def look_at_variable(self, namespace: dict[str, Any], name: str) -> None:
        """The program reads a global variable."""
        for reached, call in self._reaches:
            if (id(namespace), name) in reached.variables:
                self._found(f"the variable '{name}'", call)

    def look_at_cell(self, cell: types.CellType, name: str) -> None:
        """The program reads a variable of an enclosing function."""
        for reached, call in self._reaches:
            if id(cell) in reached.cells:
                self._found(f"the variable '{name}'", call)

    def _is_namespace(self, space: dict[str, Any], reached: Reach) -> bool:
        return any(_attributes(obj) is space for obj in reached.objects.values())

    def _found(self, what: str, call: str) -> None:
        self.refuse(
            "native-call-changed",
            f"{what} is read after {call}, which may have changed it",
            "that call runs code of the program's own, when the graph has run.",
            "Read it before that call, or make the call outside of the step.",
        )


def seen_tensors(reached: Reach) -> list[Callable[[], bool]]:
    """Return, for each tensor that the code may read, a function that returns whether it is unchanged."""
    found: list[Callable[[], bool]] = []
    for value in reached.objects.values():
        if isinstance(value, torch.Tensor):
            with torch._C.DisableTorchFunction():
                alias = value.detach()
                grad = value.grad if value.is_leaf and "grad" in reached.names else None
            found.append(
                functools.partial(_is_as_it_was, value, version_of(value), alias, "grad" in reached.names, grad)
            )
    return found


def _is_as_it_was(
    tensor: torch.Tensor, version: int, alias: torch.Tensor, graded: bool, grad: torch.Tensor | None
) -> bool:
    with torch._C.DisableTorchFunction():
        if graded and tensor.is_leaf and tensor.grad is not grad:
            return False
        return version_of(tensor) == version and memory_of(tensor) == memory_of(alias)


def _classes(obj: Any) -> tuple[Any, ...]:
    return obj.__mro__ if issubclass(type(obj), type) else type(obj).__mro__


def _attributes(obj: Any) -> Any:
    try:
        return object.__getattribute__(obj, "__dict__")
    except AttributeError:
        return None
