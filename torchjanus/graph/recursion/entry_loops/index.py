"""Finds the lists from whose elements the iterations of a loop over trees pick by their index.

The index comes from ``enumerate()`` or ``range(len(trees))`` and is used for nothing else. In: the loop's source and
the trace of each iteration. Out: the access paths of the lists, or None where the index decides anything more.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Sequence

from torchjanus.core.access_path import AccessPath, Step
from torchjanus.core.errors import Place
from torchjanus.graph.recursion.entry_loops.carried import REACHING, Comprehension, loop_at, tree_of
from torchjanus.trace.actions import Extern, Op
from torchjanus.trace.events import FunctionEntry, Trace
from torchjanus.trace.facts import HeapRead

__all__ = ["Picks", "picked_from", "picks_at"]

Picks = tuple[tuple[tuple[int, int], ...], ...]  # for each list expression the places of its subscripts


@functools.lru_cache(maxsize=256)
def picks_at(place: Place) -> Picks | None:
    """Return from what iterations pick the element of their index, in the loop whose iterable is at ``place``; None if
    the index may have other uses, in the loop or after it."""
    loop = loop_at(place)
    name = None if loop is None else _index(loop)
    if loop is None or name is None or any(isinstance(node, REACHING) for node in ast.walk(loop)):
        return None
    picked: dict[str, list[tuple[int, int]]] = {}
    known = 0
    for node in ast.walk(loop):
        match node:
            case ast.Subscript(value=ast.Name() | ast.Attribute() as value, slice=ast.Name(id=index), ctx=ast.Load()):
                if index == name:
                    picked.setdefault(ast.dump(value), []).append((node.lineno, node.col_offset))
                    known += 1
    if _mentions(loop, name) != known + 1 or not _stays(loop, picked.keys()):
        return None
    if isinstance(loop, ast.For) and _mentions(_around(place, loop), name) != known + 1:
        return None
    return tuple(map(tuple, picked.values()))


def picked_from(trace: Trace, picks: Picks, starts: Sequence[int], end: int) -> list[AccessPath] | None:
    """Return the lists from which iterations pick elements, or None if one does not find its element in such a list."""
    limits = [*starts, end]
    places = {place: number for number, some in enumerate(picks) for place in some}
    lists: list[dict[AccessPath, None]] = [{} for _ in picks]
    for number, begin in enumerate(starts):
        met: set[int] = set()
        for event in trace.events[begin : limits[number + 1]]:
            which = places.get((event.place.line, event.place.column)) if hasattr(event, "place") else None
            if which is None:
                continue
            if isinstance(event, Extern) or (isinstance(event, Op | FunctionEntry) and "item__" in event.name):
                return None
            if isinstance(event, HeapRead) and event.access_path.step is Step.ITEM and event.access_path.key == number:
                assert event.access_path.base is not None
                lists[which][event.access_path.base] = None
                met.add(which)
        if len(met) < len(picks):
            return None
    if any(len(some) != 1 for some in lists):
        return None
    return list(dict.fromkeys(access_path for some in lists for access_path in some))


def _index(loop: ast.For | Comprehension) -> str | None:
    """Return the variable that holds the index of an iteration."""
    head = loop if isinstance(loop, ast.For) else loop.generators[0]
    match head.iter, head.target:
        case ast.Call(func=ast.Name("enumerate"), args=[_], keywords=[]), ast.Tuple(elts=[ast.Name(id=name), _]):
            return name
        case ast.Call(func=ast.Name("range"), args=[_], keywords=[]), ast.Name(id=name):
            return name
    return None


def _mentions(node: ast.AST, name: str) -> int:
    """Return how often a variable of this name may be used."""
    return sum(_named(part) == name for part in ast.walk(node))


def _named(node: ast.AST) -> str | None:
    """Return the name of the variable or parameter."""
    return node.id if isinstance(node, ast.Name) else node.arg if isinstance(node, ast.arg) else None


def _stays(loop: ast.AST, texts: Iterable[str]) -> bool:
    """Whether iterations set nothing through which the lists are reached."""
    stored = {_word(n) for n in ast.walk(loop) if isinstance(getattr(n, "ctx", None), ast.Store)}
    return not any(f"'{word}'" in text for text in texts for word in stored if word)


def _word(node: ast.AST) -> str | None:
    """Return the name of the variable or attribute."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None


def _around(place: Place, loop: ast.AST) -> ast.AST:
    """Return the innermost function around the loop, or its module."""
    tree = tree_of(place.file)
    assert tree is not None
    functions = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and any(part is loop for part in ast.walk(node))
    ]
    return max(functions, key=lambda node: node.lineno, default=tree)
