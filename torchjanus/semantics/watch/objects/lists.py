"""Record reads of containers, whose content may depend on the iterations of loops that fill them."""

from __future__ import annotations

import collections
from typing import Any

from torchjanus.core.kinds import getattr, isinstance
from torchjanus.rewrite import Site
from torchjanus.semantics.watch.objects.foreign import ForeignWatch

__all__ = ["ContainerReadWatch"]

_FILLING = frozenset({"append", "appendleft", "add"})
_CONTAINERS = (list, dict, set, collections.deque)


class ContainerReadWatch(ForeignWatch):
    """The hooks that read containers."""

    def _note_read(self, *values: Any) -> None:
        for value in values:
            if isinstance(value, _CONTAINERS):
                trace = self.recording.trace
                trace.peeked.append((len(trace.events), id(value)))

    def note_call_reads(self, fn: Any, args: tuple[Any, ...], others: tuple[Any, ...]) -> None:
        """Record that a native call reads its arguments and receiver, unless it only adds an element."""
        if getattr(fn, "__name__", "") not in _FILLING:
            self._note_read(getattr(fn, "__self__", None))
        self._note_read(*args, *others)

    def iterate(self, at: Site, iterable: Any) -> Any:
        self._note_read(iterable)
        return super().iterate(at, iterable)

    def native_iter(self, at: Site, obj: Any) -> Any:
        self._note_read(obj)
        return super().native_iter(at, obj)

    def star(self, at: Site, iterable: Any) -> Any:
        self._note_read(iterable)
        return super().star(at, iterable)

    def unpack(self, at: Site, value: Any, before: int, star: bool, after: int) -> Any:
        self._note_read(value)
        return super().unpack(at, value, before, star, after)

    def load_item(self, at: Site, obj: Any, key: Any) -> Any:
        self._note_read(obj)
        return super().load_item(at, obj, key)

    def store_item(self, at: Site, obj: Any, key: Any, value: Any) -> None:
        self._note_read(obj)
        super().store_item(at, obj, key, value)

    def drop_item(self, at: Site, obj: Any, key: Any) -> None:
        self._note_read(obj)
        super().drop_item(at, obj, key)

    def truth(self, at: Site, value: Any) -> bool:
        self._note_read(value)
        return super().truth(at, value)

    def native_binary(self, at: Site, op: str, a: Any, b: Any) -> Any:
        self._note_read(a, b)
        return super().native_binary(at, op, a, b)

    def native_inplace(self, at: Site, op: str, a: Any, b: Any) -> Any:
        self._note_read(a, b)
        return super().native_inplace(at, op, a, b)

    def native_compare(self, at: Site, op: str, a: Any, b: Any) -> Any:
        if op not in ("is", "is not"):
            self._note_read(a, b)
        return super().native_compare(at, op, a, b)

    def native_format(self, at: Site, value: Any, spec: str) -> str:
        self._note_read(value)
        return super().native_format(at, value, spec)

    def native_text(self, at: Site, value: Any, conversion: str) -> str:
        self._note_read(value)
        return super().native_text(at, value, conversion)
