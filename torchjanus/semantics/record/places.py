"""The places where a step keeps state of its own: shared variables (cells), and elements of its lists and dictionaries.

Writes to them are not observed, so their content is compared instead. This module knows nothing of watching.
"""

from __future__ import annotations

import types
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from torchjanus.core.kinds import is_one_of, isinstance

__all__ = ["EMPTY", "Item", "Shape", "StateSlot", "Variable", "native_items"]

EMPTY: Any = object()  # what an unbound variable holds
_MANY = 64  # limit on the elements of a container that is inspected


def native_items(container: Any) -> list[tuple[Any, Any]] | None:
    """Return (index or key, element) of a list or dictionary; None for other or large containers, or for keys other
    than numbers and strings."""
    if not is_one_of(type(container), (list, dict)) or len(container) > _MANY:
        return None
    items = list(container.items() if type(container) is dict else enumerate(container))
    return items if all(is_one_of(type(key), (int, str)) for key, _ in items) else None


class StateSlot(ABC):
    """One place. Two are equal if they denote the same place."""

    __slots__ = ()
    name: str

    @property
    @abstractmethod
    def key(self) -> Any:
        """Its identity within this run."""

    @property
    @abstractmethod
    def token(self) -> Any:
        """Its identity over all runs."""

    @abstractmethod
    def get(self) -> Any:
        """Return the content, ``EMPTY`` if there is none."""

    @abstractmethod
    def set(self, value: Any) -> None:
        """Replace the content."""

    def holds(self, value: Any) -> bool:
        """Whether ``value`` is the content."""
        return self.get() is value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StateSlot) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


@dataclass(frozen=True, slots=True, eq=False)
class Variable(StateSlot):
    """A cell of a shared variable. ``which``: its number among variables of one name."""

    cell: types.CellType
    name: str
    which: int = 1

    @property
    def key(self) -> Any:
        return id(self.cell)

    @property
    def token(self) -> Any:
        return (self.name, self.which)

    def get(self) -> Any:
        try:
            return self.cell.cell_contents
        except ValueError:
            return EMPTY

    def set(self, value: Any) -> None:
        self.cell.cell_contents = value


@dataclass(frozen=True, slots=True, eq=False)
class Item(StateSlot):
    """An element of a list or dictionary that the variable ``name`` holds."""

    container: Any
    at: Any
    name: str
    which: int = 1

    @property
    def key(self) -> Any:
        return id(self.container), self.at

    @property
    def token(self) -> Any:
        return (self.name, self.which, self.at)

    def get(self) -> Any:
        if type(self.container) is dict:
            return self.container.get(self.at, EMPTY)
        return self.container[self.at] if self.at < len(self.container) else EMPTY

    def set(self, value: Any) -> None:
        self.container[self.at] = value


@dataclass(frozen=True, slots=True, eq=False)
class Shape(StateSlot):
    """The length of a list, or the keys of a dictionary. It can only be compared."""

    container: Any
    name: str

    @property
    def key(self) -> Any:
        return id(self.container), None

    @property
    def token(self) -> Any:
        return (self.name, None)

    def get(self) -> Any:
        return tuple(self.container) if type(self.container) is dict else len(self.container)

    def set(self, value: Any) -> None:
        """Do nothing: the length cannot be replaced."""

    def holds(self, value: Any) -> bool:
        return bool(self.get() == value)
