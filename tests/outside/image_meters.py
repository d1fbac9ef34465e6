"""The loop of many image scripts: top-k accuracy, meters with a text of their own, a line printed now and then."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn


class AverageMeter:
    def __init__(self, name: str, form: str = ":f") -> None:
        self.name, self.form = name, form
        self.reset()

    def reset(self) -> None:
        self.val: Any = 0
        self.sum: Any = 0
        self.avg: Any = 0
        self.count = 0

    def update(self, value: Any, count: int = 1) -> None:
        self.val = value
        self.sum += value * count
        self.count += count
        self.avg = self.sum / self.count

    def __str__(self) -> str:
        form = "{name} {val" + self.form + "} ({avg" + self.form + "})"
        return form.format(**self.__dict__)


class ProgressMeter:
    def __init__(self, total: int, meters: list[AverageMeter], prefix: str = "") -> None:
        digits = len(str(total))
        self.form = "[{:" + str(digits) + "d}/" + str(total) + "]"
        self.meters, self.prefix = meters, prefix

    def display(self, number: int) -> None:
        entries = [self.prefix + self.form.format(number)]
        entries += [str(meter) for meter in self.meters]
        print("\t".join(entries))


def accuracy(output: Tensor, target: Tensor, topk: tuple[int, ...] = (1,)) -> list[Tensor]:
    with torch.no_grad():
        _, found = output.topk(max(topk), 1, True, True)
        correct = found.t().eq(target.view(1, -1).expand_as(found.t()))
        return [correct[:k].reshape(-1).float().sum(0, keepdim=True).mul_(100.0 / target.size(0)) for k in topk]


class Block(nn.Module):
    def __init__(self, planes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            OrderedDict(
                conv=nn.Conv2d(planes, planes, 3, padding=1, bias=False), norm=nn.BatchNorm2d(planes), relu=nn.ReLU()
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) + x


class Session:
    def __init__(self, total: int) -> None:
        self.model = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), Block(4), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 6)
        )
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
        self.batch_time = AverageMeter("Time", ":6.3f")
        self.losses, self.top1 = AverageMeter("Loss", ":.4e"), AverageMeter("Acc@1", ":6.2f")
        self.progress = ProgressMeter(total, [self.losses, self.top1], "Epoch: ")
        self.end = time.time()

    def step(self, number: int, images: Tensor, target: Tensor) -> float:
        output = self.model(images)
        loss = self.criterion(output, target)
        acc1, _ = accuracy(output, target, topk=(1, 3))
        self.losses.update(loss.item(), images.size(0))
        self.top1.update(acc1[0], images.size(0))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.batch_time.update(time.time() - self.end)
        self.end = time.time()
        if number % 3 == 0:
            self.progress.display(number + 1)
        return self.losses.avg


def make() -> Any:
    session = Session(36)
    calls = [(number, torch.randn(8, 1, 8, 8), torch.randint(0, 6, (8,))) for number in range(36)]
    return session.step, calls, lambda: session.model
