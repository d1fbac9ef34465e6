"""Numbers that a step collects from its trees into one tensor: ``torch.tensor([tree.label for tree in trees])``.

The host collects them before the graph runs, for any number of trees. Independent of loops that make calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath, Step
from torchjanus.core.caches import Interned
from torchjanus.graph.recursion.entry_loops.iterations import items_of, rebased
from torchjanus.trace.actions import Op
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import HeapRead
from torchjanus.trace.values import Apply, Expr, Read, leaves

__all__ = ["Column", "as_it_is", "column_along", "column_of", "lists_beside", "only_numbers"]


class Column:
    """Makes a tensor of the value of an expression for each element of a list. Raises TypeError for an element of
    another class than in watched runs."""

    def __init__(self, expr: Expr, kind: type, classes: Sequence[tuple[AccessPath, type]]) -> None:
        self._expr, self.kind, self._classes = expr, kind, tuple(classes)
        self.__name__ = f"[{expr} for element in ...]"

    def at(self, container: AccessPath, number: int) -> AccessPath:
        """Return the access path of one element's number. ``container``: the access path of the list."""
        assert isinstance(self._expr, Read)
        return _from(container.item(number), self._expr.access_path)

    @classmethod
    def of(cls, expr: Expr, kind: type, classes: Sequence[tuple[AccessPath, type]]) -> Column:
        """Return the one instance with these arguments."""
        key = (expr.token, kind, tuple((access_path.token, known) for access_path, known in classes))
        return _COLUMNS.get(key, lambda: cls(expr, kind, classes))

    def __call__(self, container: Any) -> torch.Tensor:
        if type(container) not in (list, tuple) or not container:
            raise TypeError("no list or tuple with elements")
        values = []
        for element in container:
            for access_path, known in self._classes:
                if type(access_path.read((element,), {})) is not known:
                    raise TypeError("an element is of another class")
            value = self._expr.read((element,), {})  # type: ignore[union-attr]
            if type(value) is not self.kind:
                raise TypeError("a number is of another type")
            values.append(value)
        with torch._C.DisableTorchFunction():
            return torch.tensor(values)


_COLUMNS: Interned[Column] = Interned()  # access paths are compared by them


def as_it_is(column: torch.Tensor, **options: Any) -> torch.Tensor:
    """Compute ``torch.tensor`` from a column."""
    return column.to(dtype=options.get("dtype")) if options.get("dtype") is not None else column.clone()


def column_of(trace: Trace, op: Op, over: Mapping[Any, int]) -> tuple[Any, Column] | None:
    """Return the token of the list that the operation makes into a tensor, and the column; else None."""
    if op.name != "torch.tensor" or len(op.args) != 1 or not op.kwargs.keys() <= {"dtype"}:
        return None
    parts = op.args[0]
    if type(parts) not in (list, tuple) or not parts or not all(isinstance(part, Expr) for part in parts):
        return None
    lengths = {
        e.access_path.token[1]: e.value
        for e in trace.events
        if isinstance(e, HeapRead) and e.access_path.step is Step.LEN
    }
    for token in over:
        if lengths.get(token) != len(parts):
            continue
        if (known := column_along(trace, token, parts)) is not None:
            return token, known
    return None


def column_along(trace: Trace, token: Any, parts: Sequence[Expr]) -> Column | None:
    """Return the column if each part reads the same number of its element of the list at this path, else None."""
    merged = [_of_element(part, token, number) for number, part in enumerate(parts)]
    if None in merged or len({one.token for one in merged if one is not None}) > 1:
        return None
    first = merged[0]
    assert first is not None
    access_paths = [leaf.access_path for leaf in leaves(first) if isinstance(leaf, Read)]
    above = {at.token for access_path in access_paths for at in list(access_path.prefixes())[1:]}
    kinds, classes = set(), set()
    for event in trace.events:
        if isinstance(event, HeapRead) and (known := _at_element(event.access_path, token)) is not None:
            if known.token in above:
                classes.add((known, type(event.value)))
            elif known in access_paths:
                kinds.add((event.kind, type(event.value)))
    if len(kinds) != 1 or len({access_path for access_path, _ in classes}) < len(classes):
        return None
    ((kind, cls),) = kinds
    if kind != "number" or cls not in (int, float) or not isinstance(first, Read):
        return None
    ordered = sorted(classes, key=lambda one: (len(str(one[0])), str(one[0])))
    return Column.of(first, cls, ordered)


def lists_beside(
    trace: Trace, counts: AbstractSet[int], over: Mapping[Any, int], recipes: Sequence[Any]
) -> list[AccessPath]:
    """Return the lists as long as one of the trip counts that the run only makes into tensors."""
    found = []
    for event in trace.events:
        if not isinstance(event, HeapRead) or event.access_path.step is not Step.LEN or event.value not in counts:
            continue
        base = event.access_path.base
        assert base is not None
        one = {base.token: 0}
        known = any(
            isinstance(e, HeapRead) and e.access_path == base and type(e.value) in (list, tuple) for e in trace.events
        )
        if base.token in over or not known or not only_numbers(trace, base.token, recipes):
            continue
        users = [e for e in trace.events if not isinstance(e, HeapRead) and items_of(e, one)]
        made = [isinstance(e, Op) and column_of(trace, e, one) is not None for e in users]
        if made and all(made) and trace.pins.get(Read(event.access_path).token, 0) == len(made):
            found.append(base)
    return found


def only_numbers(trace: Trace, token: Any, recipes: Sequence[Any]) -> bool:
    """Whether the run reads only numbers of the list's elements, and none of them leaves it."""
    one = {token: 0}
    if any(items_of(_LeavingValue(recipe), one) for recipe in recipes):
        return False
    found = (event for event in trace.events if isinstance(event, HeapRead) and items_of(event, one))
    return all(event.kind in ("number", "object") for event in found)


@dataclass(frozen=True, slots=True)
class _LeavingValue:
    """A value that leaves the run, in the form of an event."""

    args: Any


def _at_element(access_path: AccessPath, token: Any) -> AccessPath | None:
    """Return the part of the path after an element of the list, as a path from an argument; None if there is none."""
    made = rebased(access_path, {token: 0})
    return None if made is access_path else _from(AccessPath.arg(0, "element"), made)


def _from(element: AccessPath, access_path: AccessPath) -> AccessPath:
    """Return the path with its root replaced by ``element``."""
    return (
        element
        if access_path.base is None
        else _from(element, access_path.base).then(access_path.step, access_path.key)
    )


def _of_element(expr: Any, token: Any, number: int) -> Any:
    """Return the expression as one that reads only the element of this number; None if it reads anything else."""
    if isinstance(expr, Apply):
        parts = [_of_element(part, token, number) if isinstance(part, Expr) else part for part in expr.args]
        return None if None in parts else Apply(expr.func, tuple(parts))
    if not isinstance(expr, Read):
        return None
    above = (at for at in expr.access_path.prefixes() if at.base is not None and at.base.token == token)
    if (at := next(above, None)) is None or at.key != number:
        return None
    made = _at_element(expr.access_path, token)
    return None if made is None else Read(made)
