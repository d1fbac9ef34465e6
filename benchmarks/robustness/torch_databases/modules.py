"""Each entry of ModuleInfo: constructed, trained by SGD for some steps, and evaluated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch

from benchmarks.robustness.torch_databases.loading import modules
from benchmarks.robustness.torch_databases.ops import flat_of
from benchmarks.robustness.torch_databases.playing import SEED, Case

__all__ = ["cases", "names"]


def names() -> list[str]:
    """Of all entries, in the database's order."""
    return [info.name for info in modules()]


def cases(name: str, limit: int | None = None, way: str = "") -> Iterator[Case]:
    """All of one entry; of each way at most ``limit``, and only ways that contain ``way``."""
    for info in modules():
        if info.name != name:
            continue
        for dtype in (torch.float32, torch.float64):
            if dtype not in info.dtypes:
                continue
            for training in (True, False):
                reported = f"{str(dtype).removeprefix('torch.')} {'train' if training else 'eval'}"
                for kind in ("forward and update", "forward"):
                    if way in f"{reported}, {kind}":
                        yield from islice(_cases(info, dtype, training, kind, f"{reported}, {kind}"), limit)


def _cases(info: Any, dtype: torch.dtype, training: bool, kind: str, way: str) -> Iterator[Case]:
    def given() -> list[Any]:
        torch.manual_seed(SEED)
        made = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=False, training=training)
        return list(made)

    for number, sample in enumerate(given()):
        if sample.forward_input is not None:
            yield Case(info.name, way, number, _maker(info, given, number, dtype, training, kind), stateful=True)


def _maker(
    info: Any, given: Callable[[], list[Any]], number: int, dtype: torch.dtype, training: bool, kind: str
) -> Callable[[], Any]:
    def make() -> Any:
        sample = given()[number]
        torch.manual_seed(SEED)
        init = sample.constructor_input
        module = info.module_cls(*init.args, **init.kwargs).to(dtype).train(training)
        args, kwargs = tuple(sample.forward_input.args), dict(sample.forward_input.kwargs)
        parameters = list(module.parameters())
        optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9) if parameters else None

        def update(args: Any, kwargs: Any) -> Any:
            made = flat_of(module(*args, **kwargs))
            losses = [part.square().mean() for part in made if part.requires_grad]
            if losses and optimizer is not None:
                optimizer.zero_grad()
                sum(losses).backward()  # type: ignore[union-attr]
                optimizer.step()
            return [part.detach() for part in made]

        def forward(args: Any, kwargs: Any) -> Any:
            with torch.no_grad():
                return module(*args, **kwargs)

        def state() -> Any:
            found = dict(module.state_dict()), [parameter.grad for parameter in module.parameters()]
            return found if optimizer is None else (*found, optimizer.state_dict()["state"])

        return update if kind == "forward and update" else forward, (args, kwargs), state

    return make
