"""Represents a list of pairs of tensors (batches) as one list for each position of a pair, so that its length may
change.

``for x, y in batches`` is then a loop over two lists, which ``lists`` makes two tensors. The elements may be tuples,
lists or dictionaries, all of one structure. A rewriting of traces: a loop over such a list becomes one over the lists
that ``PairPart`` makes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from torchjanus.core.access_path import AccessPath, Step
from torchjanus.core.caches import Interned
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import HeapRead, IdentityTest, KeyLookup, NumberPredicate, Specialization
from torchjanus.trace.loops.records import LoopInstance, LoopSnapshots
from torchjanus.trace.rewriting import TraceRewriter
from torchjanus.trace.values import Apply, Read

__all__ = ["PairPart", "is_part", "split_pairs"]

LEAST = 2  # elements
_CLASSES = (tuple, list, dict)


class PairPart:
    """Makes a list of the values at one key of each element of a list. Raises TypeError if the elements are not all of
    this class and length."""

    def __init__(self, cls: type, length: int, key: Any) -> None:
        self._cls, self._length, self._key = cls, length, key
        self.__name__ = f"[element[{key!r}] for element in ...]"

    @classmethod
    def of(cls, kind: type, length: int, key: Any) -> PairPart:
        """Return the object for these arguments."""
        return _PARTS.get((kind, length, key), lambda: cls(kind, length, key))

    def __call__(self, container: Any) -> list[Any]:
        if type(container) not in (list, tuple):
            raise TypeError("no list or tuple")
        make, key = (self._cls, None if self._cls is dict else self._length), self._key
        found: list[Any] = []
        for element in container:
            cls = type(element)
            if (cls, None if cls is dict or cls not in _CLASSES else len(element)) != make:
                raise TypeError("the elements are not alike")
            found.append(element[key])
        return found


_PARTS: Interned[PairPart] = Interned()  # access paths are compared by them


def is_part(access_path: AccessPath | None) -> bool:
    """Whether the access path is of such a list."""
    return access_path is not None and access_path.step is Step.OF and isinstance(access_path.key, PairPart)


def split_pairs(trace: Trace) -> Trace:
    """Return the trace with its lists of pairs split; the trace itself if there are none."""
    while (one := next(_lists(trace), None)) is not None:
        trace = _PairRewriter(trace, one).trace()
    return trace


@dataclass(frozen=True, slots=True)
class _PairList:
    """A list of pairs that a run iterated over. ``gone``: the positions of events that read its elements."""

    access_path: AccessPath
    length: int
    parts: dict[Any, PairPart]
    gone: frozenset[int]
    first: int


def _lists(trace: Trace) -> Iterator[_PairList]:
    lengths = {
        e.access_path.base: e.value for e in trace.events if isinstance(e, HeapRead) and e.access_path.step is Step.LEN
    }
    counted = {instance.count.access_path.base for instance in trace.loop_instances if isinstance(instance.count, Read)}
    for base, length in lengths.items():
        if base in counted and base is not None and length >= LEAST and not base.waits_for and not is_part(base):
            one = _list(trace, base, length)
            if one is not None:
                yield one


def _list(trace: Trace, base: AccessPath, length: int) -> _PairList | None:
    """Return the list at this access path, if it is one of pairs of which only the tensors are used; else None."""
    elements = {base.item(index): index for index in range(length)}
    makes: dict[int, tuple[type, int]] = {}
    taken: dict[int, list[Any]] = {}
    gone: list[int] = []
    for position, event in enumerate(trace.events):
        if isinstance(event, IdentityTest) and (event.first in elements or event.second in elements):
            return None
        if isinstance(event, HeapRead) and event.access_path in elements:
            cls = type(event.value)
            if event.kind != "object" or cls not in _CLASSES:
                return None
            makes[elements[event.access_path]] = (cls, len(event.value))
            gone.append(position)
        elif isinstance(event, HeapRead) and event.access_path.base in elements:
            at = elements[event.access_path.base]
            if event.access_path.step is Step.LEN:
                gone.append(position)
            elif event.access_path.step is Step.ITEM and event.kind == "tensor":
                taken.setdefault(at, []).append(event.access_path.key)
            else:
                return None
        elif (
            isinstance(event, HeapRead)
            and event.access_path.base is not None
            and event.access_path.base.base in elements
        ):
            return None  # more than the value of a tensor is used
        elif isinstance(event, KeyLookup) and event.base in elements:
            if not event.present:
                return None
            gone.append(position)
        elif (
            isinstance(event, Specialization)
            and isinstance(event.expr, Read)
            and event.expr.access_path.base in elements
        ):
            gone.append(position)
        elif hasattr(event, "base") and event.base in elements:
            return None
    kinds, keys = set(makes.values()), {tuple(some) for some in taken.values()}
    if len(makes) < length or len(taken) < length or len(kinds) != 1 or len(keys) != 1:
        return None
    cls, size = kinds.pop()
    return _PairList(base, length, {key: PairPart.of(cls, size, key) for key in keys.pop()}, frozenset(gone), min(gone))


class _PairRewriter(TraceRewriter):
    """Writes the new trace, with one list of pairs split."""

    def __init__(self, old: Trace, one: _PairList) -> None:
        super().__init__(old)
        self.one = one
        self.access_paths = {key: one.access_path.then(Step.OF, part) for key, part in one.parts.items()}
        self.length = Read(one.access_path.then(Step.LEN))
        self.count = Read(next(iter(self.access_paths.values())).then(Step.LEN))

    def trace(self) -> Trace:
        old, one = self.old, self.one

        def step(position: int, event: Any, after: int) -> Iterator[Any]:
            if position == one.first:
                for access_path in self.access_paths.values():
                    yield HeapRead(access_path.then(Step.LEN), one.length, "number", place=event.place)
            if position in one.gone:
                return
            made = self.event(event, after)
            if isinstance(event, HeapRead):
                made = replace(made, access_path=self._access_path(event.access_path))
            elif isinstance(event, NumberPredicate | Specialization) and event.expr.token == self.length.token:
                made = replace(made, expr=self.count)
            yield made

        events, _, begins = self.walk(step)
        moved = self.moved(begins)
        moved["loop_instances"] = [self._counted(instance) for instance in moved["loop_instances"]]
        moved["frames"] = [self._counted(frames) for frames in moved["frames"]]
        pins = {self.count.token if t == self.length.token else t: count for t, count in old.pins.items()}
        access_paths = {number: self._access_path(access_path) for number, access_path in old.access_paths.items()}
        return self.made(events, access_paths=access_paths, pins=pins, **moved)

    def _access_path(self, access_path: AccessPath) -> AccessPath:
        """Return the access path of an element's tensor in the split list."""
        above = access_path.base
        if (
            access_path.step is Step.ITEM
            and above is not None
            and above.base == self.one.access_path
            and above.step is Step.ITEM
        ):
            return self.access_paths[access_path.key].item(above.key)
        return access_path

    def _counted(self, one: LoopInstance | LoopSnapshots) -> Any:
        return replace(one, count=self._replaced(one.count))

    def _replaced(self, count: Any) -> Any:
        if isinstance(count, Read) and count.token == self.length.token:
            return self.count
        return Apply(count.func, tuple(map(self._replaced, count.args))) if isinstance(count, Apply) else count
