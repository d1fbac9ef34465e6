"""A tree as text. The same tree always gives the same text: values, facts and constants are numbered in its order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchjanus.core.errors import NOWHERE, Place
from torchjanus.tracegraph.graph import (
    Block,
    Const,
    Dict,
    Fact,
    Graph,
    Node,
    Operand,
    Path,
    Record,
    Ref,
    Sequence,
    TensorType,
    Value,
)
from torchjanus.tracegraph.kinds import POSITIONAL
from torchjanus.tracegraph.text.constants import Constants, literal_text, name_of_object
from torchjanus.tracegraph.text.reading import quoted

__all__ = ["SHORT", "VERSION", "constants_of", "print_graph"]

VERSION = 1
SHORT = {
    "float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16",
    "int64": "i64", "int32": "i32", "int16": "i16", "int8": "i8", "uint8": "u8",
    "bool": "b1", "complex64": "c64", "complex128": "c128",
}  # fmt: skip


def print_graph(graph: Graph) -> str:
    """Return the text of a tree."""
    return "\n".join(_Printing().whole(graph)) + "\n"


def constants_of(graph: Graph) -> list[Any]:
    """Return the objects in the tree's table of constants: with them its text gives the tree back."""
    printing = _Printing()
    printing.whole(graph)
    return printing.constants.objects


class _Printing:
    """One text in the making."""

    def __init__(self) -> None:
        self.constants = Constants()
        self.files: dict[tuple[str, str], int] = {}

    def whole(self, graph: Graph) -> list[str]:
        """Return the lines of the text of the outermost graph: what its tables hold is known when the rest is
        printed."""
        inner = list(self.graph(graph, "  "))
        lines = [f"(tracegraph {VERSION}"]
        lines += [f"  (file {n} {quoted(file)} {quoted(function)})" for (file, function), n in self.files.items()]
        lines += [f"  (const {n} {_object(value)})" for n, value in enumerate(self.constants.objects)]
        return [*lines, *inner, ")"]

    def graph(self, graph: Graph, indent: str) -> Iterator[str]:
        yield f"{indent}(graph {quoted(graph.name)} {graph.aliases}"
        inner = indent + "  "
        yield f"{inner}(ambient {self.operand(graph.ambient)})"
        for one in graph.inputs:
            yield f"{inner}(input {self.defined(Ref(one.value))} {self.operand(one.path)})"
        for function in graph.functions:
            yield from self.graph(function, inner)
        for fact in graph.facts:
            yield f"{inner}(fact {fact.id} {self.said(fact)}{self.site(fact.site)})"
        yield from self.block(graph.body, inner)
        if graph.result is not None:
            yield f"{inner}(return {self.operand(graph.result)})"
        yield f"{indent})"

    def block(self, block: Block, indent: str) -> Iterator[str]:
        params = " ".join(map(self.defined, block.params))
        yield f"{indent}(block {block.role}" + (f" (params {params})" if params else "")
        for node in block.nodes:
            yield from self.node(node, indent + "  ")
        end = "".join(f" {self.operand(one)}" for one in block.yields)
        yield f"{indent}  (yield{end}))"

    def node(self, node: Node, indent: str) -> Iterator[str]:
        outs = " ".join(map(self.defined, node.outs))
        text = f"(let ({outs}) " if node.outs else "(do "
        text += self.said(node)
        if node.writes:
            text += " (writes " + " ".join(f"(A{alias} {version})" for alias, version in node.writes) + ")"
        if node.recipes is not None:
            text += "".join((" (escapes", *(f" {self.operand(one)}" for one in node.recipes), ")"))
        text += self.site(node.site)
        if not node.blocks and node.call is None:
            yield f"{indent}{text})"
            return
        yield f"{indent}{text}"
        for block in node.blocks:
            yield from self.block(block, indent + "  ")
        if node.call is not None:
            yield from self.graph(node.call, indent + "  ")
        yield f"{indent})"

    def said(self, one: Node | Fact) -> str:
        """Kind and operands: those with a place of their own first."""
        fields = dict(one.fields)
        words = [one.kind]
        positional = POSITIONAL[one.kind]
        words += [self.operand(fields[name]) if name in fields else "_" for name in positional]
        words += [f":{name} {self.operand(part)}" for name, part in fields.items() if name not in positional]
        return f"({' '.join(words)})"

    def site(self, place: Place) -> str:
        if place == NOWHERE:
            return ""
        number = self.files.setdefault((place.file, place.function), len(self.files))
        return f" @{number}:{place.line}:{place.column}"

    def defined(self, ref: Ref) -> str:
        """Return a value where it is made, with its type."""
        return f"{self.operand(ref)} {_type(ref.value)}"

    def operand(self, operand: Operand) -> str:
        match operand:
            case Ref(value=value, version=version):
                return f"%{value.id}.{version}" if version else f"%{value.id}"
            case Const(value=value):
                return self._constant(value)
            case Sequence(cls=cls, items=items):
                inner = " ".join(map(self.operand, items))
                if cls is tuple:
                    return f"[{inner}]"
                name = "list" if cls is list else f"sequence {self._constant(cls)}"
                return f"({name} {inner})" if inner else f"({name})"
            case Dict(items=items):
                return "(dict" + "".join(f" [{self.operand(key)} {self.operand(one)}]" for key, one in items) + ")"
            case Path(step=step, base=base, key=key, label=label):
                shown = f" {quoted(label)}" if label else ""
                under = "_" if base is None else self.operand(base)
                return f"(path {step} {under} {self.operand(key)}{shown})"
            case Record(name=name, fields=fields):
                return f"(:{name}" + "".join(f" :{field} {self.operand(one)}" for field, one in fields) + ")"
        raise AssertionError(operand)

    def _constant(self, value: Any) -> str:
        if type(value) is str:
            return quoted(value)
        return literal_text(value) or f"#{self.constants.number(value)}"


def _object(value: Any) -> str:
    name = name_of_object(value)
    if name is not None:
        return quoted(name)
    cls = type(value)
    return f"(object {quoted(getattr(value, 'cls', '') if cls.__name__ == 'Unknown' else _class(cls))})"


def _class(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _type(value: Value) -> str:
    kind = value.type
    if not isinstance(kind, TensorType):
        return f":{kind}" if value.alias is None else f":{kind}/A{value.alias}"
    sizes = ",".join(map(str, kind.sizes))
    strides = ",".join(map(str, kind.strides))
    grad = "/grad" if kind.requires_grad else ""
    return f":{SHORT.get(kind.dtype, kind.dtype)}<{sizes}>/A{value.alias}/{strides or '-'}/{kind.device}{grad}"
