"""Finds what looks like a training or evaluation step in a module's source.

A training step is the body of the innermost loop that calls both a ``backward`` and a ``step``, or a function that does
so outside of its loops. An evaluation step is the body of an innermost loop under ``torch.no_grad()`` that calls
something. This module decides by names only: what it takes wrongly costs a few watched calls.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from torchjanus.rewrite.liveness import within

__all__ = ["Candidate", "Loop", "Scope", "candidates", "mentions_training"]

Loop = ast.For | ast.While
Scope = ast.Module | ast.FunctionDef
_INFERENCE = frozenset({"no_grad", "inference_mode"})
_MARKS = ("backward", "no_grad", "inference_mode")  # no step is looked for in a file that mentions none of these


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """One step: the body of ``loop`` in ``scope``; the whole function ``scope`` if there is no loop.

    ``name``: the qualified name of the scope. ``private``: the class around it, if any.
    """

    kind: Literal["training", "evaluation"]
    scope: Scope
    loop: Loop | None
    name: str
    private: str | None
    around: tuple[ast.FunctionDef, ...]  # the functions around the scope, the outermost first

    @property
    def body(self) -> list[ast.stmt]:
        """Its statements."""
        return self.scope.body if self.loop is None else self.loop.body

    @property
    def line(self) -> int:
        """The line that a report names: the loop's or the function's."""
        return (
            (self.loop or self.body[0]).lineno
            if isinstance(self.scope, ast.Module)
            else (self.loop or self.scope).lineno
        )

    def __str__(self) -> str:
        where = "function" if self.loop is None else "loop"
        return f"{self.kind} {where} of {self.name} (line {self.line})"


def mentions_training(source: str) -> bool:
    """Whether a file may contain a step."""
    return any(mark in source for mark in _MARKS) and "torchjanus" not in source


def candidates(tree: ast.Module) -> list[Candidate]:
    """Return the steps of a module, in the order of its text. None of them contains another."""
    return [*_of_scope(tree, "<module>", None, (), False)]


def _of_scope(
    scope: Scope, name: str, private: str | None, around: tuple[ast.FunctionDef, ...], inference: bool
) -> Iterator[Candidate]:
    found = [*_loops(scope, name, private, around, inference)]
    yield from found
    if isinstance(scope, ast.FunctionDef) and not found and _trains(_with_closures(scope.body)):
        yield Candidate("training", scope, None, name, private, around)
        return
    inside = (*around, scope) if isinstance(scope, ast.FunctionDef) else around
    prefix = "" if isinstance(scope, ast.Module) else f"{name}.<locals>."
    yield from _definitions(scope.body, prefix, private, inside)


def _definitions(
    statements: Sequence[ast.stmt], prefix: str, private: str | None, around: tuple[ast.FunctionDef, ...]
) -> Iterator[Candidate]:
    """Yield the steps of the functions and classes that these statements define."""
    for node in within(statements):
        if isinstance(node, ast.ClassDef):
            yield from _definitions(node.body, f"{prefix}{node.name}.", node.name, around)
        elif isinstance(node, ast.FunctionDef):
            inference = any(_is_inference(decorator) for decorator in node.decorator_list)
            yield from _of_scope(node, prefix + node.name, private, around, inference)


def _loops(
    scope: Scope, name: str, private: str | None, around: tuple[ast.FunctionDef, ...], inference: bool
) -> Iterator[Candidate]:
    """Yield the innermost loops of the scope that make a step in each iteration."""

    def walk(statements: Sequence[ast.AST], inference: bool) -> Iterator[Candidate]:
        for node in statements:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
                continue
            inferring = inference or (
                isinstance(node, ast.With) and any(_is_inference(item.context_expr) for item in node.items)
            )
            inner = [*walk([*ast.iter_child_nodes(node)], inferring)]
            yield from inner
            if inner or not isinstance(node, ast.For | ast.While):
                continue
            if _trains(_with_closures(node.body)):
                yield Candidate("training", scope, node, name, private, around)
            elif inferring and _evaluates(node):
                yield Candidate("evaluation", scope, node, name, private, around)

    yield from walk(scope.body, inference)


def _with_closures(statements: Sequence[ast.stmt]) -> Iterator[ast.AST]:
    """Yield the nodes of the statements, and of functions that they define for an optimizer's ``step(closure)``."""
    nodes = [*within(statements)]
    yield from nodes
    passed = {
        part.id
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "step"
        for part in node.args
        if isinstance(part, ast.Name)
    }
    for node in nodes:
        if isinstance(node, ast.FunctionDef) and node.name in passed:
            yield from within(node.body)


def _called(nodes: Iterator[ast.AST]) -> set[str]:
    """Return the names of the functions and methods that are called."""
    functions = (node.func for node in nodes if isinstance(node, ast.Call))
    return {fn.attr if isinstance(fn, ast.Attribute) else getattr(fn, "id", "") for fn in functions}


def _trains(nodes: Iterator[ast.AST]) -> bool:
    """Whether gradients are computed and something is stepped."""
    called = _called(nodes)
    return any("backward" in name for name in called) and any(
        name == "step" or name.endswith("_step") or name.startswith("step_") for name in called
    )


def _evaluates(loop: Loop) -> bool:
    """Whether the body calls something for each of its elements, with no loop in it."""
    nodes = [*within(loop.body)]
    if any(isinstance(node, ast.For | ast.While) for node in nodes):
        return False
    return isinstance(loop, ast.For) and any(isinstance(node, ast.Call) for node in nodes)


def _is_inference(node: ast.expr) -> bool:
    """Whether an expression names ``torch.no_grad`` or ``torch.inference_mode``."""
    name = node.func if isinstance(node, ast.Call) else node
    return (name.attr if isinstance(name, ast.Attribute) else getattr(name, "id", "")) in _INFERENCE
