"""A staged graph as a module that ``torch.export`` takes: it calls torch node by node, switches are ``cond``, loops are
``while_loop``, and numbers that are not known are tensors of no dimensions.

Both arms, and one iteration, are traced, so nothing here may depend on a value. What an exported graph has no words
for raises Unsupported: errors of the program, writes, objects, recursion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchjanus.core.errors import Unsupported
from torchjanus.core.kinds import isinstance
from torchjanus.execute.backends.number_tensors import DTYPES, computed, element, given_to_torch, selected
from torchjanus.semantics.staged.unknown.values import Unbound
from torchjanus.tracegraph.graph import (
    Block,
    Const,
    Dict,
    Graph,
    Input,
    Node,
    Operand,
    Record,
    Ref,
    TensorType,
    Value,
    refs_in,
    walk,
)
from torchjanus.tracegraph.graph import Sequence as Items

__all__ = ["Exportable"]

Env = dict[Value, Any]


class Exportable(nn.Module):
    """The module of a graph. It takes the values of ``given``, numbers as tensors, and returns what the graph does;
    ``flat``: the tensors of that in a tuple."""

    def __init__(self, graph: Graph, flat: bool) -> None:
        super().__init__()
        self.graph, self.flat = graph, flat
        self.given = [one for one in graph.inputs if one.path.step != "const"]
        for number, one in enumerate(self._held(graph)):
            if isinstance(one, nn.Parameter):
                self.register_parameter(f"held{number}", one)
            else:
                self.register_buffer(f"held{number}", one)
        _check(graph)

    @staticmethod
    def _held(graph: Graph) -> list[Tensor]:
        found = {id(one): one for given in _functions(graph) for one in _constants(given)}
        return list(found.values())

    def forward(self, *values: Any) -> Any:
        held = {id(original): getattr(self, f"held{n}") for n, original in enumerate(self._held(self.graph))}
        running = _Running({one.name: one for one in self.graph.functions}, held)
        env = running.bound(self.graph, dict(zip((one.value for one in self.given), values, strict=True)))
        running.block(env, self.graph.body)
        result = self.graph.result or Const(None)
        if self.flat:
            return tuple(env[ref.value] for ref in refs_in(result))
        return running.operand(env, result)


def _functions(graph: Graph) -> list[Graph]:
    return [*graph.functions, graph]


def _constants(graph: Graph) -> Iterator[Tensor]:
    for one in graph.inputs:
        if one.path.step == "const" and isinstance(one.path.key, Const):
            yield one.path.key.value


def _check(graph: Graph) -> None:
    """Raise Unsupported for what shows without running the graph."""
    calls = {one.name: [*_called(one)] for one in _functions(graph)}
    for name, first in calls.items():
        seen, waiting = set[str](), list(first)
        while waiting:
            called = waiting.pop()
            if called == name:
                raise Unsupported(f"an exported graph has no recursion: {name}() calls itself")
            if called not in seen:
                seen.add(called)
                waiting += calls[called]
    for one in _functions(graph):
        for value in _values(one):
            if not isinstance(value.type, TensorType) and value.type not in DTYPES:
                raise Unsupported(f"an exported graph has tensors and numbers of one class: it has no {value.type}")


def _called(graph: Graph) -> Iterator[str]:
    yield from (node.get("function").value for node in walk(graph.body) if node.kind == "apply")


def _values(graph: Graph) -> Iterator[Value]:
    yield from (one.value for one in graph.inputs)
    for node in walk(graph.body):
        yield from (out.value for out in node.outs)


class _Running:
    """One run of the module. ``held``: the tensors that the graph holds by reference, as the module has them."""

    def __init__(self, functions: dict[str, Graph], held: dict[int, Tensor]) -> None:
        self.functions, self.held = functions, held

    def bound(self, graph: Graph, given: Env) -> Env:
        def value(one: Input) -> Any:
            if one.path.step == "const" and isinstance(one.path.key, Const):
                return self.held[id(one.path.key.value)]
            return given[one.value]

        return {one.value: value(one) for one in graph.inputs}

    def block(self, env: Env, block: Block) -> None:
        for node in block.nodes:
            self.node(env, node)

    def node(self, env: Env, node: Node) -> None:
        match node.kind:
            case "op":
                self.operation(env, node)
            case "compute":
                env[node.outs[0].value] = self.compute(env, node)
            case "fetch":
                tensor, out = self.operand(env, node.get("ref")), node.outs[0].value
                shaped = tensor.reshape(())
                env[out] = shaped != 0 if out.type == "bool" else shaped.to(DTYPES[str(out.type)])
            case "size":
                size = self.operand(env, node.get("ref")).shape[node.get("dim").value]
                env[node.outs[0].value] = torch.full((), size, dtype=torch.int64)
            case "switch":
                self.switch(env, node)
            case "loop":
                self.loop(env, node)
            case "apply":
                self.apply(env, node)
            case _:
                raise AssertionError(node.kind)

    def operation(self, env: Env, node: Node) -> None:
        function = node.get("func").value
        if node.writes:
            raise Unsupported(f"an exported graph writes nothing in place ({node.get('name').value})")
        if not node.outs:
            raise Unsupported(f"an exported graph raises no errors of the program ({node.get('name').value})")
        args, kwargs = node.get("args"), node.get("kwargs") or Dict(())
        out = node.outs[0].value.type
        if any(not ref.value.is_tensor for ref in refs_in((args, kwargs))):
            made = self.with_numbers(env, function, args, kwargs, out)
        else:
            made = function(*self.operand(env, args), **self.operand(env, kwargs))
        tensors = [one for one in torch.utils._pytree.tree_leaves(made) if isinstance(one, Tensor)]
        for ref, one in zip(node.outs, tensors, strict=True):
            wanted = ref.value.type
            if isinstance(wanted, TensorType) and str(one.dtype) != f"torch.{wanted.dtype}":
                raise Unsupported(f"{node.get('name').value}() of a number that is not known gives {one.dtype} here")
            env[ref.value] = one

    def with_numbers(self, env: Env, function: Any, args: Any, kwargs: Any, out: Any) -> Any:
        """Return an operation of which some operands are numbers that are not known."""
        operands = list(args.items)
        if getattr(function, "__name__", "") in ("__getitem__", "getitem") and not kwargs.items:
            return self.element(env, *operands)
        given = [self.operand(env, one) for one in operands]
        tensors = [one for one, of in zip(given, operands, strict=True) if isinstance(of, Ref) and of.value.is_tensor]
        numbers = [n for n, of in enumerate(operands) if isinstance(of, Ref) and not of.value.is_tensor]
        plain = all(isinstance(one, Ref | Const) for one in operands) and not kwargs.items
        chosen = selected(function, given, numbers) if plain else None
        if chosen is not None:
            return chosen
        if not plain or not tensors:
            raise Unsupported(f"an exported graph has no {getattr(function, '__name__', function)}() of a number that "
                              "is not known")  # fmt: skip
        for number in numbers:
            given[number] = given_to_torch(function, given[number], tensors)
        return function(*given)

    def element(self, env: Env, tensor: Operand, index: Operand) -> Tensor:
        """Return an element of a tensor at numbers that are not known."""
        parts = index.items if isinstance(index, Items) else (index,)
        numbers = [n for n, part in enumerate(parts) if isinstance(part, Ref) and not part.value.is_tensor]
        if any(not isinstance(part, Ref) and list(refs_in(part)) for part in parts):
            raise Unsupported("an exported graph has no slices from or to a number that is not known")
        return element(self.operand(env, tensor), tuple(self.operand(env, part) for part in parts), numbers)

    def compute(self, env: Env, node: Node) -> Tensor:
        args = [self.operand(env, one) for one in node.get("args").items]
        if node.get("kwargs") is not None:
            raise Unsupported(f"an exported graph has no {node.get('func').value} with keywords")
        return computed(node.get("func").value, args, str(node.outs[0].value.type))

    # ---- regions ----

    def switch(self, env: Env, node: Node) -> None:
        outs = [out.value for out in node.outs]
        outer = _taken(node, env)

        def arm(block: Block) -> Callable[..., tuple[Tensor, ...]]:
            def run(*values: Any) -> tuple[Tensor, ...]:
                inner = dict(zip(outer, values, strict=True))
                self.block(inner, block)
                return self.left(inner, block.yields, outs)

            return run

        then, orelse = map(arm, node.blocks)
        values = [env[one] for one in outer]
        predicate = self.operand(env, node.get("on"))
        if not outs:  # what an arm can do besides is refused
            then(*values), orelse(*values)
            return
        found = torch.ops.higher_order.cond(predicate, then, orelse, tuple(values))
        env.update(zip(outs, found, strict=True))

    def loop(self, env: Env, node: Node) -> None:
        asked, body = node.blocks
        params = [param.value for param in body.params]
        outs = [out.value for out in node.outs]
        is_counted = node.get("index") is not None
        outer = _taken(node, env)
        first = [Const(0)] * is_counted + list(node.get("carried").items)

        def test(*values: Any) -> Tensor:
            inner = dict(zip([*params, *outer], values, strict=True))
            self.block(inner, asked)
            return self.left(inner, asked.yields, [Value(-1, "bool")])[0]

        def turn(*values: Any) -> tuple[Tensor, ...]:
            inner = dict(zip([*params, *outer], values, strict=True))
            self.block(inner, body)
            again = [values[0] + 1] if is_counted else []
            return (*again, *self.left(inner, body.yields, params[len(again) :]))

        start = self.left(env, first, params)
        found = torch.ops.higher_order.while_loop(test, turn, start, tuple(env[one] for one in outer))
        env.update(zip(outs, found[is_counted:], strict=True))

    def left(self, env: Env, yields: Sequence[Operand], types: Sequence[Value]) -> tuple[Tensor, ...]:
        """Return what a region leaves: tensors of its own, of the dtypes that its results have."""
        return tuple(
            self.leaf(self.operand(env, one), wanted.type) for one, wanted in zip(yields, types, strict=True)
        )  # fmt: skip

    def leaf(self, value: Any, wanted: TensorType | str) -> Tensor:
        if isinstance(value, Tensor):
            dtype = value.dtype if isinstance(wanted, TensorType) else DTYPES[wanted]
            return value.to(dtype).clone(memory_format=torch.contiguous_format)
        if value is Unbound or value is None:  # it is never read: a read is refused
            sizes: tuple[Any, ...] = wanted.sizes if isinstance(wanted, TensorType) else ()
            if not all(isinstance(size, int) for size in sizes):
                raise Unsupported("a tensor of unknown sizes that is set one way only cannot be exported")
            dtype = getattr(torch, wanted.dtype) if isinstance(wanted, TensorType) else DTYPES[wanted]
            return torch.zeros(sizes, dtype=dtype)
        return torch.full((), value, dtype=DTYPES[str(wanted)])

    def apply(self, env: Env, node: Node) -> None:
        graph = self.functions[node.get("function").value]
        args = [self.operand(env, one) for one in node.get("args").items]
        given = {one.value: args[_number(one)] for one in graph.inputs if one.path.step == "parameter"}
        for value, one in given.items():
            if not isinstance(one, Tensor):
                given[value] = self.leaf(one, value.type)
        inner = self.bound(graph, given)
        self.block(inner, graph.body)
        result = graph.result or Items(tuple, ())
        assert isinstance(result, Items)
        outs = [out.value for out in node.outs]
        env.update(zip(outs, self.left(inner, result.items, outs), strict=True))

    # ---- operands ----

    def operand(self, env: Env, operand: Operand) -> Any:
        match operand:
            case Ref(value=value):
                return env[value]
            case Const(value=value):
                return value
            case Items(cls=cls, items=items):
                parts = [self.operand(env, one) for one in items]
                return cls(*parts) if hasattr(cls, "_fields") else cls(parts)
            case Dict(items=pairs):
                return {self.operand(env, key): self.operand(env, one) for key, one in pairs}
            case Record(name="slice", fields=fields):
                return slice(*(self.operand(env, one) for _, one in fields))
        raise AssertionError(operand)


def _taken(node: Node, env: Env) -> list[Value]:
    """Return the values of around a region that are used in it."""
    own = {out.value for inner in node.blocks for one in walk(inner) for out in one.outs}
    own |= {param.value for block in node.blocks for param in block.params}
    own |= {
        param.value for inner in node.blocks for one in walk(inner) for block in one.blocks for param in block.params
    }
    used: dict[Value, None] = {}
    for block in node.blocks:
        for one in walk(block):
            used.update((ref.value, None) for ref in refs_in(tuple(operand for _, operand in one.fields)))
            for inner in one.blocks:
                used.update((ref.value, None) for ref in refs_in(inner.yields))
        used.update((ref.value, None) for ref in refs_in(block.yields))
    return [value for value in used if value not in own]


def _number(given: Input) -> int:
    assert isinstance(given.path.key, Const)
    return int(given.path.key.value)
