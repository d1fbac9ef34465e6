"""Steps written symbolically by hand: a functional step of forward, backward and update, compiled without any guards.

The limit of what a compiler can reach. It exists for programs of which each kind of call has one path and one set of
shapes, and no host code in the midst: LeNet, ResNet50, Inception-v3 and BERT-CLS (without its metric). Each set of
shapes has a graph of its own, picked by them and by what is no tensor in the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._inductor.compile_fx import compile_fx
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from benchmarks.papers.base import Program

__all__ = ["SYMBOLIC"]

Loss = Callable[..., Tensor]  # of a model as a function, and a batch
Model = Callable[..., Any]


class Functional:
    """Training of a model, each kind of call as one graph over flat tensors that are updated in place."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss, evaluate: Loss | None = None):
        self.model, self.optimizer, self.loss, self.evaluate = model, optimizer, loss, evaluate
        self.parameters = dict(model.named_parameters())
        self.buffers = dict(model.named_buffers())
        (self.group,) = optimizer.param_groups
        kept = 2 if "betas" in self.group else 1 if self.group["momentum"] else 0
        self.kept = [[torch.zeros_like(p) for p in self.parameters.values()] for _ in range(kept)]
        self.count = torch.zeros(())
        self.graphs: dict[Any, Callable[..., Any]] = {}

    def __call__(self, *batch: Any) -> float:
        tensors = [part for part in batch if isinstance(part, Tensor)]
        constants = tuple(part for part in batch if not isinstance(part, Tensor))
        key = (*(tuple(tensor.shape) for tensor in tensors), constants)
        given = [
            *self.parameters.values(),
            *self.buffers.values(),
            *(t for part in self.kept for t in part),
            self.count,
            *tensors,
        ]
        with torch.no_grad():
            if key not in self.graphs:
                self.graphs[key] = self.compiled(given, constants)
            (result,) = self.graphs[key](*given)
        return float(result)

    def compiled(self, given: list[Tensor], constants: tuple[Any, ...]) -> Callable[..., Any]:
        training = all(constants)  # the only constant there is says whether to train
        for module in self.model.modules():
            module.training = training

        def whole(*flat: Tensor) -> list[Tensor]:
            rest = iter(flat)
            parameters = {name: next(rest) for name in self.parameters}
            buffers = {name: next(rest) for name in self.buffers}
            kept = [[next(rest) for _ in part] for part in self.kept]
            count = next(rest)
            batch = list(rest)

            def model(*args: Any) -> Any:
                return functional_call(self.model, (parameters, buffers), args)

            if not training:
                assert self.evaluate is not None
                return [self.evaluate(model, *batch)]
            with torch.enable_grad():
                leaves = {name: value.detach().requires_grad_() for name, value in parameters.items()}
                loss = self.loss(lambda *args: functional_call(self.model, (leaves, buffers), args), *batch)
                gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
            count.add_(1.0)
            for number, (parameter, gradient) in enumerate(zip(parameters.values(), gradients, strict=True)):
                if gradient is not None:
                    self.update(parameter, gradient, [part[number] for part in kept], count)
            return [loss.detach()]

        inputs = [part.detach().clone() for part in given]
        graph = make_fx(whole, tracing_mode="fake")(*inputs)
        made: Callable[..., Any] = compile_fx(graph, inputs)
        return made

    def update(self, parameter: Tensor, gradient: Tensor, kept: list[Tensor], count: Tensor) -> None:
        group = self.group
        rate, decay = group["lr"], group["weight_decay"]
        if "betas" in group:  # AdamW
            one, two = group["betas"]
            first, second = kept
            parameter.mul_(1 - rate * decay)
            first.mul_(one).add_(gradient * (1 - one))
            second.mul_(two).add_(gradient * gradient * (1 - two))
            bottom = second.sqrt() / (1 - two**count).sqrt() + group["eps"]
            parameter.sub_(first / bottom * (rate / (1 - one**count)))
            return
        if decay:
            gradient = gradient + parameter * decay
        if kept:
            kept[0].mul_(group["momentum"]).add_(gradient)
            gradient = kept[0]
        parameter.sub_(gradient * rate)


def lenet(program: Program) -> Callable[..., float]:
    model, optimizer = program.state

    def loss(net: Model, pictures: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(net(pictures), labels)

    return Functional(model, optimizer, loss)


def classifier(program: Program) -> Callable[..., float]:
    trainer = program.state

    def loss(net: Model, pictures: Tensor, labels: Tensor) -> Tensor:
        scores = net(pictures)
        if isinstance(scores, tuple):
            return F.cross_entropy(scores[0], labels) + 0.4 * F.cross_entropy(scores[1], labels)
        return F.cross_entropy(scores, labels)

    def evaluate(net: Model, pictures: Tensor, labels: Tensor) -> Tensor:
        return (net(pictures).argmax(1) == labels).float().mean()

    return Functional(trainer.model, trainer.optimizer, loss, evaluate)


def bert_cls(program: Program) -> Callable[..., float]:
    model, optimizer, _ = program.state

    def loss(net: Model, ids: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(net(ids, mask).scores[:, 0], labels)

    return Functional(model, optimizer, loss)


SYMBOLIC: dict[str, Callable[[Program], Callable[..., float]]] = {
    "lenet": lenet,
    "resnet50": classifier,
    "inception": classifier,
    "bert_cls": bert_cls,
}
