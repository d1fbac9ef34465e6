"""A quantising autoencoder: the codebook is a new parameter after each step, codes are counted by `Counter`."""

from __future__ import annotations

import collections
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Quantizer(nn.Module):
    def __init__(self, codes: int, width: int, cost: float = 0.25, decay: float = 0.99, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.codes, self.width, self.cost, self.decay, self.epsilon = codes, width, cost, decay, epsilon
        self.embedding = nn.Embedding(codes, width)
        self.embedding.weight.data.normal_()
        self.register_buffer("cluster_size", torch.zeros(codes))
        self.average = nn.Parameter(torch.randn(codes, width))

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        inputs = inputs.permute(0, 2, 3, 1).contiguous()
        flat = inputs.view(-1, self.width)
        distances = flat.pow(2).sum(1, keepdim=True) + self.embedding.weight.pow(2).sum(1)
        distances = distances - 2 * torch.matmul(flat, self.embedding.weight.t())
        indices = torch.argmin(distances, dim=1).unsqueeze(1)
        encodings = torch.zeros(indices.shape[0], self.codes, device=inputs.device)
        encodings.scatter_(1, indices, 1)
        quantized = torch.matmul(encodings, self.embedding.weight).view(inputs.shape)
        if self.training:
            self.cluster_size = self.cluster_size * self.decay + (1 - self.decay) * encodings.sum(0)
            n = torch.sum(self.cluster_size.data)
            self.cluster_size = (self.cluster_size + self.epsilon) / (n + self.codes * self.epsilon) * n
            new = torch.matmul(encodings.t(), flat)
            self.average = nn.Parameter(self.average * self.decay + (1 - self.decay) * new)
            self.embedding.weight = nn.Parameter(self.average / self.cluster_size.unsqueeze(1))
        loss = self.cost * F.mse_loss(quantized.detach(), inputs)
        quantized = inputs + (quantized - inputs).detach()
        used = encodings.mean(0)
        perplexity = torch.exp(-torch.sum(used * torch.log(used + 1e-10)))
        return loss, quantized.permute(0, 3, 1, 2).contiguous(), perplexity, indices


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, 8, 4, 2, 1), nn.ReLU(), nn.Conv2d(8, 4, 1))
        self.quantizer = Quantizer(12, 4)
        self.decoder = nn.Sequential(nn.Conv2d(4, 8, 3, 1, 1), nn.ReLU(), nn.ConvTranspose2d(8, 1, 4, 2, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        loss, quantized, perplexity, indices = self.quantizer(self.encoder(x))
        return loss, self.decoder(quantized), perplexity, indices


class Trainer:
    def __init__(self, variance: Tensor) -> None:
        self.model, self.variance = Autoencoder().train(), variance
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.errors: list[float] = []
        self.perplexities: list[float] = []
        self.usage: collections.Counter[int] = collections.Counter()

    def step(self, number: int, batch: Tensor) -> float:
        self.optimizer.zero_grad()
        loss, made, perplexity, indices = self.model(batch)
        error = F.mse_loss(made, batch) / self.variance
        (error + loss).backward()
        self.optimizer.step()
        self.errors.append(error.item())
        self.perplexities.append(perplexity.item())
        for code in indices[:6]:
            self.usage[code.item()] += 1
        if number % 10 == 9:
            print(f"{number + 1}: {sum(self.errors[-10:]) / 10:.5f}", self.usage.most_common(2))
        return self.errors[-1]


def make() -> Any:
    data = torch.rand(64, 1, 4, 4).repeat_interleave(2, 2).repeat_interleave(2, 3)
    trainer = Trainer(data.var())
    calls = [(number, data[torch.randint(0, 64, (8,))]) for number in range(40)]
    return trainer.step, calls, lambda: [trainer.model, trainer.perplexities, dict(trainer.usage)]
