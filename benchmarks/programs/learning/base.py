"""What the programs are made of: layers, and inputs without end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Call", "Made", "Program", "Step", "draws", "labelled", "mlp"]

Call = tuple[Any, ...]
Step = Callable[..., Any]
Made = tuple[Step, Iterator[Call]]  # the step, and its calls, without end
Program = Callable[[], Made]


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for one, other in pairwise(widths):
        layers += [nn.Linear(one, other), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def draws(*shape: int, seed: int = 0) -> Iterator[Tensor]:
    """Normal tensors, without end."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield torch.randn(*shape, generator=generator)


def labelled(size: int, width: int, classes: int, seed: int = 0) -> Iterator[Call]:
    """Batches to classify, without end."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        x = torch.randn(size, width, generator=generator)
        yield x, torch.randint(classes, (size,), generator=generator)
