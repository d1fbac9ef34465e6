"""In-place operations for which torch has no functional form."""

from __future__ import annotations

import torch

from tests.programs.harness import CALLS, Program, program


@program()
def numbers_drawn_between_two() -> Program:
    def step(x):  # type: ignore[no-untyped-def]
        x.random_(0, 10)
        return x * 2, torch.empty(3, 4, dtype=torch.int8).t().random_(-100, 100), x.new_empty(3).random_(5)

    return Program(step, calls=[(torch.ones(4, 3),) for _ in range(CALLS)])


@program()
def numbers_drawn_from_one_on() -> Program:
    def step(x):  # type: ignore[no-untyped-def]
        x[1:, ::2].random_(-3, None)
        return x.sum()

    return Program(step, calls=[(torch.ones(4, 3, dtype=torch.int64),) for _ in range(CALLS)])


@program()
def functions_that_are_not_made_functional_by_torch() -> Program:
    weight = torch.ones(3, requires_grad=True)

    def step(x):  # type: ignore[no-untyped-def]
        y = x * weight
        y.polygamma_(1)
        y.sum().backward()
        x[0].polygamma_(2)
        return y.detach(), x

    return Program(step, calls=[(torch.full((2, 3), 1.5 + k),) for k in range(CALLS)], state=weight)


@program()
def powers_with_another_overload_out_of_place() -> Program:
    weight, power = torch.full((3,), 1.5), torch.tensor([1.0, 2.0, 0.5])

    def step(x):  # type: ignore[no-untyped-def]
        weight.pow_(0.9).add_(0.1)
        x.pow_(power).float_power_(1.0) if x.dtype is torch.float64 else x.pow_(power)
        return x.floor_divide_(weight.pow(-0.25)), x.mean(0, keepdim=True).transpose_(0, 1)

    calls = [(torch.full((2, 3), 1.5 + k, dtype=(torch.float32, torch.float64)[k % 2]),) for k in range(2 * CALLS)]
    return Program(step, calls=calls, state=weight)
