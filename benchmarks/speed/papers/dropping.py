"""DropBlock and SDPoint (Terra): residual networks that regularise themselves by what Python does to their objects.

DropBlock's probability is an attribute of each layer, which the step changes by a schedule. SDPoint picks at each call
a place in the network, and by how much the picture shrinks there, and writes both to the model: the shapes from there
on are others each time.
"""

from __future__ import annotations

import random as python_random
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.speed.papers.base import Batch, Program, images, program

__all__: list[str] = []


class DropBlock(nn.Module):
    """Drops squares of a feature map (Ghiasi et al., 2018)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.keep = 1.0

    def set_keep(self, keep: float) -> None:
        self.keep = keep

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.keep == 1.0:
            return x
        height, width = x.shape[2:]
        valid = (height - self.size + 1) * (width - self.size + 1)
        gamma = (1.0 - self.keep) * height * width / self.size**2 / valid
        seeds = torch.rand(x.shape[0], x.shape[1], height - self.size + 1, width - self.size + 1) < gamma
        margin = self.size // 2
        blocks = F.max_pool2d(F.pad(seeds.float(), [margin] * 4), self.size, 1, margin)
        mask = 1.0 - blocks
        return x * mask * (mask.numel() / mask.sum())


class Residual(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int, drop: int | None) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outside)
        self.drop = DropBlock(drop) if drop else nn.Identity()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return torch.relu(self.drop(y) + self.shortcut(x))


class SmallResNet(nn.Module):
    """For 32 x 32 pictures. ``point`` and ``ratio``: after which block the picture shrinks, and to which part."""

    def __init__(self, width: int, blocks: int, drop: int | None) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.blocks = nn.ModuleList()
        channels = width
        for stage in range(3):
            for place in range(blocks):
                stride = 2 if stage > 0 and place == 0 else 1
                self.blocks.append(Residual(channels, width * 2**stage, stride, drop if stage > 0 else None))
                channels = width * 2**stage
        self.head = nn.Linear(channels, 10)
        self.point: int | None = None
        self.ratio = 1.0

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for place, block in enumerate(self.blocks):
            x = block(x)
            if place == self.point:
                side = max(int(x.shape[2] * self.ratio), 1)
                x = F.adaptive_avg_pool2d(x, side)
        scores: Tensor = self.head(x.mean((2, 3)))
        return scores


class DropBlockTraining:
    def __init__(self, model: SmallResNet, total: int) -> None:
        self.model = model
        self.total = total
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
        self.steps = 0

    def schedule(self) -> None:
        keep = 1.0 - 0.1 * min(self.steps / self.total, 1.0)
        for module in self.model.modules():
            if isinstance(module, DropBlock):
                module.set_keep(keep)

    def step(self, pictures: Tensor, labels: Tensor) -> Tensor:
        self.steps += 1
        self.schedule()
        loss = F.cross_entropy(self.model(pictures), labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


@program(
    "dropblock",
    paper="Terra",
    dynamic="Python object mutation: each layer's probability follows a schedule",
    size="32 x 32 pictures, batches of 64, a residual network of 3 x 2 blocks, widths 16 to 64",
)
def dropblock(seed: int, small: bool = False) -> Program:
    random = np.random.default_rng(seed)
    training = DropBlockTraining(SmallResNet(2, 1, 3) if small else SmallResNet(16, 2, 3), 1000)

    def batches() -> Iterator[Batch]:
        while True:
            yield images(random, 4 if small else 64, 3, 16 if small else 32)

    return Program(training.step, batches(), training)


class StochasticDownsampling:
    """Kuen et al., 2018: at each call the network costs something else."""

    def __init__(self, model: SmallResNet, points: list[int], ratios: list[float]) -> None:
        self.model = model
        self.choices = [(point, ratio) for point in points for ratio in ratios]
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        self.used = [0] * (len(self.choices) + 1)

    def pick(self) -> None:
        choice = python_random.randint(0, len(self.choices))
        self.used[choice] += 1
        if choice == len(self.choices):
            self.model.point, self.model.ratio = None, 1.0
        else:
            self.model.point, self.model.ratio = self.choices[choice]

    def step(self, pictures: Tensor, labels: Tensor) -> float:
        self.pick()
        loss = F.cross_entropy(self.model(pictures), labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


@program(
    "sdpoint",
    paper="Terra",
    dynamic="Python object mutation: random.randint picks where and how far the picture shrinks; 5 shapes",
    size="32 x 32 pictures, batches of 64, a residual network of 3 x 2 blocks, widths 16 to 64; 2 places, 2 ratios",
    period=20,
)
def sdpoint(seed: int, small: bool = False) -> Program:
    random = np.random.default_rng(seed)
    python_random.seed(seed)
    if small:
        training = StochasticDownsampling(SmallResNet(2, 1, None), [0], [0.5, 0.75])
    else:
        training = StochasticDownsampling(SmallResNet(16, 2, None), [1, 3], [0.5, 0.75])

    def batches() -> Iterator[Batch]:
        while True:
            yield images(random, 4 if small else 64, 3, 16 if small else 32)

    return Program(training.step, batches(), training)
