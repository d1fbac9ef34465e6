"""Pieces of a staged graph: runs of operations without control flow, each as a Python function.

A piece is what a back end for whole steps can take. What runs its function is the caller's: this module knows no
executors. Control flow stays with the interpreter, and so do numbers that are fetched from tensors, assertions, and
what works on objects or on lists of unknown length.
"""

from __future__ import annotations

import ast
import math
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from types import CodeType, FunctionType
from typing import Any

from torchjanus.core.errors import NOWHERE, Place
from torchjanus.core.kinds import isinstance
from torchjanus.rewrite.hooks import BINARY, COMPARE, UNARY
from torchjanus.rewrite.source import Found, adopt
from torchjanus.semantics.staged.staging import applied
from torchjanus.tracegraph.graph import Block, Const, Dict, Graph, Node, Operand, Record, Ref, refs_in, walk
from torchjanus.tracegraph.graph import Sequence as Items

__all__ = ["LEAST", "Piece", "pieces_of", "uses_of"]

LEAST = 2  # operations of a piece: of a single one nothing is compiled together
_NUMBERS = frozenset({"int", "float", "bool"})
_BETWEEN: dict[Any, str] = {function: sign for table in (BINARY, COMPARE) for sign, function in table.items()}
_BEFORE: dict[Any, str] = {function: sign for sign, function in UNARY.items()}


class Piece:
    """A run of operations of one block. ``taken``: what it reads and does not make, ``left``: what it makes and others
    read, by their numbers in the graph; ``grad``: the grad mode that it is run in, None for that of its caller."""

    def __init__(self, name: str, nodes: Sequence[Node], used: Mapping[int, int]) -> None:
        """``used``: see ``uses_of``."""
        self.name, self.nodes = name, tuple(nodes)
        self.taken: list[int] = []
        made: dict[int, int] = {}  # how often the piece itself uses what it makes
        for node in nodes:
            for ref in refs_in(tuple(operand for _, operand in node.fields)):
                if ref.value.id in made:
                    made[ref.value.id] += 1
                elif ref.value.id not in self.taken:
                    self.taken.append(ref.value.id)
            made |= {out.value.id: 0 for out in node.outs if out.value.id not in (*made, *self.taken)}
        self.left = [number for number, uses in made.items() if used.get(number, 0) > uses]
        grad = next((node.get("grad") for node in nodes if node.kind == "op"), None)
        self.grad: bool | None = None if grad is None else grad.value

    @property
    def operations(self) -> int:
        """How many operations on tensors it has."""
        return sum(node.kind == "op" for node in self.nodes)

    @property
    def places(self) -> list[Place]:
        """The places of its operations in the program."""
        return [node.site for node in self.nodes if node.site is not NOWHERE]

    def function(self) -> FunctionType:
        """Return the piece as a function of the values of ``taken``, which returns a tuple of those of ``left``. Line n
        + 2 of its code is node number n, in a file of its own that exists nowhere."""
        return _Writing(self).function()

    def program_place(self, place: Place) -> Place:
        """Return the place in the program of one in the function's code: of its definition, that of the first
        operation."""
        return self.nodes[min(max(place.line - 2, 0), len(self.nodes) - 1)].site


def pieces_of(graph: Graph, block: Block, used: Mapping[int, int], nested: Container[int]) -> Iterator[Piece | Node]:
    """Yield what a block of a graph consists of, in its order: pieces, and the nodes that are in none. ``used``: see
    ``uses_of``; ``nested``: ids of operations whose results are not the elements of what they return."""
    run: list[Node] = []
    mode: Any = None  # of the operations in the run
    for node in block.nodes:
        is_within = _is_within(node) and id(node) not in nested
        own = node.get("grad") if node.kind == "op" else mode
        if run and not (is_within and (own == mode or all(one.kind != "op" for one in run))):
            yield from _closed(graph, run, used)
            run = []
        if not is_within:
            yield node
            continue
        run.append(node)
        mode = own
    yield from _closed(graph, run, used)


def _closed(graph: Graph, run: list[Node], used: Mapping[int, int]) -> Iterator[Piece | Node]:
    """Yield a run of nodes: from its first operation on tensors to its last one as a piece, if these are enough."""
    operations = [number for number, node in enumerate(run) if node.kind == "op"]
    if len(operations) < LEAST:
        yield from run
        return
    first, last = operations[0], operations[-1] + 1
    yield from run[:first]
    yield Piece(graph.name, run[first:last], used)
    yield from run[last:]


def _is_within(node: Node) -> bool:
    """Whether a node can be in a piece: it computes tensors and numbers from tensors and numbers."""
    if node.kind not in ("op", "size", "compute") or not (node.outs or node.writes):
        return False
    if node.kind != "size" and node.get("func").value is applied:  # no graph holds its backward pass for later
        return False
    used = [*node.outs, *refs_in(tuple(operand for _, operand in node.fields))]
    if not all(ref.value.is_tensor or ref.value.type in _NUMBERS for ref in used):
        return False
    return node.kind != "compute" or any(node.get("func").value is one for one in (*_BETWEEN, *_BEFORE))


def uses_of(graph: Graph) -> Counter[int]:
    """Return how often each value is used."""
    found: Counter[int] = Counter()

    def count(operands: Any) -> None:
        found.update(ref.value.id for ref in refs_in(operands))

    for node in walk(graph.body):
        count(tuple(operand for _, operand in node.fields))
        for inner in node.blocks:
            count(inner.yields)
    count((*graph.body.yields, *(() if graph.result is None else (graph.result,))))
    return found


class _Writing:
    """Writes a piece as a function. ``names``: what its global variables are."""

    def __init__(self, piece: Piece) -> None:
        self.piece = piece
        self.names: dict[str, Any] = {"__name__": "staged", "__builtins__": __builtins__}
        self._known: dict[int, str] = {}
        self._made = set(piece.taken)

    def function(self) -> FunctionType:
        piece = self.piece
        lines = [f"def piece({', '.join(map(_named, piece.taken))}):", *map(self.line, piece.nodes)]
        lines.append(f"return ({''.join(_named(number) + ', ' for number in piece.left)})")
        [definition] = ast.parse("\n ".join(lines)).body
        assert isinstance(definition, ast.FunctionDef)
        module = compile(ast.Module([definition], []), f"<piece of {piece.name}>", "exec", dont_inherit=True)
        code = next(one for one in module.co_consts if isinstance(one, CodeType))
        adopt(code, Found(definition, None))
        made = FunctionType(code, self.names)
        made.__qualname__ = made.__name__ = piece.name
        return made

    def line(self, node: Node) -> str:
        found = [_named(out.value.id) for out in node.outs]
        is_new = any(out.value.id not in self._made for out in node.outs)
        self._made |= {out.value.id for out in node.outs}
        value = self.value(node)
        if not is_new:  # in place: it returns one of its operands
            return value
        return f"{found[0] if len(found) == 1 else ', '.join(found)} = {value}"

    def value(self, node: Node) -> str:
        if node.kind == "size":
            return f"{self.text(node.get('ref'))}.shape[{node.get('dim').value}]"
        function, given, named = node.get("func").value, node.get("args").items, node.get("kwargs")
        args = [self.text(one) for one in given]
        if named is None:
            if len(args) == 2 and function in _BETWEEN:
                return f"{args[0]} {_BETWEEN[function]} {args[1]}"
            if len(args) == 1 and function in _BEFORE:
                return f"{_BEFORE[function]}{args[0]}"
            if function is getattr and isinstance(given[1], Const):
                return f"{args[0]}.{given[1].value}"
        args += [f"{key.value}={self.text(one)}" for key, one in ([] if named is None else named.items)]
        return f"{self.constant(function)}({', '.join(args)})"

    def text(self, operand: Operand) -> str:
        match operand:
            case Ref(value=value):
                return _named(value.id)
            case Const(value=value):
                return self.constant(value)
            case Items(cls=cls, items=items):
                parts = "".join(f"{self.text(one)}, " for one in items)
                if cls is tuple:
                    return f"({parts})"
                if cls is list:
                    return f"[{parts}]"
                return f"{self.constant(cls)}({parts if hasattr(cls, '_fields') else f'({parts})'})"
            case Dict(items=pairs):
                return f"{{{', '.join(f'{self.text(key)}: {self.text(one)}' for key, one in pairs)}}}"
            case Record(name="slice", fields=fields):
                return f"slice({', '.join(self.text(one) for _, one in fields)})"
        raise AssertionError(operand)

    def constant(self, value: Any) -> str:
        if type(value) in (int, bool, str, type(None), type(...)) or (type(value) is float and math.isfinite(value)):
            return "..." if value is ... else repr(value) if not str(value).startswith("-") else f"({value!r})"
        name = self._known.get(id(value))
        if name is None:
            name = self._known[id(value)] = f"c{len(self._known)}"
            self.names[name] = value
        return name


def _named(number: int) -> str:
    return f"v{number}"
