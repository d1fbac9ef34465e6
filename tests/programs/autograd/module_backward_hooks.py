"""Hooks around backward passes of modules and on autograd functions: what they are given, return and change."""

from __future__ import annotations

import contextlib
import warnings

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.hooks import RemovableHandle

from tests.programs.harness import CALLS, Program, program


def inputs(n=CALLS):
    return [(torch.randn(4, 5),) for _ in range(n)]


def net():
    return nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))


def training(model, loss_of=lambda out: out.pow(2).mean(), given=lambda x: x, state=None, calls=None, before=None):
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x):
        opt.zero_grad()
        loss = loss_of(model(given(x)))
        loss.backward()
        opt.step()
        return loss.item()

    return Program(step, calls or inputs(), state=(model, opt, state), before=before or {})


def asking(x):
    return x.clone().requires_grad_()


@program()
def gradients_clipped_for_each_module():
    model = net()

    def clip(module, grad_input, grad_output):
        return tuple(None if grad is None else grad.clamp(-0.01, 0.01) for grad in grad_input)

    for part in model[1:]:
        part.register_full_backward_hook(clip)
    return training(model)


@program()
def norms_are_logged():
    model, norms = net(), []
    for name, part in model.named_children():
        part.register_full_backward_hook(
            lambda m, gi, go, name=name: norms.append((name, len(gi), gi[0] is None, go[0].norm().item()))
        )
    return training(model, state=norms)


@program()
def printed_in_order():
    model = nn.Sequential(net(), nn.Tanh(), nn.Linear(3, 2))
    for name, part in model.named_modules():
        part.register_full_backward_pre_hook(lambda m, go, name=name: print("into", name, tuple(go[0].shape)))
        part.register_full_backward_hook(
            lambda m, gi, go, name=name: print("out of", name, [None if g is None else f"{g.sum():.3f}" for g in gi])
        )
        part.register_forward_hook(lambda m, args, out, name=name: print("forward", name))
    return training(model, given=asking)


@program()
def gradient_weighted_activations():
    """Grad-CAM."""
    conv, head = nn.Conv2d(1, 3, 3), nn.Linear(3, 4)
    kept = {}
    conv.register_forward_hook(lambda m, args, out: kept.__setitem__("activations", out))
    conv.register_full_backward_hook(lambda m, gi, go: kept.__setitem__("gradients", go[0]))

    def step(x):
        out = head(F.relu(conv(x)).mean((2, 3)))
        conv.zero_grad()
        head.zero_grad()
        out[0, 2].backward()
        weights = kept["gradients"].mean((2, 3), keepdim=True)
        cam = F.relu((weights * kept["activations"].detach()).sum(1))
        kept.clear()
        return cam / (cam.max() + 1e-8)

    return Program(step, [(torch.randn(1, 1, 8, 8),) for _ in range(CALLS)], state=(conv, head))


@program()
def guided_backpropagation():
    model = net()
    model[1].register_full_backward_hook(lambda m, gi, go: (gi[0].clamp(min=0),))

    def step(x):
        x = x.clone().requires_grad_()
        model.zero_grad()
        model(x)[:, 1].sum().backward()
        return x.grad.abs().amax(1)

    return Program(step, inputs(), state=model)


@program()
def integrated_over_a_path():
    """Attribution by torch.autograd.grad, with hooks on the way."""
    model, seen = net(), []
    model[2].register_full_backward_hook(lambda m, gi, go: seen.append(gi[0].sum().item()))

    def step(x):
        total = torch.zeros_like(x)
        for k in range(3):
            y = (x * ((k + 1) / 3)).requires_grad_()
            (grad,) = torch.autograd.grad(model(y).sum(), y)
            total = total + grad
        return x * total / 3

    return Program(step, inputs(), state=(model, seen))


@program()
def inputs_without_gradients():
    """Torch warns of that, and calls the hook with the output's gradients only."""
    model, seen = net(), []
    model[0].register_full_backward_hook(lambda m, gi, go: seen.append((gi, go[0].mean().item())))
    return training(model, state=seen)


@program()
def frozen_first_layers():
    model, seen = net(), []
    model[0].requires_grad_(False)
    for part in model:
        part.register_full_backward_hook(lambda m, gi, go: seen.append([g is None for g in (*gi, *go)]))
    opt = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)

    def step(x):
        opt.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        opt.step()
        return loss.item()

    return Program(step, inputs(), state=(model, seen))


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(5, 3), nn.Linear(5, 3)

    def forward(self, x, scale, other=None, *, shift=0.0):
        first = self.one(x) * scale + shift
        return first, "text", self.two(x if other is None else other)


@program()
def several_results_of_which_one_is_used():
    model, seen = Pair(), []

    def hook(module, grad_input, grad_output):
        seen.append([None if g is None else tuple(g.shape) for g in (*grad_input, *grad_output)])

    model.register_full_backward_hook(hook)

    def step(x):
        model.zero_grad()
        first, text, second = model(x.clone().requires_grad_(), 2.0, x, shift=0.5)
        first.sum().backward()
        return text, second.detach(), model.one.weight.grad.clone()

    return Program(step, inputs(), state=(model, seen))


@program()
def several_results_and_all_are_used():
    model = Pair()
    model.register_full_backward_hook(lambda m, gi, go: (gi[0] + go[0].sum(), None, gi[2] * 2))
    model.register_full_backward_pre_hook(lambda m, go: (go[0] * 2, None, go[2] - 1))

    def step(x):
        model.zero_grad()
        x, y = x.clone().requires_grad_(), (x * 2).requires_grad_()
        first, _, second = model(x, 2.0, y)
        (first.sum() + second.square().sum()).backward()
        return x.grad, y.grad, model.two.bias.grad

    return Program(step, inputs(), state=model)


@program()
def results_in_a_dictionary():
    """Torch warns that hooks are not called for these."""

    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(5, 3)

        def forward(self, x):
            return {"out": self.inner(x)}

    model, seen = Named(), []
    model.register_full_backward_hook(lambda m, gi, go: seen.append(1))
    return training(model, lambda out: out["out"].square().mean(), asking, seen)


@program()
def hooks_of_all_modules():
    model, seen = net(), []

    def step(x):
        model.zero_grad()
        model(x.clone().requires_grad_()).sum().backward()
        return len(seen), model[0].weight.grad.clone()

    handles = []

    def register():
        every = nn.modules.module
        handles.append(
            every.register_module_full_backward_hook(lambda m, gi, go: seen.append(type(m).__name__) and None)
        )
        handles.append(every.register_module_full_backward_pre_hook(lambda m, go: (go[0] * 1.5,)))
        model[2].register_full_backward_hook(lambda m, gi, go: seen.append("own") and None)

    def remove():
        for handle in handles:
            handle.remove()

    return Program(step, inputs(12), state=(model, seen), before={0: register, 11: remove})


@program(speculated=8, compiles=3)
def added_and_removed_between_calls():
    model, seen, handles = net(), [], []

    def add():
        handles.append(model[2].register_full_backward_hook(lambda m, gi, go: seen.append(go[0].sum().item())))

    return training(model, state=seen, calls=inputs(18), before={5: add, 10: lambda: handles.pop().remove()})


@program(speculated=8, compiles=3)
def another_hook_between_calls():
    model = net()
    handles = [model[2].register_full_backward_hook(lambda m, gi, go: (gi[0] * 2,))]

    def exchange():
        handles.pop().remove()
        RemovableHandle.next_id = 1000  # those that the step registers for itself are not counted as in eager
        handles.append(model[2].register_full_backward_hook(lambda m, gi, go: (gi[0] * 3,)))

    return training(model, calls=inputs(16), before={6: exchange})


@program()
def in_another_order():
    model = net()
    model[2].register_full_backward_hook(lambda m, gi, go: (gi[0] + 1,))
    model[2].register_full_backward_hook(lambda m, gi, go: (gi[0] * 2,), prepend=True)
    model[2].register_full_backward_pre_hook(lambda m, go: (go[0] - 1,))
    model[2].register_full_backward_pre_hook(lambda m, go: (go[0] * 3,), prepend=True)
    return training(model)


@program()
def one_module_called_twice():
    inner, seen = nn.Linear(5, 5), []
    inner.register_full_backward_hook(lambda m, gi, go: seen.append(go[0].norm().item()) or (gi[0] * 0.5,))

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.same = inner, inner

        def forward(self, x):
            return self.same(torch.tanh(self.inner(x)))

    return training(Twice(), given=asking, state=seen)


@program()
def a_cell_called_in_a_loop():
    cell, seen = nn.GRUCell(5, 4), []
    cell.register_full_backward_hook(lambda m, gi, go: seen.append([None if g is None else g.sum().item() for g in gi]))
    opt = torch.optim.SGD(cell.parameters(), lr=0.1)

    def step(x):
        state = torch.zeros(4, 4)
        for _ in range(3):
            state = cell(x, state)
        opt.zero_grad()
        state.square().mean().backward()
        opt.step()

    return Program(step, inputs(), state=(cell, seen))


@program()
def two_backward_passes():
    model, seen = net(), []
    model[2].register_full_backward_hook(lambda m, gi, go: seen.append(go[0].sum().item()))

    def step(x):
        model.zero_grad()
        out = model(x)
        out.sum().backward(retain_graph=True)
        out.square().sum().backward()
        return model[0].weight.grad.clone()

    return Program(step, inputs(), state=(model, seen))


@program()
def a_gradient_of_a_gradient():
    model, seen = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 1)), []
    model[0].register_full_backward_hook(lambda m, gi, go: seen.append(go[0].norm().item()))
    model[2].register_full_backward_hook(lambda m, gi, go: (gi[0] * 2,))
    opt = torch.optim.Adam(model.parameters(), lr=0.01)

    def step(x):
        x = x.clone().requires_grad_()
        (grad,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        loss = (grad.norm(dim=1) - 1).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.item()

    return Program(step, inputs(), state=(model, opt, seen))


@program()
def averages_kept_on_modules():
    model = net()

    def remember(module, grad_input, grad_output):
        module.average = 0.9 * module.average + 0.1 * grad_output[0].detach().abs().mean()
        module.times += 1

    for part in model:
        part.average, part.times = torch.zeros(()), 0
        part.register_full_backward_hook(remember)
    return training(model)


@program()
def in_checkpointed_parts():
    model, seen = net(), []
    model[0].register_full_backward_hook(lambda m, gi, go: seen.append(go[0].sum().item()))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        opt.zero_grad()
        loss = checkpoint(model, x.clone().requires_grad_(), use_reentrant=False).square().mean()
        loss.backward()
        opt.step()
        return loss.item()

    return Program(step, inputs(), state=(model, seen))


@program()
def under_autocast():
    model, seen = net(), []
    for part in model:
        part.register_full_backward_hook(lambda m, gi, go: seen.append((str(go[0].dtype), go[0].sum().item())))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        opt.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(x.clone().requires_grad_()).float().square().mean()
        loss.backward()
        opt.step()
        return loss.item()

    return Program(step, inputs(), state=(model, seen))


@program()
def also_called_without_gradients():
    model, seen = net(), []
    for part in model:
        part.register_full_backward_hook(lambda m, gi, go: seen.append(1) or (gi[0].neg(),))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        with torch.no_grad():
            target = model(x)
        opt.zero_grad()
        loss = (model(x.clone().requires_grad_()) - target - 1).square().mean()
        loss.backward()
        opt.step()
        with torch.inference_mode():
            return loss.item(), model(x)

    return Program(step, inputs(), state=(model, seen))


@program(speculated=0)
def changed_in_place_behind_a_hooked_module():
    """That is an error: the module's result is a view made by a function of autograd's."""
    model = nn.Sequential(nn.Linear(5, 6), nn.ReLU(inplace=True), nn.Linear(6, 3))
    model[0].register_full_backward_hook(lambda m, gi, go: None)
    return training(model, given=asking)


@program(speculated=0)
def a_hook_that_raises():
    model, count = net(), [0]

    def hook(module, grad_input, grad_output):
        count[0] += 1
        raise ValueError("not a number")

    model[2].register_full_backward_hook(hook)
    return training(model, state=count)


@program(speculated=0)
def a_hook_that_returns_too_much():
    model = net()
    model[2].register_full_backward_hook(lambda m, gi, go: (gi[0], gi[0]))
    return training(model)


@program(speculated=3, compiles=3)
def a_hook_that_decides():
    model, bad = net(), [0]

    def check(module, grad_input, grad_output):
        if not torch.isfinite(grad_output[0]).all():
            bad[0] += 1
            return (torch.zeros_like(grad_input[0]),)
        return None

    model[2].register_full_backward_hook(check)
    calls = inputs(14)
    calls[7][0][0, 0] = torch.inf
    return training(model, given=asking, state=bad, calls=calls)


@program()
def a_hook_that_computes_with_another_module():
    model, other = net(), nn.Linear(3, 3)
    model[2].register_full_backward_hook(lambda m, gi, go: (gi[0] + other(go[0]).sum().detach(),))
    return training(model, state=other)


@program()
def hooks_of_old():
    model, seen = net(), []
    model[1].register_backward_hook(lambda m, gi, go: seen.append(go[0].sum().item()))
    return training(model, state=seen)


@program()
def hooks_before_and_after_the_update():
    model, seen = net(), []
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    opt.register_step_pre_hook(lambda opt, args, kwargs: seen.append("before"))
    opt.register_step_post_hook(lambda opt, args, kwargs: seen.append(model[0].bias.sum().item()))
    model[2].register_full_backward_hook(lambda m, gi, go: seen.append("backward"))
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(lambda p: seen.append(tuple(p.shape)))

    def step(x):
        opt.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        opt.step()
        return loss.item()

    return Program(step, inputs(), state=(model, seen))


@program()
def always_called_forward_hooks():
    model, seen = net(), []
    model[0].register_forward_hook(lambda m, args, out: seen.append(tuple(out.shape)), always_call=True)
    model[0].register_full_backward_hook(lambda m, gi, go: seen.append(go[0].sum().item()))
    return training(model, given=asking, state=seen)


# -- autograd's functions ----------------------------------------------------------------------------------------------


@program()
def a_hook_on_a_function():
    w, seen = torch.randn(5, requires_grad=True), []

    def step(x):
        y = (x * w).tanh()
        y.grad_fn.register_hook(lambda gi, go: seen.append((y.grad_fn.name(), go[0].sum().item())) or (gi[0] * 2,))
        y.grad_fn.register_prehook(lambda go: (go[0] + 1,))
        y.square().sum().backward()
        grad, w.grad = w.grad, None
        return grad

    return Program(step, inputs(), state=(w, seen))


@program()
def functions_with_several_inputs():
    a, b = torch.randn(5, requires_grad=True), torch.randn(5)

    def step(x):
        y = torch.addcmul(x, a, b)
        z = torch.cat([y, y * 2])
        kept = []
        z.grad_fn.register_hook(lambda gi, go: kept.append(len(gi)))
        y.grad_fn.register_hook(lambda gi, go: kept.append([g is None for g in gi]))
        z.sum().backward()
        grad, a.grad = a.grad, None
        return grad, kept

    return Program(step, inputs())


@program()
def a_hook_on_a_function_removed():
    w = torch.randn(5, requires_grad=True)

    def step(x):
        y = x * w
        handle = y.grad_fn.register_hook(lambda gi, go: tuple(None if g is None else g * 3 for g in gi))
        y.sum().backward(retain_graph=True)
        handle.remove()
        y.sum().backward()
        grad, w.grad = w.grad, None
        return grad

    return Program(step, inputs(), state=w)


@program()
def what_made_a_tensor():
    w = torch.randn(5, requires_grad=True)

    def step(x):
        y = x * w
        names = []
        for part in (x, y, y.sum(), w, y.detach()):
            names.append(None if part.grad_fn is None else part.grad_fn.name())
        same = y.grad_fn is y.grad_fn
        y.sum().backward()
        w.grad = None
        return names, same

    return Program(step, inputs(), state=w)


@program()
def through_the_graph():
    w = torch.randn(5, requires_grad=True)

    def step(x):
        node, names = (x * w).sum().grad_fn, []
        while node is not None:
            names.append(node.name())
            node = node.next_functions[-1][0] if node.next_functions else None
        return names

    return Program(step, inputs(), state=w)


@program(refused="calls register_hook() of autograd's AccumulateGrad")
def a_hook_where_gradients_are_accumulated():
    w, seen = torch.randn(5, requires_grad=True), []

    def step(x):
        accumulating = w.expand_as(w).grad_fn.next_functions[0][0]
        handle = accumulating.register_hook(lambda *_: seen.append(1))
        (x * w).sum().backward()
        handle.remove()
        w.grad = None
        return len(seen)

    return Program(step, inputs(), state=(w, seen))


@program(refused="reads the attribute '_saved_exponent' of autograd's PowBackward0")
def what_functions_have_saved():
    w, count = torch.randn(5, requires_grad=True), [0]

    def step(x):
        count[0] += 1
        return (x * w).pow(count[0]).grad_fn._saved_exponent

    return Program(step, inputs(), state=count)


@program(refused="reads the attribute 'factor' of autograd's ScaledBackward")
def what_own_functions_keep():
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, factor):
            ctx.factor = factor
            return x * factor

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.factor, None

    w, count = torch.randn(5, requires_grad=True), [0]

    def step(x):
        count[0] += 1
        return Scaled.apply(x * w, count[0]).grad_fn.factor

    return Program(step, inputs(), state=count)


@program(refused="a hook is registered")
def once_all_gradients_are_there():
    model, seen = net(), []

    def step(x):
        model.zero_grad()
        handle = torch.autograd.graph.register_multi_grad_hook(
            tuple(model.parameters()), lambda grads: seen.append(len(grads))
        )
        model(x).sum().backward()
        handle.remove()
        return len(seen)

    return Program(step, inputs(), state=(model, seen))


@program(refused="Tensor.grad_fn.__get__ inside the step")
def what_made_a_tensor_of_an_earlier_call():
    kept = [torch.ones(5, requires_grad=True) * 2]

    def step(x):
        return kept[0].grad_fn.name(), x * 2

    return Program(step, inputs(), state=kept)


@program(refused="a new MulBackward0 leaves the step")
def functions_that_leave():
    kept, w = [None], torch.randn(5, requires_grad=True)

    def step(x):
        y = x * w
        kept[0] = y.grad_fn
        y.sum().backward()
        w.grad = None
        return kept[0].name()

    return Program(step, inputs(), between=lambda result: kept.clear() or kept.append(None), state=w)


@program(refused="warns under filters that the step has set")
def warned_under_filters_of_the_step():
    model = net()
    model[0].register_full_backward_hook(lambda m, gi, go: None)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        with warnings.catch_warnings(record=True) as reported:
            opt.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            opt.step()
        return loss.item(), len(reported)

    return Program(step, inputs(), state=model)


@program(refused="warns under filters that the step has set")
def warned_and_ignored():
    def step(x):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.warn("nobody hears of this")
        return x * 2

    return Program(step, inputs())


@program()
def warned_under_filters_from_before():
    model = net()
    model[0].register_full_backward_hook(lambda m, gi, go: None)

    @contextlib.contextmanager
    def around(number):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield

    made = training(model)
    made.around = around
    return made


@program()
def hooks_on_parameters_registered_anew():
    model, seen, handles = net(), [], []

    def hook(grad):
        seen.append(grad.sum().item())
        return grad * 2

    def halve(parameter):
        parameter.grad.mul_(0.5)

    def again():
        while handles:
            handles.pop().remove()
        handles.append(model[2].weight.register_hook(hook))
        handles.append(model[0].bias.register_post_accumulate_grad_hook(halve))

    return training(model, state=seen, calls=inputs(16), before=dict.fromkeys(range(16), again))


@program(speculated=8)
def hooks_on_modules_registered_anew():
    model, seen, handles, numbers = net(), [], [], [1]

    def hook(module, grad_input, grad_output):
        seen.append(grad_output[0].sum().item())

    def again():
        while handles:
            handles.pop().remove()
        numbers.append(1000 * len(numbers))
        RemovableHandle.next_id = numbers[-1]
        handles.append(model[2].register_full_backward_hook(hook))

    return training(model, state=seen, calls=inputs(16), before=dict.fromkeys(range(16), again))
