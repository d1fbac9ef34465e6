"""Tensors that are not contiguous: kernels give results other strides than torch's formulas say."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from tests.programs.harness import CALLS, Program, program


def _inputs(*shape: int) -> list[tuple[torch.Tensor]]:
    generator = torch.Generator().manual_seed(6)
    return [(torch.randn(*shape, generator=generator),) for _ in range(CALLS)]


def _training(modules: list[nn.Module], forward, shape=(2, 8, 4)) -> Program:  # type: ignore[no-untyped-def]
    optimizer = torch.optim.SGD([p for m in modules for p in m.parameters()], lr=0.1)

    def step(x):  # type: ignore[no-untyped-def]
        out = forward(x)
        loss = out.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach(), out.detach()

    return Program(step, _inputs(*shape), state=(modules, optimizer))


@program()
def batch_norm_of_a_transposed_tensor() -> Program:
    norm, linear = nn.BatchNorm1d(4), nn.Linear(4, 4)
    return _training([norm, linear], lambda x: linear(norm(x.transpose(1, 2)).transpose(1, 2)))


@program()
def batch_norm_between_linear_layers_and_a_reshape() -> Program:
    norm, first, second = nn.BatchNorm1d(4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(x: torch.Tensor) -> torch.Tensor:
        h = first(x)
        h = h + second(h)
        return second(norm(h.transpose(1, 2)).transpose(1, 2).reshape(-1, 4))

    return _training([norm, first, second], forward)


@program()
def batch_norm_in_evaluation() -> Program:
    norm, linear = nn.BatchNorm1d(4), nn.Linear(4, 4)
    norm.eval()
    return _training([norm, linear], lambda x: linear(norm(x.transpose(1, 2)).transpose(1, 2).reshape(-1, 4)))


@program()
def batch_norm_without_running_statistics() -> Program:
    norm, linear = nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 4)
    return _training([norm, linear], lambda x: linear(norm(x.transpose(1, 2)).transpose(1, 2).reshape(-1, 4)))


@program()
def instance_norm_of_a_transposed_tensor() -> Program:
    norm, linear = nn.InstanceNorm1d(4, affine=True), nn.Linear(4, 4)
    return _training([norm, linear], lambda x: linear(norm(x.transpose(1, 2)).transpose(1, 2).reshape(-1, 4)))


@program()
def batch_norm_of_channels_last_images() -> Program:
    conv, norm, linear = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2)

    def forward(x: torch.Tensor) -> torch.Tensor:
        made = norm(conv(x.contiguous(memory_format=torch.channels_last)))
        return linear(made.permute(0, 2, 3, 1).reshape(-1, 4))

    return _training([conv, norm, linear], forward, (2, 3, 6, 6))


@program()
def batch_norm_of_other_sizes_from_call_to_call() -> Program:
    norm, linear = nn.BatchNorm1d(4), nn.Linear(4, 4)
    made = _training([norm, linear], lambda x: linear(norm(x.transpose(1, 2)).transpose(1, 2).reshape(-1, 4)))
    generator = torch.Generator().manual_seed(7)
    made.calls = [(torch.randn(2 + k % 3, 5 + k, 4, generator=generator),) for k in range(CALLS)]
    return made


@program()
def pooling_of_a_transposed_tensor_without_gradients() -> Program:
    return Program(lambda x: F.max_pool1d(x.transpose(1, 2), 2), _inputs(2, 8, 4))


@program()
def pooling_of_a_transposed_tensor_and_a_reshape() -> Program:
    linear = nn.Linear(4, 4)
    return _training([linear], lambda x: F.max_pool1d(linear(x).transpose(1, 2), 2).transpose(1, 2).reshape(-1, 4))


@program()
def a_part_of_what_is_returned_too() -> Program:
    norm = nn.BatchNorm1d(4)

    def step(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            made = norm(x.transpose(1, 2))
        return made, made[0]

    return Program(step, _inputs(2, 8, 4), state=norm)


@program()
def strides_that_decide() -> Program:
    norm = nn.BatchNorm1d(4)

    def step(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            made = norm(x.transpose(1, 2))
        return made * 2 if made.is_contiguous() else made.contiguous() * made.stride(1)

    return Program(step, _inputs(2, 8, 4), state=norm)


@program()
def element_by_element_of_two_that_lie_differently() -> Program:
    def step(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.transpose(1, 2)
        z = x[:, :4].contiguous().transpose(0, 1).contiguous().transpose(0, 1)
        made = [
            torch.copysign(y, 1.0), torch.div(y, 2.0, rounding_mode="floor"), torch.floor_divide(y, 0.5),
            torch.logaddexp(z, y[:, :, :4]), torch.heaviside(y, torch.tensor(0.5)), torch.xlogy(y.abs(), y[0].abs()),
            torch.logical_xor(z, y[:, :, :4]), torch.pow(2.0, y), torch.ldexp(z, y[:, :, :4]),
        ]  # fmt: skip
        return tuple(one.transpose(1, 2).reshape(-1, one.size(1)) + 1 for one in made)

    return Program(step, _inputs(2, 8, 4))


@program()
def losses_of_tensors_that_lie_by_columns() -> Program:
    linear = nn.Linear(8, 4)

    def forward(x: torch.Tensor) -> torch.Tensor:
        y = linear(x.transpose(1, 2)).transpose(1, 2)
        target = torch.zeros_like(y)
        losses = [
            F.huber_loss(y, target, reduction="none"), F.smooth_l1_loss(y, target, reduction="none"),
            F.mse_loss(y, target, reduction="none"), F.logsigmoid(y), F.log_softmax(y, 1), F.softmax(y, 1),
        ]  # fmt: skip
        return torch.stack([one.reshape(-1) for one in losses])

    return _training([linear], forward)


@program()
def results_written_into_tensors_that_lie_by_columns() -> Program:
    def step(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        columns = torch.empty(4, 3, 2).permute(2, 1, 0)
        torch.add(x, x, out=columns)
        other = torch.empty(4, 3, 2).permute(2, 1, 0)
        torch.mul(x[0], 2, out=other[0])
        torch.exp(x[1], out=other[1])
        return columns, columns[0].clone(), other.reshape(-1), (columns * 2).reshape(2, -1)

    return Program(step, _inputs(2, 3, 4))


@program()
def a_part_of_what_was_written_by_columns() -> Program:
    def step(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        columns = torch.empty(4, 3).t()
        torch.sub(x, 1, out=columns)
        return columns, columns[1]

    return Program(step, _inputs(3, 4))
