"""What a step replaces for a while and puts back: parameters in ``functional_call()``, attributes, items."""

import contextlib

import torch
from torch import nn
from torch.func import functional_call, grad, grad_and_value, jacrev, stack_module_state, vmap
from torch.nn import functional as F

from tests.programs.harness import CALLS, Program, program

RUN_ONE_IN = 12  # Each takes a second or two, or is much like the others.


def inputs(*shapes):
    return [tuple(torch.randn(*shape) for shape in shapes) for _ in range(CALLS)]


def net(*more):
    return nn.Sequential(nn.Linear(5, 8), *more, nn.Tanh(), nn.Linear(8, 2))


def parameters_of(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


@program(slow=True)
def private_gradients_with_noise():
    model = net()
    state = {"parameters": parameters_of(model), "norms": []}

    def loss(parameters, x, y):
        return F.mse_loss(functional_call(model, parameters, (x[None],))[0], y)

    def step(x, y):
        grads = vmap(grad(loss), in_dims=(None, 0, 0))(state["parameters"], x, y)
        norms = sum(g.flatten(1).pow(2).sum(1) for g in grads.values()).sqrt()
        scale = (1.0 / norms).clamp(max=1.0)
        renewed = {}
        for name, value in state["parameters"].items():
            g = (grads[name].flatten(1) * scale[:, None]).mean(0).view_as(value)
            renewed[name] = value - 0.1 * (g + 0.01 * torch.randn_like(value))
        state["parameters"] = renewed
        state["norms"].append(norms.mean().item())

    return Program(step, inputs((6, 5), (6, 2)), state=(model, state))


@program()
def meta_learning_by_functional_calls():
    model = net()
    opt = torch.optim.Adam(model.parameters(), 0.01)

    def loss(parameters, x, y):
        return F.mse_loss(functional_call(model, parameters, (x,)), y)

    def step(x, y):
        fast = dict(model.named_parameters())
        for _ in range(2):
            grads = grad(loss)(fast, x[:3], y[:3])
            fast = {name: fast[name] - 0.1 * grads[name] for name in fast}
        outer = loss(fast, x[3:], y[3:])
        opt.zero_grad()
        outer.backward()
        opt.step()
        return outer.item()

    return Program(step, inputs((6, 5), (6, 2)), state=(model, opt))


@program()
def an_ensemble_of_models():
    models = [net() for _ in range(3)]
    parameters, buffers = stack_module_state(models)
    base = net()

    def one(parameters, buffers, x):
        return functional_call(base, (parameters, buffers), (x,))

    def step(x):
        return vmap(one, in_dims=(0, 0, None))(parameters, buffers, x).mean(0).detach()

    return Program(step, inputs((6, 5)), state=parameters)


@program()
def gradients_and_values_with_buffers():
    model = net(nn.BatchNorm1d(8)).eval()
    buffers = dict(model.named_buffers())

    def loss(parameters, x):
        out = functional_call(model, (parameters, buffers), (x,))
        return out.pow(2).mean(), out

    def step(x):
        grads, (value, out) = grad_and_value(loss, has_aux=True)(parameters_of(model), x)
        return value, out, grads

    return Program(step, inputs((6, 5)), state=model)


@program()
def jacobians_and_hessians_of_a_model():
    model = nn.Linear(3, 1)

    def f(parameters, x):
        return functional_call(model, parameters, (x,)).tanh().sum()

    def step(x):
        parameters = parameters_of(model)
        return jacrev(f)(parameters, x), jacrev(jacrev(f))(parameters, x)

    return Program(step, inputs((4, 3)), state=model)


@program()
def keys_that_are_new_keep_their_order():
    seen = {"a": torch.zeros(2)}

    def step(x):
        before = seen["a"]
        for key in list(seen):
            if key != "a":
                del seen[key]
        seen["new"] = x
        seen["a"] = x + 1
        seen["other"] = x + 2
        seen["new"] = x + 3
        seen["a"] = before
        return list(seen)

    return Program(step, inputs((2,)), state=seen)


@program()
def somebody_looks_in_between():
    model = nn.Linear(3, 2)
    scale = {"by": torch.ones(()), "other": torch.ones(())}

    def step(x):
        before = scale["by"], scale["other"]
        scale["by"] = x.mean()
        scale["other"] = x.sum()
        print(f"{scale['by']:.3f}", sorted(scale))
        out = model(x) * scale["by"]
        scale["by"], scale["other"] = before
        return out.detach()

    return Program(step, inputs((4, 3)), state=(model, scale))


@program()
def weights_that_are_swapped_and_put_back():
    """An average of the weights, for the evaluation."""
    model = nn.Linear(3, 2)
    average = {name: p.detach().clone() for name, p in model.named_parameters()}
    opt = torch.optim.SGD(model.parameters(), 0.1)

    @contextlib.contextmanager
    def averaged():
        before = {name: p.data for name, p in model.named_parameters()}
        held = dict(model._parameters)
        for name in held:
            model._parameters[name] = average[name]
        try:
            yield before
        finally:
            for name, p in held.items():
                model._parameters[name] = p

    def step(x):
        loss = model(x).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            for name, p in model.named_parameters():
                average[name].mul_(0.9).add_(p, alpha=0.1)
            with averaged():
                return model(x)

    return Program(step, inputs((4, 3)), state=(model, average))


# -- gradients of the call before --------------------------------------------------------------------------------------


def two_heads():
    return nn.ModuleDict({"body": nn.Linear(5, 4), "a": nn.Linear(4, 2), "b": nn.Linear(4, 2)})


@program(speculated=4, compiles=2)
def heads_of_which_one_is_used():
    """Which parameters have a gradient when the next call begins does not matter to it."""
    model = two_heads()
    opt = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    batches = [(torch.randn(4, 5), "ab"[k % 5 == 3]) for k in range(CALLS)]

    def step(x, head):
        loss = model[head](model["body"](x).relu()).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.item()

    return Program(step, batches, state=(model, opt))


@program(speculated=4, compiles=3)
def gradients_that_may_be_there():
    """Here they are added to: whether there is one is another path."""
    model = two_heads()
    calls = []

    def step(x):
        calls.append(len(calls))
        model["a"](model["body"](x)).pow(2).mean().backward()
        if len(calls) % 3 == 0:
            for p in model.parameters():
                p.grad = None
        return [p.grad is None for p in model.parameters()]

    return Program(step, inputs((4, 5)), state=model)


@program()
def gradients_looked_at_before_they_are_thrown_away():
    model = two_heads()
    norms = []

    def step(x):
        loss = model["a"](model["body"](x)).pow(2).mean()
        norms.append(sum(p.grad.norm().item() for p in model.parameters() if p.grad is not None))
        for p in model.parameters():
            p.grad = None
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                if p.grad is not None:
                    p -= 0.1 * p.grad

    return Program(step, inputs((4, 5)), state=(model, norms))


@program()
def a_gradient_that_is_held_elsewhere():
    model = nn.Linear(5, 2)
    held = {"last": torch.zeros(2, 5)}

    def step(x):
        loss = model(x).pow(2).mean() + (held["last"] * model.weight).sum()
        model.zero_grad()
        loss.backward()
        held["last"] = model.weight.grad
        with torch.no_grad():
            model.weight.sub_(held["last"], alpha=0.1)
        return held["last"] is model.weight.grad

    return Program(step, inputs((4, 5)), state=(model, held))


@program()
def gradients_changed_in_place_through_a_list():
    model = nn.Linear(5, 2)
    model(torch.randn(4, 5)).sum().backward()
    grads = [p.grad for p in model.parameters()]

    def step(x):
        loss = model(x).pow(2).mean()
        for g in grads:
            g.mul_(0.5)
        loss.backward()
        return [g is p.grad for g, p in zip(grads, model.parameters(), strict=True)]

    return Program(step, inputs((4, 5)), state=(model, grads))


@program(speculated=5)
def an_evaluation_between_trainings():
    model = nn.Linear(5, 2)
    opt = torch.optim.SGD(model.parameters(), 0.1)

    def step(x, train):
        loss = model(x).pow(2).mean()
        if train:
            opt.zero_grad()
            loss.backward()
            opt.step()
        return loss.item(), model.weight.grad is None

    return Program(step, [(torch.randn(4, 5), k % 3 < 2) for k in range(CALLS)], state=model)
