"""Training steps with each of torch's optimizers and their variants."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.programs.harness import CALLS, Program, program

RUN_ONE_IN = 12  # Each takes a second or two, or is much like the others.


def batches(count=CALLS, rows=4):
    return [(torch.randn(rows, 5), torch.randint(3, (rows,))) for _ in range(count)]


def net():
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


def trained(make, **options):
    model = net()
    opt = make(model.parameters(), **options)

    def step(x, y):
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        return loss.item()

    return Program(step, batches())


@program()
def sgd():
    return trained(torch.optim.SGD, lr=0.1)


@program()
def sgd_momentum():
    return trained(torch.optim.SGD, lr=0.1, momentum=0.9)


@program()
def sgd_nesterov_decay():
    return trained(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)


@program()
def sgd_dampening_maximize():
    return trained(torch.optim.SGD, lr=0.01, momentum=0.9, dampening=0.5, maximize=True)


@program()
def sgd_foreach():
    return trained(torch.optim.SGD, lr=0.1, momentum=0.9, foreach=True)


@program()
def adam():
    return trained(torch.optim.Adam, lr=0.01)


@program()
def adam_foreach():
    return trained(torch.optim.Adam, lr=0.01, foreach=True)


@program()
def adam_amsgrad():
    return trained(torch.optim.Adam, lr=0.01, amsgrad=True, weight_decay=0.1)


@program()
def adam_fused():
    return trained(torch.optim.Adam, lr=0.01, fused=True)


@program()
def adamw_fused_amsgrad():
    return trained(torch.optim.AdamW, lr=0.01, amsgrad=True, maximize=True, fused=True)


@program()
def sgd_fused():
    return trained(torch.optim.SGD, lr=0.01, momentum=0.9, nesterov=True, weight_decay=0.1, fused=True)


@program()
def sgd_fused_plain():
    return trained(torch.optim.SGD, lr=0.01, fused=True)


@program()
def adagrad_fused():
    return trained(torch.optim.Adagrad, lr=0.01, lr_decay=0.1, fused=True)


@program(refused="a learning rate that is a tensor")
def adam_fused_lr_tensor():
    return trained(torch.optim.Adam, lr=torch.tensor(0.01), fused=True)


@program()
def adam_capturable_lr_tensor():
    return trained(torch.optim.Adam, lr=torch.tensor(0.01))


@program()
def adamw():
    return trained(torch.optim.AdamW, lr=0.01, weight_decay=0.1)


@program()
def rmsprop():
    return trained(torch.optim.RMSprop, lr=0.01)


@program()
def rmsprop_centered():
    return trained(torch.optim.RMSprop, lr=0.01, centered=True, momentum=0.9)


@program()
def adagrad():
    return trained(torch.optim.Adagrad, lr=0.1, lr_decay=0.01)


@program()
def adadelta():
    return trained(torch.optim.Adadelta)


@program()
def nadam():
    return trained(torch.optim.NAdam)


@program(speculated=2)
def radam():
    return trained(torch.optim.RAdam)


@program()
def adamax():
    return trained(torch.optim.Adamax)


@program()
def asgd():
    return trained(torch.optim.ASGD)


@program()
def rprop():
    return trained(torch.optim.Rprop)


@program(speculated=0, compiles=0)
def lbfgs_closure():
    model = net()
    opt = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def step(x, y):
        def closure():
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        return opt.step(closure).item()

    return Program(step, batches())


@program()
def sgd_closure():
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, y):
        def closure():
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        return opt.step(closure).item()

    return Program(step, batches())


@program()
def two_optimizers():
    one, two = nn.Linear(5, 4), nn.Linear(4, 3)
    first = torch.optim.SGD(one.parameters(), lr=0.1)
    second = torch.optim.Adam(two.parameters(), lr=0.01)

    def step(x, y):
        first.zero_grad()
        second.zero_grad()
        loss = F.cross_entropy(two(one(x)), y)
        loss.backward()
        first.step()
        second.step()
        return loss.detach()

    return Program(step, batches())


@program()
def gan_like_alternation():
    maker, judge = nn.Linear(5, 5), nn.Linear(5, 1)
    gen = torch.optim.Adam(maker.parameters(), lr=0.01)
    dis = torch.optim.Adam(judge.parameters(), lr=0.02)

    def step(x):
        dis.zero_grad()
        fake = maker(torch.randn(4, 5))
        loss_d = F.softplus(judge(fake.detach())).mean() + F.softplus(-judge(x)).mean()
        loss_d.backward()
        dis.step()
        gen.zero_grad()
        loss_g = F.softplus(-judge(fake)).mean()
        loss_g.backward()
        gen.step()
        return {"d": loss_d.item(), "g": loss_g.item()}

    return Program(step, [(torch.randn(4, 5),) for _ in range(CALLS)])


@program()
def param_groups():
    model = net()
    opt = torch.optim.SGD(
        [
            {"params": model[0].parameters(), "lr": 0.1},
            {"params": [model[2].weight], "momentum": 0.9},
            {"params": [model[2].bias], "weight_decay": 0.0},
        ],
        lr=0.01,
        weight_decay=0.01,
    )

    def step(x, y):
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        return loss.item()

    return Program(step, batches())


@program()
def add_param_group_midway():
    model, extra = net(), nn.Linear(5, 3)
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x, y):
        opt.zero_grad()
        loss = F.cross_entropy(model(x) + extra(x), y)
        loss.backward()
        opt.step()
        return loss.item()

    return Program(
        step, batches(16), {5: lambda: opt.add_param_group({"params": extra.parameters(), "lr": 0.01})}, state=extra
    )


@program()
def zero_grad_to_zero():
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, y):
        opt.zero_grad(set_to_none=False)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        return loss.item()

    return Program(step, batches())


@program()
def zero_grad_after():
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        model.zero_grad()
        return loss.item()

    return Program(step, batches())


@program(speculated=6, compiles=4)
def accumulation():
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    state = {"i": 0}

    def step(x, y):
        loss = F.cross_entropy(model(x), y) / 4
        loss.backward()
        if (state["i"] + 1) % 4 == 0:
            opt.step()
            opt.zero_grad()
        state["i"] += 1
        return loss.item()

    return Program(step, batches(24))


@program()
def accumulation_never_cleared():
    model = net()

    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return [p.grad for p in model.parameters()]

    return Program(step, batches())


@program()
def clip_norm():
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, y):
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        opt.step()
        return loss.item(), norm

    return Program(step, batches())


@program()
def clip_value():
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, y):
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.01)
        opt.step()

    return Program(step, batches())


@program()
def by_hand():
    w = torch.randn(5, 3, requires_grad=True)

    def step(x, y):
        loss = F.cross_entropy(x @ w, y)
        loss.backward()
        with torch.no_grad():
            w.sub_(0.1 * w.grad)
            w.grad.zero_()
        return loss.item()

    return Program(step, batches())


@program()
def by_hand_data():
    model = net()

    def step(x, y):
        for p in model.parameters():
            p.grad = None
        F.cross_entropy(model(x), y).backward()
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-0.1)

    return Program(step, batches())


@program()
def by_hand_minus_equals():
    w = torch.randn(5, 3, requires_grad=True)
    b = torch.zeros(3, requires_grad=True)

    def step(x, y):
        loss = F.cross_entropy(x @ w + b, y)
        loss.backward()
        with torch.no_grad():
            for p in (w, b):
                p -= p.grad * 0.1
                p.grad = None
        return loss.item()

    return Program(step, batches())


@program()
def ema_of_parameters():
    model, shadow = net(), net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, y):
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        opt.step()
        with torch.no_grad():
            for s, p in zip(shadow.parameters(), model.parameters()):
                s.mul_(0.9).add_(p, alpha=0.1)

    return Program(step, batches())


@program()
def ema_in_a_dict():
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    shadow = {name: p.detach().clone() for name, p in model.named_parameters()}

    def step(x, y):
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        opt.step()
        for name, p in model.named_parameters():
            shadow[name] = 0.9 * shadow[name] + 0.1 * p.detach()

    return Program(step, batches())


@program()
def swa_averaged_model():
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    average = torch.optim.swa_utils.AveragedModel(model)

    def step(x, y):
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        opt.step()
        average.update_parameters(model)

    return Program(step, batches(), state=average)


@program()
def weight_tying():
    emb, out = nn.Embedding(7, 6), nn.Linear(6, 7, bias=False)
    out.weight = emb.weight
    opt = torch.optim.Adam([*emb.parameters()], lr=0.01)

    def step(ids):
        opt.zero_grad()
        loss = F.cross_entropy(out(emb(ids)), ids)
        loss.backward()
        opt.step()
        return loss.item()

    return Program(step, [(torch.randint(7, (9,)),) for _ in range(CALLS)])


@program(speculated=10, compiles=3)
def state_dict_loaded_midway():
    model = net()
    opt = torch.optim.Adam(model.parameters(), lr=0.01)
    saved = {}

    def save():
        saved["model"] = {k: v.clone() for k, v in model.state_dict().items()}

    def step(x, y):
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        return loss.item()

    return Program(step, batches(16), {2: save, 8: lambda: model.load_state_dict(saved["model"])})


@program(speculated=5, compiles=4)
def optimizer_state_loaded_midway():
    import copy

    model = net()
    opt = torch.optim.Adam(model.parameters(), lr=0.01)

    def step(x, y):
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        return loss.item()

    return Program(step, batches(16), {7: lambda: opt.load_state_dict(copy.deepcopy(opt.state_dict()))})


@program(speculated=5, compiles=4)
def new_optimizer_midway():
    model = net()
    holder = {"opt": torch.optim.SGD(model.parameters(), lr=0.1)}

    def step(x, y):
        opt = holder["opt"]
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        return loss.item()

    return Program(step, batches(16), {7: lambda: holder.update(opt=torch.optim.Adam(model.parameters(), lr=0.01))})
