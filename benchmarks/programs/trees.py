"""Recursive networks as their users write them: plain functions over plain objects, one node at a time.

TreeRNN (Socher et al., 2011), the binary and the child-sum TreeLSTM (Tai et al., 2015), and random trees to train them
on: a word is good or bad, and the class of a sentence is how many of its words are good. Knows nothing of any compiler.

The vocabulary is small on purpose: eager's gradient of an embedding is a dense matrix for each leaf, and with a large
one eager would do little else.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

__all__ = [
    "MODELS",
    "Batch",
    "ChildSumTreeLSTM",
    "Node",
    "Tree",
    "TreeLSTM",
    "TreeRNN",
    "batches",
    "chain",
    "make_step",
]

WORDS = 200
CLASSES = 5
TREES = 25
FEWEST, MOST = 10, 30  # words in a sentence: the papers' setting


@dataclass(eq=False, slots=True)
class Tree:
    """A word, or two subtrees."""

    word: int = 0
    left: Tree | None = None
    right: Tree | None = None


@dataclass(eq=False, slots=True)
class Node:
    """A word and any number of children, as in a dependency tree."""

    word: int
    children: list[Node] = field(default_factory=list)


class TreeRNN(nn.Module):
    """A node's state is one layer over those of its two children."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, width)
        self.inner = nn.Linear(2 * width, width)
        self.classify = nn.Linear(width, CLASSES)

    def encode(self, tree: Tree) -> Tensor:
        if tree.left is None:
            return self.embedding(torch.tensor(tree.word))
        return torch.tanh(self.inner(torch.cat([self.encode(tree.left), self.encode(tree.right)])))

    def forward(self, trees: list[Tree]) -> Tensor:
        return self.classify(torch.stack([self.encode(tree) for tree in trees]))


class TreeLSTM(nn.Module):
    """The binary TreeLSTM: a forget gate for each of the two children."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, width)
        self.leaf = nn.Linear(width, 3 * width)
        self.inner = nn.Linear(2 * width, 5 * width)
        self.classify = nn.Linear(width, CLASSES)

    def encode(self, tree: Tree) -> tuple[Tensor, Tensor]:
        if tree.left is None:
            i, o, u = self.leaf(self.embedding(torch.tensor(tree.word))).chunk(3)
            c = torch.sigmoid(i) * torch.tanh(u)
        else:
            left_h, left_c = self.encode(tree.left)
            right_h, right_c = self.encode(tree.right)
            i, left_f, right_f, o, u = self.inner(torch.cat([left_h, right_h])).chunk(5)
            c = torch.sigmoid(left_f) * left_c + torch.sigmoid(right_f) * right_c + torch.sigmoid(i) * torch.tanh(u)
        return torch.sigmoid(o) * torch.tanh(c), c

    def forward(self, trees: list[Tree]) -> Tensor:
        return self.classify(torch.stack([self.encode(tree)[0] for tree in trees]))


class ChildSumTreeLSTM(nn.Module):
    """Any number of children: the gates see the sum of their states, each child has its own forget gate."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.embedding = nn.Embedding(WORDS, width)
        self.word = nn.Linear(width, 4 * width)
        self.below = nn.Linear(width, 3 * width, bias=False)
        self.forget = nn.Linear(width, width, bias=False)
        self.classify = nn.Linear(width, CLASSES)

    def encode(self, node: Node) -> tuple[Tensor, Tensor]:
        children = [self.encode(child) for child in node.children]
        iou, f = self.word(self.embedding(torch.tensor(node.word))).split([3 * self.width, self.width])
        if children:
            iou = iou + self.below(sum(h for h, _ in children))
        i, o, u = iou.chunk(3)
        c = torch.sigmoid(i) * torch.tanh(u)
        for child_h, child_c in children:
            c = c + torch.sigmoid(f + self.forget(child_h)) * child_c
        return torch.sigmoid(o) * torch.tanh(c), c

    def forward(self, trees: list[Node]) -> Tensor:
        return self.classify(torch.stack([self.encode(tree)[0] for tree in trees]))


MODELS: dict[str, Callable[[int], nn.Module]] = {
    "treernn": TreeRNN,
    "treelstm": TreeLSTM,
    "childsum": ChildSumTreeLSTM,
}

Batch = tuple[list[Tree] | list[Node], Tensor]


def make_step(model: nn.Module) -> Callable[[list[Tree] | list[Node], Tensor], float]:
    """A whole training step: forward over the trees, loss, backward, update."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def step(trees: list[Tree] | list[Node], labels: Tensor) -> float:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(trees), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


# -- trees -----------------------------------------------------------------------------------------------------------


def binary(words: list[int], chance: random.Random) -> Tree:
    """A tree over the words, split anywhere."""
    if len(words) == 1:
        return Tree(words[0])
    middle = chance.randint(1, len(words) - 1)
    return Tree(0, binary(words[:middle], chance), binary(words[middle:], chance))


def attached(words: list[int], chance: random.Random) -> Node:
    """A tree of the words, each below any earlier one."""
    nodes = [Node(word) for word in words]
    for index in range(1, len(nodes)):
        nodes[chance.randrange(index)].children.append(nodes[index])
    return nodes[0]


def batches(model: str, count: int, seed: int, trees: int = TREES) -> list[Batch]:
    """``count`` mini-batches of new trees with their classes."""
    chance = random.Random(seed)
    build: Callable[[list[int], random.Random], Tree | Node] = attached if model == "childsum" else binary

    def sentence() -> tuple[Tree | Node, int]:
        good = chance.random()
        length = chance.randint(FEWEST, MOST)
        words = [chance.randrange(WORDS // 2) + (WORDS // 2 if chance.random() < good else 0) for _ in range(length)]
        return build(words, chance), int(good * CLASSES)

    made = [[sentence() for _ in range(trees)] for _ in range(count)]
    return [([tree for tree, _ in batch], torch.tensor([label for _, label in batch])) for batch in made]  # type: ignore[misc]


def chain(model: str, depth: int, seed: int) -> Tree | Node:
    """One tree of that many levels."""
    chance = random.Random(seed)
    if model == "childsum":
        node = Node(chance.randrange(WORDS))
        for _ in range(depth):
            node = Node(chance.randrange(WORDS), [node])
        return node
    tree = Tree(chance.randrange(WORDS))
    for _ in range(depth):
        tree = Tree(0, tree, Tree(chance.randrange(WORDS)))
    return tree
