"""Functions whose kernels give other last bits where gradients are recorded: singular values, eigenvalues, LSTMs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.programs.harness import CALLS, Program, program


def _matrix(call: int, requires_grad: bool = False) -> torch.Tensor:
    made = torch.arange(25.0).reshape(5, 5).mul(1.7 + call).sin() * 9
    return made.requires_grad_(requires_grad)


def _of_matrices(step: Callable[..., Any], requires_grad: bool = False) -> Program:
    return Program(step, calls=[(_matrix(k, requires_grad),) for k in range(CALLS)])


@program()
def singular_values() -> Program:
    return _of_matrices(lambda x: torch.linalg.svdvals(x))


@program()
def singular_values_with_gradients() -> Program:
    def step(x: torch.Tensor) -> Any:
        found = torch.linalg.svdvals(x)
        return found.detach(), *torch.autograd.grad(found.sum(), x)

    return _of_matrices(step, True)


@program()
def singular_values_that_are_not_differentiated() -> Program:
    return _of_matrices(lambda x: torch.linalg.svdvals(x).detach(), True)


@program()
def singular_values_with_vectors() -> Program:
    return _of_matrices(lambda x: torch.linalg.svd(x)[1])


@program()
def values_of_symmetric_matrices() -> Program:
    return _of_matrices(lambda x: torch.linalg.eigvalsh(x + x.mT))


@program()
def values_of_any_matrices() -> Program:
    return _of_matrices(lambda x: torch.linalg.eigvals(x).abs())


@program()
def condition_numbers() -> Program:
    return _of_matrices(lambda x: (torch.linalg.cond(x), torch.linalg.cond(x, "nuc")))


@program()
def nuclear_norms() -> Program:
    return _of_matrices(lambda x: (torch.linalg.matrix_norm(x, "nuc"), torch.norm(x, "nuc"), torch.linalg.norm(x, 2)))


@program()
def ranks() -> Program:
    return _of_matrices(lambda x: torch.linalg.matrix_rank(x))


@program(refused="does not write to what it is given as out=")
def ranks_written_to_a_given_tensor() -> Program:
    rank = torch.zeros((), dtype=torch.int64)

    def step(x: torch.Tensor) -> Any:
        return x + torch.linalg.matrix_rank(x, out=rank)

    return Program(step, calls=[(_matrix(k),) for k in range(CALLS)], state=rank)


def _layers(**options: Any) -> Program:
    torch.manual_seed(0)
    layers = torch.nn.LSTM(5, 3, 2, **options)

    def step(x: torch.Tensor) -> Any:
        with torch.no_grad():
            out, (h, c) = layers(x)
        return out, h, c

    return _of_matrices(step)


@program()
def long_short_term_memory() -> Program:
    return _layers()


@program()
def long_short_term_memory_without_biases() -> Program:
    return _layers(bias=False)


@program()
def long_short_term_memory_in_both_directions() -> Program:
    return _layers(bidirectional=True, batch_first=True)


@program()
def long_short_term_memory_with_projections() -> Program:
    return _layers(proj_size=2)


@program()
def long_short_term_memory_with_and_without_gradients() -> Program:
    torch.manual_seed(0)
    layers = torch.nn.LSTM(5, 3)

    def step(x: torch.Tensor) -> Any:
        with torch.no_grad():
            target, _ = layers(x)
        out, _ = layers(x)
        loss = (out - target.roll(1, 0)).square().mean()
        return target, *torch.autograd.grad(loss, list(layers.parameters()))

    return _of_matrices(step)


def _changing_lengths(layer: type[torch.nn.Module], **options: Any) -> Program:
    """A product with a parameter asks it for ``requires_grad`` even where no gradients are recorded."""
    model = layer(3, 4, 2, batch_first=True, **options)

    def step(x: torch.Tensor) -> Any:
        with torch.no_grad():
            return model(x)

    return Program(step, calls=[(torch.randn(2, 3 + k % 2, 3),) for k in range(CALLS)], state=model)


@program()
def plain_recurrent_layers_of_changing_lengths() -> Program:
    return _changing_lengths(torch.nn.RNN)


@program()
def gated_recurrent_layers_of_changing_lengths_in_both_directions() -> Program:
    return _changing_lengths(torch.nn.GRU, bidirectional=True)


@program()
def recurrent_layers_with_frozen_weights() -> Program:
    model = torch.nn.GRU(3, 4, 2, batch_first=True)
    model.weight_ih_l0.requires_grad_(False)  # type: ignore[union-attr, operator]

    def step(x: torch.Tensor) -> Any:
        with torch.no_grad():
            return model(x)

    return Program(step, calls=[(torch.randn(2, 3 + k % 2, 3),) for k in range(CALLS)], state=model)
