"""Graphs written by hand: functional steps of forward, backward and update, compiled by Inductor without any guards.

What a compiler can reach. A program's step is written anew in ``benchmarks.speed.papers.by_hand`` as functions over the
tensors of its networks; here these functions become graphs, one for each set of shapes (a dimension may be left open)
and for what is no tensor in a batch. Random numbers are eager's, so that its losses can be compared with eager's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch._inductor.config as inductor
from torch import Tensor, nn
from torch._inductor.compile_fx import compile_fx
from torch._subclasses import FakeTensorMode
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from torchjanus.execute.compiled.after_mutation import options

__all__ = ["Graphs", "Kept", "Net", "Part", "Step", "clip", "float_of"]

Step = Callable[..., float]
Kept = list[Tensor]  # between calls
Work = Callable[..., list[Tensor]]  # of the networks, the tensors kept between calls, and a batch


class Net:
    """A network with its optimizer as flat tensors, all of which a graph updates in place."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model = model
        self.parameters = dict(model.named_parameters())
        self.buffers = dict(model.named_buffers())
        (self.group,) = optimizer.param_groups
        self.kind = type(optimizer)
        self.moments = [
            [torch.full_like(p, first) for p in self.parameters.values()] for first in MOMENTS[self.kind](self.group)
        ]
        self.count = torch.zeros(())

    def tensors(self) -> list[Tensor]:
        moments = [tensor for part in self.moments for tensor in part]
        return [*self.parameters.values(), *self.buffers.values(), *moments, self.count]

    def part(self, rest: Iterator[Tensor]) -> Part:
        """The same network over the tensors of a graph, in the order of ``tensors``."""
        parameters = {name: next(rest) for name in self.parameters}
        buffers = {name: next(rest) for name in self.buffers}
        moments = [[next(rest) for _ in some] for some in self.moments]
        return Part(self, parameters, buffers, moments, next(rest))


class Part:
    """A network within a graph. Called, it takes part in differentiation; after an update ``renew`` it."""

    def __init__(
        self,
        net: Net,
        parameters: dict[str, Tensor],
        buffers: dict[str, Tensor],
        moments: list[list[Tensor]],
        count: Tensor,
    ) -> None:
        self.net, self.parameters, self.buffers, self.moments, self.count = net, parameters, buffers, moments, count
        self.renew()

    def renew(self) -> None:
        self.leaves = {name: value.detach().requires_grad_() for name, value in self.parameters.items()}

    def __call__(self, *args: Any) -> Any:
        return functional_call(self.net.model, (self.leaves, self.buffers), args)

    def without_gradient(self, *args: Any) -> Any:
        return functional_call(self.net.model, (self.parameters, self.buffers), args)

    def gradients(self, loss: Tensor, retain: bool = False) -> list[Tensor | None]:
        leaves = list(self.leaves.values())
        return list(torch.autograd.grad(loss, leaves, allow_unused=True, retain_graph=retain))

    def update(self, gradients: Sequence[Tensor | None], rate: Tensor | float | None = None) -> None:
        """One step of the optimizer."""
        self.count.add_(1.0)
        rate = self.net.group["lr"] if rate is None else rate
        for number, (parameter, gradient) in enumerate(zip(self.parameters.values(), gradients, strict=True)):
            if gradient is not None:
                moments = [some[number] for some in self.moments]
                UPDATES[self.net.kind](self.net.group, rate, self.count, parameter, gradient, *moments)


def float_of(results: list[Tensor]) -> float:
    """The loss, which comes first."""
    return results[0].item()


def clip(gradients: Sequence[Tensor | None], limit: float) -> list[Tensor | None]:
    """Gradients with a common norm of at most ``limit``."""
    norm = torch.stack([gradient.square().sum() for gradient in gradients if gradient is not None]).sum().sqrt()
    factor = (limit / (norm + 1e-6)).clamp(max=1.0)
    return [None if gradient is None else gradient * factor for gradient in gradients]


class Graphs:
    """The graphs of one program over its networks and what it keeps between calls."""

    def __init__(self, nets: Sequence[Net], kept: Sequence[Tensor] = ()) -> None:
        self.nets, self.kept = nets, kept
        self.made: dict[Any, Callable[..., list[Tensor]]] = {}

    def run(self, work: Work, *batch: Any, opened: dict[int, int] | None = None) -> list[Tensor]:
        """``work`` on a batch. ``opened``: of which tensors in it (by place) which dimension may be of any size."""
        opened = opened or {}
        key = (
            work,
            *(
                (
                    part.dtype,
                    *(-1 if opened.get(place) == dimension else size for dimension, size in enumerate(part.shape)),
                )
                if isinstance(part, Tensor)
                else part
                for place, part in enumerate(batch)
            ),
        )
        state = [tensor for net in self.nets for tensor in net.tensors()] + list(self.kept)
        with torch.no_grad():
            if key not in self.made:
                # With dropout between convolutions Inductor loses an order: see ``after_mutation``.
                with inductor.patch(options({"fallback_random": True})["config_patches"]):
                    self.made[key] = self.compiled(work, state, batch, opened)
            return self.made[key](*state, *(part for part in batch if isinstance(part, Tensor)))

    def compiled(
        self, work: Work, state: list[Tensor], batch: Sequence[Any], opened: dict[int, int]
    ) -> Callable[..., list[Tensor]]:
        mode = FakeTensorMode(shape_env=ShapeEnv())

        def whole(*flat: Tensor) -> list[Tensor]:
            rest = iter(flat)
            parts = [net.part(rest) for net in self.nets]
            kept = [next(rest) for _ in self.kept]
            given = [next(rest) if isinstance(part, Tensor) else part for part in batch]
            return [result.detach() for result in work(parts, kept, *given)]

        def fake(tensor: Tensor, dimension: int | None = None) -> Tensor:
            sizes = [DimDynamic.DYNAMIC if place == dimension else DimDynamic.STATIC for place in range(tensor.dim())]
            return mode.from_tensor(tensor.detach(), symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes))

        inputs = [fake(tensor) for tensor in state]
        inputs += [fake(part, opened.get(place)) for place, part in enumerate(batch) if isinstance(part, Tensor)]
        with mode, torch.enable_grad():
            graph = make_fx(whole)(*inputs)
        made: Callable[..., list[Tensor]] = compile_fx(graph, inputs)
        return made


# -- optimizers: the settings, the rate, how often, a parameter, its gradient, and what is kept of it -----------------

Settings = dict[str, Any]
Rate = Tensor | float


def sgd(group: Settings, rate: Rate, count: Tensor, parameter: Tensor, gradient: Tensor, *kept: Tensor) -> None:
    if group["weight_decay"]:
        gradient = gradient + parameter * group["weight_decay"]
    for momentum in kept:
        gradient = momentum.mul_(group["momentum"]).add_(gradient)
    parameter.sub_(gradient * rate)


def adam(group: Settings, rate: Rate, count: Tensor, parameter: Tensor, gradient: Tensor, *kept: Tensor) -> None:
    (one, two), (first, second) = group["betas"], kept
    first.lerp_(gradient, 1 - one)
    second.mul_(two).addcmul_(gradient, gradient, value=1 - two)
    bottom = second.sqrt() / (1 - two**count).sqrt() + group["eps"]
    parameter.sub_(first / bottom * (rate / (1 - one**count)))


def adamw(group: Settings, rate: Rate, count: Tensor, parameter: Tensor, gradient: Tensor, *kept: Tensor) -> None:
    parameter.mul_(1 - rate * group["weight_decay"])
    adam(group, rate, count, parameter, gradient, *kept)


def adagrad(group: Settings, rate: Rate, count: Tensor, parameter: Tensor, gradient: Tensor, *kept: Tensor) -> None:
    (total,) = kept
    total.addcmul_(gradient, gradient)
    parameter.sub_(gradient / (total.sqrt() + group["eps"]) * rate)


def rmsprop(group: Settings, rate: Rate, count: Tensor, parameter: Tensor, gradient: Tensor, *kept: Tensor) -> None:
    (square,) = kept
    square.mul_(group["alpha"]).addcmul_(gradient, gradient, value=1 - group["alpha"])
    parameter.sub_(gradient / (square.sqrt() + group["eps"]) * rate)


UPDATES: dict[type, Callable[..., None]] = {
    torch.optim.SGD: sgd,
    torch.optim.Adam: adam,
    torch.optim.AdamW: adamw,
    torch.optim.Adagrad: adagrad,
    torch.optim.RMSprop: rmsprop,
}
# What is kept of each parameter begins with these numbers.
MOMENTS: dict[type, Callable[[Settings], list[float]]] = {
    torch.optim.SGD: lambda group: [0.0] if group["momentum"] else [],
    torch.optim.Adam: lambda group: [0.0, 0.0],
    torch.optim.AdamW: lambda group: [0.0, 0.0],
    torch.optim.Adagrad: lambda group: [group["initial_accumulator_value"]],
    torch.optim.RMSprop: lambda group: [0.0],
}
