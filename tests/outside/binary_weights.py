"""Knowledge distilled into a network of binary weights: a straight-through ``autograd.Function``, features of the
teacher by a forward hook, mix-up of pairs by a beta distribution of NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Binarize(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, w: Tensor) -> Tensor:
        ctx.save_for_backward(w)
        return w.sign() * w.abs().mean()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (w,) = ctx.saved_tensors
        return grad * (w.abs() <= 1).to(grad.dtype)


class BinaryLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, Binarize.apply(self.weight), self.bias)


class Features:
    """What a module gave in the last forward pass."""

    def __init__(self, module: nn.Module) -> None:
        self.value: Tensor | None = None
        self.handle = module.register_forward_hook(self._keep)

    def _keep(self, module: nn.Module, given: tuple[Tensor, ...], result: Tensor) -> None:
        self.value = result


class Distiller:
    def __init__(self) -> None:
        self.teacher = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4)).eval().requires_grad_(False)
        self.student = nn.Sequential(BinaryLinear(8, 32), nn.Hardtanh(), BinaryLinear(32, 4))
        self.wanted, self.found = Features(self.teacher[0]), Features(self.student[0])
        self.optimizer = torch.optim.Adam(self.student.parameters(), lr=3e-3)
        self.random = np.random.default_rng(5)
        self.lambdas: list[float] = []

    def mixed(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, float]:
        share = float(self.random.beta(0.4, 0.4))
        order = torch.from_numpy(self.random.permutation(len(x)))
        self.lambdas.append(share)
        target = share * F.one_hot(y, 4).float() + (1 - share) * F.one_hot(y[order], 4).float()
        return share * x + (1 - share) * x[order], target, share

    def step(self, x: Tensor, y: Tensor) -> dict[str, float]:
        x, target, share = self.mixed(x, y)
        with torch.no_grad():
            soft = (self.teacher(x) / 2).softmax(1)
        logits = self.student(x)
        losses = {
            "hard": -(target * logits.log_softmax(1)).sum(1).mean(),
            "soft": 4 * F.kl_div((logits / 2).log_softmax(1), soft, reduction="batchmean"),
            "hint": 0.1 * F.mse_loss(self.found.value, self.wanted.value),
        }
        self.optimizer.zero_grad()
        sum(losses.values()).backward()
        self.optimizer.step()
        with torch.no_grad():
            for layer in self.student:
                if isinstance(layer, BinaryLinear):
                    layer.weight.clamp_(-1, 1)
        return {name: value.item() for name, value in losses.items()} | {"share": share}


def make() -> Any:
    distiller = Distiller()
    calls = [(torch.randn(16, 8), torch.randint(0, 4, (16,))) for _ in range(40)]
    return distiller.step, calls, lambda: (distiller.student, distiller.lambdas)
