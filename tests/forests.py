"""Recursive functions over plain trees, by hand: as plain recursion, and as the cells and forests that stand for it.

Each model is a ``Recursion``, a function that lays out a forest for some trees, and a plain function of one tree.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear

from torchjanus.graph.recursion.variants.plan import Batch, Buffer, Cell, Column, LevelSchedule, Recursion

__all__ = ["MODELS", "Layout", "Model", "Tree", "chain", "random_tree", "trees"]


@dataclass(eq=False)
class Tree:
    """A binary tree, with a word at each node."""

    word: int
    left: Tree | None = None
    right: Tree | None = None


def random_tree(leaves: int, rng: random.Random, words: int = 20) -> Tree:
    """A tree of a random shape."""
    word = rng.randrange(words)
    if leaves == 1:
        return Tree(word)
    left = rng.randrange(1, leaves)
    return Tree(word, random_tree(left, rng, words), random_tree(leaves - left, rng, words))


def trees(count: int, least: int, most: int, seed: int = 0) -> list[Tree]:
    """Some trees, of so many leaves each."""
    rng = random.Random(seed)
    return [random_tree(rng.randint(least, most), rng) for _ in range(count)]


def chain(levels: int) -> Tree:
    """A tree as deep as can be."""
    tree = Tree(0)
    for level in range(levels):
        tree = Tree(level % 20, tree, Tree((level + 7) % 20))
    return tree


class Layout:
    """Writes down calls, and makes a forest of them."""

    def __init__(self, recursion: Recursion, seeds: Sequence[int] = ()) -> None:
        self.recursion = recursion
        self.supplied = dict(zip(recursion.seeds, seeds, strict=True))
        self.calls: dict[tuple[int, int], list[tuple[list[object], list[float], list[Row]]]] = {}

    def call(self, cell: int, level: int, takes: Sequence[object], columns: Sequence[float] = ()) -> list[Row]:
        """One call: where it takes its rows from. What it gives is known when all is written down."""
        rows = [Row() for _ in self.recursion.cells[cell].gives]
        self.calls.setdefault((level, cell), []).append((list(takes), list(columns), rows))
        return rows

    def forest(self, results: Sequence[Sequence[object]]) -> LevelSchedule:
        """``results``: for each of the recursion's, the rows that are taken."""
        recursion = self.recursion
        sizes = [self.supplied.get(index, 0) for index in range(len(recursion.buffers))]
        firsts = [0] * len(recursion.cells)
        taken: list[list[list[object]]] = [[[] for _ in cell.takes] for cell in recursion.cells]
        columns: list[list[list[float]]] = [[[] for _ in cell.columns] for cell in recursion.cells]
        batches = []
        for (_, number), calls in sorted(self.calls.items(), key=lambda item: item[0]):
            cell = recursion.cells[number]
            for place, rows in enumerate(taken[number]):
                rows.extend(takes[place] for takes, _, _ in calls)
            begins = []
            for place, buffer in enumerate(cell.gives):
                begins.append(sizes[buffer])
                for _, _, rows in calls:
                    rows[place].number = sizes[buffer]
                    sizes[buffer] += 1
            for _, values, _ in calls:
                for column, value in zip(columns[number], values, strict=True):
                    column.append(value)
            batches.append(Batch(number, len(calls), firsts[number], tuple(begins)))
            firsts[number] += len(calls)
        return LevelSchedule(
            sizes,
            batches,
            [[torch.tensor([_number(one) for one in rows], dtype=torch.int64) for rows in own] for own in taken],
            [
                [torch.tensor(values, dtype=kind.dtype) for values, kind in zip(made, cell.columns, strict=True)]
                for made, cell in zip(columns, recursion.cells, strict=True)
            ],
            [],
            [torch.tensor([_number(one) for one in rows], dtype=torch.int64) for rows in results],
        )


@dataclass(eq=False)
class Row:
    """A row of a buffer, whose number is known later."""

    number: int = -1


def _number(row: object) -> int:
    found = row.number if isinstance(row, Row) else row
    assert isinstance(found, int)
    assert found >= 0
    return found


@dataclass
class Model:
    """``layout`` lays out the forest of some trees; ``plain`` is the same for one tree, given shared tensors and its
    own row of each seed."""

    name: str
    recursion: Recursion
    layout: Callable[[Recursion, Sequence[Tree]], LevelSchedule]
    plain: Callable[..., Sequence[Tensor]]
    seeds: list[tuple[int, ...]] = field(default_factory=list)


def _buffer(*shape: int, dtype: torch.dtype) -> Buffer:
    return Buffer(shape, dtype, torch.device("cpu"), dtype.is_floating_point)


def _weights(dtype: torch.dtype, *shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(3)
    return tuple(
        (torch.randn(shape, generator=generator, dtype=torch.float64) * 0.3).to(dtype).requires_grad_()
        for shape in shapes
    )


WORD = Column((), torch.int64)


def _postorder(tree: Tree) -> list[Tree]:
    """Without recursion: trees may be deep."""
    order, pending = list[Tree](), [tree]
    while pending:
        node = pending.pop()
        order.append(node)
        pending.extend(child for child in (node.left, node.right) if child is not None)
    return order[::-1]


def _bottom_up(recursion: Recursion, given: Sequence[Tree]) -> LevelSchedule:
    """Cell 0 for leaves, cell 1 for others; every result is a buffer of what all give."""
    layout = Layout(recursion)
    known: dict[Tree, tuple[int, list[Row]]] = {}
    for tree in given:
        for node in _postorder(tree):
            if node in known:
                continue
            if node.left is None or node.right is None:
                known[node] = (0, layout.call(0, 0, (), (node.word,)))
            else:
                (depth, left), (other, right) = known[node.left], known[node.right]
                level = max(depth, other) + 1
                known[node] = (level, layout.call(1, level, [*left, *right]))
    count = len(recursion.results)
    return layout.forest([[known[tree][1][place] for tree in given] for place in range(count)])


def tree_rnn(width: int, dtype: torch.dtype) -> Model:
    """h = tanh(W [l; r] + b), over words."""
    shared = _weights(dtype, (20, width), (width, 2 * width), (width,))

    def leaf(shared: Sequence[Tensor], given: Sequence[Tensor]) -> Sequence[Tensor]:
        return [embedding(given[0], shared[0])]

    def inner(shared: Sequence[Tensor], given: Sequence[Tensor]) -> Sequence[Tensor]:
        return [torch.tanh(shared[1] @ torch.cat([given[0], given[1]]) + shared[2])]

    def plain(shared: Sequence[Tensor], tree: Tree) -> Sequence[Tensor]:
        if tree.left is None or tree.right is None:
            return leaf(shared, [torch.tensor(tree.word)])
        return inner(shared, [*plain(shared, tree.left), *plain(shared, tree.right)])

    row = _buffer(width, dtype=dtype)
    cells = (Cell("leaf", leaf, (), (WORD,), (0,)), Cell("inner", inner, (0, 0), (), (0,)))
    return Model("TreeRNN", Recursion(cells, (row,), shared, (), (0,)), _bottom_up, plain)


def tree_lstm(width: int, dtype: torch.dtype) -> Model:
    """A binary TreeLSTM that carries (h, c), each of one row, as ``nn.Linear`` modules would compute it."""
    shared = _weights(dtype, (20, width), (3 * width, width), (3 * width,), (5 * width, 2 * width), (5 * width,))

    def leaf(shared: Sequence[Tensor], given: Sequence[Tensor]) -> Sequence[Tensor]:
        table, weight, bias = shared[:3]
        i, o, u = linear(table[given[0]].unsqueeze(0), weight, bias).chunk(3, 1)
        c = torch.sigmoid(i) * torch.tanh(u)
        return [torch.sigmoid(o) * torch.tanh(c), c]

    def inner(shared: Sequence[Tensor], given: Sequence[Tensor]) -> Sequence[Tensor]:
        left, cl, right, cr = given
        i, fl, fr, o, u = linear(torch.cat([left, right], 1), shared[3], shared[4]).chunk(5, 1)
        c = torch.sigmoid(i) * torch.tanh(u) + torch.sigmoid(fl) * cl + torch.sigmoid(fr) * cr
        return [torch.sigmoid(o) * torch.tanh(c), c]

    def plain(shared: Sequence[Tensor], tree: Tree) -> Sequence[Tensor]:
        if tree.left is None or tree.right is None:
            return leaf(shared, [torch.tensor(tree.word)])
        return inner(shared, [*plain(shared, tree.left), *plain(shared, tree.right)])

    row = _buffer(1, width, dtype=dtype)
    cells = (Cell("leaf", leaf, (), (WORD,), (0, 1)), Cell("inner", inner, (0, 1, 0, 1), (), (0, 1)))
    return Model("TreeLSTM", Recursion(cells, (row, row), shared, (), (0, 1)), _bottom_up, plain)


def top_down(width: int, dtype: torch.dtype) -> Model:
    """Each node is given a state; a node returns what its children return, and how many they are."""
    shared = _weights(dtype, (width, width), (width, width), (20, width), (1, width))

    # Buffers: the state given to a node, what it returns, how many nodes it has.
    def down(shared: Sequence[Tensor], given: Sequence[Tensor]) -> Sequence[Tensor]:
        state, word, depth = given
        state = torch.tanh(state + shared[2][word] / (depth + 1))
        return [shared[0] @ state, shared[1] @ state, state]

    def up(shared: Sequence[Tensor], given: Sequence[Tensor]) -> Sequence[Tensor]:
        left, n, right, m, state = given
        return [torch.maximum(left, right) * state, n + m + 1]

    def leaf(shared: Sequence[Tensor], given: Sequence[Tensor]) -> Sequence[Tensor]:
        return [torch.relu(given[0]) * shared[3].squeeze(0), torch.tensor(1)]

    def plain(shared: Sequence[Tensor], tree: Tree, state: Tensor, depth: int = 0) -> Sequence[Tensor]:
        if tree.left is None or tree.right is None:
            return leaf(shared, [state])
        number = torch.tensor(float(depth), dtype=dtype)
        first, second, state = down(shared, [state, torch.tensor(tree.word), number])
        left = plain(shared, tree.left, first, depth + 1)
        right = plain(shared, tree.right, second, depth + 1)
        return up(shared, [*left, *right, state])

    def layout(recursion: Recursion, given: Sequence[Tree]) -> LevelSchedule:
        made = Layout(recursion, [len(given)])

        def visit(tree: Tree, state: object, depth: int) -> tuple[int, list[Row]]:
            if tree.left is None or tree.right is None:
                return 2 * depth + 1, made.call(2, 2 * depth, [state])
            first, second, own = made.call(0, 2 * depth, [state], [tree.word, depth])
            one, left = visit(tree.left, first, depth + 1)
            other, right = visit(tree.right, second, depth + 1)
            level = max(one, other)
            return level + 1, made.call(1, level, [*left, *right, own])

        found = [visit(tree, number, 0)[1] for number, tree in enumerate(given)]
        return made.forest([[rows[place] for rows in found] for place in range(2)])

    row = _buffer(width, dtype=dtype)
    cells = (
        Cell("down", down, (0,), (WORD, Column((), dtype)), (0, 0, 3)),
        Cell("up", up, (1, 2, 1, 2, 3), (), (1, 2)),
        Cell("leaf", leaf, (0,), (), (1, 2)),
    )
    buffers = (row, row, _buffer(dtype=torch.int64), row)
    return Model("top-down", Recursion(cells, buffers, shared, (0,), (1, 2)), layout, plain, [(width,)])


def mutual(width: int, dtype: torch.dtype) -> Model:
    """Two functions that call each other, of results of different shapes: vectors at even depth, matrices at odd."""
    shared = _weights(dtype, (width, 3), (3, width), (20, 3))

    def leaf(shared: Sequence[Tensor], given: Sequence[Tensor]) -> Sequence[Tensor]:
        return [shared[2][given[0]]]

    def matrix_leaf(shared: Sequence[Tensor], given: Sequence[Tensor]) -> Sequence[Tensor]:
        return [torch.outer(shared[0] @ shared[2][given[0]], shared[2][given[0]])]

    def vector(shared: Sequence[Tensor], given: Sequence[Tensor]) -> Sequence[Tensor]:
        left, right = given
        return [torch.tanh(shared[1] @ left).sum(1) + (right * left).mean(0)]

    def matrix(shared: Sequence[Tensor], given: Sequence[Tensor]) -> Sequence[Tensor]:
        left, right = given
        return [torch.outer(shared[0] @ left, torch.softmax(right, 0)) + shared[1].t() * left]

    def plain(shared: Sequence[Tensor], tree: Tree, odd: bool = False) -> Sequence[Tensor]:
        if tree.left is None or tree.right is None:
            return (matrix_leaf if odd else leaf)(shared, [torch.tensor(tree.word)])
        found = [*plain(shared, tree.left, not odd), *plain(shared, tree.right, not odd)]
        return (matrix if odd else vector)(shared, found)

    def layout(recursion: Recursion, given: Sequence[Tree]) -> LevelSchedule:
        made = Layout(recursion)

        def visit(tree: Tree, odd: bool) -> tuple[int, list[Row]]:
            if tree.left is None or tree.right is None:
                return 0, made.call(int(odd), 0, [], [tree.word])
            (one, left), (other, right) = visit(tree.left, not odd), visit(tree.right, not odd)
            level = max(one, other) + 1
            return level, made.call(2 + odd, level, [*left, *right])

        return made.forest([[visit(tree, False)[1][0] for tree in given]])

    cells = (
        Cell("leaf", leaf, (), (WORD,), (0,)),
        Cell("matrix_leaf", matrix_leaf, (), (WORD,), (1,)),
        Cell("vector", vector, (1, 1), (), (0,)),
        Cell("matrix", matrix, (0, 0), (), (1,)),
    )
    buffers = (_buffer(3, dtype=dtype), _buffer(width, 3, dtype=dtype))
    return Model("mutual", Recursion(cells, buffers, shared, (), (0,)), layout, plain)


MODELS = {"TreeRNN": tree_rnn, "TreeLSTM": tree_lstm, "top-down": top_down, "mutual": mutual}
