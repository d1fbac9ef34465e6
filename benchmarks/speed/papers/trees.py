"""TreeRNN and TreeLSTM (JANUS, table 2): recursion over the nodes of trees, with progress kept in Python.

The models are those of ``benchmarks.programs.trees``; here their step also counts the sentences and says at each tenth
call how it goes, as the papers' programs do.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from benchmarks.programs.trees import MODELS, Tree, batches
from benchmarks.speed.papers.base import Batch, Program, program

__all__: list[str] = []


class Progress:
    """Trains on trees, and remembers how it went."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
        self.sentences = 0
        self.average = 0.0

    def step(self, trees: list[Tree], labels: Tensor) -> float:
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(trees), labels)
        loss.backward()
        self.optimizer.step()
        self.sentences += len(trees)
        self.average = 0.9 * self.average + 0.1 * loss.item()
        return loss.item()


def trained(kind: str, seed: int, small: bool) -> Program:
    progress = Progress(MODELS[kind](6 if small else 150))

    def given() -> Iterator[Batch]:
        number = 1000 * seed
        while True:
            yield from batches(kind, 10, number, trees=3 if small else 25)
            number += 1

    return Program(progress.step, given(), progress)


@program(
    "treernn",
    paper="JANUS",
    dynamic="recursion, ever new trees, None or a subtree, counts kept in Python",
    size="width 150, 25 trees (the paper's) of 10 to 30 words, vocabulary 200",
)
def treernn(seed: int, small: bool = False) -> Program:
    return trained("treernn", seed, small)


@program(
    "treelstm",
    paper="JANUS",
    dynamic="recursion with pairs of states, ever new trees, counts kept in Python",
    size="width 150, 25 trees (the paper's) of 10 to 30 words, vocabulary 200",
)
def treelstm(seed: int, small: bool = False) -> Program:
    return trained("treelstm", seed, small)
