"""Runs a staged graph node by node, by calls of torch: so autograd sees what eager would show it.

A graph is turned into Python closures once. They know the program's values by the numbers of the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchjanus.core.kinds import isinstance
from torchjanus.tracegraph.graph import Block, Const, Dict, Graph, Node, Operand, Path, Record, Ref, Sequence

__all__ = ["interpreted", "read_input"]

Env = dict[int, Any]
Get = Callable[[Env], Any]
Step = Callable[[Env], None]
Call = Callable[[tuple[Any, ...]], tuple[Any, ...]]


def interpreted(graph: Graph) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
    """Return a function that runs the graph on arguments and keyword arguments."""
    calls: dict[str, Call] = {}
    for one in graph.functions:
        calls[one.name] = _function(one, calls)
    inputs = [(given.value.id, given.path) for given in graph.inputs]
    body, result = _block(graph.body, calls), _operand(graph.result or Const(None))

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


def _function(graph: Graph, calls: dict[str, Call]) -> Call:
    inputs = [(given.value.id, given.path) for given in graph.inputs]
    made: list[tuple[Step, Get]] = []

    def call(args: tuple[Any, ...]) -> tuple[Any, ...]:
        if not made:  # at the first call: functions call each other
            made.append((_block(graph.body, calls), _operand(graph.result or Sequence(tuple, ()))))
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


def _block(block: Block, calls: dict[str, Call]) -> Step:
    steps = [_node(node, calls) for node in block.nodes]

    def run(env: Env) -> None:
        for step in steps:
            step(env)

    return run


def _yielding(block: Block, calls: dict[str, Call]) -> Callable[[Env], list[Any]]:
    run, yields = _block(block, calls), list(map(_operand, block.yields))

    def both(env: Env) -> list[Any]:
        run(env)
        return [one(env) for one in yields]

    return both


def _node(node: Node, calls: dict[str, Call]) -> Step:
    match node.kind:
        case "op":
            return _operation(node)
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
            return _switch(node, calls)
        case "loop":
            return _loop(node, calls)
        case "apply":
            return _apply(node, calls)
    raise AssertionError(node.kind)


def _operation(node: Node) -> Step:
    func, args = node.get("func").value, _operand(node.get("args"))
    kwargs = _operand(node.get("kwargs") or Dict(()))
    outs, grad = [out.value.id for out in node.outs], node.get("grad")

    def run(env: Env) -> None:
        made = func(*args(env), **kwargs(env))
        if len(outs) == 1 and isinstance(made, torch.Tensor):
            env[outs[0]] = made
        elif outs:
            found = [one for one in pytree.tree_leaves(made) if isinstance(one, torch.Tensor)]
            env.update(zip(outs, found, strict=True))

    if grad is None:
        return run

    def in_mode(env: Env) -> None:
        with torch.set_grad_enabled(grad.value):
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


def _switch(node: Node, calls: dict[str, Call]) -> Step:
    on, outs = _operand(node.get("on")), [out.value.id for out in node.outs]
    then, orelse = (_yielding(block, calls) for block in node.blocks)

    def run(env: Env) -> None:
        env.update(zip(outs, then(env) if on(env) else orelse(env), strict=True))

    return run


def _loop(node: Node, calls: dict[str, Call]) -> Step:
    outs, carried = [out.value.id for out in node.outs], _operand(node.get("carried"))
    test, body = (_yielding(block, calls) for block in node.blocks)
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
