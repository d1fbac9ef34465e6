"""Steps whose results have their backward pass still to come: it is made between the calls."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.harness import CALLS, Program, program


def inputs(*shape):
    return [(torch.randn(*(shape or (4, 5))),) for _ in range(CALLS)]


def layers():
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))


def backward(loss):
    loss.backward()


@program()
def forward_of_a_model():
    model = layers()
    return Program(lambda x: model(x), inputs(), between=lambda y: y.square().sum().backward(), state=model)


@program()
def forward_and_update_outside():
    model = layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def update(loss):
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return Program(lambda x: model(x).square().mean(), inputs(), between=update, state=[model, optimizer])


@program()
def dropout_and_batch_norm():
    model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Dropout(0.4), nn.ReLU(), nn.Linear(6, 2))
    return Program(lambda x: model(x).sum(), inputs(), between=backward, state=model)


@program()
def logits_beside_the_loss():
    model = layers()

    def step(x):
        logits = model(x)
        return {"logits": logits, "loss": F.cross_entropy(logits, torch.tensor([0, 1, 2, 0]))}

    return Program(step, inputs(), between=lambda made: made["loss"].backward(), state=model)


@program()
def results_in_an_attribute():
    model = layers()

    class Holder:
        last = None

    holder = Holder()

    def step(x):
        holder.last = model(x).square().sum()

    return Program(step, inputs(), between=lambda _: holder.last.backward(), state=[model, holder])


@program()
def weights_used_twice():
    layer = nn.Linear(5, 5)
    return Program(lambda x: layer(torch.relu(layer(x))).sum(), inputs(), between=backward, state=layer)


@program()
def a_row_of_a_result():
    model = layers()
    return Program(lambda x: model(x)[-1], inputs(), between=lambda y: y.exp().sum().backward(), state=model)


@program()
def frozen_parameters():
    model = layers()
    model[0].requires_grad_(False)
    return Program(lambda x: model(x).sum(), inputs(), between=backward, state=model)


@program()
def in_place_inside():
    model = nn.Sequential(nn.Linear(5, 6), nn.ReLU(inplace=True), nn.Linear(6, 3))

    def step(x):
        y = model(x)
        y[:, 0] += x[:, 0]
        return y.mul_(2).sum()

    return Program(step, inputs(), between=backward, state=model)


@program()
def gradients_that_some_parameters_do_not_get():
    model = nn.ModuleList([nn.Linear(5, 3), nn.Linear(5, 3)])
    return Program(lambda x: model[1](x).sum(), inputs(), between=backward, state=model)


@program(refused="it has hooks or an autograd.Function")
def a_function_of_its_own():
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, grad):
            return grad * 3 * ctx.saved_tensors[0] ** 2

    w = torch.randn(5, requires_grad=True)
    return Program(lambda x: Cube.apply(x * w).sum(), inputs(), between=backward, state=w)


@program(refused="independent of it")
def two_losses_with_nothing_in_common():
    one, other = nn.Linear(5, 1), nn.Linear(5, 1)

    def both(losses):
        losses[0].backward()
        losses[1].backward()

    return Program(lambda x: (one(x).sum(), other(x).sum()), inputs(), between=both, state=[one, other])


@program()
def running_statistics_where_autograd_makes_the_backward_pass():
    """The first `sum().backward()` gives a gradient that the backward graph is not made for: autograd's pass runs the
    step once more, and must not update the statistics again."""
    model = nn.Sequential(nn.BatchNorm1d(5), nn.Dropout(0.2))
    return Program(lambda x: model(x), inputs(), between=lambda y: y.sum().backward(), state=model)


@program()
def parameters_changed_in_the_step_where_autograd_makes_the_backward_pass():
    weight, calls, rows = nn.Parameter(torch.ones(5)), torch.zeros(()), torch.tensor([0, 3])

    def step(x):
        calls.add_(1)
        with torch.no_grad():
            weight.mul_(0.9)
        return (x * weight).relu()[:, rows] * calls

    return Program(step, inputs(), between=lambda y: y.sum().backward(), state=[weight, calls])


@program(speculated=1)
def running_statistics_and_a_second_derivative():
    model = nn.Sequential(nn.BatchNorm1d(5), nn.Dropout(0.2), nn.Linear(5, 2))
    xs = [torch.randn(4, 5, requires_grad=True) for _ in range(CALLS)]
    it = iter(xs)

    def between(y):
        torch.autograd.grad(y.square().sum(), next(it), create_graph=True)

    return Program(lambda x: model(x), [(x,) for x in xs], between=between, state=model)


# -- results that are computed from others ---------------------------------------------------------------------------


def of_each_other(look, calls=CALLS):
    """A step that returns features, logits and a loss, and what the caller sees of their gradients."""
    body, head, seen = nn.Linear(5, 6), nn.Linear(6, 3), []

    def step(x):
        features = torch.tanh(body(x))
        logits = head(features)
        loss = F.cross_entropy(logits, torch.tensor([0, 1, 2, 0])) + features.square().mean()
        return {"loss": loss, "logits": logits, "features": features}

    def between(made):
        body.zero_grad()
        head.zero_grad()
        seen.append([str(made["loss"]), made["logits"].grad_fn.name()])
        look(made, seen, [*body.parameters(), *head.parameters()])

    inputs = [(torch.randn(4, 5),) for _ in range(calls)]
    return Program(step, inputs, between=between, state=(body, head, seen))


@program()
def gradients_of_one_result_by_another():
    def look(made, seen, parameters):
        seen.append(torch.autograd.grad(made["logits"][:, 0].sum(), made["features"], retain_graph=True))
        seen.append(torch.autograd.grad(made["loss"], [made["features"], made["logits"]], retain_graph=True))
        made["loss"].backward()

    return of_each_other(look)


@program()
def gradients_of_results_that_are_retained():
    def look(made, seen, parameters):
        made["features"].retain_grad()
        made["logits"].retain_grad()
        (made["loss"] * 2 + made["features"].sum()).backward()
        seen.append((made["features"].grad, made["logits"].grad))

    return of_each_other(look)


@program()
def hooks_on_results_that_others_are_computed_from():
    def look(made, seen, parameters):
        made["features"].register_hook(lambda gradient: seen.append(gradient.clone()))
        made["logits"].register_hook(lambda gradient: gradient * 2)
        made.pop("features")
        made["loss"].backward()

    return of_each_other(look)


@program()
def backward_passes_for_some_tensors_only():
    def look(made, seen, parameters):
        seen.append(torch.autograd.grad(made["loss"], parameters, retain_graph=True))
        made["loss"].backward(inputs=[parameters[0], made["logits"]])
        seen.append(made["logits"].grad)

    return of_each_other(look)


@program()
def results_used_by_several_others():
    layer, seen = nn.Linear(5, 5), []
    xs = [torch.randn(4, 5, requires_grad=True) for _ in range(CALLS)]

    def step(x):
        hidden = layer(x) * x
        return hidden, (hidden * x + hidden).sum(), hidden.sum()

    def between(made):
        hidden, first, second = made
        hidden.retain_grad()
        (second + first * 3 + hidden.square().sum()).backward(retain_graph=True)
        seen.append(hidden.grad)
        seen.append(torch.autograd.grad(first + second, hidden))

    return Program(step, [(x,) for x in xs], between=between, state=(layer, xs, seen))


@program()
def unrelated_results_have_no_gradients_of_each_other():
    def look(made, seen, parameters):
        try:
            torch.autograd.grad(made["features"].sum(), made["logits"], retain_graph=True)
        except RuntimeError as error:
            seen.append(str(error))
        seen.append(torch.autograd.grad(made["features"].sum(), made["loss"], retain_graph=True, allow_unused=True))
        made["features"].sum().backward()

    return of_each_other(look)


@program(speculated=1, close=1e-5, reported="create_graph=True")
def second_derivatives_of_one_result_by_another():
    """Python makes the calls from the first such pass on, of which only a part goes through the graph."""

    def look(made, seen, parameters):
        [gradient] = torch.autograd.grad(made["loss"], made["features"], create_graph=True)
        (gradient.square().sum() + made["loss"]).backward()

    return of_each_other(look)


@program(speculated=4, compiles=8)
def recurrent_states_over_slices_of_changing_length():
    """The length is a number of the program: the size of the slice is measured within the forward graph."""
    text, embedding, cell = torch.randint(9, (60,)), nn.Embedding(9, 4), nn.GRUCell(4, 4)

    def step(length):
        x = text[2 : 2 + length]
        h = torch.zeros(4)
        for t in range(x.size(0)):
            h = cell(embedding(x[t]), h)
        return h

    lengths = (3, 4, 5, 3, 4, 5, 5, 4, 3, 3, 4, 5)
    return Program(step, [(n,) for n in lengths], between=lambda h: h.sum().backward(), state=[embedding, cell])


@program(speculated=4, compiles=8)
def means_over_slices_of_changing_length():
    table = nn.Parameter(torch.randn(30, 4))

    def step(length):
        part = table[2 : 2 + length]
        return (part.sum(0) / part.size(0)).sum() + part.tanh().mean() * (part.size(0) - 1)

    lengths = (3, 4, 5, 3, 4, 5, 5, 4, 3, 3, 4, 5)
    return Program(step, [(n,) for n in lengths], between=backward, state=table)
