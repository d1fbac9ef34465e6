"""What Terra's table 1 says conversion fails on is co-executed; programs of the corpus do the same co-executed."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torchjanus
from tests.programs import harness
from tests.runtime.coexecution.programs import Made, Twins


def drop_block() -> Made:
    """DropBlock: an object is changed while the step runs."""

    class DropBlock(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.keep, self.calls = 1.0, 0
            self.mask: Any = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            self.keep = 1.0 - min(self.calls, 5) * 0.02
            holes = F.max_pool2d((torch.rand_like(x) > self.keep).float(), 3, stride=1, padding=1)
            self.mask = 1 - holes
            return x * self.mask * (self.mask.numel() / self.mask.sum().clamp(min=1))

    net = nn.Sequential(nn.Conv2d(1, 2, 3), DropBlock(), nn.Flatten(), nn.Linear(32, 2))
    return _trained(net, lambda: torch.randn(2, 1, 6, 6), net[1])


def music_transformer() -> Made:
    """MusicTransformer: masks and attention weights are set on the model."""

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(4, 12)
            self.weights: list[Any] = []
            self.mask: Any = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.qkv(x).chunk(3, dim=-1)
            self.mask = torch.tensor(np.triu(np.ones((x.shape[1], x.shape[1]), dtype=bool), 1))
            weights = (q @ k.transpose(-1, -2)).masked_fill(self.mask, float("-inf")).softmax(-1)
            self.weights = [*self.weights[-1:], weights.detach()]
            return (weights @ v).mean(1)

    net = nn.Sequential(Attention(), nn.Linear(4, 2))
    return _trained(net, lambda: torch.randn(2, 5, 4), net[0])


def sd_point() -> Made:
    """SDPoint: where the network is thinned out is drawn anew in each step, and kept on the model."""

    class Thinned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Conv1d(2, 2, 3, padding=1) for _ in range(2))
            self.point = -1

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.point = random.randrange(2)
            for number, layer in enumerate(self.layers):
                x = layer(x).relu()
                if number == self.point:
                    x = F.avg_pool1d(x, 2)
            return x.mean(-1)

    net = Thinned()
    return _trained(net, lambda: torch.randn(2, 2, 8), net)


def bert_classifier() -> Made:
    """BERT-CLS: a library that knows nothing of tensors is called in the middle of the step."""
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    optimizer = torch.optim.Adam(net.parameters())
    scores: list[float] = []

    def step(x: torch.Tensor) -> float:
        logits = net(x)
        guess = np.argmax(logits[:, 1:].detach().numpy(), axis=0) + np.asarray(logits.argmax(1).tolist())
        scores.append(float(np.corrcoef(guess + np.arange(len(guess)), np.arange(len(guess)))[0, 1]))
        loss = F.cross_entropy(logits, torch.from_numpy((guess + 1) % 2)) * (1.0 + abs(scores[-1]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return Made(step, [(torch.randn(6, 4),) for _ in range(16)], [net, optimizer, scores])


def dcgan() -> Made:
    """DCGAN: two gradients of one forward pass; the backward graph that the first one has retained is dropped."""
    generator = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh())
    discriminator = nn.Sequential(nn.Linear(4, 4), nn.LeakyReLU(0.3), nn.Dropout(0.3), nn.Linear(4, 1))
    networks = (generator, discriminator)
    optimizers = [torch.optim.Adam(network.parameters(), lr=1e-2) for network in networks]

    def step(x: torch.Tensor) -> float:
        judged = discriminator(generator(torch.randn(len(x), 2)))
        losses = [F.softplus(-judged).mean(), F.softplus(judged).mean() + F.softplus(-discriminator(x)).mean()]
        first = torch.autograd.grad(losses[0], list(generator.parameters()), retain_graph=True)
        second = torch.autograd.grad(losses[1], list(discriminator.parameters()))
        for network, gradients in zip(networks, (first, second), strict=True):
            for parameter, gradient in zip(network.parameters(), gradients, strict=True):
                parameter.grad = gradient
        for optimizer in optimizers:
            optimizer.step()
        return losses[0].item()

    return Made(step, [(torch.randn(6, 4),) for _ in range(16)], [*networks, *optimizers])


def faster_rcnn() -> Made:
    """FasterRCNN: contents are needed in the middle of the step, and what is made of them is fed back."""
    head, boxes = nn.Linear(4, 1), nn.Linear(4, 4)
    optimizer = torch.optim.SGD([*head.parameters(), *boxes.parameters()], lr=0.05)

    def step(x: torch.Tensor) -> torch.Tensor:
        objectness = head(x).squeeze(1)
        order = sorted(range(len(x)), key=objectness.tolist().__getitem__, reverse=True)[:3]
        chosen = boxes(x)[torch.tensor(order)]
        loss = F.smooth_l1_loss(chosen, torch.zeros(3, 4)) + objectness.sigmoid().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Made(step, [(torch.randn(6, 4),) for _ in range(16)], [head, boxes, optimizer])


def _trained(net: nn.Module, draw: Callable[[], torch.Tensor], seen: Any) -> Made:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)

    def step(x: torch.Tensor) -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), torch.zeros(len(x), dtype=torch.long))
        loss.backward()
        optimizer.step()
        return loss.item()

    shown = {key: value for key, value in vars(seen).items() if not key.startswith("_")}
    return Made(step, [(draw(),) for _ in range(24)], [net, optimizer, shown])


@pytest.mark.parametrize("make", [drop_block, music_transformer, sd_point, bert_classifier, dcgan, faster_rcnn])
def test_what_conversion_fails_on_is_co_executed(make: Callable[[], Made]) -> None:
    twins = Twins(make, lambda step: torchjanus.speculate(step, executor="coexecute"))
    twins.run()
    step = twins.steps[1]
    assert step.refusals == []
    assert step.coexecution.served >= len(twins.made[0].calls) / 2, torchjanus.explain(step)


SAMPLE = [
    ("results", "a_leaf_with_its_gradient"),  # only gradients of tensors from outside are written
    ("registered_operators", "operator_that_calls_functions"),  # a higher-order operator knows no placeholders
    ("warnings_of_torch", "recorded_by_the_step"),  # what an operation warns of is shown at each call
    ("dropped_objects", "weak_reference_to_a_tensor_of_the_step"),
    ("transformed_modules", "scripted_function"),  # native code that computes gradients
    ("exception_texts", "nested_tensors_that_are_made_where_a_loop_was_gone_through"),  # attention's fast path
    *sorted({*harness.programs()} - harness.slow())[::400],
]


@pytest.mark.parametrize(("category", "name"), SAMPLE)
def test_programs_of_the_corpus_do_the_same(category: str, name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        eager = harness.run(category, name, None)
        other = harness.run(category, name, "coexecute")
    assert harness.compare(eager, other) == []
    assert [event.text for step in other.steps for event in step.events if event.kind == "fault"] == []
