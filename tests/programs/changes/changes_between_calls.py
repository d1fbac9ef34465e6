"""What changes between calls and must be noticed: models, modes, functions, shapes, configuration."""

import contextlib

import torch
from torch import nn
from torch.nn import functional as F

from tests.programs.harness import Program, program

RUN_ONE_IN = 12  # Each takes a second or two, or is much like the others.

scale = 2.0


def double(x):
    return x * 2


def triple(x):
    return x * 3


def inputs(count=14, *shape):
    return [(torch.randn(*(shape or (4, 5))),) for _ in range(count)]


class Net(nn.Module):
    factor = 1.0

    def __init__(self):
        super().__init__()
        self.one = nn.Linear(5, 6)
        self.norm = nn.BatchNorm1d(6)
        self.drop = nn.Dropout(0.3)
        self.two = nn.Linear(6, 3)

    def forward(self, x):
        return self.two(self.drop(torch.relu(self.norm(self.one(x))))) * self.factor


def training(model, count=14, before=None, **options):
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x):
        opt.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        opt.step()
        return loss.item()

    return Program(step, inputs(count), before or {}, **options)


@program()
def batchnorm_dropout():
    return training(Net())


@program(speculated=6, compiles=3)
def eval_midway():
    model = Net()
    return training(model, 18, {6: model.eval, 12: model.train})


@program(speculated=6, compiles=3)
def eval_of_a_part_midway():
    model = Net()
    return training(model, 16, {6: model.norm.eval})


@program(speculated=6, compiles=4)
def freeze_midway():
    model = Net()
    return training(model, 16, {6: lambda: model.one.requires_grad_(False)})


@program(speculated=6, compiles=5)
def submodule_swapped():
    model = Net()

    def swap():
        model.two = nn.Linear(6, 3)

    return training(model, 16, {7: swap})


@program(speculated=6, compiles=4)
def submodule_of_other_class():
    model = Net()

    def swap():
        model.drop = nn.Tanh()

    return training(model, 16, {7: swap})


@program(speculated=4, compiles=4)
def forward_hook_midway():
    model = Net()

    def hook(module, args, out):
        return out * 2

    return training(model, 16, {7: lambda: model.one.register_forward_hook(hook)})


@program(speculated=4, compiles=4)
def global_forward_hook_midway():
    model = Net()
    removed = []

    def hook(module, args, out):
        return out * 2

    def add():
        removed.append(nn.modules.module.register_module_forward_hook(hook))

    return training(model, 14, {7: add, 11: lambda: removed.pop().remove()})


@program(speculated=4, compiles=4)
def tensor_hook_midway():
    model = Net()
    return training(model, 14, {7: lambda: model.one.weight.register_hook(lambda g: g * 2) and None})


@program(speculated=4, compiles=4)
def forward_replaced_on_the_instance():
    model = Net()

    def other(x):
        return model.two(model.one(x))

    def replace():
        model.forward = other

    return training(model, 16, {7: replace})


@program(speculated=4, compiles=4)
def forward_replaced_on_the_class():
    model = Net()

    def other(self, x):
        return self.two(self.one(x))

    def replace():
        Net.forward = other

    return training(model, 16, {7: replace})


@program(speculated=4, compiles=4)
def forward_of_a_submodule_replaced():
    model = Net()

    def replace():
        model.one.forward = lambda x: F.linear(x, model.one.weight) * 3

    return training(model, 16, {7: replace})


@program(speculated=4, compiles=4)
def global_function_replaced():
    def step(x):
        return double(x) + 1

    def patch():
        global double
        double = triple

    return Program(step, inputs(16), {7: patch})


@program(speculated=4, compiles=4)
def global_number_changed():
    def step(x):
        return x * scale

    def put(value):
        global scale
        scale = value

    return Program(step, inputs(16), {7: lambda: put(3.0), 9: lambda: put(4.0), 11: lambda: put(5)})


@program(speculated=4, compiles=4)
def class_attribute_changed():
    model = Net()

    def put(value):
        Net.factor = value

    def shadow():
        model.factor = 10.0

    return training(model, 20, {7: lambda: put(3.0), 11: shadow})


@program(speculated=4, compiles=4)
def method_replaced_on_the_class():
    class Thing:
        def go(self, x):
            return x + 1

    thing = Thing()

    def step(x):
        return thing.go(x)

    def patch():
        Thing.go = lambda self, x: x - 1

    return Program(step, inputs(16), {7: patch})


@program(speculated=4, compiles=4)
def code_of_a_function_replaced():
    def helper(x):
        return x + 1

    def other(x):
        return x - 1

    def step(x):
        return helper(x)

    def patch():
        helper.__code__ = other.__code__

    return Program(step, inputs(16), {7: patch})


@program(speculated=4, compiles=4)
def defaults_replaced():
    def helper(x, k=2, *, j=3):
        return x * k + j

    def step(x):
        return helper(x)

    def patch():
        helper.__defaults__ = (5,)

    def patch_keywords():
        helper.__kwdefaults__["j"] = 7

    return Program(step, inputs(20), {7: patch, 12: patch_keywords})


@program(speculated=4, compiles=4)
def step_defaults_replaced():
    def step(x, k=2):
        return x * k

    def patch():
        step.__defaults__ = (5,)

    return Program(step, inputs(20), {7: patch})


@program(speculated=4, compiles=4)
def list_config_changed():
    cfg = {"layers": [1, 2, 3], "act": "relu"}

    def step(x):
        for k in cfg["layers"]:
            x = x * k
        return torch.relu(x) if cfg["act"] == "relu" else torch.tanh(x)

    return Program(
        step,
        inputs(30),
        {6: lambda: cfg["layers"].append(4), 14: lambda: cfg.update(act="tanh"), 22: lambda: cfg["layers"].pop()},
    )


@program(speculated=4, compiles=4)
def list_element_changed():
    cfg = [1, 2, 3]

    def step(x):
        return [x * k for k in cfg]

    def put(i, v):
        cfg[i] = v

    return Program(step, inputs(20), {7: lambda: put(1, 9), 10: lambda: put(1, 2.5)})


@program(speculated=4, compiles=4)
def module_list_grows():
    layers = nn.ModuleList([nn.Linear(5, 5) for _ in range(2)])

    def step(x):
        for layer in layers:
            x = layer(x)
        return x.sum().detach()

    return Program(step, inputs(20), {7: lambda: layers.append(nn.Linear(5, 5))})


@program(speculated=16)
def partial_last_batch():
    model = Net()
    made = training(model)
    sizes = [4, 4, 4, 4, 3] * 4
    return Program(made.step, [(torch.randn(n, 5),) for n in sizes])


@program(speculated=4, compiles=3)
def one_row():
    linear = nn.Linear(5, 3)

    def step(x):
        return linear(x).softmax(-1).detach()

    return Program(step, [(torch.randn(n, 5),) for n in (4, 4, 4, 4, 1, 1, 0, 4, 1, 0, 4)])


@program(speculated=4, compiles=3)
def changed_dtype():
    def step(x):
        return x * 2 + 1, x.dtype

    kinds = [torch.float32] * 6 + [torch.float64] * 4 + [torch.int64] * 3 + [torch.float32]
    return Program(step, [(torch.ones(3, dtype=k),) for k in kinds])


@program(speculated=4, compiles=3)
def changed_strides():
    def step(x):
        return x.reshape(-1) * 2, x.is_contiguous(), x.t()

    return Program(step, [(torch.randn(4, 4) if i < 6 else torch.randn(4, 4).t(),) for i in range(14)])


@program(speculated=3, compiles=3)
def requires_grad_of_the_argument():
    def step(x):
        y = (x * x).sum()
        if x.requires_grad:
            y.backward()
            return x.grad
        return y

    return Program(step, [(torch.randn(3, requires_grad=i >= 6),) for i in range(14)])


@program(speculated=3, compiles=3)
def no_grad_around():
    model = nn.Linear(5, 3)

    def step(x):
        y = model(x).sum()
        return y.detach(), torch.is_grad_enabled(), y.requires_grad

    def around(i):
        return torch.no_grad() if i >= 6 else contextlib.nullcontext()

    return Program(step, inputs(), around=around)


@program(speculated=3, compiles=3)
def inference_mode_around():
    model = nn.Linear(5, 3)

    def step(x):
        return model(x).sum().detach()

    def around(i):
        return torch.inference_mode() if i >= 6 else contextlib.nullcontext()

    return Program(step, inputs(), around=around)


@program(speculated=3, compiles=3)
def autocast_around():
    model = nn.Linear(5, 3)

    def step(x):
        return model(x).detach()

    def around(i):
        return torch.autocast("cpu", torch.bfloat16) if i >= 6 else contextlib.nullcontext()

    return Program(step, inputs(), around=around)


@program()
def autocast_inside():
    model = Net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(x)
            loss = out.float().pow(2).mean()
        loss.backward()
        opt.step()
        return loss.item(), out.dtype

    return Program(step, inputs())


@program(speculated=3, compiles=3)
def default_dtype_changes():
    def step(x):
        return torch.ones(3) * x.sum().item(), torch.tensor(1.5)

    return Program(
        step,
        inputs(),
        {6: lambda: torch.set_default_dtype(torch.float64), 12: lambda: torch.set_default_dtype(torch.float32)},
    )


@program(speculated=3, compiles=3)
def parameter_data_replaced():
    model = Net()

    def put():
        model.one.weight.data = torch.ones(6, 5)

    return training(model, 14, {7: put})


@program(speculated=3, compiles=3)
def parameter_replaced():
    model = Net()

    def put():
        model.one.weight = nn.Parameter(torch.ones(6, 5))

    return training(model, 14, {7: put})


@program(speculated=6)
def parameter_changed_in_place():
    model = Net()

    def put():
        with torch.no_grad():
            model.one.weight.fill_(0.1)

    return training(model, 14, {7: put})


@program(speculated=5, compiles=3)
def model_to_double():
    linear = nn.Linear(5, 3)

    def step(x):
        return linear(x.to(linear.weight.dtype)).detach()

    return Program(step, inputs(), {7: linear.double})


@program(speculated=4, compiles=3)
def optional_argument():
    def step(x, mask=None):
        if mask is not None:
            x = x.masked_fill(mask, 0.0)
        return x * 2

    mask = torch.tensor([True, False, True, False, True])
    return Program(step, [(x[0],) if i % 7 < 4 else (x[0], mask) for i, x in enumerate(inputs(18))])


@program(speculated=4, compiles=3)
def grads_appear_midway():
    w = torch.randn(5, requires_grad=True)

    def step(x):
        loss = (x * w).sum()
        loss.backward()
        return loss.item()

    def clear():
        w.grad = None

    return Program(step, inputs(18), {8: clear, 12: clear}, state=w)


@program(speculated=4, compiles=3)
def type_of_number_changes():
    def step(x, k):
        return x * k, k

    return Program(step, [(x[0], k) for x, k in zip(inputs(14), [2, 2, 2, 2, 2, 3, 2.5, 3.5, True, False, 1, 0, 7, 8])])


@program(speculated=4, compiles=4)
def aliased_arguments():
    def step(a, b):
        a.add_(1)
        return a * b

    same = torch.ones(3)
    calls = [(torch.randn(3), torch.randn(3)) for _ in range(7)] + [(same, same)] * 3
    calls += [(t, t[:]) for t in (torch.randn(3), torch.randn(3))]
    return Program(step, calls)


@program(speculated=4, compiles=4)
def argument_is_a_parameter():
    w = torch.ones(3)

    def step(a):
        w.add_(a)
        return w.sum().item()

    return Program(step, [(torch.randn(3),) for _ in range(7)] + [(w,), (w,), (torch.randn(3),)], state=w)


@program(speculated=6)
def changed_tensor_passed_in_on_the_memory_of_a_constant_one():
    w = torch.ones(5)
    calls = [(w.detach() if number in (6, 7) else torch.randn(5),) for number in range(11)]

    def step(x):
        y = x + 1
        x.copy_(y * w)
        return (w * y).sum()

    return Program(step, calls, state=w)


@program(speculated=4, compiles=4)
def layers_deleted_and_inserted():
    """`del model[3]` gives the model another dictionary of layers; what is left of the old one is as before."""
    model = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))

    def change():
        del model[3]
        model.insert(1, nn.Identity())

    before = {6: lambda: model.append(nn.Tanh()), 10: change}
    return Program(lambda x: (model(x).detach(), len(model)), inputs(), before=before, state=model)


@program(speculated=4, compiles=4)
def layers_of_a_list_deleted():
    layers = nn.ModuleList([nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5)])

    def step(x):
        for layer in layers:
            x = layer(x)
        return x.detach(), len(layers)

    def drop():
        del layers[0]

    return Program(step, inputs(), before={6: lambda: layers.append(nn.ReLU()), 9: drop, 11: drop}, state=layers)


@program(speculated=5, compiles=4)
def registries_of_a_module_replaced():
    model = nn.Linear(5, 5)
    model.register_buffer("shift", torch.ones(5))

    def step(x):
        return (model(x) + model.shift).detach()

    def other(name):
        def replace():
            held = getattr(model, name)
            setattr(
                model, name, {key: None if value is None else nn.Parameter(value * 2) for key, value in held.items()}
            )

        return replace

    return Program(step, inputs(), before={5: other("_parameters"), 9: other("_buffers")}, state=model)


@program(speculated=5, compiles=4)
def hooks_put_back():
    """No hook is registered anew when those that there were are put back."""
    model, seen, kept = Net(), [], {}
    model.one.register_forward_hook(lambda module, args, out: seen.append(out.sum().item()))
    model.drop.register_forward_pre_hook(lambda module, args: (args[0] * 2,))

    def clear():
        kept["hooks"] = dict(model.one._forward_hooks)
        model.one._forward_hooks.clear()

    def replace():
        kept["before"] = model.drop._forward_pre_hooks
        model.drop._forward_pre_hooks = {}

    def put_back():
        model.one._forward_hooks.update(kept["hooks"])

    def replace_back():
        model.drop._forward_pre_hooks = kept["before"]

    before = {3: clear, 7: put_back, 9: replace, 13: replace_back}
    return Program(lambda x: model(x).detach(), inputs(17), before=before, state=(model, seen))
