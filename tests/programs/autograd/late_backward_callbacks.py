"""Code of the program that autograd calls after the step, since its graph has left it: on untraced values."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.programs.harness import CALLS, Program, program


def inputs(n=CALLS):
    return [(torch.randn(4, 5),) for _ in range(n)]


def net():
    return nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))


def back(loss):
    (loss[0] if isinstance(loss, tuple) else loss).backward()


@program(refused="backward pass still to come")
def own_function():
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, factor):
            ctx.factor = factor
            ctx.save_for_backward(x)
            return x * factor

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            seen.append((ctx.factor, tuple(x.shape)))
            return grad * ctx.factor, None

    w, count, seen = torch.randn(5, requires_grad=True), [0], []

    def step(x):
        count[0] += 1
        return Scaled.apply(x * w, count[0] * 0.5).sum()

    return Program(step, inputs(), state=(count, w, seen), between=back)


@program(refused="backward pass still to come")
def module_hook():
    model, seen, count = net(), [], [0]
    model[2].register_full_backward_hook(lambda m, gi, go: seen.append((count[0], go[0].sum().item())) or (gi[0] * 2,))

    def step(x):
        count[0] += 1
        return model(x).square().sum()

    return Program(step, inputs(), state=(model, seen), between=back)


@program(refused="backward pass still to come")
def tensor_hook():
    model, seen, count = net(), [], [0]

    def step(x):
        count[0] += 1
        k = count[0]
        y = model(x)
        y.register_hook(lambda g: seen.append((k, g.sum().item())) or g * k)
        return y.square().sum()

    return Program(step, inputs(), state=(model, seen), between=back)


@program(refused="backward pass still to come")
def leaf_hook():
    model, seen, count = net(), [], [0]
    model[0].weight.register_hook(lambda g: seen.append(g.sum().item()))
    model[0].weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.sum().item()))

    def step(x):
        model(x).square().sum().backward()
        return model(x).square().sum()

    return Program(step, inputs(), state=(model, seen), between=back)


@program(refused="something that was there before")
def checkpointed():
    model, seen, count = net(), [], [0]

    def f(x):
        seen.append(1)
        return model(x)

    def step(x):
        count[0] += 1
        return checkpoint(f, x, use_reentrant=False).square().sum()

    return Program(step, inputs(), state=(model, seen), between=back)


@program(refused="backward pass still to come")
def node_hook():
    model, seen, count = net(), [], [0]

    def step(x):
        count[0] += 1
        k = count[0]
        y = model(x)
        y.grad_fn.register_prehook(lambda go: seen.append((k, go[0].sum().item())) or (go[0] * k,))
        return y.square().sum()

    return Program(step, inputs(), state=(model, seen), between=back)
