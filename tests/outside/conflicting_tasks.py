"""Several tasks with one trunk: where the gradients of two tasks conflict, each is projected onto the plane of the
other (PCGrad); tasks are visited in random order, and conflicts are counted."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer


class PCGrad:
    def __init__(self, optimizer: Optimizer) -> None:
        self._optim = optimizer
        self.conflicts = 0

    @property
    def optimizer(self) -> Optimizer:
        return self._optim

    def zero_grad(self) -> None:
        return self._optim.zero_grad(set_to_none=True)

    def step(self) -> None:
        return self._optim.step()

    def pc_backward(self, objectives: list[Tensor]) -> None:
        grads, shapes, has_grads = self._pack_grad(objectives)
        merged = self._project_conflicting(grads, has_grads)
        self._set_grad(self._unflatten_grad(merged, shapes[0]))

    def _project_conflicting(self, grads: list[Tensor], has_grads: list[Tensor]) -> Tensor:
        shared = torch.stack(has_grads).prod(0).bool()
        pc_grad = copy.deepcopy(grads)
        for g_i in pc_grad:
            random.shuffle(grads)
            for g_j in grads:
                g_i_g_j = torch.dot(g_i, g_j)
                if g_i_g_j < 0:
                    self.conflicts += 1
                    g_i -= (g_i_g_j) * g_j / (g_j.norm() ** 2)
        merged = torch.zeros_like(grads[0])
        merged[shared] = torch.stack([g[shared] for g in pc_grad]).mean(dim=0)
        merged[~shared] = torch.stack([g[~shared] for g in pc_grad]).sum(dim=0)
        return merged

    def _set_grad(self, grads: list[Tensor]) -> None:
        idx = 0
        for group in self._optim.param_groups:
            for p in group["params"]:
                p.grad = grads[idx]
                idx += 1

    def _pack_grad(self, objectives: list[Tensor]) -> tuple[list[Tensor], list[Any], list[Tensor]]:
        grads, shapes, has_grads = [], [], []
        for obj in objectives:
            self._optim.zero_grad(set_to_none=True)
            obj.backward(retain_graph=True)
            grad, shape, has_grad = self._retrieve_grad()
            grads.append(torch.cat([g.flatten() for g in grad]))
            has_grads.append(torch.cat([g.flatten() for g in has_grad]))
            shapes.append(shape)
        return grads, shapes, has_grads

    def _unflatten_grad(self, grads: Tensor, shapes: list[Any]) -> list[Tensor]:
        unflatten, idx = [], 0
        for shape in shapes:
            length = int(np.prod(shape))
            unflatten.append(grads[idx : idx + length].view(shape).clone())
            idx += length
        return unflatten

    def _retrieve_grad(self) -> tuple[list[Tensor], list[Any], list[Tensor]]:
        grad, shape, has_grad = [], [], []
        for group in self._optim.param_groups:
            for p in group["params"]:
                shape.append(p.shape)
                grad.append(torch.zeros_like(p) if p.grad is None else p.grad.clone())
                has_grad.append(torch.zeros_like(p) if p.grad is None else torch.ones_like(p))
        return grad, shape, has_grad


class MultiTask(nn.Module):
    def __init__(self, inputs: int, width: int, classes: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.heads = nn.ModuleDict({"label": nn.Linear(width, classes), "depth": nn.Linear(width, 1)})

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        shared = self.trunk(x)
        return {name: head(shared) for name, head in self.heads.items()}


class Trainer:
    def __init__(self) -> None:
        self.net = MultiTask(6, 24, 3)
        self.optimizer = PCGrad(torch.optim.Adam(self.net.parameters(), lr=3e-3))

    def step(self, batch: dict[str, Tensor]) -> tuple[float, float]:
        out = self.net(batch["x"])
        losses = [F.cross_entropy(out["label"], batch["label"]), F.l1_loss(out["depth"].squeeze(1), batch["depth"])]
        self.optimizer.zero_grad()
        self.optimizer.pc_backward(losses)
        self.optimizer.step()
        return losses[0].item(), losses[1].item()


def make() -> Any:
    trainer, calls = Trainer(), []
    for _ in range(40):
        x = torch.randn(16, 6)
        calls.append(({"x": x, "label": x[:, :3].argmax(1), "depth": x.square().sum(1).sqrt()},))
    return trainer.step, calls, lambda: (trainer.net, trainer.optimizer.conflicts)
