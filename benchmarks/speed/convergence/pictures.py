"""On scikit-learn's handwritten digits, 8 x 8 pixels: a convnet that tells them apart, a GAN that draws new ones."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.speed.convergence.base import Jit, Training, training
from examples import digits

__all__ = ["distance"]


@training(
    "convnet",
    about="a LeNet of 16 and 32 channels (examples/digits.py), batches of 32, the last one smaller, a schedule",
    metric="test accuracy",
    target=0.985,
    steps=4500,
    every=45,
)
def convnet(jit: Jit, seed: int, small: bool = False) -> Training:
    batches, images, labels = digits.load(0)
    if small:
        batches = DataLoader(TensorDataset(*batches.dataset[:50]), batch_size=8, shuffle=True)
    model, optimizer, schedule = digits.build(4500)
    seen = {"pictures": 0, "right": 0}
    step = jit(digits.train_step)

    def losses() -> Iterator[float]:
        while True:
            for pictures, targets in batches:
                loss, hits = step(model, optimizer, pictures, targets)
                schedule.step()
                seen["pictures"] += len(targets)
                seen["right"] += int(hits)
                yield loss.item()

    return Training(losses(), lambda: digits.accuracy(model, images, labels), (model, optimizer, schedule, seen))


# -- a GAN -------------------------------------------------------------------------------------------------------------


class Generator(nn.Module):
    def __init__(self, noise: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(noise, width), nn.Linear(width, width)])
        self.norms = nn.ModuleList([nn.BatchNorm1d(width) for _ in self.layers])
        self.draw = nn.Linear(width, 64)

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = F.leaky_relu(norm(layer(x)), 0.2)
        return torch.sigmoid(self.draw(x))


class Discriminator(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(64, width), nn.Linear(width, width)])
        self.score = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.dropout(F.leaky_relu(layer(x), 0.2), 0.3, self.training)
        return self.score(x).squeeze(1)


def distance(one: np.ndarray, other: np.ndarray) -> float:
    """Frechet's, between two sets of points as normal distributions (as in FID, but of the pixels themselves)."""
    means = one.mean(0) - other.mean(0)
    first, second = np.cov(one, rowvar=False), np.cov(other, rowvar=False)
    common = np.sqrt(np.maximum(np.linalg.eigvals(first @ second).real, 0)).sum()
    return float(means @ means + np.trace(first) + np.trace(second) - 2 * common)


@training(
    "gan",
    about="two networks of two layers of 128, batches of 32, noise of its own for each of the two, averaged weights",
    metric="Frechet distance of pixels",
    target=0.6,
    steps=6000,
    every=100,
    higher=False,
)
def gan(jit: Jit, seed: int, small: bool = False) -> Training:
    noise, width, size = (4, 8, 8) if small else (32, 128, 32)
    pictures = torch.tensor(load_digits().images[: 80 if small else None], dtype=torch.float32).flatten(1) / 16
    batches = DataLoader(TensorDataset(pictures), batch_size=size, shuffle=True, drop_last=True)
    draw, tell = Generator(noise, width), Discriminator(width)
    # The generator that is shown: its weights are the running mean of those that are trained (Yazici et al., 2019).
    mean = Generator(noise, width)
    mean.load_state_dict(draw.state_dict())
    optimizers = [torch.optim.Adam(network.parameters(), lr=5e-4, betas=(0.5, 0.999)) for network in (draw, tell)]
    fixed = torch.randn(1000, noise, generator=torch.Generator().manual_seed(1))
    progress = {"steps": 0, "fooled": 0.0}

    @jit
    def step(real: Tensor) -> float:
        # First the one that tells: real pictures from drawn ones.
        drawn = draw(torch.randn(len(real), noise))
        on_real, on_drawn = tell(real), tell(drawn.detach())
        loss_tell = F.binary_cross_entropy_with_logits(on_real, torch.full_like(on_real, 0.9))
        loss_tell = loss_tell + F.binary_cross_entropy_with_logits(on_drawn, torch.zeros_like(on_drawn))
        optimizers[1].zero_grad()
        loss_tell.backward()
        optimizers[1].step()
        # Then the one that draws.
        fooled = tell(draw(torch.randn(len(real), noise)))
        loss_draw = F.binary_cross_entropy_with_logits(fooled, torch.ones_like(fooled))
        optimizers[0].zero_grad()
        loss_draw.backward()
        optimizers[0].step()
        with torch.no_grad():
            for kept, new in zip(mean.state_dict().values(), draw.state_dict().values(), strict=True):
                if kept.is_floating_point():
                    kept.lerp_(new, 0.01)
                else:
                    kept.copy_(new)
        progress["steps"] += 1
        progress["fooled"] = 0.99 * progress["fooled"] + 0.01 * (fooled > 0).float().mean().item()
        return loss_tell.item() + loss_draw.item()

    def losses() -> Iterator[float]:
        while True:
            for (real,) in batches:
                yield step(real)

    def apart() -> float:
        mean.eval()
        with torch.no_grad():
            shown = mean(fixed).double().numpy()
        mean.train()
        return distance(shown, pictures.double().numpy())

    return Training(losses(), apart, (draw, tell, mean, optimizers, progress))
