"""Rarely used semantics of Python and PyTorch: each program once gave another result than eager."""

import functools
import itertools

import torch
from torch import nn

from tests.programs.harness import Call, Program, program


def calls(step, count=20, *, before=None, given=None, **options):
    given = given or (lambda k: (torch.randn(3) + k,))
    return Program(step, [given(k) for k in range(count)], before or {}, **options)


def trained(loss_of, **options):
    """A training step of a weight."""
    weight = torch.ones(3, requires_grad=True)

    def step(x, *more):
        weight.grad = None
        loss = loss_of(weight * x, *more)
        loss.backward()
        with torch.no_grad():
            weight.sub_(0.01 * weight.grad)
        return loss.item(), weight.grad.tolist()

    return calls(step, **options)


@program(speculated=12)
def a_new_tensor_of_a_size():
    def loss_of(y):
        return (y * y.detach().new(y.size()).fill_(0.5) + y.detach().new(y.shape[:1]).fill_(2.0)).sum()

    return trained(loss_of)


@program(speculated=12)
def distributions_that_make_tensors_of_sizes():
    def step(x):
        made = torch.distributions.Laplace(x, 1.0), torch.distributions.Exponential(x.abs() + 1.0)
        return [one.sample() for one in made], torch.distributions.Geometric(0.3).sample()

    return calls(step)


@program(speculated=12)
def a_number_that_is_not_itself():
    def step(x, reward):
        return x * 2 if reward == reward else x

    return calls(step, given=lambda k: (torch.ones(3), float("nan") if k % 7 == 6 else k / 2))


@program(speculated=12)
def an_index_within_bounds():
    def step(x):
        words = [1, 2, 1, 2]
        return x * words.index(1, 1), (1, 2, 1).index(1, 1), [5, 7, 5].index(5, -2), words.index(2, 2, 4)

    return calls(step)


@program(speculated=12)
def keywords_in_another_order():
    def step(x, **factors):
        for factor in factors.values():
            x = x * 2 + factor
        return x

    def given(k):
        return Call(torch.ones(3), b=2, a=1) if k % 4 == 3 else Call(torch.ones(3), a=1, b=2)

    return calls(step, given=given)


@program(speculated=12, compiles=4)
def layers_that_are_frozen_with_a_gradient():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        opt.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        opt.step()
        return loss.item(), [p.grad is None for p in model.parameters()]

    def asked(value):
        return lambda: model[0].requires_grad_(value)

    return calls(step, 30, before={8: asked(False), 15: asked(True), 22: asked(False)})


class Doubled(list):
    def __getitem__(self, place):
        return 2 * super().__getitem__(place)


class DoubledTuple(tuple):
    def __getitem__(self, place):
        return 2 * super().__getitem__(place)

    def __iter__(self):
        return iter([self[0], self[1]])


@program(speculated=12)
def containers_with_items_of_their_own():
    rates, factors = Doubled([0.5, 1.0]), DoubledTuple((1.0, 2.0))

    def loss_of(y):
        first, second = factors
        return (y * rates[0] * factors[1] * first * second).sum() * sum([*factors]) * max(*factors)

    return trained(loss_of)


def scaled(x, factor=torch.full((3,), 0.5), *, shift=torch.ones(3)):
    return x * factor + shift


@program(speculated=12)
def tensors_as_defaults():
    return trained(lambda y, scale=torch.ones(3) * 3: (scaled(y) * scale).sum())


class Scale:
    def __init__(self, value):
        self.value = value

    def __call__(self, first, second=1.0):
        return first * second * self.value


@program(speculated=12, compiles=4)
def objects_that_native_code_calls():
    scale = Scale(1.0)

    def loss_of(y):
        first = sum(map(scale, [y, y * 2])).sum()
        second = functools.reduce(scale, [1.0, 2.0, 3.0]) + sum(itertools.accumulate([1.0, 2.0], scale))
        return first * second * sum(itertools.starmap(scale, [(1.0, 2.0)])) + sorted([3.0, 1.0], key=scale)[0]

    def put():
        scale.value = 2.0

    return trained(loss_of, before={9: put})


class Meter:
    total = 0.0

    def __str__(self):
        return f"<{self.total:.2f}>"

    def __format__(self, spec):
        return f"[{self.total:{spec or '.1f'}}]"


@program(speculated=12)
def objects_in_templates():
    meter = Meter()

    def step(x):
        meter.total += 1.5
        print("loss {} {!s} {:.3f}".format(meter, meter, meter), x.sum().item())
        return x * 2

    return calls(step)


class Counting:
    asked = 0

    def __getitem__(self, name):
        self.asked += 1
        return torch.ones(3) * self.asked


@program(speculated=10, compiles=4)
def objects_that_are_subscripted_now_and_then():
    counting = Counting()

    def step(batch):
        return batch["x"] * 2, counting.asked

    return calls(step, given=lambda k: (counting if k % 5 == 4 else {"x": torch.ones(3) * k},))


@program(speculated=12, compiles=3)
def squeezed_batches_of_one():
    model = nn.Linear(3, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(x):
        predicted = model(x).squeeze()
        loss = predicted.pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return (predicted.detach()[0].item() if predicted.ndim else predicted.item()), predicted.shape

    return calls(step, 30, given=lambda k: (torch.ones((1, 6, 5)[k % 3], 3) * k,))


@program(speculated=12, compiles=3)
def gradients_that_are_changed_in_place():
    model = nn.Linear(3, 2)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.detach_()
                parameter.grad.zero_()
        loss = model(x).pow(2).sum()
        loss.backward()
        opt.step()
        return loss.item()

    def change():
        for parameter in model.parameters():
            parameter.grad.detach_()
            parameter.grad.add_(torch.ones_like(parameter, requires_grad=True))
            parameter.grad = None

    return calls(step, 24, before={9: change, 15: change})


@program(speculated=12)
def a_state_that_its_caller_detaches():
    cell = nn.GRU(6, 5)
    opt = torch.optim.SGD(cell.parameters(), lr=0.1)
    given, held = torch.randn(4, 1, 6), [torch.zeros(1, 1, 5)]

    def step(x):
        state = held[0]
        out, state = cell(given * x[0], state)
        loss = out.pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        held[0] = state.detach()
        return loss.item()

    return calls(step, 20, before={k: lambda: held[0].detach_() for k in range(20)})


@program(refused="Tensor.backward raises RuntimeError")
def a_hook_that_returns_something():
    weight = nn.Parameter(torch.ones(3))
    weight.register_post_accumulate_grad_hook(lambda parameter: parameter.grad.mul_(3))

    def step(x):
        weight.grad = None
        try:
            (weight * x).sum().backward()
        except RuntimeError as error:
            return str(error)
        return weight.grad.tolist()

    return calls(step)


def optimized(optimizer):
    """Steps of an optimizer that computes with numbers which it fetches, some of them of what the step has computed."""
    model = nn.Linear(3, 2)
    opt = optimizer(model.parameters())

    def step(x):
        opt.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        opt.step()
        return loss.item()

    return calls(step, given=lambda k: (torch.ones(4, 3) * k / 10,))


@program(speculated=12)
def adafactor():
    return optimized(lambda parameters: torch.optim.Adafactor(parameters, lr=0.01))


SIZES = ((5, 4), (5, 3), (2, 2), (6, 1), (3, 3))


@program(speculated=10, compiles=5)
def sizes_that_follow_by_no_formula():
    weight = torch.ones(6, requires_grad=True)

    def step(a, b):
        loss = (a * weight[: len(a)])[: -len(b)].sum()
        loss.backward()
        return loss.item(), weight.grad.tolist()

    return calls(
        step, 30, given=lambda k: tuple(torch.ones(n) * k for n in ((5, 4), (5, 3), (2, 2), (6, 1), (3, 3))[k % 5])
    )


@program(speculated=12, compiles=4)
def chance_that_ends_a_step_early():
    def step(x):
        if torch.rand(()) < 0.3:
            return x
        y = x * 2
        if y.sum() > 1:
            return y
        return x + 1

    return calls(step, 40, given=lambda k: (torch.randn(3),))


@program(speculated=12)
def a_variable_that_comes_later():
    def put():
        globals()["A_FACTOR_OF_CORNERS"] = 3.0

    def take():
        del globals()["A_FACTOR_OF_CORNERS"]

    def loss_of(y):
        try:
            factor = A_FACTOR_OF_CORNERS
        except NameError:
            factor = 1.0
        return (y * factor).sum()

    return trained(loss_of, before={8: put, 14: take})
