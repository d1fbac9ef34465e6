"""The representation of a watched run as a tree. Plain data; knows neither how it is made nor how it is printed.

A ``Node`` stands in a ``Block`` where it happened, and its operands refer to values, never to positions; loops,
switches and calls are nodes with blocks of their own. Two graphs are equal if they print the same text and their
constants are the same objects.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torchjanus.core.access_path import token_of
from torchjanus.core.errors import NOWHERE, Place
from torchjanus.core.kinds import isinstance

__all__ = [
    "REGIONS", "Block", "Const", "Dict", "Fact", "Graph", "Input", "Node", "Operand", "Path", "Record", "Ref",
    "Sequence", "TensorType", "Value", "is_merged", "refs_in", "walk",
]  # fmt: skip

REGIONS = ("loop", "switch", "call")  # kinds of nodes with blocks


@dataclass(frozen=True, slots=True)
class TensorType:
    """The kind of a strided tensor when the run ended."""

    dtype: str
    sizes: tuple[int | str, ...]  # a text: a size that is not known when a function is staged
    strides: tuple[int | str, ...]
    device: str
    requires_grad: bool


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor or a Python number. Values are numbered in the order in which the run met them.

    ``type``: a TensorType, ``tensor`` if there is no more to say of it, or the class of a number (``number``: not
    known). ``alias``: the alias class of a tensor: all tensors of a class share memory.
    """

    id: int
    type: TensorType | str
    alias: int | None = None

    @property
    def is_tensor(self) -> bool:
        return self.alias is not None


@dataclass(frozen=True, slots=True)
class Ref:
    """A use of a value. ``version``: how often its alias class had been written."""

    value: Value
    version: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Const:
    """An object that is the same in each run: a literal, or held by reference."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Const) and token_of(self.value) == token_of(other.value)

    def __hash__(self) -> int:
        return hash(token_of(self.value))


@dataclass(frozen=True, slots=True)
class Sequence:
    """A tuple, a list, or an object of another class that is made of its elements."""

    cls: type
    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Dict:
    """A dictionary, in its order."""

    items: tuple[tuple[Operand, Operand], ...]


@dataclass(frozen=True, slots=True)
class Path:
    """An access path (see ``core.access_path``) whose keys are operands."""

    step: str
    base: Path | None
    key: Operand
    label: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """Plain data with named fields: a recipe, a mode, a mark of code that autograd calls, a nested graph's fields."""

    name: str
    fields: tuple[tuple[str, Operand], ...]


@dataclass(slots=True)
class Fact:
    """What the run relied on of the heap before the call, or of an extern call's result. ``id``: by which nodes
    ``rely`` on it."""

    id: int
    kind: str
    fields: tuple[tuple[str, Operand], ...]
    site: Place = NOWHERE


@dataclass(slots=True)
class Node:
    """What happened once. ``fields``: its operands by name; ``outs``: what it made (an operation in place has an
    operand among them, at the version after it); ``blocks``: of loops, switches and calls; ``recipes``: of the objects
    that leave the step by it; ``writes``: alias classes of tensors that it changes, with the version they get."""

    kind: str
    fields: tuple[tuple[str, Operand], ...] = ()
    outs: tuple[Ref, ...] = ()
    site: Place = NOWHERE
    blocks: list[Block] = field(default_factory=list)
    writes: tuple[tuple[int, int], ...] = ()
    recipes: tuple[Operand, ...] | None = None
    call: Graph | None = None  # of a recursive call: what it did

    def get(self, name: str) -> Any:
        """Return the operand of this name, None if there is none."""
        return next((operand for one, operand in self.fields if one == name), None)


@dataclass(slots=True)
class Block:
    """Nodes in program order. ``role``: what part of its region it is; ``yields``: values made in it that are used
    after its end. In a merged region (see ``is_merged``) ``params`` are the loop-carried values as the iteration finds
    them, and ``yields`` one operand for each result of the region (of a ``test``: its outcome)."""

    role: str = "body"
    nodes: list[Node] = field(default_factory=list)
    yields: tuple[Operand, ...] = ()
    params: tuple[Ref, ...] = ()


@dataclass(slots=True)
class Input:
    """A value that was there before the call."""

    value: Value
    path: Path


@dataclass(slots=True)
class Graph:
    """A watched run, or a staged function. ``ambient``: torch's modes when it began; ``facts``: the set of what it
    relied on; ``inputs``: numbers and tensors from before the call that it used; ``result``: the recipe of what it
    returned; ``functions``: the graph functions that nodes ``apply`` by name."""

    name: str
    ambient: Operand
    modes: Operand
    inputs: list[Input] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    body: Block = field(default_factory=Block)
    result: Operand | None = None
    aliases: int = 0  # how many alias classes there are
    functions: list[Graph] = field(default_factory=list)


Operand = Ref | Const | Sequence | Dict | Path | Record


def is_merged(node: Node) -> bool:
    """Whether a loop or switch stands for all of its iterations and arms: it says what it is asked or carries."""
    asked = {"loop": "carried", "switch": "on"}.get(node.kind)
    return asked is not None and node.get(asked) is not None


def walk(block: Block) -> Iterator[Node]:
    """Yield all nodes of a block and of the blocks in it, in the order of the text."""
    for node in block.nodes:
        yield node
        for inner in node.blocks:
            yield from walk(inner)


def refs_in(operand: Any) -> Iterator[Ref]:
    """Yield all uses of values in an operand, or in a sequence of operands."""
    match operand:
        case Ref():
            yield operand
        case Sequence(items=items):
            yield from refs_in(items)
        case Dict(items=pairs):
            for key, value in pairs:
                yield from refs_in((key, value))
        case Path(base=base, key=key):
            yield from refs_in((base, key))
        case Record(fields=fields):
            yield from refs_in(tuple(value for _, value in fields))
        case tuple():
            for one in operand:
                yield from refs_in(one)
