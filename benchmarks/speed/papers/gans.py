"""AN, pix2pix (JANUS, table 2) and DCGAN (Terra): two networks against each other, each with its optimizer.

Training both is one step. What is monitored is kept in Python: lists of losses on an object, running averages, and
every so often a line of text.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.speed.papers.base import Batch, Program, images, program

__all__: list[str] = []


class AdversarialNets:
    """Goodfellow et al., 2014, on layers of neurons."""

    def __init__(self, noise: int, width: int, pixels: int) -> None:
        self.noise = noise
        self.generator = nn.Sequential(
            nn.Linear(noise, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, pixels), nn.Tanh()
        )
        self.discriminator = nn.Sequential(
            nn.Linear(pixels, width), nn.LeakyReLU(0.2), nn.Dropout(0.3), nn.Linear(width, 1)
        )
        self.optimizers = {
            "generator": torch.optim.Adam(self.generator.parameters(), lr=2e-4, betas=(0.5, 0.999)),
            "discriminator": torch.optim.Adam(self.discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999)),
        }
        self.losses: dict[str, list[float]] = {"generator": [], "discriminator": []}
        self.steps = 0

    def update(self, name: str, loss: Tensor) -> None:
        self.optimizers[name].zero_grad()
        loss.backward()
        self.optimizers[name].step()
        self.losses[name].append(loss.item())

    def step(self, pictures: Tensor) -> float:
        pictures = pictures.flatten(1)
        made = self.generator(torch.randn(pictures.shape[0], self.noise))
        real, fake = self.discriminator(pictures), self.discriminator(made.detach())
        self.update(
            "discriminator",
            F.binary_cross_entropy_with_logits(real, torch.ones_like(real))
            + F.binary_cross_entropy_with_logits(fake, torch.zeros_like(fake)),
        )
        judged = self.discriminator(made)
        self.update("generator", F.binary_cross_entropy_with_logits(judged, torch.ones_like(judged)))
        self.steps += 1
        return self.losses["discriminator"][-1]


@program(
    "an",
    paper="JANUS",
    dynamic="losses kept in lists on an object, random numbers, two optimizers",
    size="28 x 28 pictures, batches of 128 (the paper's), layers of 256",
)
def an(seed: int, small: bool = False) -> Program:
    random = np.random.default_rng(seed)
    nets = AdversarialNets(4, 6, 64) if small else AdversarialNets(100, 256, 784)

    def batches() -> Iterator[Batch]:
        while True:
            yield images(random, 4 if small else 128, 1, 8 if small else 28)[:1]

    return Program(nets.step, batches(), nets)


# -- pix2pix -----------------------------------------------------------------------------------------------------------


class UNet(nn.Module):
    """Down to one pixel and up again, with what came by on the way down."""

    def __init__(self, width: int, levels: int) -> None:
        super().__init__()
        widths = [min(width * 2**level, 8 * width) for level in range(levels)]
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        channels = 3
        for level, outside in enumerate(widths):
            layers: list[nn.Module] = [nn.Conv2d(channels, outside, 4, 2, 1, bias=False)]
            if 0 < level < levels - 1:
                layers.append(nn.BatchNorm2d(outside))
            self.down.append(nn.Sequential(*layers, nn.LeakyReLU(0.2)))
            channels = outside
        for level in reversed(range(levels - 1)):
            layers = [nn.ConvTranspose2d(channels, widths[level], 4, 2, 1, bias=False), nn.BatchNorm2d(widths[level])]
            if level >= levels - 4:
                layers.append(nn.Dropout(0.5))
            self.up.append(nn.Sequential(*layers, nn.ReLU()))
            channels = 2 * widths[level]
        self.last = nn.ConvTranspose2d(channels, 3, 4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        skipped = []
        for layer in self.down:
            x = layer(x)
            skipped.append(x)
        skipped.pop()
        for layer in self.up:
            x = torch.cat([layer(x), skipped.pop()], 1)
        return torch.tanh(self.last(x))


class PatchJudge(nn.Module):
    """Looks at a picture and its original, and judges each patch."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(6, width, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, 2 * width, 4, 2, 1, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.LeakyReLU(0.2),
            nn.Conv2d(2 * width, 4 * width, 4, 1, 1, bias=False),
            nn.BatchNorm2d(4 * width),
            nn.LeakyReLU(0.2),
            nn.Conv2d(4 * width, 1, 4, 1, 1),
        )

    def forward(self, original: Tensor, picture: Tensor) -> Tensor:
        judged: Tensor = self.layers(torch.cat([original, picture], 1))
        return judged


class Pix2Pix:
    def __init__(self, width: int, levels: int) -> None:
        self.generator, self.judge = UNet(width, levels), PatchJudge(width)
        self.generator_optimizer = torch.optim.Adam(self.generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
        self.judge_optimizer = torch.optim.Adam(self.judge.parameters(), lr=2e-4, betas=(0.5, 0.999))
        self.history: list[tuple[float, float, float]] = []
        self.steps = 0

    def step(self, original: Tensor, wanted: Tensor) -> float:
        made = self.generator(original)
        for parameter in self.judge.parameters():
            parameter.requires_grad_(True)
        self.judge_optimizer.zero_grad()
        real, fake = self.judge(original, wanted), self.judge(original, made.detach())
        judge_loss = 0.5 * (
            F.binary_cross_entropy_with_logits(real, torch.ones_like(real))
            + F.binary_cross_entropy_with_logits(fake, torch.zeros_like(fake))
        )
        judge_loss.backward()
        self.judge_optimizer.step()
        for parameter in self.judge.parameters():
            parameter.requires_grad_(False)
        self.generator_optimizer.zero_grad()
        judged = self.judge(original, made)
        adversarial = F.binary_cross_entropy_with_logits(judged, torch.ones_like(judged))
        distance = F.l1_loss(made, wanted)
        (adversarial + 100 * distance).backward()
        self.generator_optimizer.step()
        self.steps += 1
        self.history.append((judge_loss.item(), adversarial.item(), distance.item()))
        return distance.item()


@program(
    "pix2pix",
    paper="JANUS",
    dynamic="losses kept in a list, parameters frozen and thawed within the step, two optimizers",
    size="256 x 256 pictures, batches of 1 (the paper's), a quarter of the paper's widths",
)
def pix2pix(seed: int, small: bool = False) -> Program:
    random = np.random.default_rng(seed)
    learner = Pix2Pix(2, 4) if small else Pix2Pix(16, 8)
    side = 32 if small else 256

    def batches() -> Iterator[Batch]:
        while True:
            original, _ = images(random, 1, 3, side)
            yield original, torch.tanh(original.flip(3))

    return Program(learner.step, batches(), learner)


# -- DCGAN -------------------------------------------------------------------------------------------------------------


class Mean:
    """A running mean, as a metric."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.total, self.count = 0.0, 0

    def update(self, value: float) -> None:
        self.total += value
        self.count += 1

    @property
    def result(self) -> float:
        return self.total / self.count if self.count else 0.0


class DCGAN:
    """Radford et al., 2016, on 28 x 28 pictures."""

    def __init__(self, width: int, noise: int) -> None:
        self.noise = noise
        self.generator = nn.Sequential(
            nn.Linear(noise, 7 * 7 * 4 * width, bias=False),
            nn.BatchNorm1d(7 * 7 * 4 * width),
            nn.LeakyReLU(0.3),
            nn.Unflatten(1, (4 * width, 7, 7)),
            nn.ConvTranspose2d(4 * width, 2 * width, 5, 1, 2, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.LeakyReLU(0.3),
            nn.ConvTranspose2d(2 * width, width, 5, 2, 2, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.LeakyReLU(0.3),
            nn.ConvTranspose2d(width, 1, 5, 2, 2, 1, bias=False),
            nn.Tanh(),
        )
        self.discriminator = nn.Sequential(
            nn.Conv2d(1, width, 5, 2, 2),
            nn.LeakyReLU(0.3),
            nn.Dropout(0.3),
            nn.Conv2d(width, 2 * width, 5, 2, 2),
            nn.LeakyReLU(0.3),
            nn.Dropout(0.3),
            nn.Flatten(),
            nn.Linear(7 * 7 * 2 * width, 1),
        )
        self.generator_optimizer = torch.optim.Adam(self.generator.parameters(), lr=1e-4)
        self.discriminator_optimizer = torch.optim.Adam(self.discriminator.parameters(), lr=1e-4)
        self.means = [Mean("generator"), Mean("discriminator")]
        self.steps = 0

    def step(self, pictures: Tensor) -> float:
        made = self.generator(torch.randn(pictures.shape[0], self.noise))
        real, fake = self.discriminator(pictures), self.discriminator(made)
        generator_loss = F.binary_cross_entropy_with_logits(fake, torch.ones_like(fake))
        discriminator_loss = F.binary_cross_entropy_with_logits(
            real, torch.ones_like(real)
        ) + F.binary_cross_entropy_with_logits(fake, torch.zeros_like(fake))
        # Both go back through one forward pass, each to its own network.
        first = torch.autograd.grad(generator_loss, list(self.generator.parameters()), retain_graph=True)
        second = torch.autograd.grad(discriminator_loss, list(self.discriminator.parameters()))
        for network, gradients in ((self.generator, first), (self.discriminator, second)):
            for parameter, gradient in zip(network.parameters(), gradients, strict=True):
                parameter.grad = gradient
        self.generator_optimizer.step()
        self.discriminator_optimizer.step()
        for mean, loss in zip(self.means, (generator_loss, discriminator_loss), strict=True):
            mean.update(loss.item())
        self.steps += 1
        if self.steps % 10 == 0:
            print(f"step {self.steps}: " + ", ".join(f"{mean.name} {mean.result:.4f}" for mean in self.means))
        return generator_loss.item()


@program(
    "dcgan",
    paper="Terra",
    dynamic="two gradients of one forward pass, metrics as objects, a line of text at every tenth call",
    size="28 x 28 pictures, batches of 64, a quarter of the tutorial's widths",
    period=10,
)
def dcgan(seed: int, small: bool = False) -> Program:
    random = np.random.default_rng(seed)
    learner = DCGAN(2, 4) if small else DCGAN(16, 100)

    def batches() -> Iterator[Batch]:
        while True:
            yield images(random, 4 if small else 64, 1, 28)[:1]

    return Program(learner.step, batches(), learner)
