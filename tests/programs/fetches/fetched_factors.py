"""Fetched numbers as scalar arguments (``alpha=``, ``value=``, ``lerp``'s weight), and tensors of one number there."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.harness import Program, program

RUN_ONE_IN = 12  # Each takes a second or two, or is much like the others.


def batches(count=12, rows=9):
    return [(torch.randn(rows, 7), torch.randint(3, (rows,))) for _ in range(count)]


class Trusting(torch.optim.Optimizer):
    """LAMB: what is added to a parameter is scaled by norms."""

    def __init__(self, parameters, lr=0.01):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["step"], state["first"], state["second"] = 0, torch.zeros_like(p), torch.zeros_like(p)
                state["step"] += 1
                state["first"].lerp_(p.grad, 0.1)
                state["second"].mul_(0.99).addcmul_(p.grad, p.grad, value=0.01)
                change = state["first"] / state["second"].sqrt().add(1e-6)
                norm, size = p.norm(), change.norm()
                trust = 1.0 if norm == 0 or size == 0 else float(norm / size)
                rate = group["lr"] * math.sqrt(1 - 0.99 ** state["step"])
                p.add_(change, alpha=-rate * trust)


def trained(make, net):
    opt = make(net.parameters())

    def step(x, y):
        opt.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        return loss.item()

    return Program(step, batches(), state=(net, opt))


@program(speculated=9, compiles=1)
def layers_trusted_by_their_norms():
    return trained(Trusting, nn.Sequential(nn.Linear(7, 33), nn.Tanh(), nn.Linear(33, 3)))


@program(speculated=5, compiles=4)
def second_order_with_a_closure():
    """torch's own L-BFGS gives a tensor as alpha, in its first step."""
    net = nn.Sequential(nn.Linear(7, 11), nn.Tanh(), nn.Linear(11, 3))
    opt = torch.optim.LBFGS(net.parameters(), lr=0.3, max_iter=3, history_size=3)
    evaluations = []

    def step(x, y):
        def closure():
            opt.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            evaluations.append(loss.item())
            return loss

        return opt.step(closure).item()

    return Program(step, batches(30), state=(net, evaluations))


@program(speculated=9, compiles=1)
def numbers_in_each_place():
    def step(x, y):
        n, t = x.norm().item(), x.mean()
        wide = x.t()[::2]
        out = torch.add(x, x * 2, alpha=n), torch.sub(x, x.exp(), alpha=n / 3)
        z = x.clone().add_(x, alpha=n).sub_(x.exp(), alpha=-n).addcdiv_(x, x.exp(), value=n).lerp_(x, 1 / n)
        given = torch.add(x, x.exp(), alpha=t), x.clone().sub_(x.t().contiguous().t(), alpha=t)
        more = torch.addcmul(x, x, x.exp(), value=n), torch.addcdiv(x, x, x.exp(), value=t), torch.lerp(x, z, n)
        return out, z, given, more, wide.add(wide.exp(), alpha=n)

    return Program(step, batches())


@program(speculated=9, compiles=1)
def gradients_pass_by_the_number():
    net = nn.Linear(7, 5)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(x, y):
        h = net(x)
        scale = h.detach().abs().max()
        loss = torch.add(h, h.exp(), alpha=scale.item()).sum() + torch.sub(h, h * h, alpha=h.detach().norm()).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.item()

    return Program(step, batches(), state=(net, opt))


@program(refused="scales operands of sizes")
def a_number_beside_an_operand_of_another_size():
    """Which elements are computed at once depends on that, and so their last bits."""

    def step(x, y):
        return torch.add(x, x.sum(1, keepdim=True), alpha=x.norm().item())

    return Program(step, batches())


@program(refused="scales operands of")
def a_number_beside_integers():
    def step(x, y):
        return torch.add(y, y, alpha=int(y.sum()))

    return Program(step, batches())
