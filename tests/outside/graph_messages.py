"""A graph network on random graphs of networkx: batches of graphs of different sizes, messages added up by index, a
readout for each graph, accuracy by a running meter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import networkx as nx
import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass
class Batch:
    x: Tensor
    edges: Tensor
    graph: Tensor
    labels: Tensor

    @property
    def count(self) -> int:
        return len(self.labels)


def collated(graphs: list[nx.Graph], labels: list[int]) -> Batch:
    features, edges, owner, offset = [], [], [], 0
    for number, graph in enumerate(graphs):
        degrees = torch.tensor([float(d) for _, d in graph.degree()])
        features.append(torch.stack([degrees, torch.ones(len(degrees))], 1))
        pairs = torch.tensor(list(graph.edges()), dtype=torch.long).T + offset
        edges += [pairs, pairs.flip(0)]
        owner += [number] * graph.number_of_nodes()
        offset += graph.number_of_nodes()
    return Batch(torch.cat(features), torch.cat(edges, 1), torch.tensor(owner), torch.tensor(labels))


class Messages(nn.Module):
    def __init__(self, inward: int, outward: int) -> None:
        super().__init__()
        self.message, self.update = nn.Linear(2 * inward, outward), nn.Linear(inward + outward, outward)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        sent = F.relu(self.message(torch.cat([x[source], x[target]], 1)))
        total = x.new_zeros(len(x), sent.shape[1]).index_add_(0, target, sent)
        return F.relu(self.update(torch.cat([x, total], 1)))


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Messages(2, 12), Messages(12, 12)])
        self.head = nn.Linear(12, 2)

    def forward(self, batch: Batch) -> Tensor:
        x = batch.x
        for layer in self.layers:
            x = layer(x, batch.edges)
        pooled = torch.zeros(batch.count, x.shape[1]).scatter_reduce(
            0, batch.graph[:, None].expand_as(x), x, "mean", include_self=False
        )
        return self.head(pooled)


class Meter:
    def __init__(self) -> None:
        self.right = self.total = 0

    def update(self, logits: Tensor, labels: Tensor) -> None:
        self.right += int((logits.argmax(1) == labels).sum())
        self.total += labels.numel()

    @property
    def value(self) -> float:
        return self.right / max(self.total, 1)


class Trainer:
    def __init__(self) -> None:
        self.model = Classifier()
        self.optimizer = torch.optim.RMSprop(self.model.parameters(), lr=3e-3)
        self.meter = Meter()

    def step(self, graphs: list[nx.Graph], labels: list[int]) -> tuple[float, float]:
        batch = collated(graphs, labels)
        logits = self.model(batch)
        loss = F.cross_entropy(logits, batch.labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.meter.update(logits.detach(), batch.labels)
        return loss.item(), self.meter.value


def make() -> Any:
    trainer, calls = Trainer(), []
    for number in range(40):
        labels = [(number + k) % 2 for k in range(6)]
        graphs = [
            nx.gnp_random_graph(6 + (number + k) % 5, 0.5, seed=100 * number + k)
            if label
            else nx.cycle_graph(6 + (number * k) % 4)
            for k, label in enumerate(labels)
        ]
        calls.append((graphs, labels))
    return trainer.step, calls, lambda: (trainer.model, trainer.meter.value)
