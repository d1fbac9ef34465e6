"""Results written into ``out=`` tensors that are not contiguous: not all kernels look at strides."""

from __future__ import annotations

import torch

from tests.programs.harness import CALLS, Program, program


def _images(call: int) -> torch.Tensor:
    return torch.arange(128.0).reshape(2, 4, 4, 4).sin() * (1 + call)


def _called_with_images(step) -> Program:  # type: ignore[no-untyped-def]
    return Program(step, calls=[(_images(k),) for k in range(CALLS)])


@program(refused="writes into a given tensor that is not contiguous")
def pooled() -> Program:
    def step(x):  # type: ignore[no-untyped-def]
        return torch._C._nn.avg_pool3d(x, 2, out=torch.zeros(2, 2, 2, 2).permute(3, 2, 1, 0))

    return _called_with_images(step)


@program()
def pooled_row_by_row() -> Program:
    return _called_with_images(lambda x: torch._C._nn.avg_pool3d(x, 2, out=torch.zeros(2, 2, 2, 2)))


@program(refused="writes into a given tensor that is not contiguous")
def normalized() -> Program:
    mean, var = torch.zeros(4), torch.ones(4)

    def step(x):  # type: ignore[no-untyped-def]
        out = torch.zeros(4, 4, 4, 2).permute(3, 2, 1, 0), torch.zeros(4), torch.zeros(4)
        return torch.native_batch_norm(x, None, None, mean, var, True, 0.1, 1e-5, out=out)

    return Program(step, calls=[(_images(k),) for k in range(CALLS)], state=(mean, var))


@program()
def added_up() -> Program:
    def step(x):  # type: ignore[no-untyped-def]
        columns = torch.zeros(4, 4, 2).permute(2, 1, 0)
        torch.sum(x, 1, out=columns)
        return columns, torch.cumsum(x[0, 0], 0, out=columns[0]), torch.mean(x, -1)

    return _called_with_images(step)


@program()
def largest() -> Program:
    def step(x):  # type: ignore[no-untyped-def]
        values, places = torch.zeros(4, 4, 2).permute(2, 1, 0), torch.zeros(4, 4, 2, dtype=torch.int64).permute(2, 1, 0)
        torch.max(x, 1, out=(values, places))
        return values, places

    return _called_with_images(step)


@program()
def elements() -> Program:
    def step(x):  # type: ignore[no-untyped-def]
        columns = torch.zeros(4, 4, 4, 2).permute(3, 2, 1, 0)
        torch.div(x, 3, rounding_mode="floor", out=columns)
        gaps = torch.zeros(2, 4, 4, 4, 2)[..., 0]
        torch.where(x > 0, x, -x, out=gaps)
        return columns, gaps, torch.stack([x[0], x[1]], out=columns)

    return _called_with_images(step)


@program(refused="as_strided_.default changes a tensor in a way that cannot be held back")
def resized_to_a_part() -> Program:
    def step(y):  # type: ignore[no-untyped-def]
        return y.as_strided_((2, 2), (1, 2))

    return Program(step, calls=[(torch.arange(10.0) + k,) for k in range(CALLS)])


@program(speculated=0)
def turned() -> Program:
    def step(y):  # type: ignore[no-untyped-def]
        y.t_()
        y.unsqueeze_(0).mul_(2)
        return y.sum(1), y.shape

    return Program(step, calls=[(torch.arange(12.0).reshape(3, 4) + k,) for k in range(CALLS)])


@program(speculated=0)
def resized() -> Program:
    def step(x, y):  # type: ignore[no-untyped-def]
        y.as_strided_((2, 2), (1, 2), 1)
        return y.add_(x[0, 0, 0, 0]), y.shape

    return Program(step, calls=[(_images(k), torch.arange(10.0)) for k in range(CALLS)])
