"""A small detector: a backbone, a head over a grid, matching with a variable number of boxes by Python, losses of what
matched, and suppressed boxes of the last image for a picture."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn


class Target(dict[str, Tensor]):
    """The boxes and labels of one image."""


def overlap(a: Tensor, b: Tensor) -> Tensor:
    low, high = torch.max(a[:, None, :2], b[None, :, :2]), torch.min(a[:, None, 2:], b[None, :, 2:])
    shared = (high - low).clamp(min=0).prod(2)
    areas = [(one[:, 2:] - one[:, :2]).prod(1) for one in (a, b)]
    return shared / (areas[0][:, None] + areas[1][None] - shared + 1e-6)


def suppressed(boxes: Tensor, scores: Tensor, most: float) -> list[int]:
    """Non-maximum suppression, spelled out."""
    kept: list[int] = []
    for index in scores.argsort(descending=True).tolist():
        if all(overlap(boxes[index][None], boxes[other][None]).item() <= most for other in kept):
            kept.append(index)
    return kept


class Detector(nn.Module):
    def __init__(self, classes: int = 3, side: int = 4) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1))
        self.boxes, self.scores = nn.Conv2d(8, 4, 1), nn.Conv2d(8, classes, 1)
        grid = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij"), -1)
        self.register_buffer("corners", grid.view(-1, 2).float() * 4)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.backbone(images).relu()
        sizes = self.boxes(features).flatten(2).transpose(1, 2)
        low = self.corners + sizes[..., :2].sigmoid()
        return torch.cat([low, low + 1 + 4 * sizes[..., 2:].sigmoid()], -1), self.scores(features).flatten(2).mT


class Trainer:
    def __init__(self) -> None:
        self.model = Detector()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.02, momentum=0.9, nesterov=True)
        self.shown: dict[int, list[int]] = {}

    def losses(self, boxes: Tensor, scores: Tensor, targets: list[Target]) -> dict[str, Tensor]:
        regression, classification = [], []
        for one, logits, target in zip(boxes, scores, targets, strict=True):
            if weakref.ref(target)() is None:
                continue
            best = overlap(one.detach(), target["boxes"]).argmax(0)
            regression.append(nn.functional.smooth_l1_loss(one[best], target["boxes"]))
            classification.append(nn.functional.cross_entropy(logits[best], target["labels"]))
        return {"box": torch.stack(regression).mean(), "class": torch.stack(classification).mean()}

    def step(self, number: int, images: Tensor, targets: list[Target]) -> dict[str, float]:
        boxes, scores = self.model(images)
        losses = self.losses(boxes, scores, targets)
        self.optimizer.zero_grad()
        torch.stack(list(losses.values())).sum().backward()
        self.optimizer.step()
        with torch.no_grad():
            self.shown[number] = suppressed(boxes[-1], scores[-1].max(-1).values, 0.3)
        return {name: loss.item() for name, loss in losses.items()}


def make() -> Any:
    trainer, calls = Trainer(), []
    for number in range(30):
        targets = []
        for image in range(2):
            low = 8 * torch.rand(1 + (3 * number + image) % 4, 2)
            boxes = torch.cat([low, low + 1 + 5 * torch.rand(len(low), 2)], 1)
            targets.append(Target(boxes=boxes, labels=torch.randint(0, 3, (len(low),))))
        calls.append((number, torch.randn(2, 1, 16, 16), targets))
    return trainer.step, calls, lambda: (trainer.model, list(trainer.shown.values()))
