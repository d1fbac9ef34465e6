"""A network that redraws pictures, trained by perceptual and style losses: the features of a fixed network are a named
tuple, whose class is made in each call of it."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Features(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.slice1 = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU())
        self.slice2 = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(4, 8, 3, padding=1), nn.ReLU())
        for param in self.parameters():
            param.requires_grad = False

    def forward(self, x: Tensor) -> Any:
        h1 = self.slice1(x)
        h2 = self.slice2(h1)
        outputs = namedtuple("Outputs", ["relu1", "relu2"])
        return outputs(h1, h2)


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.pad, self.conv = nn.ReflectionPad2d(1), nn.Conv2d(channels, channels, 3)
        self.norm = nn.InstanceNorm2d(channels, affine=True)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu(self.norm(self.conv(self.pad(x))))


class Redrawn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(3, 8, 3, 2), nn.Conv2d(8, 3, 3, padding=1)
        self.blocks = nn.Sequential(Block(8), Block(8))

    def forward(self, x: Tensor) -> Tensor:
        return self.up(F.interpolate(self.blocks(self.down(F.pad(x, (1, 1, 1, 1)))), mode="nearest", scale_factor=2))


def gram_matrix(y: Tensor) -> Tensor:
    (b, ch, h, w) = y.size()
    features = y.view(b, ch, w * h)
    return features.bmm(features.transpose(1, 2)) / (ch * h * w)


def normalize_batch(batch: Tensor) -> Tensor:
    mean = batch.new_tensor([0.485, 0.456, 0.406]).view(-1, 1, 1)
    std = batch.new_tensor([0.229, 0.224, 0.225]).view(-1, 1, 1)
    batch = batch.div_(255.0)
    return (batch - mean) / std


class Trainer:
    def __init__(self) -> None:
        self.net, self.vgg = Redrawn(), Features()
        self.optimizer = torch.optim.Adam(self.net.parameters(), 1e-3)
        style = (torch.rand(3, 16, 16) * 255).repeat(4, 1, 1, 1)
        self.gram_style = [gram_matrix(y) for y in self.vgg(normalize_batch(style))]
        self.count, self.content, self.style = 0, 0.0, 0.0

    def step(self, x: Tensor) -> None:
        self.count += len(x)
        self.optimizer.zero_grad()
        y = normalize_batch(self.net(x))
        x = normalize_batch(x)
        features_y, features_x = self.vgg(y), self.vgg(x)
        content_loss = 1e5 * F.mse_loss(features_y.relu2, features_x.relu2)
        style_loss: Any = 0.0
        for ft_y, gm_s in zip(features_y, self.gram_style, strict=True):
            style_loss += F.mse_loss(gram_matrix(ft_y), gm_s[: len(x), :, :])
        style_loss *= 1e6
        (content_loss + style_loss).backward()
        self.optimizer.step()
        self.content += content_loss.item()
        self.style += style_loss.item()


def make() -> Any:
    trainer = Trainer()
    calls = [(torch.rand(4, 3, 16, 16) * 255,) for _ in range(30)]
    return trainer.step, calls, lambda: (trainer.net, trainer.count, trainer.content, trainer.style)
