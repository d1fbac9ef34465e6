"""Starred expressions, ``**`` and unpacking: iterables of which the program takes all elements at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchjanus.core.kinds import isinstance
from torchjanus.rewrite import Site
from torchjanus.semantics.native.containers import CONTAINERS
from torchjanus.semantics.protocols.iteration import Iteration
from torchjanus.semantics.watch.objects.container_reads import ContainerReads
from torchjanus.semantics.watch.objects.state import Part, WatchState

__all__ = ["Unpacking"]


class Unpacking(Part):
    """``protocols`` is the watch. Each method is given what Python's protocols do, ``natively``."""

    def __init__(self, state: WatchState, protocols: Iteration, reads: ContainerReads) -> None:
        super().__init__(state)
        self._protocols, self._reads = protocols, reads

    def star(self, at: Site, iterable: Any, natively: Callable[[Site, Any], Any]) -> Any:
        several = self._starred(at, iterable, natively)
        # Without a site these are the starred arguments of a ``partial``.
        if at is None or at.kind != "elements":
            return several
        if isinstance(iterable, set | frozenset) or type(iterable) is dict:
            held = self.natives.consumed(iterable)
            self.natives.note_new_keys(*held)
            return held  # a set display takes over hashes, and the order of a table
        return map(self._put_together, several)

    def _put_together(self, key: Any) -> Any:
        self.natives.note_new_keys(key)
        return key

    def _starred(self, at: Site, iterable: Any, natively: Callable[[Site, Any], Any]) -> Any:
        self.at(at)
        iterable = self.natives.live(iterable)
        if self._is_taken_whole(iterable) or self.natives.is_foreign(iterable):
            return tuple(self.natives.iterable(iterable))
        iterable = self.recording.pin(iterable, "its characters are taken")
        self._reads.note(iterable)
        return natively(at, iterable)

    def _is_taken_whole(self, value: Any) -> bool:
        """Whether this is a container that existed before the call, of which Python asks no code of the program."""
        found = self.recording.owner(value) is not None and isinstance(value, CONTAINERS)
        return found and not self._protocols.reaches(value)

    def double_star(self, at: Site, mapping: Any, natively: Callable[[Site, Any], Any]) -> Any:
        self.at(at)
        mapping = self.natives.live(mapping)
        if self.recording.owner(mapping) is not None and isinstance(mapping, dict):
            mapping = self.natives.consumed(mapping)
        else:
            mapping = natively(at, mapping)
        if type(mapping) is dict:
            self.natives.note_new_keys(*mapping)
        return mapping

    def source(self, at: Site, value: Any) -> Any:
        """Return what targets are unpacked from."""
        self.at(at)
        value = self.natives.live(value)
        if self._is_taken_whole(value):
            value = tuple(self.natives.iterable(value))
        elif self.natives.is_foreign(value):
            value = iter(self.natives.iterable(value))
        value = self.recording.pin(value, "its characters are taken")
        self._reads.note(value)
        return value
