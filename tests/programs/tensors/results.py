"""What a step returns: structures, identities, views, aliases, nothing."""

import collections
import dataclasses
from typing import NamedTuple

import torch
from torch import nn

from tests.programs.harness import CALLS, Program, program


def inputs(count=CALLS, *shape):
    return [(torch.randn(*(shape or (4, 5))),) for _ in range(count)]


@program()
def nothing():
    def step(x):
        x * 2

    return Program(step, inputs())


@program()
def constant():
    def step(x):
        return 3, "text", None, True, 2.5, ()

    return Program(step, inputs())


@program()
def nested_structures():
    def step(x):
        y = x * 2
        return {"a": [y, (y, x)], "b": {"c": y.sum().item(), 3: [y + 1]}, "d": ()}

    return Program(step, inputs())


@program()
def the_input_itself():
    def step(x):
        return x

    return Program(step, inputs())


@program()
def the_input_changed_in_place():
    def step(x):
        x.mul_(2)
        return x, x.sum()

    return Program(step, inputs())


@program()
def the_same_tensor_twice():
    def step(x):
        y = x + 1
        return y, y, [y]

    return Program(step, inputs())


@program()
def views_of_the_input():
    def step(x):
        return x[0], x.view(-1), x.t(), x[1:3], x.detach(), x.unsqueeze(0), x.chunk(2)

    return Program(step, inputs())


@program()
def views_of_a_result():
    def step(x):
        y = x * 2
        return y, y[0], y.view(-1), y.expand(3, 4, 5), y.detach()

    return Program(step, inputs())


@program()
def views_of_state():
    w = torch.randn(6, 5)

    def step(x):
        w.add_(x.sum())
        return w[0], w, w.t()

    return Program(step, inputs())


@program()
def parameters_and_gradients():
    model = nn.Linear(5, 3)

    def step(x):
        model.zero_grad()
        model(x).sum().backward()
        return model.weight, model.weight.grad, [p.grad for p in model.parameters()], dict(model.named_parameters())

    return Program(step, inputs())


@program()
def same_list_twice():
    def step(x):
        shared = [x * 2]
        return shared, shared, {"s": shared}

    return Program(step, inputs())


@program()
def cyclic_list():
    def step(x):
        loop = [x * 2]
        loop.append(loop)
        return loop

    return Program(step, inputs())


@dataclasses.dataclass
class Output:
    loss: torch.Tensor
    logits: torch.Tensor = None
    extra: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Frozen:
    value: float
    tensor: torch.Tensor


class Pair(NamedTuple):
    first: torch.Tensor
    second: int


Old = collections.namedtuple("Old", "a b")


@program()
def dataclass_result():
    def step(x):
        return Output(x.mean(), x * 2, {"n": x.shape[0]})

    return Program(step, inputs())


@program()
def frozen_dataclass_result():
    def step(x):
        return Frozen(x.mean().item(), x * 2)

    return Program(step, inputs())


@program()
def namedtuple_results():
    def step(x):
        return Pair(x + 1, x.shape[1]), Old(x.sum().item(), [x])

    return Program(step, inputs())


@program()
def torch_return_types():
    def step(x):
        return x.max(1), torch.sort(x), x.topk(2)

    return Program(step, inputs())


@program()
def ordered_and_default_dicts():
    def step(x):
        made = collections.OrderedDict()
        made["z"] = x * 1
        made["a"] = x * 2
        return made

    return Program(step, inputs())


@program()
def defaultdict_result():
    def step(x):
        groups = collections.defaultdict(list)
        groups["a"].append(x * 2)
        return groups

    return Program(step, inputs())


@program()
def deque_result():
    def step(x):
        made = collections.deque(maxlen=2)
        for i in range(3):
            made.append(x * i)
        return made

    return Program(step, inputs())


@program()
def set_result():
    def step(x):
        return {x.shape[0], x.shape[1]}, frozenset([1, 2])

    return Program(step, inputs())


@program(speculated=0)
def set_of_fetched_numbers():
    def step(x):
        return {x.sum().item()}, {x.mean().item(): 1}

    return Program(step, inputs())


class Plain:
    def __init__(self, x):
        self.x = x
        self.n = x.shape[0]
        self.me = self


@program()
def user_object():
    def step(x):
        return Plain(x * 2)

    return Program(step, inputs())


class WithSlots:
    __slots__ = ("a",)

    def __init__(self, a):
        self.a = a


@program()
def user_object_with_slots():
    def step(x):
        return WithSlots(x * 2)

    return Program(step, inputs())


@program()
def shapes_and_dtypes():
    def step(x):
        return x.shape, x.dtype, x.device, x.stride(), x.numel(), tuple(x.shape), x.dim()

    return Program(step, inputs())


@program()
def numbers_from_tensors():
    def step(x):
        a = x.sum().item()
        n = (x > 0).sum().item()
        return (
            a,
            n,
            a * 2,
            round(a, 2),
            int(n),
            float(n),
            -a,
            a**2,
            f"{a:.3f}",
            str(n),
            abs(a),
            (x > 0).float().mean().item(),
        )

    return Program(step, inputs())


@program()
def tolist_results():
    def step(x):
        return x[0].tolist(), x.argmax(1).tolist(), x.sum().tolist()

    return Program(step, inputs())


@program(speculated=0)
def booleans_from_tensors():
    def step(x):
        return bool((x > 100).any()), (x.sum() > 0).item(), torch.isfinite(x).all().item()

    return Program(step, inputs())


@program()
def loss_that_was_backed():
    model = nn.Linear(5, 3)

    def step(x):
        model.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        return loss

    return Program(step, inputs())


@program()
def loss_to_be_backed_outside():
    model = nn.Linear(5, 3)

    def step(x):
        return model(x).pow(2).mean()

    return Program(step, inputs(), between=lambda loss: loss.backward(), state=model)


@program()
def generator_consumed_inside():
    def step(x):
        return list(x * i for i in range(3)), sum(i * 2 for i in range(4)), [y.sum() for y in x]

    return Program(step, inputs())


@program()
def comprehension_results():
    def step(x):
        named = {f"row{i}": row for i, row in enumerate(x)}
        return named, {k: v.sum().item() for k, v in named.items()}, [v for v in named.values()][::-1], (*named,)

    return Program(step, inputs())


@program()
def lambda_result():
    def step(x):
        return lambda: x

    return Program(step, inputs())


@program()
def results_kept_across_calls():
    kept = []

    def step(x):
        y = x * 2
        return y

    return Program(step, inputs(), between=kept.append)


@program()
def results_changed_by_the_caller():
    w = torch.ones(5)

    def step(x):
        y = x * w
        return y, w.clone()

    def spoil(result):
        result[0].zero_()
        result[1].zero_()

    return Program(step, inputs(), between=spoil, state=w)


@program()
def gradients_changed_by_the_caller():
    model = nn.Linear(5, 3)

    def step(x):
        model.zero_grad()
        model(x).sum().backward()
        return x.sum()

    def spoil(result):
        for p in model.parameters():
            p.grad.zero_()
            p.data.add_(1)

    return Program(step, inputs(), between=spoil, state=model)


@program()
def parts_of_one_tensor_that_overlap():
    def step(x):
        y = x * 2
        left, right, every_other = y[:, :3], y[:, 2:], y[::2]
        left.add_(1)
        return left, right, every_other, right.sum()

    return Program(step, inputs())


@program()
def keys_and_values_that_are_kept_by_the_model():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.all = nn.Linear(8, 24)
            self.kept = None

        def forward(self, x):
            queries, keys, values = self.all(x).chunk(3, -1)
            if self.kept is not None:
                keys = torch.cat([self.kept[0], keys], 1)
                values = torch.cat([self.kept[1], values], 1)
            self.kept = keys, values
            return torch.softmax(queries @ keys.transpose(1, 2), -1) @ values

    model = Attention()

    @torch.no_grad()
    def step(x):
        model.kept = None
        for _ in range(3):
            x = model(x)
        return x, model.kept[0].shape[1]

    return Program(step, inputs(CALLS, 1, 2, 8))


@program()
def a_cache_of_one_step_is_views():
    class Cache:
        pass

    cache, layer = Cache(), nn.Linear(4, 12)

    @torch.no_grad()
    def step(x):
        cache.query, cache.key, cache.value = layer(x).chunk(3, -1)
        return cache.query.sum()

    def between(result):
        cache.key.mul_(2)  # and so nothing else

    return Program(step, inputs(CALLS, 3, 4), state=cache, between=between)


@program()
def what_backward_went_through_and_a_detached_part_of_it():
    weight = nn.Parameter(torch.randn(5, 3))

    def step(x):
        y = x @ weight
        y.sum().backward()
        weight.grad = None
        leaf = (x * 2).requires_grad_()
        return y, y.detach(), y.detach()[1:], y.detach().t(), leaf, leaf.detach(), leaf.detach()[1:]

    return Program(step, inputs(), state=weight)


@program()
def a_detached_part_first():
    weight = nn.Parameter(torch.randn(5, 3))

    def step(x):
        y = x @ weight
        y.sum().backward()
        weight.grad = None
        return y.detach()[1:], y[1:], y.detach(), y

    return Program(step, inputs(), state=weight)


@program()
def states_that_are_detached_in_the_end():
    cell, held = nn.Linear(5, 5), nn.Module()

    def step(x):
        held.left, held.right = torch.zeros(5), torch.zeros(5)
        outs = []
        for row in x:
            held.left = torch.softmax(cell(held.right) + held.left, -1)
            held.right = torch.tanh(held.right * held.left) + row
            outs.append(held.right * held.left)
        torch.stack(outs).sum().backward()
        cell.zero_grad()
        held.left, held.right = held.left.detach(), held.right.detach()

    return Program(step, inputs(), state=held)


@program(refused="a new tensor leaves the step with its gradient")
def a_leaf_with_its_gradient():
    def step(x):
        leaf = (x * 2).requires_grad_()
        (leaf * leaf).sum().backward()
        return leaf, leaf.grad[1:]

    return Program(step, inputs())


@program(refused="a new tensor leaves the step with its gradient")
def a_gradient_that_was_retained():
    weight = nn.Parameter(torch.randn(5, 3))

    def step(x):
        y = x @ weight
        y.retain_grad()
        y.sum().backward()
        return y

    return Program(step, inputs(), state=weight)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def shown_by_the_caller(loss_of, calls):
    """The caller prints what the step returns, and asks which node made it."""
    model = nn.Linear(5, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    texts = []

    def step(x):
        optimizer.zero_grad()
        loss = loss_of(model, x)
        loss.backward()
        optimizer.step()
        return loss

    def between(loss):
        try:
            loss.backward()
        except RuntimeError as error:
            texts.append((repr(loss), f"{loss}", loss.grad_fn.name(), type(loss.grad_fn).__name__, str(error)))

    return Program(step, calls, state=(texts, model), between=between)


@program()
def a_trained_loss_that_is_printed():
    return shown_by_the_caller(lambda model, x: model(x).pow(2).mean(), inputs())


@program()
def a_trained_loss_of_a_custom_function_that_is_printed():
    return shown_by_the_caller(lambda model, x: Doubled.apply((model(x) ** 2).sum()), inputs())


@program(speculated=5)
def a_trained_sum_over_rows_that_is_printed():
    def loss_of(model, x):
        total = 0
        for row in x:
            total = total + model(row).exp().sum()
        return total

    return shown_by_the_caller(loss_of, [(torch.randn(n % 4 + 2, 5),) for n in range(CALLS)])
