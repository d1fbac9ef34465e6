"""Where a step keeps things of its own: variables that functions share, and what is in its lists and dictionaries.

Nobody is told when something is put there, so it is compared. Knows nothing of watching.
"""

from __future__ import annotations

import types
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from torchjanus.core.kinds import is_one_of, isinstance

__all__ = ["EMPTY", "Item", "Shape", "Spot", "Variable", "native_items"]

EMPTY: Any = object()  # what an unbound variable holds
_MANY = 64  # elements of a container that are looked at


def native_items(container: Any) -> list[tuple[Any, Any]] | None:
    """What a list or dictionary holds, by index or key; None of any other, or if there is much, or under other keys
    than numbers and texts."""
    if not is_one_of(type(container), (list, dict)) or len(container) > _MANY:
        return None
    items = list(container.items() if type(container) is dict else enumerate(container))
    return items if all(is_one_of(type(key), (int, str)) for key, _ in items) else None


class Spot(ABC):
    """One of them. Two are equal if they are the same place."""

    __slots__ = ()
    name: str

    @property
    @abstractmethod
    def key(self) -> Any:
        """By which it is known as long as it is there."""

    @property
    @abstractmethod
    def token(self) -> Any:
        """By which it is known in other runs."""

    @abstractmethod
    def get(self) -> Any:
        """What is there."""

    @abstractmethod
    def set(self, value: Any) -> None:
        """Put something there."""

    def holds(self, value: Any) -> bool:
        """Whether this is there."""
        return self.get() is value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spot) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


@dataclass(frozen=True, slots=True, eq=False)
class Variable(Spot):
    """``which``: of several of one name."""

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
class Item(Spot):
    """An element of a list or dictionary, which the variable ``name`` holds."""

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
class Shape(Spot):
    """How many elements a list has, or the keys of a dictionary."""

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
        """It is as it is."""

    def holds(self, value: Any) -> bool:
        return bool(self.get() == value)
