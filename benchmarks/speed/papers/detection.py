"""FasterRCNN and YOLOv3 (Terra): detectors, whose targets are worked out in the middle of the step.

FasterRCNN takes its proposals out of the tensors, thins and samples them with NumPy, and feeds what is left back into
the network (the paper: tensor materialization during conversion). YOLOv3 compares its boxes with a number of true ones
that differs from picture to picture, for each of three scales, and logs each part of the loss.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.speed.papers.base import Batch, Program, program

__all__: list[str] = []

Array = np.ndarray[Any, Any]

logger = logging.getLogger("program")


def scene(random: np.random.Generator, side: int, most: int) -> tuple[Tensor, Array, Array]:
    """A picture with rectangles on noise; their corners (x1, y1, x2, y2) and classes (1 or 2: light or dark)."""
    picture = random.normal(0.0, 0.1, (3, side, side))
    count = int(random.integers(1, most + 1))
    boxes, classes = np.zeros((count, 4), np.float32), random.integers(1, 3, count)
    for place in range(count):
        width, height = random.integers(side // 6, side // 2, 2)
        x, y = random.integers(0, side - width), random.integers(0, side - height)
        boxes[place] = x, y, x + width, y + height
        picture[:, y : y + height, x : x + width] += 1.0 if classes[place] == 1 else -1.0
    return torch.from_numpy(picture.astype(np.float32)), boxes, classes


def backbone(widths: list[int]) -> nn.Sequential:
    """Each layer halves the picture."""
    layers: list[nn.Module] = []
    channels = 3
    for width in widths:
        layers += [nn.Conv2d(channels, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.LeakyReLU(0.1)]
        channels = width
    return nn.Sequential(*layers)


# -- FasterRCNN --------------------------------------------------------------------------------------------------------


def overlaps(one: Array, other: Array) -> Array:
    """Intersection over union of each box with each other one."""
    left = np.maximum(one[:, None, :2], other[None, :, :2])
    right = np.minimum(one[:, None, 2:], other[None, :, 2:])
    shared = np.prod(np.clip(right - left, 0, None), axis=2)
    areas = [np.prod(boxes[:, 2:] - boxes[:, :2], axis=1) for boxes in (one, other)]
    return shared / np.maximum(areas[0][:, None] + areas[1][None, :] - shared, 1e-6)


def thinned(boxes: Array, scores: Array, limit: float, most: int) -> Array:
    """Non-maximum suppression: the numbers of the boxes that stay."""
    order = np.argsort(-scores, kind="stable")
    kept: list[int] = []
    while len(order) and len(kept) < most:
        first, rest = order[0], order[1:]
        kept.append(int(first))
        order = rest[overlaps(boxes[first][None], boxes[rest])[0] <= limit]
    return np.array(kept, np.int64)


class FasterRCNN(nn.Module):
    """Ren et al., 2015: boxes are proposed, then looked at one by one."""

    def __init__(self, widths: list[int], side: int, samples: int) -> None:
        super().__init__()
        self.side, self.samples = side, samples
        self.stride = 2 ** len(widths)
        self.features = backbone(widths)
        self.proposer = nn.Conv2d(widths[-1], widths[-1], 3, 1, 1)
        self.objectness = nn.Conv2d(widths[-1], 3, 1)
        self.shift = nn.Conv2d(widths[-1], 12, 1)
        self.look = nn.Linear(widths[-1] * 9, 4 * widths[-1])
        self.classify = nn.Linear(4 * widths[-1], 3)
        self.refine = nn.Linear(4 * widths[-1], 4)
        cells = (np.arange(side // self.stride) + 0.5) * self.stride
        centres = np.stack(np.meshgrid(cells, cells), -1).reshape(-1, 1, 2)
        half = np.array([side / 8, side / 5, side / 3]).reshape(1, 3, 1)
        self.anchors = np.concatenate([centres - half, centres + half], 2).reshape(-1, 4).astype(np.float32)

    def propose(self, scores: Tensor, shifts: Tensor) -> Array:
        """The best boxes, taken out of the tensors."""
        sizes = self.anchors[:, 2:] - self.anchors[:, :2]
        centres = (self.anchors[:, 2:] + self.anchors[:, :2]) / 2
        moved = np.clip(shifts.detach().numpy(), -2.0, 2.0)
        centres = centres + 0.1 * moved[:, :2] * sizes
        sizes = sizes * np.exp(0.2 * moved[:, 2:])
        boxes = np.clip(np.concatenate([centres - sizes / 2, centres + sizes / 2], 1), 0, self.side)
        kept = thinned(boxes, scores.detach().numpy(), 0.7, 2 * self.samples)
        return boxes[kept]

    def pool(self, features: Tensor, boxes: Tensor) -> Tensor:
        """3 x 3 points of the feature map for each box, between its pixels."""
        spots = (torch.arange(3) + 0.5) / 3
        xs = boxes[:, 0:1] + (boxes[:, 2:3] - boxes[:, 0:1]) * spots
        ys = boxes[:, 1:2] + (boxes[:, 3:4] - boxes[:, 1:2]) * spots
        grid = torch.stack([xs[:, None, :].expand(-1, 3, 3), ys[:, :, None].expand(-1, 3, 3)], -1)
        grid = grid / self.side * 2 - 1
        pooled = F.grid_sample(features, grid.reshape(1, -1, 3, 2), align_corners=False)
        return pooled[0].view(features.shape[1], -1, 9).permute(1, 0, 2).flatten(1)

    def forward(self, picture: Tensor, truth: Array, classes: Array) -> dict[str, Tensor]:
        features = self.features(picture[None])
        hidden = torch.relu(self.proposer(features))
        scores = self.objectness(hidden)[0].permute(1, 2, 0).flatten()
        shifts = self.shift(hidden)[0].permute(1, 2, 0).reshape(-1, 4)
        losses = {}
        # Which anchors should have said that there is something.
        share = overlaps(self.anchors, truth)
        there = torch.from_numpy((share.max(1) > 0.5) | (np.arange(len(share)) == share[:, 0].argmax()))
        losses["objectness"] = F.binary_cross_entropy_with_logits(scores, there.float())
        wanted = torch.from_numpy(self.offsets(self.anchors, truth[share.argmax(1)]))
        losses["shift"] = (F.smooth_l1_loss(shifts, wanted, reduction="none").mean(1) * there).sum() / there.sum()
        # The proposals, with the truth among them; as many for each picture, some of them background.
        boxes = np.concatenate([self.propose(scores, shifts), truth])
        share = overlaps(boxes, truth)
        positive = np.flatnonzero(share.max(1) >= 0.5)
        negative = np.flatnonzero(share.max(1) < 0.5)
        if len(positive) > self.samples // 4:
            positive = np.random.choice(positive, self.samples // 4, replace=False)
        if len(negative) == 0:
            negative = positive
        negative = np.random.choice(negative, self.samples - len(positive), replace=True)
        picked = np.concatenate([positive, negative])
        labels = np.where(share[picked].max(1) >= 0.5, classes[share[picked].argmax(1)], 0)
        regions = torch.from_numpy(boxes[picked].astype(np.float32))
        seen = torch.relu(self.look(self.pool(features, regions)))
        target = torch.from_numpy(labels.astype(np.int64))
        losses["class"] = F.cross_entropy(self.classify(seen), target)
        offsets = torch.from_numpy(self.offsets(boxes[picked], truth[share[picked].argmax(1)]))
        inside = (target > 0).float()
        losses["refine"] = (F.smooth_l1_loss(self.refine(seen), offsets, reduction="none").mean(1) * inside).mean()
        return losses

    @staticmethod
    def offsets(boxes: Array, wanted: Array) -> Array:
        sizes, want = np.maximum(boxes[:, 2:] - boxes[:, :2], 1.0), np.maximum(wanted[:, 2:] - wanted[:, :2], 1.0)
        centre = ((wanted[:, 2:] + wanted[:, :2]) - (boxes[:, 2:] + boxes[:, :2])) / 2 / sizes
        return np.concatenate([10 * centre, 5 * np.log(want / sizes)], 1).astype(np.float32)


@program(
    "faster_rcnn",
    paper="Terra",
    dynamic="tensors taken out to NumPy in mid-step, thinned and sampled there, and fed back; other counts each time",
    size="128 x 128 pictures, batches of 1 (the original's), backbone of 4 layers up to 128 channels, 32 regions",
)
def faster_rcnn(seed: int, small: bool = False) -> Program:
    random = np.random.default_rng(seed)
    np.random.seed(seed)
    side = 32 if small else 128
    model = FasterRCNN([4, 4, 4] if small else [32, 64, 128, 128], side, 8 if small else 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)
    history: list[dict[str, float]] = []

    def step(picture: Tensor, boxes: Array, classes: Array) -> float:
        losses = model(picture, boxes, classes)
        total = sum(losses.values(), torch.zeros(()))
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        history.append({name: loss.item() for name, loss in losses.items()})
        return total.item()

    def batches() -> Iterator[Batch]:
        while True:
            yield scene(random, side, 4)

    return Program(step, batches(), (model, optimizer, history))


# -- YOLOv3 ------------------------------------------------------------------------------------------------------------


class Darknet(nn.Module):
    """Redmon and Farhadi, 2018, in small: three scales, each with three boxes a cell."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.early = backbone([width, 2 * width, 4 * width])
        self.middle = self.further(4 * width, 8 * width)
        self.late = self.further(8 * width, 16 * width)
        self.heads = nn.ModuleList(nn.Conv2d(c * width, 3 * 7, 1) for c in (16, 16, 8))
        self.lower = nn.ModuleList([nn.Conv2d(16 * width, 8 * width, 1), nn.Conv2d(16 * width, 4 * width, 1)])

    @staticmethod
    def further(inside: int, outside: int) -> nn.Sequential:
        conv = nn.Conv2d(inside, outside, 3, 2, 1, bias=False)
        return nn.Sequential(conv, nn.BatchNorm2d(outside), nn.LeakyReLU(0.1))

    def forward(self, x: Tensor) -> list[Tensor]:
        early = self.early(x)
        middle = self.middle(early)
        x = self.late(middle)
        outputs = []
        for scale, head in enumerate(self.heads):
            if scale > 0:
                x = F.interpolate(self.lower[scale - 1](x), scale_factor=2)
                x = torch.cat([x, middle if scale == 1 else early], 1)
            raw = head(x)
            batch, _, rows, columns = raw.shape
            outputs.append(raw.view(batch, 3, 7, rows, columns).permute(0, 3, 4, 1, 2))
        return outputs


def best_overlap(boxes: Tensor, truth: Tensor) -> Tensor:
    """For each box (centre and size) the largest share with any true one."""
    one = torch.cat([boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2], -1)
    other = torch.cat([truth[:, :2] - truth[:, 2:] / 2, truth[:, :2] + truth[:, 2:] / 2], -1)
    left = torch.max(one[..., None, :2], other[:, :2])
    right = torch.min(one[..., None, 2:], other[:, 2:])
    shared = (right - left).clamp(min=0).prod(-1)
    areas = (boxes[..., 2] * boxes[..., 3])[..., None] + truth[:, 2] * truth[:, 3]
    return (shared / (areas - shared).clamp(min=1e-6)).amax(-1)


class Yolo:
    def __init__(self, width: int) -> None:
        self.model = Darknet(width)
        self.anchors = torch.tensor([[0.4, 0.5, 0.3], [0.25, 0.3, 0.35], [0.15, 0.2, 0.2]])
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.calls = 0
        self.parts = {"place": 0.0, "size": 0.0, "object": 0.0, "class": 0.0}

    def loss(self, raw: Tensor, target: Tensor, anchors: Tensor) -> dict[str, Tensor]:
        """Of one scale. ``target``: centre, size, whether there is a box, its class."""
        rows, columns = raw.shape[1:3]
        ys, xs = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
        cells = torch.stack([xs, ys], -1)[None, :, :, None]
        place = (torch.sigmoid(raw[..., :2]) + cells) / rows
        size = torch.exp(raw[..., 2:4].clamp(-3, 3)) * anchors[:, None]
        true_place, true_size, there, kind = target[..., :2], target[..., 2:4], target[..., 4], target[..., 5]
        weight = there * (2 - true_size.prod(-1))
        boxes = torch.cat([place, size], -1)
        ignored = []
        for number in range(len(raw)):
            # Boxes that nearly hit a true one are not trained to be background.
            truth = target[number][there[number].bool()][:, :4]
            if len(truth):
                ignored.append((best_overlap(boxes[number].detach(), truth) < 0.5).float())
            else:
                ignored.append(torch.ones(rows, columns, 3))
        quiet = torch.stack(ignored)
        objects = F.binary_cross_entropy_with_logits(raw[..., 4], there, reduction="none")
        classes = F.cross_entropy(raw[..., 5:].flatten(0, 3), kind.long().flatten(), reduction="none")
        return {
            "place": (weight * (place - true_place).square().sum(-1)).sum(),
            "size": (weight * (size - true_size).square().sum(-1)).sum(),
            "object": (there * objects + (1 - there) * quiet * objects).sum(),
            "class": (there.flatten() * classes).sum(),
        }

    def step(self, pictures: Tensor, targets: list[Tensor]) -> float:
        self.calls += 1
        outputs = self.model(pictures)
        total = torch.zeros(())
        for scale, (raw, target) in enumerate(zip(outputs, targets, strict=True)):
            parts = self.loss(raw, target, self.anchors[scale])
            for name, part in parts.items():
                self.parts[name] += part.item()
                total = total + part / len(pictures)
        self.optimizer.zero_grad()
        total.backward()
        self.optimizer.step()
        logger.info("call %d, loss %.3f, %s", self.calls, total.item(), [f"{x:.2f}" for x in self.parts.values()])
        return total.item()


def assigned(random: np.random.Generator, count: int, side: int) -> tuple[Tensor, list[Tensor]]:
    """Pictures, and for each scale what is where; a large box belongs to the coarse scale, a small one to the fine."""
    pictures, targets = [], [np.zeros((count, side // s, side // s, 3, 6), np.float32) for s in (32, 16, 8)]
    for number in range(count):
        picture, boxes, classes = scene(random, side, 4)
        pictures.append(picture)
        for (x1, y1, x2, y2), kind in zip(boxes / side, classes, strict=True):
            width, height = x2 - x1, y2 - y1
            scale = 0 if width * height > 0.12 else 1 if width * height > 0.06 else 2
            cells = targets[scale].shape[1]
            x, y = (x1 + x2) / 2, (y1 + y2) / 2
            shape = 0 if abs(width - height) < 0.1 else 1 if width > height else 2
            place = (number, int(y * cells), int(x * cells), shape)
            targets[scale][place] = x, y, width, height, 1.0, kind - 1
    return torch.stack(pictures), [torch.from_numpy(target) for target in targets]


@program(
    "yolov3",
    paper="Terra",
    dynamic="for each picture and scale as many true boxes as there are (or none); each part of the loss is logged",
    size="96 x 96 pictures, batches of 4 (the original: 416 x 416, 8), 5 halving layers up to 256 channels",
)
def yolov3(seed: int, small: bool = False) -> Program:
    random = np.random.default_rng(seed)
    yolo = Yolo(1 if small else 16)
    count, side = (2, 32) if small else (4, 96)

    def batches() -> Iterator[Batch]:
        while True:
            yield assigned(random, count, side)

    return Program(yolo.step, batches(), yolo)
