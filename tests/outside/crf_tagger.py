"""A tagger: an LSTM under a conditional random field, sentences of different lengths one at a time, the partition
function and the best path spelled out, confusion counts by a dictionary."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn

TAGS = ("B", "I", "O", "<s>", "</s>")
INDEX = {tag: number for number, tag in enumerate(TAGS)}


class Tagger(nn.Module):
    def __init__(self, words: int = 20, width: int = 8) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width // 2, bidirectional=True)
        self.emit = nn.Linear(width, len(TAGS))
        self.transitions = nn.Parameter(torch.randn(len(TAGS), len(TAGS)))
        self.transitions.data[INDEX["<s>"], :] = -10000
        self.transitions.data[:, INDEX["</s>"]] = -10000

    def features(self, sentence: Tensor) -> Tensor:
        states, _ = self.lstm(self.words(sentence).unsqueeze(1))
        return self.emit(states.squeeze(1))

    def partition(self, features: Tensor) -> Tensor:
        score = torch.full((len(TAGS),), -10000.0)
        score[INDEX["<s>"]] = 0.0
        for feature in features:
            score = torch.logsumexp(score[None] + self.transitions, 1) + feature
        return torch.logsumexp(score + self.transitions[INDEX["</s>"]], 0)

    def score(self, features: Tensor, tags: Tensor) -> Tensor:
        total, before = torch.zeros(1), torch.cat([torch.tensor([INDEX["<s>"]]), tags])
        for number, feature in enumerate(features):
            total = total + self.transitions[before[number + 1], before[number]] + feature[before[number + 1]]
        return total + self.transitions[INDEX["</s>"], before[-1]]

    def loss(self, sentence: Tensor, tags: Tensor) -> Tensor:
        features = self.features(sentence)
        return (self.partition(features) - self.score(features, tags)).squeeze()

    @torch.no_grad()
    def best(self, sentence: Tensor) -> list[str]:
        score = torch.full((len(TAGS),), -10000.0)
        score[INDEX["<s>"]] = 0.0
        pointers = []
        for feature in self.features(sentence):
            value, index = (score[None] + self.transitions).max(1)
            score = value + feature
            pointers.append(index.tolist())
        at = int((score + self.transitions[INDEX["</s>"]]).argmax())
        path = [at]
        for pointer in reversed(pointers):
            at = pointer[at]
            path.append(at)
        assert path.pop() == INDEX["<s>"]
        return [TAGS[number] for number in reversed(path)]


class Trainer:
    def __init__(self) -> None:
        self.model = Tagger()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, weight_decay=1e-4)
        self.confusion: defaultdict[tuple[str, str], int] = defaultdict(int)

    def step(self, sentence: Tensor, tags: Tensor) -> float:
        self.model.zero_grad()
        loss = self.model.loss(sentence, tags)
        loss.backward()
        self.optimizer.step()
        for found, wanted in zip(self.model.best(sentence), tags.tolist(), strict=True):
            self.confusion[found, TAGS[wanted]] += 1
        return loss.item()


def make() -> Any:
    trainer, calls = Trainer(), []
    for number in range(40):
        length = 3 + number % 4
        calls.append((torch.randint(0, 20, (length,)), torch.randint(0, 3, (length,))))
    return trainer.step, calls, lambda: (trainer.model, sorted(trainer.confusion.items()))
