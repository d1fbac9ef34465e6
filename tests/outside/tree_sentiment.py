"""Sentiment of phrases: a recursive network over nltk trees that asks the library of each node. Needs nltk."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import torch
from nltk.tree import Tree
from torch import Tensor, nn


class Treebank:
    """Binary trees with a label on each node."""

    def __init__(self, seed: int, words: int = 30) -> None:
        self.random = random.Random(seed)
        self.vocabulary = {f"word{number}": number for number in range(words)}

    def tree(self, leaves: int) -> Any:
        label = str(self.random.randrange(3))
        if leaves == 1:
            return Tree(label, [self.random.choice(list(self.vocabulary))])
        left = self.random.randrange(1, leaves)
        return Tree(label, [self.tree(left), self.tree(leaves - left)])

    def batches(self, count: int, size: int) -> list[tuple[list[Any]]]:
        return [([self.tree(self.random.randrange(2, 7)) for _ in range(size)],) for _ in range(count)]


class PhraseNet(nn.Module):
    def __init__(self, vocabulary: dict[str, int], width: int = 16, classes: int = 3) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.embed = nn.Embedding(len(vocabulary), width)
        self.compose = nn.Linear(2 * width, width)
        self.classify = nn.Linear(width, classes)

    def phrase(self, node: Any, scores: list[Tensor], labels: list[int]) -> Tensor:
        if node.height() == 2:
            vector = self.embed(torch.tensor([self.vocabulary[node[0]]]))
        else:
            parts = [self.phrase(child, scores, labels) for child in node]
            vector = torch.tanh(self.compose(torch.cat(parts, dim=1)))
        scores.append(self.classify(vector))
        labels.append(int(node.label()))
        return vector

    def forward(self, tree: Any) -> tuple[Tensor, Tensor]:
        scores: list[Tensor] = []
        labels: list[int] = []
        self.phrase(tree, scores, labels)
        return torch.cat(scores), torch.tensor(labels)


@dataclass
class Tally:
    right: int = 0
    total: int = 0
    losses: list[float] = field(default_factory=list)


class Trainer:
    def __init__(self, net: PhraseNet) -> None:
        self.net = net
        self.optimizer = torch.optim.Adagrad(net.parameters(), lr=0.05, weight_decay=1e-4)
        self.tally = Tally()

    def step(self, trees: list[Any]) -> tuple[float, int]:
        self.optimizer.zero_grad()
        loss: Any = 0.0
        for tree in trees:
            scores, labels = self.net(tree)
            loss = loss + nn.functional.cross_entropy(scores, labels)
            self.tally.right += int(scores[-1].argmax() == labels[-1])
            self.tally.total += 1
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 5.0)
        self.optimizer.step()
        self.tally.losses.append(loss.item())
        return self.tally.losses[-1], self.tally.right


def make() -> Any:
    bank = Treebank(seed=3)
    trainer = Trainer(PhraseNet(bank.vocabulary))
    return trainer.step, bank.batches(30, 2), lambda: trainer.net
