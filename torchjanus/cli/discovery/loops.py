"""How many calls of a step the loops around it are going to make, as far as the program shows that.

``NotedLoop`` stands around what a ``for`` loop goes through, and returns it as it is. It asks only containers, ranges,
loaders and progress bars of known types for their length, whose answer runs no code of the program's. Where a loop is
entered again and again, what it did before is a better measure: it may be left early. The numbers decide when something
is learnt, and nothing else.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from torchjanus.cli.discovery.candidates import Candidate, Scope
from torchjanus.rewrite.syntax.sites import location_of
from torchjanus.rewrite.syntax.walk import place

__all__ = ["Nest", "NotedLoop", "loops_around", "noting"]

OFTEN = 3  # times that a loop has been entered, after which its iterations are counted
_AROUND = frozenset({"enumerate", "tqdm", "zip"})  # calls that go through their first argument
_ANYBODYS = frozenset({"__call__", "forward", "step"})  # names of methods that say nothing of who is called
_entered = count(1)


class NotedLoop:
    """Notes how often one loop of the program is entered, and how many iterations it will have."""

    __slots__ = ("entered", "latest", "length", "line")

    def __init__(self, line: int) -> None:
        self.line = line
        self.entered = 0
        self.length: int | None = None  # of the latest time
        self.latest = 0  # when it was entered last, among all loops

    def __call__(self, iterable: Any, /) -> Any:
        """Note that the loop begins, and return ``iterable``."""
        self.entered += 1
        self.latest = next(_entered)
        self.length = _length(iterable)
        return iterable

    def __repr__(self) -> str:
        return f"<the loop of line {self.line}>"


@dataclass(frozen=True, slots=True)
class Nest:
    """The loops around a call in its function, the outermost first, and those around the calls of that function."""

    loops: tuple[NotedLoop, ...]
    callers: tuple[Nest, ...] = ()

    def _latest(self) -> int:
        return max((one.latest for one in self.active()), default=0)

    def active(self) -> tuple[NotedLoop, ...]:
        """Return the loops that are around the latest call, the outermost first."""
        entered = [one for one in self.callers if one._latest()]
        around = max(entered, key=Nest._latest).active() if entered else ()
        return (*around, *self.loops)

    def calls(self, done: int) -> float | None:
        """Return how many calls there will be in all, at least, if ``done`` have been made; None if that is unknown."""
        total: float | None = None
        bodies, again = done, 1
        for loop in reversed(self.active()):
            if not loop.entered:
                break
            iterations: float | None = bodies / loop.entered if loop.entered >= OFTEN else loop.length
            if iterations is None:
                break
            total = iterations * (1.0 if total is None else total)
            bodies = again = loop.entered
        return None if total is None else total * again


def _length(iterable: Any) -> int | None:
    kind = type(iterable)
    if kind in (range, list, tuple, dict, set):
        return len(iterable)
    if (data := sys.modules.get("torch.utils.data")) is not None and kind is data.DataLoader:
        return _batches(iterable, data)
    if (bars := sys.modules.get("tqdm.std")) is not None and issubclass(kind, bars.tqdm):
        total = object.__getattribute__(iterable, "__dict__").get("total")
        return total if type(total) is int else None
    return None


def _batches(loader: Any, data: Any) -> int | None:
    """Return the number of batches of a loader of torch's own, over a data set of torch's own."""
    held = vars(loader)
    sampler, size, dataset = held.get("sampler"), held.get("batch_size"), held.get("dataset")
    if type(held.get("batch_sampler")) is not data.BatchSampler or not isinstance(size, int) or size < 1:
        return None
    if type(sampler) is data.SubsetRandomSampler:
        samples = _samples(vars(sampler).get("indices"), data)
    elif type(sampler) in (data.RandomSampler, data.SequentialSampler):
        given = vars(sampler).get("_num_samples")
        samples = given if type(given) is int else _samples(dataset, data)
    else:
        samples = None
    if samples is None:
        return None
    return samples // size if held.get("drop_last") else -(-samples // size)


def _samples(dataset: Any, data: Any) -> int | None:
    if type(dataset) in (list, tuple, range):
        return len(dataset)
    if type(dataset) is data.TensorDataset:
        tensors = vars(dataset).get("tensors")
        first: Any = tensors[0] if type(tensors) is tuple and tensors else None
        return int(first.shape[0]) if type(first) is sys.modules["torch"].Tensor and first.dim() else None
    if type(dataset) is data.Subset:
        return _samples(vars(dataset).get("indices"), data)
    return None


# ---- which loops are around a step ----


@dataclass(frozen=True, slots=True)
class _Call:
    """A call in a module. ``loops``: those around it in its function, the outermost first, within the innermost
    ``while`` or ``if``; ``open``: whether there is one, so that it is not known how often its body runs."""

    name: str
    scope: Scope
    loops: tuple[ast.For, ...]
    open: bool


def loops_around(tree: ast.Module, candidate: Candidate, noted: Callable[[ast.For], NotedLoop]) -> Nest:
    """Return the loops around a candidate. ``noted`` returns what notes a loop."""
    calls = [*_calls(tree, tree.body, (), False)]

    def nest(loops: Sequence[ast.For], is_open: bool, scope: Scope, seen: frozenset[str]) -> Nest:
        if is_open or isinstance(scope, ast.Module) or scope.name in _ANYBODYS or scope.name in seen:
            return Nest(tuple(map(noted, loops)))
        around = [one for one in calls if one.name == scope.name]
        callers = (nest(one.loops, one.open, one.scope, seen | {scope.name}) for one in around)
        return Nest(tuple(map(noted, loops)), tuple(callers))

    scope, block = candidate.scope, candidate.block
    found = ((), False) if block is None else _to(block, scope.body, (), False)
    return nest(*(found or ((), True)), scope, frozenset())


def _to(
    sought: ast.AST, nodes: Sequence[ast.AST], loops: tuple[ast.For, ...], is_open: bool
) -> tuple[tuple[ast.For, ...], bool] | None:
    """Return the loops around the body of ``sought``, as in ``_Call``; None if it is not among the nodes."""
    for node in nodes:
        inside = _inside(node, loops, is_open)
        if node is sought:
            return inside
        if (found := _to(sought, [*ast.iter_child_nodes(node)], *inside)) is not None:
            return found
    return None


def _calls(scope: Scope, nodes: Sequence[ast.AST], loops: tuple[ast.For, ...], is_open: bool) -> Iterator[_Call]:
    for node in nodes:
        if isinstance(node, ast.FunctionDef):
            yield from _calls(node, node.body, (), False)
            continue
        if isinstance(node, ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            yield _Call(name, scope, loops, is_open)
        yield from _calls(scope, [*ast.iter_child_nodes(node)], *_inside(node, loops, is_open))


def _inside(node: ast.AST, loops: tuple[ast.For, ...], is_open: bool) -> tuple[tuple[ast.For, ...], bool]:
    if isinstance(node, ast.For):
        return (*loops, node), is_open
    # The branch at the end of a main script is around no loop.
    unknown = isinstance(node, ast.While) or (isinstance(node, ast.If) and bool(loops))
    return ((), True) if unknown else (loops, is_open)


def noting(loop: ast.For, placeholder: str) -> ast.expr:
    """Return the expression that the loop goes through, with a call of the constant ``placeholder`` around it, or
    around what ``enumerate`` and the like are given."""
    node = loop.iter
    around: list[ast.Call] = []
    while isinstance(node, ast.Call) and _called(node) in _AROUND and node.args:
        if isinstance(node.args[0], ast.Starred):
            break
        around.append(node)
        node = node.args[0]
    where = location_of(node)
    made: ast.expr = place(ast.Call(place(ast.Constant(placeholder), where), [node], []), where)
    for call in reversed(around):
        made = place(ast.Call(call.func, [made, *call.args[1:]], call.keywords), location_of(call))
    return made


def _called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
