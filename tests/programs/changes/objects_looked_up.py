"""Objects that are looked up in dictionaries and sets, others in each call: the models of an ensemble, clients."""

import collections
import copy

import torch
from torch import nn
from torch.nn import functional as F

from tests.programs.harness import Program, program

RUN_ONE_IN = 4


def network():
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


def batch(rows=4):
    return torch.randn(rows, 5), torch.randint(3, (rows,))


def train(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()


def folds(make, times=6, calls=6):
    """One model after the other, each with an optimizer of its own."""
    pairs = []
    for _ in range(times):
        model = network()
        pairs.append((model, make(model.parameters())))
    return [(*pairs[k // calls], *batch()) for k in range(times * calls)], pairs


def in_turn(make, models=5, calls=40):
    """Some models, now one and now the other."""
    pairs = []
    for _ in range(models):
        model = network()
        pairs.append((model, make(model.parameters())))
    return [(*pairs[(k * k + k // 3) % models], *batch()) for k in range(calls)], pairs


@program(speculated=27, compiles=4)
def cross_validation_by_adam():
    calls, pairs = folds(lambda parameters: torch.optim.Adam(parameters, lr=0.01))
    return Program(train, calls, state=pairs)


@program(speculated=24, compiles=7)
def cross_validation_by_momentum():
    calls, pairs = folds(lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9))
    return Program(train, calls, state=pairs)


@program(speculated=30, compiles=5)
def an_ensemble_by_adamw():
    calls, pairs = in_turn(lambda parameters: torch.optim.AdamW(parameters, lr=0.01))
    return Program(train, calls, state=pairs)


@program(speculated=28, compiles=5)
def an_ensemble_by_centered_rmsprop():
    calls, pairs = in_turn(lambda parameters: torch.optim.RMSprop(parameters, lr=0.001, centered=True))
    return Program(train, calls, state=pairs)


@program(speculated=20, compiles=6)
def clients_of_a_federation():
    server = network()

    def local(model, momenta, x, y):
        loss = F.cross_entropy(model(x), y)
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                if p not in momenta:
                    momenta[p] = torch.zeros_like(p)
                momenta[p].mul_(0.5).add_(p.grad)
                p.sub_(0.1 * momenta[p])
        return float(loss.detach())

    clients = [(copy.deepcopy(server), {}) for _ in range(10)]
    return Program(local, [(*clients[k // 3], *batch()) for k in range(30)], state=(server, clients))


class Client:
    def __init__(self, number):
        self.weight = torch.full((3,), float(number))
        self.number = number

    def __repr__(self):
        return f"client {self.number}"


def clients(calls=24, count=6):
    known = [Client(number) for number in range(count)]
    return [(known[(k * 5 + k // 4) % count], torch.randn(3)) for k in range(calls)], known


@program(speculated=14, compiles=4)
def counted_by_client():
    seen: collections.Counter = collections.Counter()
    calls, known = clients()

    def step(client, x):
        seen[client] += 1
        return client.weight * x * seen[client]

    return Program(step, calls, state=(seen, known))


@program(speculated=12, compiles=5)
def the_last_result_of_each_client():
    last: dict = {}
    calls, known = clients()

    def step(client, x):
        before = last.get(client)
        last[client] = client.weight * x if before is None else before * 0.5 + client.weight * x
        return last[client].sum()

    return Program(step, calls, state=(last, known))


@program(speculated=12, compiles=5)
def clients_that_come_and_go():
    present: set = set()
    calls, known = clients()

    def step(client, x):
        if client in present:
            present.discard(client)
            return client.weight + x
        present.add(client)
        return client.weight - x

    return Program(step, calls, state=(present, known))


@program(speculated=8, compiles=6)
def removed_after_use():
    waiting: dict = {}
    calls, known = clients()

    def step(client, x):
        if client in waiting:
            kept = waiting.pop(client)
            return kept * x
        waiting.setdefault(client, client.weight + x)
        return x

    return Program(step, calls, state=(waiting, known))


@program(speculated=10, compiles=5)
def two_clients_of_which_both_may_be_one():
    shares: dict = {}
    _, known = clients()
    pairs = [(known[k % 5], known[(k * 3) % 5], torch.randn(3)) for k in range(30)]

    def step(one, other, x):
        shares[one] = one.weight * x
        shares[other] = shares.get(one, x) + other.weight
        return shares[one] - shares[other]

    return Program(step, pairs, state=(shares, known))


@program(speculated=10, compiles=6)
def all_clients_are_listed_after_a_lookup():
    scores = {}
    calls, known = clients(count=4)
    scores.update({client: torch.zeros(3) for client in known})

    def step(client, x):
        scores[client].add_(x)
        return torch.stack(list(scores.values())).sum(0)

    return Program(step, calls, state=(scores, known))


@program(speculated=0, compiles=24)
def keys_made_of_a_client_and_a_number():
    table: dict = {}
    calls, known = clients(count=3)

    def step(client, x):
        key = (client, int(client.number > 1))
        table[key] = table.get(key, 0.0) + x
        return table[key] * client.weight

    return Program(step, calls, state=(table, known))


@program(speculated=14, compiles=5)
def parameters_that_are_shared_in_some_models():
    def tied(share):
        model = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})
        if share:
            model["b"].weight = model["a"].weight
        return model

    models = [tied(k in (3, 5)) for k in range(8)]
    steps: dict = {}

    def step(model, x):
        loss = model["b"](model["a"](x)).square().mean()
        grads = torch.autograd.grad(loss, (model["a"].weight, model["b"].weight))
        for p, g in zip((model["a"].weight, model["b"].weight), grads, strict=True):
            steps[p] = steps.get(p, 0) + 1
            with torch.no_grad():
                p.sub_(g * 0.1 / steps[p])
        return loss.detach()

    return Program(step, [(models[(k // 2) % 8], torch.randn(2, 4)) for k in range(32)], state=(models, steps))


@program(speculated=22, compiles=5)
def boosted_learners():
    residuals: dict = {}
    learners = [(nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1)), {}) for _ in range(6)]

    def fit(learner, velocity, x, y):
        loss = (learner(x).squeeze(-1) - y).square().mean()
        grads = torch.autograd.grad(loss, list(learner.parameters()))
        with torch.no_grad():
            for p, g in zip(learner.parameters(), grads, strict=True):
                v = velocity.setdefault(p, torch.zeros_like(p))
                v.mul_(0.9).add_(g)
                p -= 0.05 * v
        residuals[learner] = loss.item()

    calls = [(*learners[k // 6], torch.randn(8, 5), torch.randn(8)) for k in range(36)]
    return Program(fit, calls, state=(learners, residuals))


@program(speculated=14, compiles=5)
def models_gathered_in_a_set():
    seen: set = set()
    models = [nn.Linear(5, 3) for _ in range(4)]

    def step(model, x):
        seen.add(model)
        return model(x).sum().detach() * len(seen)

    return Program(step, [(models[k // 6], torch.randn(2, 5)) for k in range(24)], state=(lambda: len(seen), models))
