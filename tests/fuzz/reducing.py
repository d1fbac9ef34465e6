"""Makes a failing program small: drops statements, unwraps blocks and simplifies expressions while it still fails.

Works on the text alone, so that it serves every program in the form of the corpus, made up or not.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator

__all__ = ["reduced"]

_BLOCKS = ("body", "orelse", "finalbody", "handlers")


def reduced(source: str, fails: Callable[[str], bool], budget: int = 300) -> str:
    """The smallest text found that still fails, with at most ``budget`` trials; the text itself if it never does."""
    best = ast.unparse(ast.parse(source)) + "\n"
    trials = 0
    if not fails(best):
        return source
    progress = True
    while progress and trials < budget:
        progress = False
        for attempt in _chunks:
            place = 0
            while trials < budget:
                tree = ast.parse(best)
                changed = attempt(tree, place)
                if not changed:
                    break
                text = ast.unparse(ast.fix_missing_locations(tree)) + "\n"
                place += 1
                if text == best or len(text) > len(best):
                    continue
                trials += 1
                if fails(text):
                    best = text
                    progress = True
                    place = max(0, place - 1)
    return best


def _lists(tree: ast.AST) -> Iterator[tuple[ast.AST, str, list[ast.stmt]]]:
    for node in ast.walk(tree):
        for name in _BLOCKS:
            block = getattr(node, name, None)
            if isinstance(block, list) and block:
                yield node, name, block


def _drop(tree: ast.Module, place: int) -> bool:
    """Without one statement. The longest go first: most of a program has nothing to do with its failing."""
    places = [(node, name, block, i) for node, name, block in _lists(tree) for i in range(len(block))]
    if place >= len(places):
        return False
    places.sort(key=lambda where: -sum(1 for _ in ast.walk(where[2][where[3]])))
    node, name, block, index = places[place]
    del block[index]
    if not block and name == "body" and not isinstance(node, ast.Module):
        block.append(ast.Pass())
    if isinstance(node, ast.Try) and not node.handlers and not node.finalbody:
        node.finalbody.append(ast.Pass())
    return True


def _unwrap(tree: ast.Module, place: int) -> bool:
    """One of the blocks of a compound statement in its place."""
    found = []
    for _, _, block in _lists(tree):
        for index, statement in enumerate(block):
            if isinstance(statement, ast.If | ast.For | ast.While | ast.With | ast.Try):
                found += [
                    (block, index, getattr(statement, n, [])) for n in ("body", "orelse") if getattr(statement, n, [])
                ]
    if place >= len(found):
        return False
    block, index, inside = found[place]
    block[index : index + 1] = inside
    return True


def _simplify(tree: ast.Module, place: int) -> bool:
    """One of an expression's parts in its place."""
    number = 0
    for node in ast.walk(tree):
        for name, value in ast.iter_fields(node):
            candidates = value if isinstance(value, list) else [value]
            for index, part in enumerate(candidates):
                # The pieces of an f-string are expressions nowhere else, and nothing else is a piece of one.
                if not isinstance(part, ast.expr) or isinstance(part, ast.Constant | ast.Name | ast.FormattedValue):
                    continue
                inside = [e for e in ast.iter_child_nodes(part) if isinstance(e, ast.expr)]
                if isinstance(part, ast.JoinedStr):
                    inside = [
                        e.value for e in part.values if isinstance(e, ast.FormattedValue) and name != "format_spec"
                    ]
                for choice in inside:
                    if number == place:
                        new = copy.deepcopy(choice)
                        if isinstance(value, list):
                            value[index] = new
                        else:
                            setattr(node, name, new)
                        return True
                    number += 1
    return False


def _fewer(tree: ast.Module, place: int) -> bool:
    """Without one element of a tuple, list, dictionary or argument list."""
    number = 0
    for node in ast.walk(tree):
        for name in ("elts", "args", "keywords"):
            parts = getattr(node, name, None)
            if isinstance(parts, list):
                for index in range(len(parts)):
                    if number == place:
                        del parts[index]
                        return True
                    number += 1
    return False


_chunks: tuple[Callable[[ast.Module, int], bool], ...] = (_drop, _unwrap, _fewer, _simplify)
