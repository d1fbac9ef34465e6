"""Views that are read as conjugates or negatives of their memory: ``x.conj()`` copies nothing."""

from __future__ import annotations

import torch

from tests.programs.harness import CALLS, Program, program


def _numbers(call: int) -> torch.Tensor:
    return torch.arange(9.0).reshape(3, 3) + 1j * (1 + call + torch.arange(9.0).reshape(3, 3))


def _called_with_numbers(step) -> Program:  # type: ignore[no-untyped-def]
    return Program(step, calls=[(_numbers(k),) for k in range(CALLS)])


@program()
def of_what_was_passed() -> Program:
    return _called_with_numbers(lambda x: x.conj())


@program()
def of_a_part_of_it() -> Program:
    return _called_with_numbers(lambda x: (x.conj()[1], x[:, 1:].conj(), x.t().conj(), x.mH, x))


@program()
def of_what_was_computed() -> Program:
    def step(x):  # type: ignore[no-untyped-def]
        y = x * 2
        return y, y.conj(), y.conj().conj(), y[0].conj()

    return _called_with_numbers(step)


@program()
def of_what_nobody_sees() -> Program:
    return _called_with_numbers(lambda x: (x * 2).conj())


@program()
def read_as_negatives() -> Program:
    return _called_with_numbers(lambda x: (x._neg_view(), x.real._neg_view() + 1, (x * 2).conj()._neg_view()))


@program()
def changed_in_place() -> Program:
    def step(x):  # type: ignore[no-untyped-def]
        y = x.conj()
        y.mul_(1 + 2j)
        y[0] += 1j
        return x, y

    return _called_with_numbers(step)


@program()
def kept_by_an_object() -> Program:
    kept: dict[str, torch.Tensor] = {}

    def step(x):  # type: ignore[no-untyped-def]
        kept["last"] = (x + 1).conj()
        kept["sum"] = kept.get("sum", 0) + kept["last"]
        return kept["last"].imag.sum()

    return Program(step, calls=[(_numbers(k),) for k in range(CALLS)], state=kept)


@program()
def with_gradients() -> Program:
    weight = _numbers(0).requires_grad_()

    def step(x):  # type: ignore[no-untyped-def]
        y = (x * weight).conj()
        (y.abs() ** 2).sum().backward()
        return y, y.detach(), weight.conj().detach()

    return Program(step, calls=[(_numbers(k),) for k in range(CALLS)], state=weight)


@program()
def passed_as_conjugates() -> Program:
    def step(x):  # type: ignore[no-untyped-def]
        return x.conj(), x * 2, x.is_conj(), x.resolve_conj() + 1

    return Program(step, calls=[(_numbers(k).conj(),) for k in range(CALLS)])


@program(speculated=5)
def passed_in_either_way() -> Program:
    def step(x):  # type: ignore[no-untyped-def]
        y = x.conj()
        x.add_(1j)
        return y, x.t(), 3 if x.is_conj() else 4

    return Program(step, calls=[(_numbers(k).conj() if k in (3, 5, 6, 8) else _numbers(k),) for k in range(CALLS)])


@program()
def shown_by_their_bits() -> Program:
    def step(x):  # type: ignore[no-untyped-def]
        y = x.conj()
        if y.is_conj():
            return torch.view_as_real(y.resolve_conj()) * 2, y
        return x

    return _called_with_numbers(step)


@program(speculated=CALLS - 6)
def of_a_number_by_which_is_multiplied() -> Program:
    """The gradient of ``w * gain`` is multiplied by the conjugate of the number."""
    w = torch.randn(3, dtype=torch.cfloat, requires_grad=True)

    def step(x, gain):  # type: ignore[no-untyped-def]
        w.grad = None
        ((x @ w * gain).abs().sum() + (w / gain).real.sum()).backward()
        return w.grad.clone()

    return Program(step, calls=[(_numbers(k).to(torch.cfloat), 1 + 0j if k < 6 else 2j) for k in range(CALLS)])
