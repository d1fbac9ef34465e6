"""Each configuration of OptimizerInfo: a small model trained by it for some steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
from torch import nn

from benchmarks.robustness.torch_databases.loading import optimizers
from benchmarks.robustness.torch_databases.playing import SEED, Case

__all__ = ["cases", "names"]


def names() -> list[str]:
    """Of all entries, in the database's order."""
    return [info.optim_cls.__name__ for info in optimizers()]


def cases(name: str, limit: int | None = None, way: str = "") -> Iterator[Case]:
    """All of one entry; of each way at most ``limit``, and only ways that contain ``way``."""
    for info in optimizers():
        if info.optim_cls.__name__ != name:
            continue
        for how in ("forloop", *(impl for impl in ("foreach", "fused") if impl in info.supported_impls)):
            if way in how:
                yield from islice(_cases(info, how), limit)


def _cases(info: Any, how: str) -> Iterator[Case]:
    count = len(info.optim_inputs_func(device="cpu"))
    for number in range(count):
        yield Case(info.optim_cls.__name__, how, number, _maker(info, number, how), stateful=True)


def _maker(info: Any, number: int, how: str) -> Callable[[], Any]:
    def make() -> Any:
        torch.manual_seed(SEED)
        config = info.optim_inputs_func(device="cpu")[number]
        model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
        sparse = info.only_supports_sparse_grads
        if sparse:
            model = nn.Sequential(nn.Embedding(5, 3, sparse=True))
        x = torch.tensor([0, 2, 2, 4]) if sparse else torch.randn(8, 4)
        y = torch.randn(len(x), 3)
        settings = dict(config.kwargs)
        if how != "forloop":
            settings[how] = True
        elif "foreach" in info.supported_impls:
            settings.setdefault("foreach", False)
        weights = [p for p in model.parameters() if p.dim() == 2] if info.optim_cls.__name__ == "Muon" else None
        optimizer = info.optim_cls(model.parameters() if weights is None else weights, **settings)

        def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            return loss

        def plain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            loss = loss_of(x, y)
            optimizer.step()
            return loss.detach()

        def with_closure(x: torch.Tensor, y: torch.Tensor) -> Any:
            loss = optimizer.step(lambda: loss_of(x, y))
            return loss.detach() if isinstance(loss, torch.Tensor) else loss

        def state() -> Any:
            gradients = [parameter.grad for parameter in model.parameters()]
            return dict(model.state_dict()), gradients, optimizer.state_dict()["state"]

        return with_closure if info.step_requires_closure else plain, (x, y), state

    return make
