"""The example of syntax trees as a training: which package of Python's library does a function come from?"""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch

from benchmarks.speed.convergence.base import Jit, Training, training
from examples import syntax_trees

__all__: list[str] = []


@training(
    "treelstm",
    about="a child-sum TreeLSTM of width 64 (examples/syntax_trees.py), 25 trees of 10 to 100 nodes, none like another",
    metric="test accuracy",
    target=0.6,
    steps=400,
    every=20,
    close=1e-5,  # the nodes of trees are summed up in another order than eager's
)
def treelstm(jit: Jit, seed: int, small: bool = False) -> Training:
    train, test, words = syntax_trees.load(0)
    size = 4 if small else syntax_trees.BATCH
    test = test[:200]
    if small:
        train = [(tree, label) for tree, label in train if len(syntax_trees.nodes(tree)) <= 20]
        test = test[:20]
    chance = random.Random(seed)
    model = syntax_trees.TreeLSTM(words, 8 if small else syntax_trees.WIDTH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=400)
    step = jit(syntax_trees.train_step)

    def losses() -> Iterator[float]:
        while True:
            loss, _ = step(model, optimizer, *syntax_trees.batch(chance.sample(train, size)))
            schedule.step()
            yield loss.item()

    return Training(losses(), lambda: syntax_trees.accuracy(model, test), (model, optimizer, schedule))
