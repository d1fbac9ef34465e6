"""A staged graph as S-expressions, as Snek gives them to Lantern: functions, ``let``, ``if``, ``loop``, and calls.

    PROGRAM = (program (tensors w0 ..) DEF*)      the tensors are those that the graph holds by reference
    DEF     = (def NAME (PARAMETER ..) (begin BODY))
    BODY    = (let VARIABLE EXPR BODY) | (let (VARIABLE ..) EXPR BODY) | ATOM | (values ATOM ..)
    EXPR    = (OPERATOR ATOM .. [:KEYWORD ATOM ..]) | (if ATOM (begin BODY) (begin BODY))
            | (loop (VARIABLE ..) (ATOM ..) (begin BODY) (begin BODY))    variables, their first values, test, iteration
    ATOM    = VARIABLE | NUMBER | "text" | true | false | none | (list ATOM ..) | (tuple ATOM ..) | (dict ATOM ATOM ..)

Operators are named as Python writes them, by the short names of ``NAMES``, or "module:name".
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from torchjanus.core.errors import Unsupported
from torchjanus.core.kinds import isinstance
from torchjanus.tracegraph.graph import Block, Const, Dict, Graph, Node, Operand, Record, Ref, Sequence, Value
from torchjanus.tracegraph.text.constants import literal_text, name_of_object
from torchjanus.tracegraph.text.reading import quoted

__all__ = ["NAMES", "expressions", "held_tensors"]

# The short name of each function, with the function that an interpreter calls.
NAMES: dict[str, Any] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv,
    "%": operator.mod, "**": operator.pow, "@": operator.matmul, "neg": operator.neg, "=": operator.eq,
    "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "not": operator.not_,
    "is": operator.is_, "is-not": operator.is_not, "and": operator.and_, "or": operator.or_, "get": getattr,
    "item": operator.getitem, "len": len, "bool": bool, "int": int, "float": float, "abs": abs, "min": min, "max": max,
    "tanh": torch.tanh, "sigmoid": torch.sigmoid, "relu": torch.relu, "exp": torch.exp, "log": torch.log,
    "sqrt": torch.sqrt, "sum": torch.sum, "mean": torch.mean, "norm": torch.norm, "cat": torch.cat,
    "chunk": torch.chunk, "stack": torch.stack, "zeros": torch.zeros, "ones": torch.ones, "linear": F.linear,
    "select": torch.select, "unbind": torch.unbind, "dot": torch.dot, "mv": torch.mv, "mm": torch.mm,
}  # fmt: skip
_BY_FUNCTION = {function: name for name, function in NAMES.items()}
_WORDS = frozenset({"let", "if", "loop", "begin", "values", "def", "program", "list", "tuple", "dict", "slice", "size"})
# Methods that do what a function of another name does.
_METHODS = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "true_divide": "/", "matmul": "@", "__getitem__": "item",
    "__add__": "+", "__radd__": "+", "__mul__": "*", "__rmul__": "*", "__sub__": "-", "__truediv__": "/",
}  # fmt: skip


def expressions(graph: Graph) -> str:
    """Return the text of a staged graph. Raises Unsupported where a function has no name for other processes."""
    tensors = held_tensors(graph)
    names = {id(tensor): f"w{number}" for number, tensor in enumerate(tensors)}
    head = f"(tensors {' '.join(names.values())})" if names else "(tensors)"
    functions = [*graph.functions, graph]
    return (
        "\n".join([f"(program {head}", *(_Printing(one, names, one is graph).definition() for one in functions)])
        + ")\n"
    )


def defined(name: str) -> str:
    """By which name a function of the program is defined: no operator has it."""
    plain = "".join(part for part in name if part not in "<>")
    return f"{plain}-of-program" if plain in NAMES or plain in _WORDS else plain


def held_tensors(graph: Graph) -> list[torch.Tensor]:
    """Return the tensors that a graph and its functions hold by reference, each once, in the order of its text."""
    found: dict[int, torch.Tensor] = {}
    for one in (*graph.functions, graph):
        for given in one.inputs:
            if given.path.step == "const" and isinstance(given.path.key, Const):
                found.setdefault(id(given.path.key.value), given.path.key.value)
    return list(found.values())


class _Printing:
    def __init__(self, graph: Graph, tensors: dict[int, str], is_whole: bool) -> None:
        self.graph, self.tensors, self.is_whole = graph, tensors, is_whole
        self.names: dict[Value, str] = {}
        self.made = 0

    def definition(self) -> str:
        params: list[str] = []
        for given in self.graph.inputs:
            if given.path.step == "const" and isinstance(given.path.key, Const):
                self.names[given.value] = self.tensors[id(given.path.key.value)]
            elif given.path.step in ("arg", "parameter"):
                params.append(f"in{len(params) + 1}")
                self.names[given.value] = params[-1]
            else:
                raise Unsupported("S-expressions take positional arguments only, each a tensor, a number or an object")
        ends = self.body(self.graph.body, self.result, "      ")
        return f"  (def {defined(self.graph.name)} ({' '.join(params)})\n    (begin\n{ends}))"

    def result(self) -> str:
        """Return what the graph returns; what a graph function does is one value for each that its callers bind."""
        result = self.graph.result or Const(None)
        if isinstance(result, Sequence) and not self.is_whole:
            return self.values(list(result.items))
        return self.atom(result)

    def values(self, operands: list[Operand]) -> str:
        if len(operands) == 1:
            return self.atom(operands[0])
        return "(values" + "".join(f" {self.atom(one)}" for one in operands) + ")"

    def body(self, block: Block, end: Callable[[], str], indent: str) -> str:
        lines = [f"{indent}(let {self.let(node, indent)}" for node in block.nodes]
        return "\n".join([*lines, indent + end() + ")" * len(lines)])

    def let(self, node: Node, indent: str) -> str:
        text = self.expression(node, indent)
        outs = [self.fresh(out.value) for out in node.outs]
        if node.kind == "loop":
            index = ["_"] if node.get("index") is not None else []
            return f"({' '.join([*index, *outs])}) {text}"
        return f"({' '.join(outs)}) {text}" if len(outs) > 1 else f"{outs[0] if outs else '_'} {text}"

    def fresh(self, value: Value) -> str:
        known = self.names.get(value)
        if known is None:
            known = self.names[value] = f"x{self.made}"
            self.made += 1
        return known

    def expression(self, node: Node, indent: str) -> str:
        match node.kind:
            case "op" | "compute":
                return self.call(node)
            case "fetch":
                kind = node.get("type").value
                return f"({'item-of' if kind == 'item' else kind} {self.atom(node.get('ref'))})"
            case "size":
                return f"(size {self.atom(node.get('ref'))} {node.get('dim').value})"
            case "apply":
                return f"({' '.join([defined(node.get('function').value), *map(self.atom, node.get('args').items)])})"
            case "switch":
                arms = [f"\n{indent}  (begin\n{self.arm(block, indent + '    ')})" for block in node.blocks]
                return f"(if {self.atom(node.get('on'))}" + "".join(arms) + ")"
            case "loop":
                return self.loop(node, indent)
        raise AssertionError(node.kind)

    def arm(self, block: Block, indent: str) -> str:
        return self.body(block, lambda: self.values(list(block.yields)), indent)

    def loop(self, node: Node, indent: str) -> str:
        test, body = node.blocks
        first = [self.atom(one) for one in node.get("carried").items]
        params = [self.fresh(param.value) for param in body.params]
        again = [] if node.get("index") is None else [f"(+ {params[0]} 1)"]
        first = ["0"] * len(again) + first
        inner = indent + "    "
        asked = self.body(test, lambda: self.atom(test.yields[0]), inner)
        turn = self.body(body, lambda: f"(values {' '.join([*again, *map(self.atom, body.yields)])})", inner)
        return f"(loop ({' '.join(params)}) ({' '.join(first)})\n{indent}  (begin\n{asked})\n{indent}  (begin\n{turn}))"

    def call(self, node: Node) -> str:
        function = node.get("func").value
        args = [self.atom(one) for one in node.get("args").items]
        kwargs = node.get("kwargs")
        if isinstance(kwargs, Dict):
            args += [f":{key.value} {self.atom(one)}" for key, one in kwargs.items if isinstance(key, Const)]
        if node.get("grad") is not None or node.writes:
            raise Unsupported("S-expressions are pure: no in-place operations, no grad modes")
        return f"({self.operator(function)} {' '.join(args)})" if args else f"({self.operator(function)})"

    def operator(self, function: Any) -> str:
        known = _BY_FUNCTION.get(function)
        if known is not None:
            return known
        name = getattr(function, "__name__", "")
        if getattr(torch.Tensor, name, None) is function:
            if name in _METHODS:
                return _METHODS[name]
            if name in NAMES:
                return name
        found = name_of_object(function)
        if found is None:
            raise Unsupported(f"{function} has no name by which another process finds it")
        return found

    def atom(self, operand: Operand) -> str:
        match operand:
            case Ref(value=value):
                return self.names[value]
            case Const(value=value):
                if type(value) is str:
                    return quoted(value)
                text = literal_text(value)
                if text is None:
                    name = name_of_object(value)
                    if name is None:
                        raise Unsupported(f"{value!r} has no name by which another process finds it")
                    text = f"(const {quoted(name)})"
                return text
            case Sequence(cls=cls, items=items):
                if cls not in (tuple, list):
                    raise Unsupported(f"S-expressions have no {cls.__name__}")
                return f"({cls.__name__}" + "".join(f" {self.atom(one)}" for one in items) + ")"
            case Dict(items=pairs):
                return "(dict" + "".join(f" {self.atom(key)} {self.atom(one)}" for key, one in pairs) + ")"
            case Record(name="slice", fields=fields):
                return "(slice" + "".join(f" {self.atom(one)}" for _, one in fields) + ")"
        raise AssertionError(operand)
