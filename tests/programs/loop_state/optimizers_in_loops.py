"""Loops that train by optimizers that count their steps: a tensor holds the step count from which numbers follow."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.harness import Program, program

RUN_ONE_IN = 20  # Each takes seconds: it is served only after many of its loops or calls have been merged.

MANY = 24
COUNTS = (5, 9, 4, 7, 12, 3, 8, 6)


def net():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def batch():
    return torch.randn(8, 6), torch.randint(0, 3, (8,))


def counted(counts=COUNTS):
    return [(*batch(), counts[n % len(counts)]) for n in range(MANY)]


def listed(make=batch):
    return [([make() for _ in range(COUNTS[n % len(COUNTS)])],) for n in range(MANY)]


def trained(optimizer, counts=COUNTS, before=None):
    """So many iterations of an optimizer; ``before``: what is done to it outside of calls."""
    model = net()
    opt = optimizer(model.parameters())

    def step(x, y, iterations):
        loss = torch.zeros(())
        for _ in range(iterations):
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
        return loss.item()

    acts = {call: (lambda act=act: act(opt)) for call, act in (before or {}).items()}
    return Program(step, counted(counts), acts, state=(model, opt))


@program(speculated=21, compiles=1, slow=True)
def adam():
    return trained(lambda parameters: torch.optim.Adam(parameters, 1e-2))


@program(speculated=21, compiles=1)
def adam_that_decays_and_keeps_the_largest():
    return trained(lambda parameters: torch.optim.Adam(parameters, 1e-2, weight_decay=0.1, amsgrad=True, maximize=True))


@program(speculated=21, compiles=1)
def adam_of_lists():
    return trained(lambda parameters: torch.optim.Adam(parameters, 1e-2, foreach=True))


@program(speculated=20, compiles=2)
def adamw_of_lists():
    def to(opt):
        for state in opt.state.values():
            state["step"].fill_(700.0)

    before = {9: to, 15: lambda opt: opt.param_groups[0].update(lr=0.003)}
    return trained(
        lambda parameters: torch.optim.AdamW(parameters, 1e-2, weight_decay=0.1, foreach=True), before=before
    )


@program(speculated=21, compiles=1)
def momentum_of_lists():
    return trained(lambda parameters: torch.optim.SGD(parameters, 1e-2, momentum=0.9, weight_decay=0.1, foreach=True))


@program(speculated=21, compiles=1)
def lists_that_count_by_a_tensor():
    """Which holds one, or what the call has put there."""
    counts = [torch.zeros(()), torch.zeros(())]
    w = torch.ones(3)

    def step(x, y, iterations):
        by = torch.tensor(1.0)
        for _ in range(iterations):
            torch._foreach_add_(counts, by, alpha=1.0)
            w.mul_(0.99 ** counts[0].item())
            torch._foreach_mul_([w], [1 - 0.5 ** counts[1].item()])
        return w * by

    return Program(step, counted(), {13: lambda: counts[1].fill_(3.0)}, state=(w, counts))


@program(refused="computes")
def lists_that_count_by_what_changes():
    counts = [torch.zeros(()), torch.zeros(())]
    w = torch.ones(3)

    def step(x, y, iterations):
        with torch.no_grad():  # one statement: none of it is left to Python
            by = torch.tensor(1.0)
            by.mul_(x[0, 0].sign())
            for _ in range(iterations):
                torch._foreach_add_(counts, by, alpha=1.0)
                torch._foreach_mul_([w], [1 - 0.5 ** counts[1].item()])
                torch._foreach_add_([by], 1.0)
            return w * by

    return Program(step, counted(), state=(w, counts))


@program(speculated=21, compiles=1)
def adamax():
    return trained(lambda parameters: torch.optim.Adamax(parameters, 1e-2))


@program(speculated=21, compiles=1)
def adagrad():
    return trained(lambda parameters: torch.optim.Adagrad(parameters, 1e-2, lr_decay=0.1))


@program(speculated=21, compiles=1)
def an_epoch_of_adamw():
    model = net()
    opt = torch.optim.AdamW(model.parameters(), 1e-2)

    def epoch(batches):
        total = 0.0
        for x, y in batches:
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            opt.step()
            total += loss.item()
        return total / len(batches)

    return Program(epoch, listed(), state=(model, opt))


@program(speculated=21, compiles=1, slow=True)
def a_critic_and_a_maker():
    maker, critic = nn.Linear(4, 6), net()
    of_maker = torch.optim.Adam(maker.parameters(), 1e-3, betas=(0.5, 0.9))
    of_critic = torch.optim.Adam(critic.parameters(), 1e-3, betas=(0.5, 0.9))

    def step(real, _, iterations):
        for _ in range(iterations):
            fake = maker(torch.randn(real.size(0), 4)).detach()
            of_critic.zero_grad()
            (critic(fake).mean() - critic(real).mean()).backward()
            of_critic.step()
        of_maker.zero_grad()
        loss = -critic(maker(torch.randn(real.size(0), 4))).mean()
        loss.backward()
        of_maker.step()
        return loss.item()

    return Program(step, counted(), state=(maker, critic, of_maker, of_critic))


@program(speculated=21, compiles=1)
def two_phases():
    """Both count the same steps."""
    model = net()
    opt = torch.optim.Adam(model.parameters(), 1e-2)

    def step(x, y, iterations):
        for _ in range(iterations):
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()
        for _ in range(iterations):
            opt.zero_grad()
            F.cross_entropy(model(x + 0.1), y, label_smoothing=0.1).backward()
            opt.step()

    return Program(step, counted(), state=(model, opt))


@program(speculated=21, compiles=1)
def steps_set_from_outside():
    """At the last one float32 has no number for one step more."""

    def to(number):
        def act(opt):
            for state in opt.state.values():
                state["step"].fill_(number)

        return act

    before = {8: to(0.0), 14: to(1000.0), 20: to(2.0**24 - 4)}
    return trained(lambda parameters: torch.optim.Adam(parameters, 1e-2), before=before)


@program(speculated=15, compiles=4)
def few_iterations_and_none():
    return trained(lambda parameters: torch.optim.Adam(parameters, 1e-2), (5, 9, 4, 2, 7, 12, 0, 1, 3, 8, 6, 2))


@program(speculated=15, compiles=4)
def a_step_after_the_iterations():
    """By the same optimizer: how many steps there are by then is known when the iterations are over."""
    model = net()
    opt = torch.optim.Adam(model.parameters(), 1e-2)

    def train(x, y):
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        opt.step()

    def step(x, y, iterations):
        for _ in range(iterations):
            train(x, y)
        train(x + 0.5, y)

    return Program(step, counted((5, 9, 4, 7)), state=(model, opt))


@program(speculated=16, compiles=4)
def a_number_that_iterations_have_counted():
    """It was that of three iterations, whatever the trip count."""
    model, steps = net(), torch.zeros(())
    opt = torch.optim.SGD(model.parameters(), 1e-2)

    def step(x, y, iterations):
        for _ in range(iterations):
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()
            steps.add_(1)
        return model(x * 0.9 ** steps.item()).sum().item(), steps.item()

    return Program(step, counted((5, 9, 4, 7)), state=(model, opt, steps))


@program(speculated=21, compiles=1)
def a_number_that_is_shown():
    model, steps = net(), torch.zeros((), dtype=torch.int64)
    opt = torch.optim.SGD(model.parameters(), 1e-2)

    def step(x, y, iterations):
        for _ in range(iterations):
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()
            steps.add_(2)
        return steps.item()

    return Program(step, counted(), state=(model, opt, steps))


@program(speculated=21, compiles=1)
def several_steps_in_an_iteration():
    """Read before, between and behind them, in three precisions."""
    model = net()
    opt = torch.optim.SGD(model.parameters(), 1e-2)
    narrow, wide, whole = torch.tensor(0.5), torch.tensor(0.1, dtype=torch.float64), torch.tensor(7)

    def step(x, y, iterations):
        for _ in range(iterations):
            opt.zero_grad()
            rate = 0.9 ** narrow.item()
            narrow.add_(0.1).mul_(1.01)
            scale = 1 / (1 + wide.item())
            wide.sub_(0.01)
            scale = scale + 1 / (3 + wide.item())
            whole.add_(2)
            loss = F.cross_entropy(model(x) * rate + scale, y) * (whole.item() / 3)
            loss.backward()
            opt.step()

    return Program(step, counted(), state=(model, opt, narrow, wide, whole))


@program(speculated=0, compiles=24)
def counted_under_another_name():
    """A view of the tensor is changed, and the number is fetched from the tensor itself."""
    model, steps = net(), torch.zeros(())
    opt, seen = torch.optim.SGD(model.parameters(), 1e-2), steps.view(1)

    def step(x, y, iterations):
        for _ in range(iterations):
            opt.zero_grad()
            (F.cross_entropy(model(x), y) / (1 + steps.item())).backward()
            opt.step()
            steps.add_(1)
            seen.mul_(0.5)

    return Program(step, counted((5, 9, 4, 7)), state=(model, opt, steps))


@program(speculated=0, compiles=24)
def begun_anew_in_each_iteration():
    model, steps = net(), torch.zeros(())
    opt = torch.optim.SGD(model.parameters(), 1e-2)

    def step(x, y, iterations):
        for _ in range(iterations):
            opt.zero_grad()
            steps.zero_()
            steps.add_(x.abs().max())
            (F.cross_entropy(model(x), y) / 2 ** steps.item()).backward()
            opt.step()

    return Program(step, counted((5, 9, 4, 7)), state=(model, opt, steps))


@program(speculated=20, compiles=1)
def a_number_that_cannot_be():
    """In some iterations of some calls Python divides by zero."""
    model, steps = net(), torch.zeros(())
    opt = torch.optim.SGD(model.parameters(), 1e-2)

    def step(x, y, iterations):
        try:
            for _ in range(iterations):
                opt.zero_grad()
                (F.cross_entropy(model(x), y) * (1 / (40 - steps.item()))).backward()
                opt.step()
                steps.add_(1)
        except ZeroDivisionError:
            steps.fill_(50)
        return steps.item()

    return Program(step, counted(), state=(model, opt, steps))


def scheduled(optimizer, schedule):
    """So many iterations at a rate that is another one at each call."""
    model = net()
    opt = optimizer(model.parameters())
    rates = schedule(opt)

    def step(x, y, iterations):
        for _ in range(iterations):
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()
        rates.step()
        return rates.get_last_lr()

    return Program(step, counted(), state=(model, opt, rates))


@program(speculated=21, compiles=1)
def a_rate_that_falls_by_calls():
    return scheduled(
        lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
        lambda opt: torch.optim.lr_scheduler.ExponentialLR(opt, 0.9),
    )


@program(speculated=21, compiles=1)
def a_cosine_for_adamw():
    return scheduled(
        lambda parameters: torch.optim.AdamW(parameters, 1e-2),
        lambda opt: torch.optim.lr_scheduler.CosineAnnealingLR(opt, 100),
    )


@program(speculated=21, compiles=1)
def a_rate_set_from_outside():
    model = net()
    opt = torch.optim.RMSprop(model.parameters(), 1e-3)
    rates = {call: (lambda rate=call: opt.param_groups[0].update(lr=1e-2 / (1 + rate))) for call in range(MANY)}

    def step(x, y, iterations):
        for _ in range(iterations):
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()

    return Program(step, counted(), rates, state=(model, opt))


@program(speculated=21, compiles=1)
def a_rate_in_a_loop_that_does_not_train():
    cell = nn.Linear(6, 6)
    opt = torch.optim.SGD(cell.parameters(), 0.1)

    def step(x, _, iterations, rate):
        h = x
        for _ in range(iterations):
            h = torch.add(h, torch.tanh(cell(h)), alpha=rate)
            h = torch.lerp(h, x, rate / 2) + torch.full_like(h, rate)
        opt.zero_grad()
        h.pow(2).mean().backward()
        opt.step()

    given = [(*call, 0.05 * (number % 7 + 1)) for number, call in enumerate(counted())]
    return Program(step, given, state=(cell, opt))


@program(speculated=14, compiles=4)
def half_precision():
    """Kernels of lower precision round once where two operations would round twice."""
    weight = torch.randn(6, dtype=torch.bfloat16)
    opt_rate = [0.1]

    def step(x, y, iterations):
        w = weight.clone().requires_grad_()
        opt = torch.optim.SGD([w], opt_rate[0], momentum=0.9)
        for _ in range(iterations):
            opt.zero_grad()
            (x.bfloat16() @ w).pow(2).mean().backward()
            opt.step()
        weight.copy_(w.detach())
        opt_rate[0] *= 0.9

    return Program(step, counted((5, 9, 4, 7)), state=weight)


@program(speculated=21, compiles=1)
def rates_by_iterations():
    """Set in each iteration, and left as the last one set it."""
    model = net()
    opt = torch.optim.SGD(model.parameters(), 0.1, weight_decay=0.01)

    def step(x, y, iterations):
        for i in range(iterations):
            for group in opt.param_groups:
                group["lr"] = 0.1 * 0.9**i
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()

    return Program(step, counted(), state=(model, opt))


@program(speculated=21, compiles=1)
def adamw_warms_up_by_iterations():
    """Libraries compute with the rate as well: 1 - lr * decay, lr / (1 - beta ** step)."""
    model = net()
    opt = torch.optim.AdamW(model.parameters(), 0.1)

    def step(x, y, iterations):
        for i in range(iterations):
            opt.param_groups[0]["lr"] = 0.01 * (i + 1)
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()

    return Program(step, counted(), state=(model, opt))


@program(speculated=19, compiles=2)
def a_rate_counted_over_all_calls():
    model = net()
    opt = torch.optim.SGD(model.parameters(), 0.1)
    done = [0]

    def step(x, y, iterations):
        for _ in range(iterations):
            done[0] += 1
            opt.param_groups[0]["lr"] = 0.1 * min(1.0, done[0] / 50)
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()

    return Program(step, counted(), state=(model, opt, done))


@program(speculated=8, compiles=8)
def a_rate_that_decides():
    """From the eighth round on it is too small to go on."""
    model = net()
    opt = torch.optim.SGD(model.parameters(), 0.1)

    def step(x, y, iterations):
        for i in range(iterations):
            opt.param_groups[0]["lr"] = rate = 0.1 * 0.7**i
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            if rate > 0.01:
                opt.step()

    return Program(step, counted((5, 6, 4, 7, 5, 6, 4, 7, 12, 9, 11, 10)), state=(model, opt))


@program(speculated=21, compiles=1)
def times_in_a_log():
    model, log = nn.Linear(6, 6), []

    def step(x, _, iterations):
        t = 0.0
        with torch.no_grad():
            for _ in range(iterations):
                x = x + 0.1 * model(x) * t
                log.append(t)
                t += 0.1
                print("until", t)
        return x

    return Program(step, counted(), state=(model, log))


@program(speculated=16, compiles=4)
def a_time_that_cannot_be_logged():
    """In the eighth iteration Python divides by zero, in the middle of the iteration."""
    model, log = nn.Linear(6, 6), []

    def step(x, _, iterations):
        try:
            for i in range(iterations):
                with torch.no_grad():
                    x = x + 0.1 * model(x)
                log.append(1.0 / (7 - i))
        except ZeroDivisionError:
            log.append(-1.0)
        return x

    return Program(step, counted(), state=(model, log))


@program(speculated=12, compiles=4)
def nearly_always_one_time():
    """A number that rounds write is the same in all that were seen first."""
    model, log = nn.Linear(6, 6), []

    def step(x, _, iterations):
        with torch.no_grad():
            for i in range(iterations):
                x = x + 0.1 * model(x)
                log.append(max(1.0, 0.13 * i))
        return x

    return Program(step, counted((5, 6, 4, 7, 5, 6, 4, 7, 5, 6, 12, 11, 9, 10)), state=(model, log))
