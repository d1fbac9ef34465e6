"""Quantisation-aware training: linear layers are swapped for ones that observe ranges, and later quantise weights and
activations in the forward pass, with straight-through gradients. The trainer goes from one phase to the next."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Observer(nn.Module):
    low: Tensor
    high: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("low", torch.tensor(float("inf")))
        self.register_buffer("high", torch.tensor(float("-inf")))
        self.enabled, self.calls = True, 0

    def forward(self, x: Tensor) -> Tensor:
        if self.enabled and self.training:
            self.low = torch.min(self.low, x.detach().min())
            self.high.copy_(torch.max(self.high, x.detach().max()))
            self.calls += 1
        return x

    def scale(self) -> tuple[Tensor, Tensor]:
        low = self.low.clamp(max=0)
        scale = ((self.high.clamp(min=0) - low) / 255).clamp(min=1e-8)
        return scale, (-low / scale).round().clamp(0, 255)


class FakeQuantise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
        level = (x / scale + zero).round()
        ctx.save_for_backward((level >= 0) & (level <= 255))
        return (level.clamp(0, 255) - zero) * scale

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (within,) = ctx.saved_tensors
        return gradient * within, None, None


class QuantisedLinear(nn.Linear):
    def __init__(self, plain: nn.Linear) -> None:
        super().__init__(plain.in_features, plain.out_features)
        self.weight, self.bias = plain.weight, plain.bias
        self.of_input, self.of_weight, self.is_rounding = Observer(), Observer(), False

    def forward(self, x: Tensor) -> Tensor:
        self.of_input(x)
        self.of_weight(self.weight)
        if not self.is_rounding:
            return super().forward(x)
        weight = FakeQuantise.apply(self.weight, *self.of_weight.scale())
        return F.linear(FakeQuantise.apply(x, *self.of_input.scale()), weight, self.bias)


def swap(module: nn.Module) -> None:
    for name, child in list(module.named_children()):
        if type(child) is nn.Linear:
            setattr(module, name, QuantisedLinear(child))
        else:
            swap(child)


class Trainer:
    def __init__(self) -> None:
        self.net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU6(), nn.Linear(16, 3))
        swap(self.net)
        self.optimizer = torch.optim.SGD(self.net.parameters(), 0.1)
        self.losses: list[float] = []

    def set_phase(self, number: int) -> None:
        for module in self.net.modules():
            if isinstance(module, QuantisedLinear):
                module.is_rounding = number >= 15
            elif isinstance(module, Observer):
                module.enabled = number < 30

    def step(self, number: int, x: Tensor) -> float:
        self.set_phase(number)
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.net(x), x[:, :3].argmax(1))
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())
        return self.losses[-1]


def make() -> Any:
    trainer = Trainer()
    calls = [(number, torch.randn(8, 6)) for number in range(45)]
    return trainer.step, calls, lambda: (trainer.net, trainer.losses)
