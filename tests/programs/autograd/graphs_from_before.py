"""Tensors from before the step that have a backward graph, and backward passes in the step that meet them."""

import torch

from tests.programs.harness import Program, program


def model():
    net = torch.nn.Linear(3, 1)
    return net, [*net.parameters()]


def descend(parameters, gradients):
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter -= 0.1 * gradient


def with_outside(step, net):
    """Each call is given a tensor that the model has just computed."""
    held = []

    def compute(result=None):
        held[:] = [net(torch.randn(3)).square().sum()]

    return Program(lambda: step(held[0]), before={0: compute}, between=compute, state=net)


@program(refused="gradients flow into saved[0]")
def log_probabilities_of_an_episode():
    net, parameters = model()
    optimizer = torch.optim.Adam(parameters, 0.1)
    saved = []

    def act(result=None):
        saved.extend(net(torch.randn(3)).squeeze() for _ in range(3))

    def step():
        loss = torch.stack(saved).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        del saved[:]
        return loss.item()

    return Program(step, before={0: act}, between=act, state=net)


@program(refused="gradients flow into held[0]")
def gradients_of_parameters_that_both_graphs_use():
    net, parameters = model()

    def step(h):
        loss = h + net(torch.ones(3)).sum()
        descend(parameters, torch.autograd.grad(loss, parameters))
        return loss.item()

    return with_outside(step, net)


@program(refused="gradients flow into held[0]")
def backward_for_some_inputs():
    net, parameters = model()

    def step(h):
        net.zero_grad()
        loss = h + net(torch.ones(3)).sum()
        loss.backward(inputs=parameters)
        descend(parameters, [parameter.grad for parameter in parameters])
        return loss.item()

    return with_outside(step, net)


@program(refused="gradients flow into held[0]")
def iterations_that_differentiate():
    net, parameters = model()

    def step(h):
        for _ in range(5):
            loss = h + net(torch.ones(3)).sum()
            gradients = torch.autograd.grad(loss, parameters, retain_graph=True)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.data -= 0.1 * gradient
        return loss.item()

    return with_outside(step, net)


@program(refused="gradients flow into held[0]")
def the_outside_tensor_and_what_it_was_made_of():
    net, parameters = model()

    def step(h):
        of_h, of_weight = torch.autograd.grad(h * net(torch.ones(3)).sum(), [h, parameters[0]])
        return of_h.item(), of_weight.sum().item()

    return with_outside(step, net)


@program()
def the_gradient_of_the_outside_tensor_itself():
    net, _ = model()

    def step(h):
        (gradient,) = torch.autograd.grad(h * net(torch.ones(3)).sum(), h)
        return gradient.item()

    return with_outside(step, net)


@program()
def the_gradient_of_what_the_step_has_made_of_it():
    net, _ = model()

    def step(h):
        k = h * 2
        (gradient,) = torch.autograd.grad(k * net(torch.ones(3)).sum(), k)
        return gradient.item()

    return with_outside(step, net)


@program()
def an_outside_tensor_that_the_loss_does_not_use():
    net, parameters = model()
    optimizer = torch.optim.SGD(parameters, 0.1)

    def step(h):
        optimizer.zero_grad()
        loss = net(torch.ones(3)).square().sum() * h.detach()
        loss.backward()
        optimizer.step()
        return loss.item() + h.item()

    return with_outside(step, net)
