"""Runs a staged graph node by node, by calls of torch: so autograd sees what eager would show it.

A graph is turned into Python closures once. They know the program's values by the numbers of the graph. If there is a
back end for pieces of the graph, a block is run node by node once, then with its pieces in place of their nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchjanus.core.kinds import isinstance
from torchjanus.execute.backends.pieces import Piece, pieces_of, uses_of
from torchjanus.tracegraph.graph import Block, Const, Dict, Graph, Node, Operand, Path, Record, Ref, Sequence

__all__ = ["interpreted", "read_input"]

Env = dict[int, Any]
Get = Callable[[Env], Any]
Step = Callable[[Env], None]
Yielding = Callable[[Env], list[Any]]
Call = Callable[[tuple[Any, ...]], tuple[Any, ...]]
Compile = Callable[[Piece], Callable[..., tuple[Any, ...]]]


def interpreted(graph: Graph, compile: Compile | None = None) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
    """Return a function that runs the graph on arguments and keyword arguments. ``compile``: makes of a piece what runs
    it; without it all is run node by node."""
    calls: dict[str, Call] = {}
    for one in graph.functions:
        calls[one.name] = _function(one, calls, compile)
    inputs = [(given.value.id, given.path) for given in graph.inputs]
    body, result = _Closures(graph, calls, compile).block(graph.body), _operand(graph.result or Const(None))

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        env = {number: read_input(path, args, kwargs) for number, path in inputs}
        body(env)
        return result(env)

    return run


def read_input(path: Path, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the value of an input."""
    assert isinstance(path.key, Const)
    key = path.key.value
    match path.step:
        case "const":
            return key
        case "arg" | "parameter":
            return args[key]
        case "kwarg":
            return kwargs[key]
        case "item" if path.base is not None:
            return read_input(path.base, args, kwargs)[key]
    raise AssertionError(path)


def _function(graph: Graph, calls: dict[str, Call], compile: Compile | None) -> Call:
    inputs = [(given.value.id, given.path) for given in graph.inputs]
    made: list[tuple[Step, Get]] = []

    def call(args: tuple[Any, ...]) -> tuple[Any, ...]:
        if not made:  # at the first call: functions call each other
            body = _Closures(graph, calls, compile).block(graph.body)
            made.append((body, _operand(graph.result or Sequence(tuple, ()))))
        body, result = made[0]
        env = {number: read_input(path, args, {}) for number, path in inputs}
        body(env)
        return result(env)  # type: ignore[no-any-return]

    return call


def _operand(operand: Operand) -> Get:
    """Return a function from what is known to an operand's value."""
    match operand:
        case Ref(value=value):
            number = value.id
            return lambda env: env[number]
        case Const(value=value):
            return lambda env: value
        case Sequence(cls=cls, items=items):
            parts = tuple(map(_operand, items))
            if cls is tuple:
                return lambda env: tuple([part(env) for part in parts])
            if hasattr(cls, "_fields"):
                return lambda env: cls(*(part(env) for part in parts))
            return lambda env: cls(part(env) for part in parts)
        case Dict(items=pairs):
            both = [(_operand(key), _operand(one)) for key, one in pairs]
            return lambda env: {key(env): one(env) for key, one in both}
        case Record(name="slice", fields=fields):
            start, stop, step = (_operand(one) for _, one in fields)
            return lambda env: slice(start(env), stop(env), step(env))
    raise AssertionError(operand)


class _Closures:
    """Makes the closures of one graph. ``nested``: ids of operations whose results have turned out not to be the
    elements of what they return."""

    def __init__(self, graph: Graph, calls: dict[str, Call], compile: Compile | None) -> None:
        self.graph, self.calls, self.compile = graph, calls, compile
        self.used = uses_of(graph) if compile is not None else {}
        self.nested: set[int] = set()

    def block(self, block: Block) -> Step:
        steps = [[self.node(node) for node in block.nodes]]  # the last ones are run: a function may be within itself
        whole = [] if self.compile is None else [block]  # until it has been run once

        def run(env: Env) -> None:
            for step in steps[-1]:
                step(env)
            if whole:
                steps.append(self.in_pieces(whole.pop(), steps[0]))

        return run

    def in_pieces(self, block: Block, steps: list[Step]) -> list[Step]:
        """Return the steps of a block with its pieces in place of their nodes. ``steps``: of each node."""
        known = dict(zip(map(id, block.nodes), steps, strict=True))
        parts = pieces_of(self.graph, block, self.used, self.nested)
        return [self.piece(one) if isinstance(one, Piece) else known[id(one)] for one in parts]

    def piece(self, piece: Piece) -> Step:
        assert self.compile is not None
        call, taken, left, grad = self.compile(piece), piece.taken, piece.left, piece.grad

        def run(env: Env) -> None:
            env.update(zip(left, call(*[env[number] for number in taken]), strict=True))

        return run if grad is None else _in_mode(run, grad)

    def yielding(self, block: Block) -> Yielding:
        run, yields = self.block(block), list(map(_operand, block.yields))

        def both(env: Env) -> list[Any]:
            run(env)
            return [one(env) for one in yields]

        return both

    def node(self, node: Node) -> Step:
        match node.kind:
            case "op":
                return self.operation(node)
            case "compute":
                return _compute(node)
            case "fetch":
                return _fetch(node)
            case "size":
                ref, dim, out = _operand(node.get("ref")), node.get("dim").value, node.outs[0].value.id

                def size(env: Env) -> None:
                    env[out] = ref(env).shape[dim]

                return size
            case "switch":
                return _switch(node, *map(self.yielding, node.blocks))
            case "loop":
                return _loop(node, *map(self.yielding, node.blocks))
            case "apply":
                return _apply(node, self.calls)
        raise AssertionError(node.kind)

    def operation(self, node: Node) -> Step:
        func, args = node.get("func").value, _operand(node.get("args"))
        kwargs = _operand(node.get("kwargs") or Dict(()))
        outs, grad, nested = [out.value.id for out in node.outs], node.get("grad"), self.nested

        def run(env: Env) -> None:
            made = func(*args(env), **kwargs(env))
            if len(outs) == 1 and isinstance(made, torch.Tensor):
                env[outs[0]] = made
            elif outs:
                found = [one for one in pytree.tree_leaves(made) if isinstance(one, torch.Tensor)]
                env.update(zip(outs, found, strict=True))
                if len(outs) == 1 or len(made) != len(outs) or any(a is not b for a, b in zip(made, found)):  # noqa: B905
                    nested.add(id(node))

        return run if grad is None else _in_mode(run, grad.value)


def _in_mode(run: Step, grad: bool) -> Step:
    def in_mode(env: Env) -> None:
        with torch.set_grad_enabled(grad):
            run(env)

    return in_mode


def _compute(node: Node) -> Step:
    func, args, out = node.get("func").value, _operand(node.get("args")), node.outs[0].value.id
    kwargs = _operand(node.get("kwargs") or Dict(()))

    def run(env: Env) -> None:
        env[out] = func(*args(env), **kwargs(env))

    return run


_KINDS: dict[str, Callable[[Any], Any]] = {"int": int, "float": float, "bool": bool, "item": torch.Tensor.item}


def _fetch(node: Node) -> Step:
    ref, kind, out = _operand(node.get("ref")), _KINDS[node.get("type").value], node.outs[0].value.id

    def run(env: Env) -> None:
        env[out] = kind(ref(env))

    return run


def _switch(node: Node, then: Yielding, orelse: Yielding) -> Step:
    on, outs = _operand(node.get("on")), [out.value.id for out in node.outs]

    def run(env: Env) -> None:
        env.update(zip(outs, then(env) if on(env) else orelse(env), strict=True))

    return run


def _loop(node: Node, test: Yielding, body: Yielding) -> Step:
    outs, carried = [out.value.id for out in node.outs], _operand(node.get("carried"))
    params = [param.value.id for param in node.blocks[1].params]
    index = params.pop(0) if node.get("index") is not None else None

    def run(env: Env) -> None:
        values, number = list(carried(env)), 0
        while True:
            if index is not None:
                env[index] = number
            env.update(zip(params, values, strict=True))
            if not test(env)[0]:
                break
            values, number = body(env), number + 1
        env.update(zip(outs, values, strict=True))

    return run


def _apply(node: Node, calls: dict[str, Call]) -> Step:
    name, args, outs = node.get("function").value, _operand(node.get("args")), [out.value.id for out in node.outs]

    def run(env: Env) -> None:
        env.update(zip(outs, calls[name](args(env)), strict=True))

    return run
