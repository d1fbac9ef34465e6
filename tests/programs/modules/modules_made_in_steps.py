"""Modules and parameters that are made in the step: copied, built, trained there, and dropped."""

import collections
import copy

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.harness import CALLS, Program, program

RUN_ONE_IN = 20  # Each takes seconds: it is served only after many of its loops or calls have been merged.


def inputs(count=CALLS):
    return [(torch.randn(4, 5), torch.randint(0, 3, (4,))) for _ in range(count)]


def net():
    return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))


def trained(learner, x, y, iterations=2, lr=0.1):
    opt = torch.optim.SGD(learner.parameters(), lr=lr)
    for _ in range(iterations):
        loss = F.cross_entropy(learner(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss


@program(slow=True)
def reptile():
    model = net()

    def step(x, y):
        fast = copy.deepcopy(model)
        loss = trained(fast, x, y)
        with torch.no_grad():
            for slow, other in zip(model.parameters(), fast.parameters(), strict=True):
                slow += 0.1 * (other - slow)
        return loss.item()

    return Program(step, inputs(), state=model)


@program(slow=True)
def tasks_of_first_order():
    """Gradients of copies, handed to what they are copies of."""
    model = net()
    opt = torch.optim.Adam(model.parameters(), 1e-2)

    def step(x, y):
        opt.zero_grad()
        total = 0.0
        for task in range(2):
            fast = copy.deepcopy(model)
            trained(fast, x + task, y)
            grads = torch.autograd.grad(F.cross_entropy(fast(x - task), y), list(fast.parameters()))
            for p, grad in zip(model.parameters(), grads, strict=True):
                p.grad = grad if p.grad is None else p.grad + grad
            total += task
        opt.step()
        return total

    return Program(step, inputs(), state=(model, opt))


@program()
def built_anew_and_loaded():
    model = net()

    def step(x, y):
        fast = net()
        fast.load_state_dict(model.state_dict())
        fast.train(False)
        return trained(fast, x, y).detach(), [p.detach() for p in fast.parameters()]

    return Program(step, inputs(), state=model)


@program()
def probe_on_frozen_features():
    """A head that is initialised in the step draws random numbers."""
    body = nn.Linear(5, 4)

    def step(x, y):
        with torch.no_grad():
            features = body(x)
        head = nn.Linear(4, 3)
        trained(head, features, y, 3)
        return (head(features).argmax(1) == y).float().mean().item()

    return Program(step, inputs(), state=body)


@program()
def parameter_of_the_step():
    w = nn.Parameter(torch.ones(5))

    def step(x, y):
        delta = nn.Parameter(torch.zeros(5))
        fixed = nn.Parameter(w.detach(), requires_grad=False)
        for _ in range(3):
            loss = ((x + delta) * fixed).pow(2).mean()
            (grad,) = torch.autograd.grad(loss, delta)
            with torch.no_grad():
                delta -= 0.1 * grad
        with torch.no_grad():
            w.add_(0.1)
        return delta.detach(), fixed.detach().clone(), isinstance(delta, nn.Parameter), delta.requires_grad

    return Program(step, inputs(), state=w)


@program()
def parameter_in_the_memory_of_another():
    def step(x, y):
        base = torch.zeros(5)
        w = nn.Parameter(base)
        base.add_(x[0])
        (w * x).sum().backward()
        with torch.no_grad():
            w.sub_(w.grad)
        return base, w.detach() + 1

    return Program(step, inputs())


@program()
def shared_parameters():
    model = nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5))
    model[2].weight = model[0].weight

    def step(x, y):
        fast = copy.deepcopy(model)
        trained(fast, x, y)
        return fast[2].weight is fast[0].weight, fast[0].weight.detach().clone(), len(list(fast.parameters()))

    return Program(step, inputs(), state=model)


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(5))
        self.register_buffer("scale", torch.full((5,), 0.5), persistent=False)
        self.seen = [torch.zeros(()), {"calls": 0}]
        self.order = collections.OrderedDict(a=1, b=self.weight)

    def forward(self, x):
        self.seen[1]["calls"] += 1
        return x * self.weight * self.scale


class Remade(Noisy):
    """Says itself what of it is copied."""

    def __getstate__(self):
        state = super().__getstate__()
        state["seen"] = [torch.ones(()), {"calls": 100}]
        return state


def copied(kind):
    model = kind()

    def step(x, y):
        fast = copy.deepcopy(model)
        out = fast(x)
        out.sum().backward()
        return out.detach(), fast.seen[1]["calls"], fast.seen[0] + 1, fast.order["b"] is fast.weight, len(fast.order)

    return Program(step, inputs(), state=model)


@program()
def other_attributes():
    """Its set has one element."""
    return copied(Noisy)


class Branded(Noisy):
    def __init__(self):
        super().__init__()
        self.brands = {"a", "b", "c"}


@program(speculated=9, compiles=3)
def with_a_larger_set():
    """That grows and shrinks."""
    model = Branded()

    def step(x, y):
        fast = copy.deepcopy(model)
        return fast(x).detach(), sorted(fast.brands), len(fast.brands), "a" in fast.brands

    acts = {5: lambda: model.brands.add("d"), 10: lambda: model.brands.discard("a")}
    return Program(step, inputs(16), acts, state=model)


@program()
def that_say_what_is_copied():
    return copied(Remade)


@program(refused="new")
def copy_that_stays():
    model = net()
    kept = {}

    def step(x, y):
        kept["last"] = copy.deepcopy(model)
        return trained(kept["last"], x, y).item()

    return Program(step, inputs(), state=(model, kept))


@program(refused="new")
def parameter_that_is_returned():
    def step(x, y):
        w = nn.Parameter(torch.ones(5))
        (w * x).sum().backward()
        return w

    return Program(step, inputs())


@program(speculated=6)
def copied_once():
    """An average of a model that is made in the first call."""

    class Trainer:
        def __init__(self):
            self.model, self.average = nn.Linear(5, 3), None
            self.opt = torch.optim.SGD(self.model.parameters(), 0.1)

        def step(self, x, y):
            if self.average is None:
                self.average = copy.deepcopy(self.model)
            loss = F.cross_entropy(self.model(x), y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            with torch.no_grad():
                for a, p in zip(self.average.parameters(), self.model.parameters(), strict=True):
                    a.lerp_(p, 0.1)
            return loss.item()

    trainer = Trainer()
    return Program(trainer.step, inputs(), state=trainer)


@program(speculated=5, compiles=4)
def hooked_and_switched_between_calls():
    """What is copied changes between calls: a hook, a mode, an attribute."""
    model = net()
    seen = []

    def step(x, y):
        fast = copy.deepcopy(model)
        return trained(fast, x, y).item(), fast.training, len(fast)

    acts = {
        5: lambda: model.eval(),
        9: lambda: model[0].register_forward_pre_hook(lambda module, args: seen.append(1) or (args[0] * 2,)),
        13: lambda: setattr(model[0], "bias", None),
    }
    return Program(step, inputs(18), acts, state=(model, seen))


@program()
def shown():
    def step(x, y):
        w = nn.Parameter(x[0].detach())
        print(w, type(w).__name__, w.is_leaf)
        return w.detach() * 2

    return Program(step, inputs())


@program()
def adapted_and_put_back():
    """Test-time adaptation: the model is as before in the end."""
    model = net()

    def step(x, y):
        before = copy.deepcopy(model.state_dict())
        opt = torch.optim.Adam(model.parameters(), 1e-2)
        for _ in range(3):
            out = model(x).softmax(1)
            loss = -(out * out.log()).sum(1).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        out = model(x).argmax(1)
        model.load_state_dict(before)
        return out

    return Program(step, inputs(), state=model)


def codes():
    return nn.Linear(5, 3, bias=False), [(torch.randn(4, 5),) for _ in range(CALLS)]


@program()
def parameter_replaced_by_average():
    """A codebook as a moving average: it takes part in the backward pass, and its gradient goes with it."""
    book, calls = codes()
    model = nn.Linear(5, 5)
    opt = torch.optim.SGD(model.parameters(), 0.1)

    def step(x):
        opt.zero_grad()
        loss = book(model(x)).pow(2).mean()
        loss.backward()
        opt.step()
        book.weight = nn.Parameter(book.weight * 0.9 + 0.1 * x.mean(0))
        return loss.item(), book.weight.is_leaf, book.weight.requires_grad, type(book.weight).__name__

    return Program(step, calls, state=[book, model])


@program()
def parameter_replaced_by_frozen_one():
    book, calls = codes()

    def step(x):
        book.weight = nn.Parameter(book.weight * 0.9, requires_grad=False)
        return book(x), book.weight.requires_grad

    return Program(step, calls, state=book)


@program()
def new_parameter_is_registered_twice():
    book, calls = codes()

    def step(x):
        made = nn.Parameter(book.weight.detach() * 0.9 + x.mean())
        book.weight = made
        book.again = made
        return made is book.weight, made is book.again, len(list(book.parameters()))

    return Program(step, calls, state=book)


@program()
def new_parameter_shares_memory():
    book, calls = codes()
    kept = []

    def step(x):
        data = book.weight.detach() * 0.9
        book.weight = nn.Parameter(data)
        data.add_(x.mean())
        kept[:] = [data]

    def between(result):
        with torch.no_grad():
            kept[0].add_(1.0)  # seen by the next call

    return Program(step, calls, state=[book, kept], between=between)


@program(refused="a new Parameter leaves the step")
def new_parameter_has_a_gradient():
    book, calls = codes()

    def step(x):
        book.weight = nn.Parameter(book.weight.detach() * 0.9)
        book(x).sum().backward()

    return Program(step, calls, state=book)


@program(refused="a new Linear leaves the step")
def head_replaced_by_new_module():
    """As when classes are added: the head is made again, its old rows are kept."""
    model = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))
    _, calls = codes()

    def step(x):
        head = nn.Linear(4, 3)
        with torch.no_grad():
            head.weight.copy_(model[1].weight * 0.5)
            head.bias.copy_(model[1].bias)
        model[1] = head
        return model(x).detach().sum()

    return Program(step, calls, state=model)
