"""The models that are trained in parallel: each with its loss, and batches that differ by rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.programs import steps, trees

__all__ = ["PROGRAMS", "Batch", "Made"]

Batch = tuple[Any, ...]
Made = tuple[nn.Module, Callable[..., Tensor], Callable[[int], Iterator[Batch]]]  # model, loss, batches of a rank


def _of_recipe(name: str) -> Made:
    recipe = steps.PROGRAMS[name]

    def batches(rank: int) -> Iterator[Batch]:
        random = torch.Generator().manual_seed(1000 + rank)
        while True:
            yield recipe.batch(random)

    return recipe.model(0.0), recipe.loss, batches


def _treelstm() -> Made:
    def loss(model: nn.Module, forest: list[trees.Tree], labels: Tensor) -> Tensor:
        return F.cross_entropy(model(forest), labels)

    return trees.TreeLSTM(32), loss, lambda rank: iter(trees.batches("treelstm", 400, rank, trees=5))


def _by_hand() -> Made:
    """A reduction for each parameter, and before them a branch that the rank's own loss takes."""
    recipe, high = _of_recipe("mlp"), []

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        found: Tensor = recipe[1](model, x, y)
        if found > 100:
            high.append(True)
        return found

    return recipe[0], loss, recipe[2]


def _wide() -> Made:
    """Layers whose backward pass takes long: something to hide communication behind."""
    layers = [layer for _ in range(6) for layer in (nn.Linear(512, 512), nn.ReLU())]

    def batches(rank: int) -> Iterator[Batch]:
        random = torch.Generator().manual_seed(1000 + rank)
        while True:
            yield torch.randn(256, 512, generator=random), torch.randn(256, 512, generator=random)

    return nn.Sequential(*layers), lambda model, x, y: F.mse_loss(model(x), y), batches


PROGRAMS: dict[str, Callable[[], Made]] = {
    "wide": _wide,
    "mlp": lambda: _of_recipe("mlp"),
    "convnet": lambda: _of_recipe("digits"),
    "bert": lambda: _of_recipe("bert-cls"),
    "lstm": lambda: _of_recipe("lstm"),
    "treelstm": _treelstm,
    "byhand": _by_hand,
}
