"""LeNet, ResNet50 and Inception-v3 (JANUS, table 2), each with whole training steps.

LeNet is plain. The two large ones hold conditional statements for batch normalisation, and are evaluated between
training steps by the same function, by setting an attribute of the model: a trace made before is wrong then. The last
batch of an epoch is smaller, as the length of a data set is not divisible by the batch size (JANUS, 6.1).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.speed.papers.base import Batch, Program, images, program

__all__ = ["BatchNorm", "ConvNorm"]


class LeNet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, 5, padding=2)
        self.conv2 = nn.Conv2d(width, 2 * width, 5, padding=2)
        self.fc1 = nn.Linear(2 * width * 49, 16 * width)
        self.fc2 = nn.Linear(16 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = F.max_pool2d(torch.relu(self.conv2(x)), 2)
        x = torch.relu(self.fc1(x.flatten(1)))
        scores: Tensor = self.fc2(x)
        return scores


@program(
    "lenet",
    paper="JANUS",
    dynamic="a smaller last batch",
    size="28 x 28 pictures, batches of 50 (the paper's), 10 of them and one of 30 an epoch",
    period=11,
)
def lenet(seed: int, small: bool = False) -> Program:
    random = np.random.default_rng(seed)
    model = LeNet(2 if small else 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def step(pictures: Tensor, labels: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(pictures), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def batches() -> Iterator[Batch]:
        while True:
            for count in (50,) * 10 + (30,):
                yield images(random, 6 + count // 10 if small else count, 1, 28)

    return Program(step, batches(), (model, optimizer))


# -- residual networks -------------------------------------------------------------------------------------------------


class BatchNorm(nn.Module):
    """Batch normalisation with its two ways spelled out, as the papers' programs have it."""

    def __init__(self, channels: int, momentum: float = 0.1) -> None:
        super().__init__()
        self.momentum = momentum
        self.gamma = nn.Parameter(torch.ones(channels))
        self.beta = nn.Parameter(torch.zeros(channels))
        self.register_buffer("moving_mean", torch.zeros(channels))
        self.register_buffer("moving_variance", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            return F.batch_norm(x, self.moving_mean, self.moving_variance, self.gamma, self.beta, True, self.momentum)
        return F.batch_norm(x, self.moving_mean, self.moving_variance, self.gamma, self.beta)


class ConvNorm(nn.Module):
    """Convolution, normalisation, and a rectifier if there is to be one."""

    def __init__(
        self,
        inside: int,
        outside: int,
        size: int | tuple[int, int],
        stride: int = 1,
        padding: int | tuple[int, int] = 0,
        activate: bool = True,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inside, outside, size, stride, padding, bias=False)
        self.norm = BatchNorm(outside)
        self.activate = activate

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x))
        return torch.relu(x) if self.activate else x


class Bottleneck(nn.Module):
    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        self.reduce = ConvNorm(inside, width, 1)
        self.conv = ConvNorm(width, width, 3, stride, 1)
        self.expand = ConvNorm(width, 4 * width, 1, activate=False)
        self.shortcut = None
        if stride != 1 or inside != 4 * width:
            self.shortcut = ConvNorm(inside, 4 * width, 1, stride, activate=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.expand(self.conv(self.reduce(x)))
        if self.shortcut is not None:
            x = self.shortcut(x)
        return torch.relu(x + y)


class ResNet(nn.Module):
    def __init__(self, width: int, depths: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.stem = ConvNorm(3, width, 7, 2, 3)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.blocks = nn.ModuleList()
        channels = width
        for stage, depth in enumerate(depths):
            for place in range(depth):
                stride = 2 if stage > 0 and place == 0 else 1
                self.blocks.append(Bottleneck(channels, width * 2**stage, stride))
                channels = 4 * width * 2**stage
        self.head = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.stem(x))
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.head(x.mean((2, 3)))
        return scores


class Classification:
    """Trains a classifier, or evaluates it, by one function; remembers the best accuracy."""

    def __init__(self, model: nn.Module, lr: float) -> None:
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=1e-4)
        self.seen = 0
        self.best = 0.0

    def step(self, pictures: Tensor, labels: Tensor, training: bool) -> float:
        self.model.training = training
        for module in self.model.modules():
            module.training = training
        if not training:
            with torch.no_grad():
                right = (self.model(pictures).argmax(1) == labels).float().mean().item()
            self.best = max(self.best, right)
            return right
        scores = self.model(pictures)
        if isinstance(scores, tuple):
            scores, auxiliary = scores
            loss = F.cross_entropy(scores, labels) + 0.4 * F.cross_entropy(auxiliary, labels)
        else:
            loss = F.cross_entropy(scores, labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.seen += len(labels)
        return loss.item()


def train_and_evaluate(random: np.random.Generator, count: int, side: int, every: int) -> Iterator[Batch]:
    """An evaluation before the training, then one after each ``every - 1`` steps of it."""
    while True:
        yield *images(random, count, 3, side), False
        for _ in range(every - 1):
            yield *images(random, count, 3, side), True


@program(
    "resnet50",
    paper="JANUS, Terra",
    dynamic="conditions in batch normalisation; evaluation by an attribute of the model",
    size="64 x 64 pictures, batches of 8 (the paper: 224 x 224, 64); every fifth call evaluates",
    period=5,
)
def resnet50(seed: int, small: bool = False) -> Program:
    random = np.random.default_rng(seed)
    model = ResNet(2, (1, 1), 10) if small else ResNet(64, (3, 4, 6, 3), 1000)
    trainer = Classification(model, 0.01)
    count, side = (2, 32) if small else (8, 64)
    return Program(trainer.step, train_and_evaluate(random, count, side, 5), trainer)


# -- Inception-v3 ------------------------------------------------------------------------------------------------------


class Branches(nn.Module):
    """Branches side by side, their outputs concatenated; a branch is a list of (channels, size, stride)."""

    def __init__(
        self,
        inside: int,
        branches: list[list[tuple[int, int | tuple[int, int], int]]],
        pooled: int = 0,
        stride: int = 1,
    ) -> None:
        super().__init__()
        self.stride = stride
        self.branches = nn.ModuleList()
        self.outside = 0
        for branch in branches:
            layers: list[nn.Module] = []
            channels = inside
            for outside, size, step in branch:
                height, width = (size, size) if isinstance(size, int) else size
                padding = (0, 0) if step == 2 else (height // 2, width // 2)
                layers.append(ConvNorm(channels, outside, size, step, padding))
                channels = outside
            self.branches.append(nn.Sequential(*layers))
            self.outside += channels
        self.pooled = ConvNorm(inside, pooled, 1) if pooled else None
        self.outside += pooled or (inside if stride == 2 else 0)

    def forward(self, x: Tensor) -> Tensor:
        outputs = [branch(x) for branch in self.branches]
        if self.pooled is not None:
            outputs.append(self.pooled(F.avg_pool2d(x, 3, 1, 1)))
        elif self.stride == 2:
            outputs.append(F.max_pool2d(x, 3, 2))
        return torch.cat(outputs, 1)


class Inception(nn.Module):
    """Inception-v3; ``unit`` is 1 for the widths of the paper."""

    def __init__(self, unit: float, repeats: int, classes: int) -> None:
        super().__init__()
        self.use_auxiliary = True

        def w(channels: int) -> int:
            return max(int(channels * unit), 1)

        self.stem = nn.Sequential(
            ConvNorm(3, w(32), 3, 2),
            ConvNorm(w(32), w(32), 3),
            ConvNorm(w(32), w(64), 3, 1, 1),
            nn.MaxPool2d(3, 2),
            ConvNorm(w(64), w(80), 1),
            ConvNorm(w(80), w(192), 3),
            nn.MaxPool2d(3, 2),
        )
        channels = w(192)
        mixed: list[Branches] = []
        for pooled in (32, 64, 64)[:repeats]:
            five = [(w(48), 1, 1), (w(64), 5, 1)]
            three = [(w(64), 1, 1), (w(96), 3, 1), (w(96), 3, 1)]
            mixed.append(Branches(channels, [[(w(64), 1, 1)], five, three], w(pooled)))
            channels = mixed[-1].outside
        three = [(w(64), 1, 1), (w(96), 3, 1), (w(96), 3, 2)]
        mixed.append(Branches(channels, [[(w(384), 3, 2)], three], stride=2))
        channels = mixed[-1].outside
        for inner in (128, 160, 160, 192)[: repeats + 1]:
            c = w(inner)
            seven = [(c, 1, 1), (c, (1, 7), 1), (w(192), (7, 1), 1)]
            twice = [(c, 1, 1), (c, (7, 1), 1), (c, (1, 7), 1), (c, (7, 1), 1), (w(192), (1, 7), 1)]
            mixed.append(Branches(channels, [[(w(192), 1, 1)], seven, twice], w(192)))
            channels = mixed[-1].outside
        self.middle = nn.ModuleList(mixed)
        self.auxiliary = nn.Sequential(ConvNorm(channels, w(128), 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.auxiliary_head = nn.Linear(w(128), classes)
        seven = [(w(192), 1, 1), (w(192), (1, 7), 1), (w(192), (7, 1), 1), (w(192), 3, 2)]
        last = [Branches(channels, [[(w(192), 1, 1), (w(320), 3, 2)], seven], stride=2)]
        channels = last[-1].outside
        for _ in range(min(repeats, 2)):
            wide = [(w(384), 1, 1), (2 * w(384), (1, 3), 1)]
            deep = [(w(448), 1, 1), (w(384), 3, 1), (2 * w(384), (3, 1), 1)]
            last.append(Branches(channels, [[(w(320), 1, 1)], wide, deep], w(192)))
            channels = last[-1].outside
        self.last = nn.ModuleList(last)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        x = self.stem(x)
        for block in self.middle:
            x = block(x)
        auxiliary = self.auxiliary_head(self.auxiliary(x)) if self.training and self.use_auxiliary else None
        for block in self.last:
            x = block(x)
        scores: Tensor = self.head(self.dropout(x.mean((2, 3))))
        return scores if auxiliary is None else (scores, auxiliary)


@program(
    "inception",
    paper="JANUS",
    dynamic="conditions in batch normalisation; a result that is a pair in training only",
    size="128 x 128 pictures, batches of 4 (the paper: 299 x 299, 64); every fifth call evaluates",
    period=5,
)
def inception(seed: int, small: bool = False) -> Program:
    random = np.random.default_rng(seed)
    model = Inception(1 / 64, 1, 10) if small else Inception(1.0, 3, 1000)
    trainer = Classification(model, 0.01)
    count, side = (2, 80) if small else (4, 128)
    return Program(trainer.step, train_and_evaluate(random, count, side, 5), trainer)
