"""Learning rates and other numbers that change over the calls."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler as sched

from tests.programs.harness import CALLS, Program, program

RUN_ONE_IN = 12  # Each takes a second or two, or is much like the others.


def batches(count=CALLS, rows=4):
    return [(torch.randn(rows, 5), torch.randint(3, (rows,))) for _ in range(count)]


def scheduled(make, inside, calls=14, optimizer=torch.optim.SGD):
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    opt = optimizer(model.parameters(), lr=0.1)
    scheduler = make(opt)

    def step(x, y):
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        if inside:
            scheduler.step()
        return loss.item()

    return Program(
        step,
        batches(calls),
        state=(scheduler, opt),
        between=None if inside else lambda result: scheduler.step(),
    )


@program(speculated=5, compiles=4)
def step_lr_inside():
    return scheduled(lambda o: sched.StepLR(o, 3), True, 20)


@program()
def step_lr_outside():
    return scheduled(lambda o: sched.StepLR(o, 3), False)


@program()
def lambda_inside():
    return scheduled(lambda o: sched.LambdaLR(o, lambda e: 0.95**e), True)


@program()
def lambda_outside():
    return scheduled(lambda o: sched.LambdaLR(o, lambda e: 0.95**e), False)


@program()
def lambda_outside_adam():
    return scheduled(lambda o: sched.LambdaLR(o, lambda e: 0.95**e), False, optimizer=torch.optim.AdamW)


@program(speculated=0, compiles=8)
def one_cycle_inside():
    return scheduled(lambda o: sched.OneCycleLR(o, 0.2, total_steps=25), True, 20)


@program()
def one_cycle_outside():
    return scheduled(lambda o: sched.OneCycleLR(o, 0.2, total_steps=25), False, 20)


@program()
def cosine_inside():
    return scheduled(lambda o: sched.CosineAnnealingLR(o, 30), True)


@program()
def cosine_outside():
    return scheduled(lambda o: sched.CosineAnnealingLR(o, 8), False)


@program()
def exponential_inside():
    return scheduled(lambda o: sched.ExponentialLR(o, 0.9), True)


@program()
def warmup_from_zero():
    return scheduled(lambda o: sched.LambdaLR(o, lambda e: min(1.0, e / 5)), False)


@program()
def warmup_from_zero_adamw():
    return scheduled(lambda o: sched.LambdaLR(o, lambda e: min(1.0, e / 5)), False, optimizer=torch.optim.AdamW)


@program(speculated=0, compiles=8)
def plateau_inside():
    model = nn.Linear(5, 3)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = sched.ReduceLROnPlateau(opt, patience=1)

    def step(x, y):
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        scheduler.step(loss.item())
        return loss.item()

    return Program(step, batches(16), state=scheduler)


@program()
def plateau_outside():
    model = nn.Linear(5, 3)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = sched.ReduceLROnPlateau(opt, patience=1)

    def step(x, y):
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        return loss.item()

    return Program(step, batches(16), state=scheduler, between=scheduler.step)


@program()
def written_by_hand_outside():
    model = nn.Linear(5, 3)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, y):
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        return loss.item()

    def set_rate(value):
        for group in opt.param_groups:
            group["lr"] = value

    return Program(step, batches(16), {i: lambda i=i: set_rate(0.1 / i) for i in (5, 9, 12)})


@program()
def written_by_hand_inside():
    model = nn.Linear(5, 3)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    state = {"step": 0}

    def step(x, y):
        state["step"] += 1
        for group in opt.param_groups:
            group["lr"] = 0.1 / (1 + 0.1 * state["step"])
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        return loss.item(), opt.param_groups[0]["lr"]

    return Program(step, batches())


@program()
def noam_with_min():
    model = nn.Linear(5, 3)
    opt = torch.optim.Adam(model.parameters(), lr=0.0)
    state = {"n": 0}

    def step(x, y):
        state["n"] += 1
        rate = 16**-0.5 * min(state["n"] ** -0.5, state["n"] * 6**-1.5)
        opt.param_groups[0]["lr"] = rate
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        return loss.item(), rate

    return Program(step, batches(14))


@program(compiles=3)
def rate_becomes_int():
    model = nn.Linear(5, 3)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, y):
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        return loss.item()

    return Program(step, batches(12), {8: lambda: opt.param_groups[0].update(lr=1)})


@program(compiles=3)
def rate_becomes_zero_and_back():
    model = nn.Linear(5, 3)
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x, y):
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        return loss.item()

    def put(value):
        opt.param_groups[0]["lr"] = value

    return Program(
        step, batches(14), {6: lambda: put(0.0), 8: lambda: put(0.05), 9: lambda: put(0.04), 10: lambda: put(0)}
    )


@program()
def momentum_becomes_nonzero():
    model = nn.Linear(5, 3)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, y):
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        return loss.item()

    return Program(step, batches(14), {6: lambda: opt.param_groups[0].update(momentum=0.9)})


@program()
def epoch_number_in_the_loss():
    model = nn.Linear(5, 3)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, y, epoch):
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y) * (1 + epoch)
        loss.backward()
        opt.step()
        return loss.item()

    return Program(step, [(*b, i) for i, b in enumerate(batches(12))])


@program(speculated=4)
def epoch_number_changes_late():
    model = nn.Linear(5, 3)

    def step(x, epoch):
        return model(x).sum().detach() * epoch + epoch // 2

    return Program(step, [(x, i // 6) for i, (x, _) in enumerate(batches(20))])
