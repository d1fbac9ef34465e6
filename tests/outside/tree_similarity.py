"""Similarity of two sentences by a child-sum TreeLSTM that keeps each node's state on the node; gradients of several
pairs are accumulated before an update."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor, nn


class Node:
    def __init__(self, index: int) -> None:
        self.index = index
        self.children: list[Node] = []
        self.state: tuple[Tensor, Tensor] | None = None

    def count(self) -> int:
        return 1 + sum(child.count() for child in self.children)


def parsed(rng: random.Random, words: int) -> Node:
    nodes = [Node(0)]
    for index in range(1, words):
        nodes.append(Node(index))
        rng.choice(nodes[:-1]).children.append(nodes[-1])
    return nodes[0]


class ChildSumCell(nn.Module):
    def __init__(self, given: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.gates = nn.Linear(given + width, 3 * width)
        self.forget = nn.Linear(given + width, width)

    def forward(self, x: Tensor, states: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        if not states:
            states = [(x.new_zeros(1, self.width), x.new_zeros(1, self.width))]
        hidden = torch.cat([h for _, h in states])
        carried = torch.cat([c for c, _ in states])
        i, o, u = self.gates(torch.cat([x, hidden.sum(0, keepdim=True)], 1)).chunk(3, 1)
        f = torch.sigmoid(self.forget(torch.cat([x.expand(len(states), -1), hidden], 1)))
        c = torch.sigmoid(i) * torch.tanh(u) + (f * carried).sum(0, keepdim=True)
        return c, torch.sigmoid(o) * torch.tanh(c)


class Similarity(nn.Module):
    def __init__(self, words: int = 20, given: int = 8, width: int = 12) -> None:
        super().__init__()
        self.table = nn.Embedding(words, given)
        self.cell = ChildSumCell(given, width)
        self.judge = nn.Sequential(nn.Linear(2 * width, width), nn.Sigmoid(), nn.Linear(width, 2))

    def encode(self, node: Node, words: Tensor) -> Tensor:
        for child in node.children:
            self.encode(child, words)
        node.state = self.cell(words[node.index : node.index + 1], [child.state for child in node.children])
        return node.state[1]

    def forward(self, left: Node, a: Tensor, right: Node, b: Tensor) -> Tensor:
        one, other = self.encode(left, self.table(a)), self.encode(right, self.table(b))
        return self.judge(torch.cat([one * other, (one - other).abs()], 1))


class Trainer:
    def __init__(self, accumulated: int = 2) -> None:
        self.model = Similarity()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.accumulated, self.done, self.running = accumulated, 0, 0.0

    def step(self, left: Node, a: Tensor, right: Node, b: Tensor, label: Tensor) -> float:
        loss = nn.functional.cross_entropy(self.model(left, a, right, b), label) / self.accumulated
        loss.backward()
        self.done += 1
        if self.done % self.accumulated == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.running = 0.9 * self.running + 0.1 * loss.item()
        return self.running


def make() -> Any:
    rng, trainer = random.Random(5), Trainer()
    calls = []
    for _ in range(30):
        left, right = parsed(rng, rng.randrange(2, 6)), parsed(rng, rng.randrange(2, 6))
        words = [torch.randint(0, 20, (tree.count(),)) for tree in (left, right)]
        calls.append((left, words[0], right, words[1], torch.tensor([rng.randrange(2)])))
    return trainer.step, calls, lambda: trainer.model
