"""Functions whose results have their backward pass still to come: gradients, errors and hooks are eager's, bitwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

import torchjanus
from tests.sampling import every
from torchjanus.runtime.speculated_function import Speculated

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
Scenario = Callable[[Wrap], list[Any]]
CALLS = 7


def seen(value: Any) -> Any:
    """Everything about a value that is compared, as plain data."""
    if isinstance(value, torch.Tensor):
        grad = None if not value.is_leaf else seen(value.grad)
        kind = value.dtype, tuple(value.shape), value.requires_grad, value.is_leaf
        name = value.grad_fn is None or value.grad_fn.name().rpartition("Backward")[0]
        return kind, name is True, value.stride(), value.detach().reshape(-1).view(torch.uint8).numpy().tobytes(), grad
    if isinstance(value, list | tuple):
        return [seen(part) for part in value]
    return value


def attempt(function: Callable[[], Any]) -> str:
    """The error that a call raises, without the name of the autograd node, or ""."""
    try:
        function()
    except RuntimeError as error:
        return str(error).partition(", which is output")[0].partition("Hint:")[0].partition(" is at version")[0]
    return ""


def outcomes(scenario: Scenario, executor: str = "replay") -> tuple[list[Any], list[Any], list[Speculated]]:
    """What a scenario observes in eager and speculated, and its speculated functions."""
    made: list[Any] = []

    def speculate(function: Callable[..., Any]) -> Callable[..., Any]:
        made.append(torchjanus.speculate(function, executor=executor))
        return made[-1]  # type: ignore[no-any-return]

    found = []
    for wrap in (lambda function: function, speculate):
        torch.manual_seed(0)
        found.append([seen(part) for part in scenario(wrap)] + [torch.default_generator.get_state().tolist()])
    return found[0], found[1], made


def require_served(functions: list[Speculated]) -> None:
    for function in functions:
        counts = function.statistics()
        assert counts.speculated >= 3, torchjanus.explain(function, detail=True)


def layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def state(module: nn.Module) -> list[Any]:
    """The parameters with their gradients, and the buffers."""
    return [*module.parameters(), *module.buffers()]


# -- scenarios: each returns what it observes ------------------------------------------------------------------------


def a_model_in_training(wrap: Wrap) -> list[Any]:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(model.parameters())
    forward, found = wrap(model), []
    for _ in range(CALLS):
        loss = F.cross_entropy(forward(torch.randn(5, 4)), torch.randint(3, (5,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found += [loss, *(p.clone() for p in model.parameters())]
    return [*found, *state(model), [buffer._version for name, buffer in model.named_buffers() if "running" in name]]


def a_loss_function(wrap: Wrap) -> list[Any]:
    model = layers()
    loss_of, found = wrap(lambda x, y: F.cross_entropy(model(x), y)), []
    for _ in range(CALLS):
        loss = loss_of(torch.randn(5, 4), torch.randint(3, (5,)))
        loss.backward()
        found.append(loss)
    return [*found, *state(model)]  # gradients accumulate


def the_middle_of_a_network(wrap: Wrap) -> list[Any]:
    first, middle, last = nn.Linear(4, 6), nn.Sequential(nn.Linear(6, 6), nn.Tanh()), nn.Linear(6, 2)
    forward, found = wrap(middle), []
    for _ in range(CALLS):
        x = torch.randn(5, 4, requires_grad=True)
        h = first(x)
        y = last(forward(h) + h)
        y.square().sum().backward()
        found += [y, x]
    return [*found, *state(first), *state(middle), *state(last)]


def only_the_loss_of_several_results(wrap: Wrap) -> list[Any]:
    model = layers()

    def forward(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = model(x)
        return logits, F.cross_entropy(logits, y)

    call, found = wrap(forward), []
    for _ in range(CALLS):
        logits, loss = call(torch.randn(5, 4), torch.randint(3, (5,)))
        loss.backward()
        found += [logits, loss, logits.argmax(1)]
    return [*found, *state(model)]


def backward_from_one_or_both_results(wrap: Wrap) -> list[Any]:
    model = layers()

    def forward(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = model[0](x)
        return h, model[2](torch.relu(h))

    call, found = wrap(forward), []
    for number in range(2 * CALLS):
        h, y = call(torch.randn(5, 4))
        total = [h.sin().sum(), y.exp().sum(), h.sin().sum() + y.exp().sum()][number % 3]
        total.backward()
        found += [h, y]
    return [*found, *state(model)]


def gradients_laid_out_differently(wrap: Wrap) -> list[Any]:
    model = layers()
    forward, found = wrap(model), []
    for number in range(2 * CALLS):
        y = forward(torch.randn(5, 4))
        (y.sum() if number % 2 else (y.t() @ torch.randn(5, 2)).sum()).backward()
        found.append(y)
    return [*found, *state(model)]


def the_gradient_of_an_input(wrap: Wrap) -> list[Any]:
    model = layers()
    forward, found = wrap(model), []
    for _ in range(CALLS):
        x = torch.randn(5, 4, requires_grad=True)
        found += torch.autograd.grad(forward(x).square().sum(), x)
    return [*found, *state(model)]


def inputs_with_and_without_gradients(wrap: Wrap) -> list[Any]:
    model = layers()
    forward, found = wrap(model), []
    for number in range(3 * CALLS):
        x = torch.randn(5, 4, requires_grad=bool(number % 2))
        forward(x).square().sum().backward()
        found.append(x)
    return [*found, *state(model)]


def a_parameter_frozen_between_calls(wrap: Wrap) -> list[Any]:
    model = layers()
    forward, found = wrap(model), []
    for number in range(3 * CALLS):
        model[0].weight.requires_grad_(number < 6 or number > 12)
        model.zero_grad()
        forward(torch.randn(5, 4)).square().sum().backward()
        found += [p.grad if p.grad is None else p.grad.clone() for p in model.parameters()]
    return found


def backward_twice(wrap: Wrap) -> list[Any]:
    model = layers()
    forward, found = wrap(model), []
    for number in range(CALLS):
        loss = forward(torch.randn(5, 4)).square().sum()
        loss.backward(retain_graph=number % 2 == 0)
        found.append(attempt(loss.backward))
        found.append(attempt(loss.backward))
    return [*found, *state(model)]


def one_result_after_the_other(wrap: Wrap) -> list[Any]:
    model = layers()

    def forward(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = model[0](x)
        return h, model[2](torch.relu(h))

    call, found = wrap(forward), []
    for number in range(2 * CALLS):
        h, y = call(torch.randn(5, 4))
        y.sum().backward(retain_graph=number % 2 == 0)
        found.append(attempt(h.sin().sum().backward) != "")
        model.zero_grad() if found[-1] else None
    return [*found, *state(model)]


def hooks_on_results_and_inputs(wrap: Wrap) -> list[Any]:
    model = layers()
    forward, found = wrap(model), []
    for _ in range(CALLS):
        x = torch.randn(5, 4, requires_grad=True) * 2
        x.retain_grad()
        y = forward(x)
        y.register_hook(lambda grad: found.append(("result", seen(grad))) or grad * 2)  # type: ignore[func-returns-value]
        x.register_hook(lambda grad: found.append(("input", seen(grad))))
        y.retain_grad()
        y.square().sum().backward()
        found += [y.grad, x.grad]
    return [*found, *state(model)]


def results_changed_in_place(wrap: Wrap) -> list[Any]:
    model = layers()
    forward, found = wrap(model), []
    for _ in range(CALLS):
        y = forward(torch.randn(5, 4))
        y.mul_(2).sigmoid_()
        y.sum().backward()
        found.append(y)
    return [*found, *state(model)]


def a_saved_result_changed_in_place(wrap: Wrap) -> list[Any]:
    model = nn.Sequential(nn.Linear(4, 3), nn.Sigmoid())
    forward, found = wrap(model), []
    for number in range(CALLS):
        y = forward(torch.randn(5, 4))
        loss = y.sum()
        with torch.no_grad():
            y.add_(1) if number % 2 else y.detach().add_(1)
        found.append(attempt(loss.backward))
        assert "modified by an inplace operation" in found[-1]
    return [*found, *state(model)]


def a_saved_input_changed_in_place(wrap: Wrap) -> list[Any]:
    model = layers()
    forward, found = wrap(model), []
    for number in range(2 * CALLS):
        x = torch.randn(5, 4)
        loss = forward(x).sum()
        if number % 3 == 0:
            x.add_(1)
        elif number % 3 == 1:
            with torch.no_grad():
                model[2].weight.mul_(0.5)
        else:
            with torch.no_grad():
                model[0].weight.mul_(0.5)  # its contents are not needed: x has no gradient
        found.append(attempt(loss.backward))
        assert bool(found[-1]) == (number % 3 < 2)
        if found[-1]:
            model.zero_grad()  # eager has added some gradients before the error
    return [*found, *state(model)]


def under_no_grad_and_with_gradients(wrap: Wrap) -> list[Any]:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    forward, found = wrap(model), []
    for number in range(3 * CALLS):
        if number % 3 == 2:
            with torch.no_grad():
                found.append(forward(torch.randn(5, 4)))
        else:
            forward(torch.randn(5, 4)).square().sum().backward()
    return [*found, *state(model), [buffer._version for name, buffer in model.named_buffers() if "running" in name]]


def two_calls_before_one_backward(wrap: Wrap) -> list[Any]:
    """A siamese network: the gradients of three uses of a weight are added in eager's order."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh())
    forward, found = wrap(lambda x: model(model(x))), []
    for _ in range(CALLS):
        a, b, c = (forward(torch.randn(5, 4)) for _ in range(3))
        loss = (a - b).square().sum() + (a * c).sum() + model[0].weight.sin().sum()
        loss.backward()
        found += [loss, model[0].weight.grad.clone()]  # type: ignore[union-attr]
    return [*found, *state(model), [buffer._version for name, buffer in model.named_buffers() if "running" in name]]


def a_weight_used_many_times_and_outside(wrap: Wrap) -> list[Any]:
    cell = nn.RNNCell(3, 5)

    def unrolled(x: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(2, 5)
        for part in x.unbind(0):
            h = cell(part, h)
        return h

    forward, found = wrap(unrolled), []
    for _ in range(CALLS):
        h = forward(torch.randn(4, 2, 3))
        (h.square().sum() + cell.weight_hh.exp().sum() * 1e-3).backward()
        found += [h, cell.weight_hh.grad.clone()]  # type: ignore[union-attr]
    return [*found, *state(cell)]


def checkpointing_around(wrap: Wrap) -> list[Any]:
    from torch.utils.checkpoint import checkpoint

    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 3))
    forward, found = wrap(model), []
    for number in range(4 * CALLS):
        x = torch.randn(5, 4, requires_grad=True)
        if number % 4 < 2:
            y = forward(x)
        else:
            y = checkpoint(forward, x, use_reentrant=bool(number % 2))
        y.square().sum().backward()
        found += [y.detach(), x]
    return [*found, *state(model)]


def saved_tensor_hooks_around(wrap: Wrap) -> list[Any]:
    model = layers()
    forward, found = wrap(model), []
    for number in range(3 * CALLS):
        x = torch.randn(5, 4)
        if number % 2:
            with torch.autograd.graph.saved_tensors_hooks(lambda t: (found.append(t.shape), t * 2)[1], lambda t: t):
                y = forward(x)
        else:
            y = forward(x)
        y.square().sum().backward()
    return [*found, *state(model)]


def transforms_around(wrap: Wrap) -> list[Any]:
    model = layers()
    forward, found = wrap(model), []
    for number in range(3 * CALLS):
        x = torch.randn(5, 4)
        if number % 2:
            found.append(torch.func.grad(lambda x: forward(x).square().sum())(x))
            found.append(torch.func.vmap(forward)(x))
        else:
            forward(x).square().sum().backward()
    return [*found, *state(model)]


def forward_mode_around(wrap: Wrap) -> list[Any]:
    model = layers()
    forward, found = wrap(model), []
    for number in range(3 * CALLS):
        x = torch.randn(5, 4)
        if number % 2:
            with torch.autograd.forward_ad.dual_level():
                y = forward(torch.autograd.forward_ad.make_dual(x, torch.ones_like(x)))
                found += [part.detach() for part in torch.autograd.forward_ad.unpack_dual(y) if part is not None]
        else:
            forward(x).square().sum().backward()
    return [*found, *state(model)]


def autocast_inside(wrap: Wrap) -> list[Any]:
    model = layers()

    def cast(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return model(model[0](x)[:, :4])  # type: ignore[no-any-return]

    forward, found = wrap(cast), []
    for number in range(CALLS):
        y = forward(torch.randn(5, 4))
        loss = y.float().square().sum()
        if number == 5:
            with torch.autocast("cpu", torch.bfloat16):
                loss.backward()
        else:
            loss.backward()
        found.append(y)
    return [*found, *state(model)]


def a_number_that_changes(wrap: Wrap) -> list[Any]:
    model = layers()
    forward, found = wrap(lambda x, scale: model(x) * scale + x.sum() ** scale), []
    for number in range(2 * CALLS):
        y = forward(torch.rand(5, 4), 0.5 + number)
        y.square().mean().backward()
        found.append(y)
    return [*found, *state(model)]


def batches_of_several_sizes(wrap: Wrap) -> list[Any]:
    model = layers()
    forward, found = wrap(model), []
    for number in range(5 * CALLS):
        y = forward(torch.randn(3 + number % 2, 4))
        y.square().sum().backward()
        found.append(y)
    return [*found, *state(model)]


def a_part_of_a_result(wrap: Wrap) -> list[Any]:
    lstm = nn.LSTM(3, 5, batch_first=True)

    def last(x: torch.Tensor) -> torch.Tensor:
        return lstm(x)[0][:, -1]  # type: ignore[no-any-return]

    forward, found = wrap(last), []
    for _ in range(CALLS):
        y = forward(torch.randn(2, 4, 3))
        y.square().sum().backward()
        y.detach().mul_(2)
        found.append(y)
    return [*found, *state(lstm)]


def a_result_and_it_detached(wrap: Wrap) -> list[Any]:
    model = layers()

    def forward(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y = model(x).sigmoid()
        return y, y.detach(), x

    call, found = wrap(forward), []
    for number in range(CALLS):
        x = torch.randn(5, 4, requires_grad=True)
        y, bare, same = call(x)
        loss = y.sum()
        if number == 5:
            bare.add_(1)
        found += [attempt(loss.backward), same is x, bare.data_ptr() == y.data_ptr(), y, bare]
    return [*found, *state(model)]


def results_kept_on_an_object(wrap: Wrap) -> list[Any]:
    model = layers()
    notes: dict[str, Any] = {}

    def forward(x: torch.Tensor) -> None:
        notes["hidden"] = torch.relu(model[0](x))
        notes["out"] = model[2](notes["hidden"])

    call, found = wrap(forward), []
    for _ in range(CALLS):
        call(torch.randn(5, 4))
        (notes["out"].square().sum() + notes["hidden"].sum()).backward()
        found += [notes["out"], notes["hidden"]]
    return [*found, *state(model)]


def a_state_from_call_to_call(wrap: Wrap) -> list[Any]:
    """Truncated backpropagation: each call's state goes into the next, and backward runs through several calls."""
    cell = nn.GRUCell(3, 4)
    forward, found = wrap(cell), []
    h = torch.zeros(2, 4)
    for number in range(4 * CALLS):
        h = forward(torch.randn(2, 3), h)
        if number % 3 == 2:
            h.square().sum().backward()
            h = h.detach()
            found.append(h)
    return [*found, *state(cell)]


def attention(wrap: Wrap) -> list[Any]:
    block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    forward, found = wrap(block), []
    for _ in range(CALLS):
        x = torch.randn(2, 5, 8, requires_grad=True)
        y = forward(x)
        y.square().mean().backward()
        found += [y, x]
    return [*found, *state(block)]


def convolutions(wrap: Wrap) -> list[Any]:
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)
    )
    forward, found = wrap(net), []
    for _ in range(CALLS):
        y = forward(torch.randn(2, 1, 8, 8))
        F.cross_entropy(y, torch.tensor([0, 2])).backward()
        found.append(y)
    return [*found, *state(net)]


def an_embedding_tied_to_the_output(wrap: Wrap) -> list[Any]:
    table = nn.Embedding(7, 4)
    forward, found = wrap(lambda tokens: table(tokens).tanh() @ table.weight.t()), []
    for _ in range(CALLS):
        y = forward(torch.randint(7, (3, 5)))
        (y.square().mean() + table.weight.square().sum()).backward()
        found.append(y)
    return [*found, *state(table)]


def a_hook_on_one_parameter(wrap: Wrap) -> list[Any]:
    model = layers()
    forward, found = wrap(model), []
    model[2].weight.register_hook(lambda grad: found.append(("hook", seen(grad))) or grad * 2)  # type: ignore[func-returns-value]
    model[2].weight.register_post_accumulate_grad_hook(lambda p: found.append(("after", seen(p.grad))))
    for _ in range(CALLS):
        y = forward(torch.randn(5, 4))
        y.square().sum().backward()
        found.append(y)
    return [*found, *state(model)]


def a_checkpoint_inside(wrap: Wrap) -> list[Any]:
    from torch.utils.checkpoint import checkpoint

    model = layers()
    forward, found = wrap(lambda x: checkpoint(model, x, use_reentrant=False) * 2), []
    for _ in range(CALLS):
        y = forward(torch.randn(5, 4))
        y.square().sum().backward()
        found.append(y)
    return [*found, *state(model)]


def losses_of_torch(wrap: Wrap) -> list[Any]:
    found = []
    for loss_of in (F.mse_loss, F.smooth_l1_loss, F.binary_cross_entropy_with_logits, F.l1_loss, F.cosine_similarity):
        call = wrap(lambda x, y, loss_of=loss_of: loss_of(x, y).sum())
        for _ in range(CALLS):
            x = torch.rand(3, 4, requires_grad=True)
            loss = call(x, torch.rand(3, 4))
            loss.backward()
            found += [loss, x]
    return found


def a_row_by_a_number_that_changes(wrap: Wrap) -> list[Any]:
    """The index is a tensor in the graph, and saved as one; where autograd makes the backward pass, it is, too."""
    layer, found = nn.Linear(4, 4), []
    call = wrap(lambda rows, k: layer(rows[k]).tanh() * rows[0])
    for number in range(2 * CALLS):
        rows = torch.randn(5, 4, requires_grad=True)
        y = call(rows, number % 5)
        (y.sum() if number % 3 else y.square().sum()).backward()  # gradients laid out in two ways
        found += [y, rows]
    return [*found, *state(layer)]


def a_recurrent_layer(wrap: Wrap) -> list[Any]:
    layer, found = nn.GRU(4, 3), []
    call = wrap(lambda x: layer(x)[0])
    for number in range(2 * CALLS):
        y = call(torch.randn(5, 2, 4))
        (y.sum() if number % 3 else y.square().sum()).backward()
        found.append(y)
    return [*found, *state(layer)]


SERVED: dict[str, Scenario] = {
    function.__name__: function
    for function in (
        a_model_in_training,
        a_loss_function,
        the_middle_of_a_network,
        only_the_loss_of_several_results,
        backward_from_one_or_both_results,
        gradients_laid_out_differently,
        the_gradient_of_an_input,
        inputs_with_and_without_gradients,
        a_parameter_frozen_between_calls,
        backward_twice,
        one_result_after_the_other,
        hooks_on_results_and_inputs,
        results_changed_in_place,
        a_saved_result_changed_in_place,
        a_saved_input_changed_in_place,
        under_no_grad_and_with_gradients,
        two_calls_before_one_backward,
        a_weight_used_many_times_and_outside,
        checkpointing_around,
        saved_tensor_hooks_around,
        transforms_around,
        forward_mode_around,
        autocast_inside,
        a_number_that_changes,
        a_row_by_a_number_that_changes,
        a_recurrent_layer,
        batches_of_several_sizes,
        a_part_of_a_result,
        a_result_and_it_detached,
        results_kept_on_an_object,
        a_state_from_call_to_call,
        attention,
        convolutions,
        an_embedding_tied_to_the_output,
        a_hook_on_one_parameter,
        losses_of_torch,
    )
}


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize("name", every(2, SERVED))
def test_results_are_differentiable_as_in_eager(name: str) -> None:
    eager, other, functions = outcomes(SERVED[name])
    for number, (one, two) in enumerate(zip(eager, other, strict=True)):
        assert one == two, f"observation {number}"
    require_served(functions)


# -- what no graph is made of, with the reason -------------------------------------------------------------------------


class Counting(torch.overrides.TorchFunctionMode):
    """Counts the calls of torch that it sees."""

    def __init__(self) -> None:
        self.calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        return func(*args, **(kwargs or {}))


class Printing(TorchDispatchMode):
    """Notes the operators that it sees."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", [Counting, Printing])
def test_modes_around_the_backward_pass_see_what_they_see_in_eager(kind: Any) -> None:
    def scenario(wrap: Wrap) -> list[Any]:
        model = layers()
        forward, found = wrap(model), []
        for _ in range(CALLS):
            loss = forward(torch.randn(5, 4)).square().sum()
            with kind() as mode:
                loss.backward()
            reported = [name for name in getattr(mode, "seen", ()) if "detach" not in name and "view" not in name]
            found.append((getattr(mode, "calls", 0), reported))
        return [*found, *state(model)]

    eager, other, functions = outcomes(scenario)
    assert eager[CALLS:] == other[CALLS:]
    if kind is Counting:
        assert eager == other
    for one, two in zip(eager[:CALLS], other[:CALLS], strict=True):
        assert set(one[1]) <= set(two[1])
    require_served(functions)


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return grad * 3


def training(forward_of: Callable[[nn.Sequential], Callable[[torch.Tensor], Any]]) -> Scenario:
    """A scenario in which a function of a model and an input that needs gradients is trained."""

    def scenario(wrap: Wrap) -> list[Any]:
        model, found = layers(), []
        call = wrap(forward_of(model))
        for _ in range(CALLS):
            x = torch.randn(5, 4, requires_grad=True)
            made = call(x)
            for part in made if isinstance(made, tuple) else (made,):
                part.square().sum().backward(retain_graph=True)
                found += [part, x]
        return [*found, *state(model)]

    return scenario


def an_own_function(model: nn.Sequential) -> Callable[[torch.Tensor], Any]:
    return lambda x: Twice.apply(model(x))


def a_hook_inside(model: nn.Sequential) -> Callable[[torch.Tensor], Any]:
    def forward(x: torch.Tensor) -> torch.Tensor:
        h = model[0](x)
        h.register_hook(lambda grad: grad * 2)
        return model[2](torch.relu(h))  # type: ignore[no-any-return]

    return forward


def independent_results(model: nn.Sequential) -> Callable[[torch.Tensor], Any]:
    return lambda x: (model[0](x), model[2](torch.randn(5, 8)))


def a_view_of_an_input(model: nn.Sequential) -> Callable[[torch.Tensor], Any]:
    return lambda x: (model(x), x[:, 1:])


def parts_of_one_result(model: nn.Sequential) -> Callable[[torch.Tensor], Any]:
    return lambda x: model(x).chunk(2)


def a_backward_pass_inside(model: nn.Sequential) -> Callable[[torch.Tensor], Any]:
    def forward(x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(x).square().sum()
        loss.backward(retain_graph=True)
        return loss

    return forward


def what_is_saved_changes(model: nn.Sequential) -> Callable[[torch.Tensor], Any]:
    def forward(x: torch.Tensor) -> torch.Tensor:
        h = model(x).sigmoid()
        y = h * 1
        with torch.no_grad():
            h.mul_(2)
        return y.detach() + x.sum()  # type: ignore[no-any-return]

    return forward


def hooks_on_all_parameters(wrap: Wrap) -> list[Any]:
    model = layers()
    forward, found = wrap(model), []
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda p, name=name: found.append((name, seen(p.grad))))
    for _ in range(CALLS):
        forward(torch.randn(5, 4)).square().sum().backward()
    return [*found, *state(model)]


def autocast_around(wrap: Wrap) -> list[Any]:
    model = layers()
    forward, found = wrap(model), []
    for _ in range(CALLS):
        with torch.autocast("cpu", torch.bfloat16):
            loss = forward(torch.randn(5, 4)).square().sum() + forward(torch.randn(5, 4)).sum()
            loss = loss + model[0].weight.bfloat16().sum()
        loss.backward()
        found.append(loss)
    return [*found, *state(model)]


REFUSED: dict[str, Scenario] = {
    **{
        make.__name__: training(make)
        for make in (
            an_own_function,
            a_hook_inside,
            independent_results,
            a_view_of_an_input,
            parts_of_one_result,
            a_backward_pass_inside,
        )
    },
    "hooks_on_all_parameters": hooks_on_all_parameters,
    "autocast_around": autocast_around,
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_graph_is_made_of_is_refused_with_a_reason(name: str) -> None:
    eager, other, functions = outcomes(REFUSED[name])
    assert eager == other
    for function in functions:
        assert function.statistics().speculated == 0
        reported = str(torchjanus.explain(function, detail=True))
        assert "[backward-missing]" in reported, reported
        assert "instead: " in reported


def penalty(wrap: Wrap, first: int) -> list[Any]:
    """A gradient penalty from call ``first`` on."""
    model = layers()
    forward, found = wrap(model), []
    for number in range(CALLS + 5):
        x = torch.randn(5, 4, requires_grad=True)
        y = forward(x)
        loss = y.exp().sum()
        if number >= first:
            (grad,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
            found.append(grad)
            loss = loss + grad.square().sum()
        model.zero_grad()
        loss.backward()
        found += [p.grad.clone() for p in model.parameters()]  # type: ignore[union-attr]
    return found


def test_second_derivatives_are_right_and_then_made_by_python() -> None:
    torch.manual_seed(0)
    eager = penalty(lambda function: function, 7)
    torch.manual_seed(0)
    made: list[Speculated] = []

    def speculate(function: Callable[..., Any]) -> Callable[..., Any]:
        made.append(torchjanus.speculate(function, executor="replay"))
        return made[-1]

    other = penalty(speculate, 7)
    differing = [
        number for number, (one, two) in enumerate(zip(eager, other, strict=True)) if not torch.equal(one, two)
    ]
    torch.testing.assert_close(other, eager)
    assert set(differing) <= set(range(28, 33))  # the first call with a penalty
    assert torch.equal(eager[28], other[28])  # first derivatives are eager's even there
    assert made[0].statistics().speculated == 5
    assert "[backward-double]" in str(torchjanus.explain(made[0], detail=True))


def test_second_derivatives_of_inputs_that_have_changed_are_an_error() -> None:
    forward = torchjanus.speculate(lambda x: torch.sin(x + 1).sum(), executor="replay")
    for number in range(6):
        x = torch.randn(3, requires_grad=True) * 1
        y = forward(x)
        if number < 5:
            y.backward()
            continue
        with torch.no_grad():
            x.mul_(2)
        with pytest.raises(RuntimeError, match="create_graph=True"):
            torch.autograd.grad(y, x, create_graph=True)
    assert forward.statistics().speculated >= 2


def test_a_graph_saves_what_eager_saves_and_frees_it_with_the_backward_pass() -> None:
    model = nn.Sequential(
        nn.Linear(4, 64), nn.GELU(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Dropout(0.5), nn.Linear(64, 3)
    )
    forward = torchjanus.speculate(model, executor="replay")
    for _ in range(4):
        forward(torch.randn(50, 4)).sum().backward()
    sizes: dict[int, int] = {}

    def save(tensor: torch.Tensor) -> torch.Tensor:
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    inputs = {t.untyped_storage().data_ptr() for t in state(model)}
    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        expected = model(x := torch.randn(50, 4))
    own = {x.untyped_storage().data_ptr(), *inputs}
    eager = sum(size for address, size in sizes.items() if address not in own)
    y = forward(x)
    node: Any = y.grad_fn
    saved = [tensor for tensor in node.saved_tensors if tensor.untyped_storage().data_ptr() not in own]
    assert sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in saved}.values()) == eager
    alive = [StorageWeakRef(tensor.untyped_storage()) for tensor in saved]
    assert expected.shape == y.shape
    del saved
    assert not any(one.expired() for one in alive)
    y.sum().backward()
    assert all(one.expired() for one in alive)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        node.saved_tensors
    assert forward.statistics().speculated >= 2


def test_nested_in_a_speculated_step_the_step_is_one_graph() -> None:
    model = layers()
    forward = torchjanus.speculate(model, executor="replay")

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = forward(x).square().sum()
        model.zero_grad()
        loss.backward()
        return loss.detach()  # type: ignore[no-any-return]

    outer, found = torchjanus.speculate(step, executor="replay"), []
    for _ in range(CALLS):
        x = torch.randn(5, 4)
        got = outer(x), [p.grad.clone() for p in model.parameters()]  # type: ignore[union-attr]
        expected = step(x), [p.grad.clone() for p in model.parameters()]  # type: ignore[union-attr]
        found.append((got, expected))
    assert all(seen(one) == seen(other) for one, other in found)
    assert outer.statistics().speculated >= 3


@pytest.mark.slow
def test_compiled_graphs_train_as_eager_does() -> None:
    torch.manual_seed(0)
    eager = training(lambda model: model)(lambda function: function)
    torch.manual_seed(0)
    made: list[Any] = []

    def speculate(function: Callable[..., Any]) -> Callable[..., Any]:
        made.append(torchjanus.speculate(function, executor="inductor"))
        return made[-1]  # type: ignore[no-any-return]

    other = training(lambda model: model)(speculate)
    torch.testing.assert_close(other, eager)
    assert "inductor" in [engine.current for engine in made[0].entries[0].engines][1]


def test_verified_calls_are_eagers() -> None:
    model = layers()
    forward = torchjanus.speculate(model, executor="replay", verify=2)
    for _ in range(12):
        forward(torch.randn(5, 4)).square().sum().backward()
    counts = forward.statistics()
    assert counts.verified >= 2
    assert counts.speculated >= 2
    assert not [event for event in forward.events if event.kind in ("verify", "fault")]
