"""Loops whose iterations train: optimizer steps and backward passes, of changing trip counts."""

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


def counted(calls=MANY):
    return [(*batch(), COUNTS[n % len(COUNTS)]) for n in range(calls)]


def listed(calls=MANY, make=batch):
    return [([make() for _ in range(COUNTS[n % len(COUNTS)])],) for n in range(calls)]


@program(speculated=20)
def steps_of_reptile():
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.05)

    def step(x, y, iterations):
        before = [p.detach().clone() for p in model.parameters()]
        for _ in range(iterations):
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
        with torch.no_grad():
            for p, b in zip(model.parameters(), before, strict=True):
                p.copy_(b + 0.3 * (p - b))
        return loss.item()

    return Program(step, counted(), state=(model, opt))


@program(speculated=20)
def iterations_of_a_critic():
    maker, critic = nn.Linear(4, 6), net()
    opt = torch.optim.RMSprop(critic.parameters(), lr=1e-3)

    def step(real, _, iterations):
        for _ in range(iterations):
            fake = maker(torch.randn(real.size(0), 4)).detach()
            opt.zero_grad()
            (critic(fake).mean() - critic(real).mean()).backward()
            opt.step()
            for p in critic.parameters():
                p.data.clamp_(-0.3, 0.3)
        return critic(real).mean().item()

    return Program(step, counted(), state=(maker, critic, opt))


@program(speculated=20)
def an_attack_by_gradients():
    model = net()

    def step(x, y, iterations):
        adv = x.clone()
        for _ in range(iterations):
            adv.requires_grad_(True)
            (g,) = torch.autograd.grad(F.cross_entropy(model(adv), y), adv)
            adv = torch.min(torch.max((adv + 0.1 * g.sign()).detach(), x - 0.3), x + 0.3)
        return adv

    return Program(step, counted(), state=model)


@program(speculated=18)
def an_epoch():
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

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


@program(speculated=18)
def gradients_of_micro_batches():
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.05)

    def step(micro):
        opt.zero_grad()
        for x, y in micro:
            F.cross_entropy(model(x), y).backward()
        opt.step()

    return Program(step, listed(), state=(model, opt))


@program(speculated=17, compiles=3)
def gradients_that_stay():
    model = net()

    def step(x, y, iterations):
        for _ in range(iterations):
            F.cross_entropy(model(x), y).backward()

    first = model[0]
    return Program(step, counted(), {9: model.zero_grad, 15: lambda: first.weight.grad.mul_(2)}, state=model)


@program(speculated=20)
def thrown_away_behind_the_step():
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []

    def step(x, y, iterations):
        for _ in range(iterations):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            opt.zero_grad()
            losses.append(loss.item())

    return Program(step, counted(), state=(model, opt, losses))


@program(speculated=18)
def batches_by_name():
    model = net()

    def right(batches):
        found = 0
        with torch.no_grad():
            for one in batches:
                found += (model(one["x"]).argmax(1) == one["y"]).sum()
        return found

    return Program(right, listed(make=lambda: dict(zip("xy", batch(), strict=True))), state=model)


@program(speculated=5, compiles=12)
def the_last_loss_with_its_graph():
    """What is returned has a backward graph in eager, though it is used up."""
    model = net()

    def step(x, y, iterations):
        for _ in range(iterations):
            model.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
        return loss

    return Program(step, counted(), state=model)


@program(speculated=5, compiles=12)
def a_parameter_seen_from_elsewhere():
    """A view that was taken before the loop shows what its rounds change."""
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.05)

    def step(x, y, iterations):
        seen, total = model[0].weight.detach().view(-1), torch.zeros(())
        for _ in range(iterations):
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()
            total = total + seen.sum()
        return total

    return Program(step, counted(), state=(model, opt))


@program(speculated=5, compiles=12)
def graphs_from_before_the_loop():
    model, head = net(), nn.Linear(3, 3)

    def step(x, y, iterations):
        model.zero_grad()
        head.zero_grad()
        z = model(x)
        for _ in range(iterations):
            F.cross_entropy(head(z), y).backward(retain_graph=True)

    return Program(step, counted(), state=(model, head))


@program(speculated=20)
def statistics_of_batches():
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)

    def step(x, y, iterations):
        model.train()
        for _ in range(iterations):
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()
        model.eval()
        with torch.no_grad():
            return F.cross_entropy(model(x), y).item()

    return Program(step, counted(), state=(model, opt))


@program(speculated=18)
def dropout_while_training():
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.4), nn.Tanh(), nn.Linear(8, 3))
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def epoch(batches):
        total = 0.0
        for x, y in batches:
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            total += loss.item()
        return total

    return Program(epoch, listed(), state=(model, opt))


@program(speculated=13, compiles=4)
def shares_of_gradients():
    """The number of iterations is in each of them: each number has an entry of its own, and none of them waits."""
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.05)

    def step(micro):
        opt.zero_grad()
        for x, y in micro:
            (F.cross_entropy(model(x), y) / len(micro)).backward()
        opt.step()

    return Program(step, [([batch() for _ in range((5, 9, 4, 7)[n % 4])],) for n in range(MANY)], state=(model, opt))
