"""Tensors that are written more than once in a step: only what can be seen has to be there at the end."""

import copy

import torch
from torch import nn

from tests.programs.harness import CALLS, Program, program


def inputs(count=CALLS, *shape):
    return [(torch.randn(*(shape or (4, 5))),) for _ in range(count)]


def net():
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2))


@program()
def gradients_zeroed_after_the_step():
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)

    def step(x):
        loss = model(x).pow(2).mean()
        loss.backward()
        opt.step()
        opt.zero_grad(set_to_none=False)
        return loss.item()

    return Program(step, inputs(), state=model)


@program()
def gradients_zeroed_before_and_after():
    model = net()

    def step(x):
        for p in model.parameters():
            if p.grad is not None:
                p.grad.zero_()
        loss = model(x).pow(2).mean()
        loss.backward()
        for p in model.parameters():
            p.data.sub_(0.1 * p.grad)
            p.grad.detach_()
            p.grad.zero_()
        return loss.item()

    return Program(step, inputs(), state=model)


@program()
def statistics_written_twice():
    model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        opt.zero_grad()
        for part in x.chunk(2):
            (model(part).pow(2).mean() / 2).backward()
        opt.step()

    return Program(step, inputs(CALLS, 8, 5), state=model)


@program()
def parameters_moved_and_copied_back():
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x):
        opt.zero_grad()
        model(x).pow(2).mean().backward()
        old = {}
        with torch.no_grad():
            for p in model.parameters():
                old[p] = p.clone()
                p.add_(p.grad, alpha=0.05)
        opt.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(old[p])
        opt.step()
        return loss.item()

    return Program(step, inputs(), state=model)


@program()
def averages_copied_in_for_evaluation():
    model = net()
    shadow = [p.detach().clone() * 2 for p in model.parameters()]

    def step(x):
        with torch.no_grad():
            kept = [p.clone() for p in model.parameters()]
            for p, s in zip(model.parameters(), shadow):
                p.copy_(s)
            y = model(x)
            for p, k in zip(model.parameters(), kept):
                p.copy_(k)
        return y

    return Program(step, inputs(), state=(model, shadow))


@program()
def target_scaled_and_then_copied():
    model = net()
    target = copy.deepcopy(model)
    opt = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(x):
        loss = (model(x) - target(x).detach() + 1).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        for p, q in zip(model.parameters(), target.parameters()):
            q.data.mul_(0.9)
            q.data.copy_(p.data)
        return loss.item()

    return Program(step, inputs(), state=(model, target))


@program()
def scratch_memory():
    scratch = torch.zeros(4, 5)

    def step(x):
        scratch.zero_()
        scratch.add_(x)
        scratch[0] = 7.0
        y = (scratch * 2).sum()
        scratch.fill_(-1.0)
        return y

    return Program(step, inputs(), state=scratch)


@program()
def filled_by_chance_and_then_copied():
    noise = torch.zeros(4, 5)

    def step(x):
        noise.normal_()
        noise.copy_(x)
        return torch.rand(2)

    return Program(step, inputs(), state=noise)


@program()
def given_back_under_a_graph_outside():
    w, held = nn.Parameter(torch.ones(5)), {}

    def begin():
        held["loss"] = (w * w).sum()

    def end():
        try:
            held.pop("loss").backward()
        except RuntimeError as error:
            held["error"] = "modified by an inplace operation" in str(error)

    def step(x):
        with torch.no_grad():
            old = w.clone()
            w.add_(x[0])
            y = w.sum().item()
            w.copy_(old)
        return y

    return Program(step, inputs(), {6: begin, 7: end, 8: begin, 9: end}, state=(w, held))


@program(speculated=5)
def given_back_and_looked_at_by_what_is_passed_in():
    w = torch.ones(5)
    calls = [(w.detach() if number in (6, 7) else torch.randn(5),) for number in range(CALLS)]

    def step(x):
        old = w.clone()
        w.mul_(3)
        y = (x * 2).sum()
        w.copy_(old)
        return y

    return Program(step, calls, state=w)


@program()
def fields_written_twice():
    class Meter:
        pass

    meter, log = Meter(), {}

    def step(x):
        meter.last = x * 2
        y = meter.last.sum()
        meter.last = x * 3
        log["a"] = y
        log["b"] = y
        log["a"] = y * 2
        meter.count = 1
        meter.count = 2

    return Program(step, inputs(), state=(meter, log))


@program()
def field_shown_between_two_writes():
    class Meter:
        pass

    meter = Meter()

    def step(x):
        meter.last = x.sum().item()
        print(meter.last, meter)
        meter.last = x.mean().item()

    Meter.__repr__ = lambda self: f"meter {self.last:.3f}"
    return Program(step, inputs(), state=meter)


@program()
def list_kept_while_its_field_is_written_again():
    class Meter:
        pass

    meter = Meter()

    def step(x):
        meter.all = [x.sum()]
        kept = meter.all
        meter.all = (kept, kept)
        kept.append(x)

    return Program(step, inputs(), state=meter)


@program(speculated=6)
def number_that_cannot_be_computed_and_is_written_over():
    class Meter:
        pass

    meter = Meter()

    def step(x):
        meter.last = 1.0 / x.sum().item()
        meter.last = 2
        return x * 2

    calls = [(torch.zeros(3) if number == 6 else torch.randn(3),) for number in range(CALLS)]
    return Program(step, calls, state=meter)


@program()
def order_of_keys():
    class Meter:
        pass

    meter = Meter()

    def step(x):
        log = meter.__dict__
        log.clear()
        meter.a = x.sum()
        meter.b = x.mean()
        meter.a = x.sum() * 2
        meter.a = x.sum() * 3

    return Program(step, inputs(), state=meter)


@program()
def item_exchanged_and_put_back():
    table = {"scale": torch.ones(5), "other": 1}

    def step(x):
        kept = table["scale"]
        table["scale"] = kept * 2
        y = x * table["scale"]
        table["scale"] = kept
        return y

    return Program(step, inputs(), state=table)


@program()
def variable_of_a_closure_written_twice():
    total = torch.zeros(5)

    def step(x):
        nonlocal total
        total = total + x[0]
        total = total * 0.5
        total = total + 1

    return Program(step, inputs(), state=step)
