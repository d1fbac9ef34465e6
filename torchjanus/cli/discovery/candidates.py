"""Finds what looks like a training or evaluation step in a module's source.

A training step is the body of the innermost loop that computes gradients (``backward``, ``autograd.grad``) and calls a
``step`` or reads ``.grad``, or a function that does so outside of its loops. Where an inner loop only repeats (``for _
in range(k)``) and the loop around it trains by itself, too, the step is the outer one's. Where all of it stands in an
``if`` of the loop and reads nothing of what the loop computes outside of that, the step is the body of the ``if``. An
evaluation step is the body of an innermost loop under ``torch.no_grad()`` that calls something, and does not only write
to tensors, as averages of weights do. This module decides by names only: what it takes wrongly costs a few watched
calls.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeGuard

from torchjanus.rewrite.liveness import bound, read_by, within

__all__ = ["Block", "Candidate", "Loop", "Scope", "candidates", "mentions_training"]

Loop = ast.For | ast.While
Block = Loop | ast.If
Scope = ast.Module | ast.FunctionDef
_INFERENCE = frozenset({"no_grad", "inference_mode"})
# Calls beside in-place methods in loops over weights: averages of them, copies into a target network, initialisation.
_OF_WEIGHTS = frozenset(
    {"append", "clone", "detach", "float", "is_floating_point", "item", "items", "lerp", "size", "to"}
)
_FACTORIES = frozenset("empty empty_like full ones ones_like rand rand_like randn randn_like zeros zeros_like".split())
_ASKS = "asks_closure"  # the attribute of calls of step() that compute gradients
_MARKS = (
    "backward",
    "autograd",
    "no_grad",
    "inference_mode",
    "training_step",
)  # no step is looked for in a file that mentions none of these


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """One step: the body of ``block`` in ``scope``; the whole function ``scope`` if there is no block.

    ``name``: the qualified name of the scope. ``private``: the class around it, if any. ``instead``: the steps to take
    if this one cannot be outlined.
    """

    kind: Literal["training", "evaluation"]
    scope: Scope
    block: Block | None
    name: str
    private: str | None
    around: tuple[ast.FunctionDef, ...]  # the functions around the scope, the outermost first
    instead: tuple[Candidate, ...] = ()

    @property
    def body(self) -> list[ast.stmt]:
        """Its statements."""
        return self.scope.body if self.block is None else self.block.body

    @property
    def line(self) -> int:
        """The line that a report names: the block's or the function's."""
        return (
            (self.block or self.body[0]).lineno
            if isinstance(self.scope, ast.Module)
            else (self.block or self.scope).lineno
        )

    def __str__(self) -> str:
        where = "function" if self.block is None else "block" if isinstance(self.block, ast.If) else "loop"
        return f"{self.kind} {where} of {self.name} (line {self.line})"


def mentions_training(source: str) -> bool:
    """Whether a file may contain a step."""
    return any(mark in source for mark in _MARKS) and "torchjanus" not in source


def candidates(tree: ast.Module) -> list[Candidate]:
    """Return the steps of a module, in the order of its text. None of them contains another."""
    _mark_closures(tree)
    return [*_of_scope(tree, "<module>", None, (), False)]


def _mark_closures(tree: ast.Module) -> None:
    """Mark the calls ``optimizer.step(f)`` of functions or methods f of the module that compute gradients: such a call
    computes gradients, wherever f is defined."""
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    names = {node.name for node in functions if any(map(_is_backward, within(node.body)))}
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="step"), args=[ast.Name(name) | ast.Attribute(attr=name)]):
                if name in names:
                    setattr(node, _ASKS, True)


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
    """Yield the loops of the scope that make a step in each iteration; innermost ones, but for repetitions."""

    def walk(statements: Sequence[ast.AST], inference: bool) -> Iterator[Candidate]:
        for node in statements:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
                continue
            inferring = inference or (
                isinstance(node, ast.With) and any(_is_inference(item.context_expr) for item in node.items)
            )
            inner = [*walk([*ast.iter_child_nodes(node)], inferring)]
            if not isinstance(node, ast.For | ast.While):
                yield from inner
            elif _trains_around(node, inner):
                whole = Candidate("training", scope, node, name, private, around, tuple(inner))
                block = _block_of(node, inner)
                yield whole if block is node else replace(whole, block=block, instead=(whole,))
            elif inner:
                yield from inner
            elif inferring and _evaluates(node):
                yield Candidate("evaluation", scope, node, name, private, around)

    yield from walk(scope.body, inference)


def _trains_around(loop: Loop, inner: Sequence[Candidate]) -> bool:
    """Whether a loop trains by itself, beside what inner loops do that only repeat. ``inner``: the steps in it."""
    inside: set[int] = set()
    for candidate in inner:
        if candidate.kind != "training" or not _repeats(candidate.block):
            return False
        inside |= {id(node) for node in ast.walk(candidate.block)}
    return _trains(node for node in _with_closures(loop.body) if id(node) not in inside)


def _repeats(block: Block | None) -> TypeGuard[ast.For]:
    """Whether a loop does the same some times, whatever the iteration's number is."""
    match block:
        case ast.For(target=ast.Name(id=name), iter=ast.Call(func=ast.Name(id="range"))):
            return all(name not in read_by(node) for node in block.body)
    return False


def _block_of(loop: Loop, inner: Sequence[Candidate]) -> Block:
    """Return the smallest block of the loop's body that has all of the training: the loop, or an ``if`` in it.

    What an ``if`` computes from the rest of the iteration stays with the rest: its gradients go there, too.
    """
    parts = {id(node) for node in _with_closures(loop.body) if _is_backward(node)}
    parts |= {id(candidate.block) for candidate in inner}
    block: Block = loop
    others: list[ast.stmt] = []
    while True:
        holders = [one for one in block.body if any(id(node) in parts for node in ast.walk(one))]
        found = holders[0] if len(holders) == 1 else block
        if not isinstance(found, ast.If) or found is block:
            return block
        others += [one for one in block.body if one is not found]
        inside = {id(node) for one in found.body for node in ast.walk(one)}
        if not parts <= inside or not _trains(_with_closures(found.body)) or _has_continue(found.body):
            return block
        if bound(others) & frozenset().union(*(read_by(one) for one in found.body)):
            return block
        block = found


def _has_continue(nodes: Sequence[ast.AST]) -> bool:
    """Whether the nodes hold a ``continue`` of a loop around them."""
    return any(
        isinstance(node, ast.Continue)
        or (not isinstance(node, ast.For | ast.While) and _has_continue([*ast.iter_child_nodes(node)]))
        for node in nodes
    )


def _is_backward(node: ast.AST) -> bool:
    """Whether this is a call that computes gradients."""
    if getattr(node, _ASKS, False):
        return True
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name("autograd") | ast.Attribute(attr="autograd"), attr="grad")):
            return True
        case ast.Call(func=ast.Name("grad")):  # not torch.func.grad(f)
            return len(node.args) + len(node.keywords) > 1
        case ast.Call(func=ast.Name(name) | ast.Attribute(attr=name)):
            return "backward" in name
    return False


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


def _called(nodes: Sequence[ast.AST]) -> set[str]:
    """Return the names of the functions and methods that are called."""
    functions = (node.func for node in nodes if isinstance(node, ast.Call))
    return {fn.attr if isinstance(fn, ast.Attribute) else getattr(fn, "id", "") for fn in functions}


def _trains(nodes: Iterator[ast.AST]) -> bool:
    """Whether gradients are computed, and something is stepped or reads them."""
    every = [*nodes]
    if not any(map(_is_backward, every)):
        return False
    if any(name == "step" or name.endswith("_step") or name.startswith("step_") for name in _called(every)):
        return True
    asked = {id(node.func) for node in every if isinstance(node, ast.Call)}  # autograd.grad() is no gradient
    return any(
        isinstance(node, ast.Attribute)
        and node.attr == "grad"
        and isinstance(node.ctx, ast.Load)
        and id(node) not in asked
        for node in every
    )


def _evaluates(loop: Loop) -> bool:
    """Whether the body may call a model for each of its elements, with no loop in it."""
    nodes = [*within(loop.body)]
    if any(isinstance(node, ast.For | ast.While) for node in nodes):
        return False
    return isinstance(loop, ast.For) and any(
        not name.endswith("_") and name not in _OF_WEIGHTS and name not in _FACTORIES and not hasattr(builtins, name)
        for name in _called(nodes)
    )


def _is_inference(node: ast.expr) -> bool:
    """Whether an expression names ``torch.no_grad`` or ``torch.inference_mode``."""
    name = node.func if isinstance(node, ast.Call) else node
    return (name.attr if isinstance(name, ast.Attribute) else getattr(name, "id", "")) in _INFERENCE
