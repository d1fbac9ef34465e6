"""What of the world an extern call reads and changes, so far as is known. Plain data; knows nothing of functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["ATTRIBUTES", "PURE", "WORLD", "Effects", "Undo"]


@dataclass(frozen=True, slots=True)
class Undo:
    """Takes the state that a call is about to change, and puts it back. ``owned``: the state is that of the object
    whose method is called, the first thing that the call is given, which another call may make anew: of that object
    the two functions are asked."""

    save: Callable[..., Any]
    restore: Callable[..., None]
    owned: bool = False
    owner: Any = None

    def of(self, given: Sequence[Any]) -> Undo:
        """The same for a call that is given this."""
        return replace(self, owner=given[0]) if self.owned else self

    def saved(self) -> Any:
        return self.save(self.owner) if self.owned else self.save()

    def put_back(self, state: Any) -> None:
        self.restore(self.owner, state) if self.owned else self.restore(state)


@dataclass(frozen=True, slots=True)
class Effects:
    """Which parts of the world, by name. ``world``: it may read and change anything.

    ``user_code``: it may run Python code of the user's, which sees the heap. ``undo``: how to take it back, for calls
    that are made before it is certain that the program comes to them.
    """

    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    world: bool = False
    user_code: bool = False
    undo: Undo | None = None

    def conflicts(self, other: Effects) -> bool:
        """Whether the order of two calls can be noticed."""
        if self.world or other.world:
            # What neither reads nor changes anything can be anywhere.
            return self is not PURE and other is not PURE
        return bool(self.writes & (other.reads | other.writes) or other.writes & self.reads)

    @property
    def harmless(self) -> bool:
        """Whether nobody can tell that the call was made."""
        return not self.world and (not self.writes or self.undo is not None)


PURE = Effects()
WORLD = Effects(world=True)
ATTRIBUTES = Effects(reads=frozenset({"attributes"}))  # of an object: unknown code may set them
