"""The tree of a text: ``parse_graph(print_graph(graph), constants_of(graph)) == graph``."""

from __future__ import annotations

from typing import Any

from torchjanus.core.errors import NOWHERE, Place
from torchjanus.core.kinds import isinstance
from torchjanus.tracegraph.graph import (
    Block,
    Const,
    Dict,
    Fact,
    Graph,
    Input,
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
from torchjanus.tracegraph.text.constants import Unknown, named
from torchjanus.tracegraph.text.printing import SHORT, VERSION
from torchjanus.tracegraph.text.reading import Symbol, TextError, Vector, read

__all__ = ["parse_graph"]

_LONG = {short: dtype for dtype, short in SHORT.items()}


def parse_graph(text: str, objects: list[Any] | None = None) -> Graph:
    """Return the tree of a text. ``objects``: those of its table of constants; else they are what their names say, or
    Unknown. Raises TextError."""
    whole = read(text)
    if not isinstance(whole, list) or whole[:2] != ["tracegraph", VERSION]:
        raise TextError(f"it does not begin with (tracegraph {VERSION}")
    parser = _Parser(objects)
    graphs = [part for part in whole[2:] if not parser.table(part)]
    if len(graphs) != 1:
        raise TextError("there must be one graph")
    return parser.graph(graphs[0])


class _Parser:
    """The tables of one text, and the values of the graph that is being parsed."""

    def __init__(self, objects: list[Any] | None) -> None:
        self.given = objects
        self.objects: list[Any] = []
        self.files: list[tuple[str, str]] = []
        self.values: dict[int, Value] = {}

    def table(self, part: Any) -> bool:
        """Take an entry of a table; False for other parts."""
        match part:
            case ["file", int(), str() as file, str() as function]:
                self.files.append((file, function))
            case ["const", int() as number, str() as name]:
                self.objects.append(named(name) if self.given is None else self.given[number])
            case ["const", int() as number, ["object", str() as cls]]:
                self.objects.append(Unknown(cls) if self.given is None else self.given[number])
            case _:
                return False
        return True

    def graph(self, said: Any) -> Graph:
        match said:
            case ["graph", str() as name, int() as aliases, ["ambient", ambient], *parts]:
                pass
            case _:
                raise TextError("a graph begins with its name, the number of its alias classes and (ambient ..)")
        before, self.values = self.values, _declared(parts)
        modes = self.operand(ambient)
        one = modes.items[0] if isinstance(modes, Sequence) else modes
        graph = Graph(name, modes, one, aliases=aliases)
        for part in parts:
            match part:
                case ["input", Symbol() as value, Symbol(), path]:
                    made = self.operand(path)
                    assert isinstance(made, Path)
                    graph.inputs.append(Input(self.ref(value).value, made))
                case ["fact", int() as number, [Symbol() as kind, *fields], *site]:
                    fact = Fact(number, str(kind), self.fields(kind, fields), self.place(site))
                    graph.facts.append(fact)
                case ["block", *_]:
                    graph.body = self.block(part)
                case ["graph", *_]:
                    graph.functions.append(self.graph(part))
                case ["return", result]:
                    graph.result = self.operand(result)
                case _:
                    raise TextError(f"a graph does not hold {_start(part)}")
        self.values = before
        return graph

    def block(self, said: Any) -> Block:
        match said:
            case ["block", Symbol() as role, *nodes, ["yield", *yields]]:
                made = Block(str(role), yields=tuple(map(self.operand, yields)))
            case _:
                raise TextError("a block has a role and ends with (yield ..)")
        match nodes:
            case [["params", *params], *nodes]:
                made.params = tuple(map(self.ref, params[::2]))
        for one in nodes:
            made.nodes.append(self.node(one))
        return made

    def node(self, said: Any) -> Node:
        match said:
            case ["let", list() as outs, [Symbol() as kind, *fields], *rest]:
                made = tuple(map(self.ref, outs[::2]))
            case ["do", [Symbol() as kind, *fields], *rest]:
                made = ()
            case _:
                raise TextError(f"a node is (let (..) (..)) or (do (..)), not {_start(said)}")
        node = Node(str(kind), self.fields(kind, fields), made)
        for part in rest:
            match part:
                case ["writes", *writes]:
                    node.writes = tuple((int(alias[1:]), version) for alias, version in writes)
                case ["escapes", *recipes]:
                    node.recipes = tuple(map(self.operand, recipes))
                case Symbol():
                    node.site = self.place([part])
                case ["block", *_]:
                    node.blocks.append(self.block(part))
                case ["graph", *_]:
                    node.call = self.graph(part)
                case _:
                    raise TextError(f"a node does not hold {_start(part)}")
        return node

    def fields(self, kind: str, said: list[Any]) -> tuple[tuple[str, Operand], ...]:
        if kind not in POSITIONAL:
            raise TextError(f"there is no node {kind}")
        positional = POSITIONAL[kind]
        found = [
            (name, self.operand(one)) for name, one in zip(positional, said, strict=False) if not _is_left_out(one)
        ]
        return (*found, *self.named(said[len(positional) :]))

    def named(self, said: list[Any]) -> list[tuple[str, Operand]]:
        """``:name operand`` pairs."""
        return [(str(name[1:]), self.operand(one)) for name, one in zip(said[::2], said[1::2], strict=True)]

    def place(self, said: list[Any]) -> Place:
        if not said:
            return NOWHERE
        number, line, column = map(int, said[0][1:].split(":"))
        file, function = self.files[number]
        return Place(file, line, column, function)

    def ref(self, said: str) -> Ref:
        number, _, version = said[1:].partition(".")
        if int(number) not in self.values:
            raise TextError(f"{said} is made nowhere")
        return Ref(self.values[int(number)], int(version or 0))

    def operand(self, said: Any) -> Operand:
        match said:
            case Symbol():
                return self.ref(said) if said[0] == "%" else Const(self.objects[int(said[1:])])
            case Vector(items=items):
                return Sequence(tuple, tuple(map(self.operand, items)))
            case ["list", *items]:
                return Sequence(list, tuple(map(self.operand, items)))
            case ["sequence", cls, *items]:
                made = self.operand(cls)
                assert isinstance(made, Const)
                return Sequence(made.value, tuple(map(self.operand, items)))
            case ["dict", *pairs]:
                return Dict(tuple((self.operand(pair.items[0]), self.operand(pair.items[1])) for pair in pairs))
            case ["path", Symbol() as step, base, key, *label]:
                under = None if _is_left_out(base) else self.operand(base)
                assert under is None or isinstance(under, Path)
                return Path(str(step), under, self.operand(key), *label)
            case [Symbol() as name, *fields] if name[0] == ":":
                return Record(str(name[1:]), tuple(self.named(fields)))
            case list():
                raise TextError(f"{_start(said)} is no operand")
        return Const(said)


def _declared(parts: list[Any]) -> dict[int, Value]:
    """Return the values of a graph, wherever in it they are made: what an object holds may be made after it has
    left."""
    found: dict[int, Value] = {}
    waiting = list(reversed(parts))
    while waiting:
        match waiting.pop():
            case ["input", Symbol() as value, Symbol() as kind, _]:
                found.setdefault(*_value(value, kind))
            case ["let", list() as outs, [*_], *rest]:
                for value, kind in zip(outs[::2], outs[1::2], strict=True):
                    found.setdefault(*_value(value, kind))
                waiting += reversed(rest)
            case ["params", *params]:
                for value, kind in zip(params[::2], params[1::2], strict=True):
                    found.setdefault(*_value(value, kind))
            case ["block" | "do", *rest]:
                waiting += reversed(rest)
    return found


def _value(said: str, kind: str) -> tuple[int, Value]:
    number = int(said[1:].partition(".")[0])
    name, *rest = kind[1:].split("/")
    if not rest:
        return number, Value(number, name)
    alias = int(rest[0][1:])
    if len(rest) == 1:
        return number, Value(number, name, alias)
    dtype, _, sizes = name.removesuffix(">").partition("<")
    strides = "" if rest[1] == "-" else rest[1]
    made = TensorType(_LONG.get(dtype, dtype), _numbers(sizes), _numbers(strides), rest[2], rest[3:] == ["grad"])
    return number, Value(number, made, alias)


def _numbers(said: str) -> tuple[int | str, ...]:
    return tuple(int(one) if one.isdecimal() else one for one in said.split(",")) if said else ()


def _is_left_out(said: Any) -> bool:
    return isinstance(said, Symbol) and said == "_"


def _start(said: Any) -> str:
    return f"({said[0]} .." if isinstance(said, list) and said else str(said)
