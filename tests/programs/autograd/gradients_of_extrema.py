"""Gradients of ``x.max()`` and ``x.min()``: autograd has another formula for tensor subclasses."""

from __future__ import annotations

import torch

from tests.programs.harness import CALLS, Program, program


def _values(call: int) -> torch.Tensor:
    return torch.tensor([[1.0, -3.0, 2.0], [2.0, -3.0, float(call % 3)]])


def _gradients_of(function, *, values=_values) -> Program:  # type: ignore[no-untyped-def]
    def step(x):  # type: ignore[no-untyped-def]
        x.requires_grad_()
        function(x).backward()
        return x.grad

    return Program(step, calls=[(values(k),) for k in range(CALLS)])


@program()
def negative() -> Program:
    return _gradients_of(lambda x: -x.max())


@program()
def infinite() -> Program:
    return _gradients_of(lambda x: x.max() * torch.inf)


@program()
def of_the_least() -> Program:
    return _gradients_of(lambda x: x.min() * -2 - x.amax())


@program()
def of_nothing_but_nan() -> Program:
    return _gradients_of(lambda x: x.max() - x.min(), values=lambda k: _values(k) * torch.nan)


@program()
def of_columns() -> Program:
    return _gradients_of(lambda x: -torch.max(x.t() * 2) + x.min())


@program()
def of_ranges() -> Program:
    return _gradients_of(lambda x: ((x - x.min()) / (x.max() - x.min())).square().sum())


@program()
def in_half_precision() -> Program:
    return _gradients_of(lambda x: -x.max() * 3, values=lambda k: _values(k).bfloat16())


@program()
def along_dimensions() -> Program:
    return _gradients_of(lambda x: -(x.amax(0).sum() + x.max(1).values.sum() + torch.aminmax(x).max))


@program()
def of_weights() -> Program:
    weight = _values(0).requires_grad_()

    def step(x):  # type: ignore[no-untyped-def]
        weight.grad = None
        scale = weight.abs().max()
        ((x / scale).round() * scale - x.max()).sum().backward()
        return scale.detach()

    return Program(step, calls=[(_values(k),) for k in range(CALLS)], state=weight)
