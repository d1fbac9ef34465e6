"""Torch's ambient modes, hooks, custom differentiation and function transforms, also changed between the calls."""

import contextlib
import warnings

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from tests.programs.harness import CALLS, Program, program

RUN_ONE_IN = 12  # Each takes a second or two, or is much like the others.


def inputs(count=CALLS, *shape):
    return [(torch.randn(*(shape or (4, 5))),) for _ in range(count)]


def net():
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))


def sgd(model, lr=0.1):
    return torch.optim.SGD(model.parameters(), lr=lr)


def training(model, *reported, state=None, opt=None):
    """Steps of SGD on the mean square, which return what ``reported`` gives at the end, too."""
    opt = opt or sgd(model)

    def step(x):
        loss = model(x).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.item(), [tell() for tell in reported]

    return Program(step, inputs(), state=model if state is None else state)


def scaled(hook, reduced=lambda y: y.pow(2).sum(), state=None):
    """The gradient of a weight; ``hook`` is given its product with the input before the backward pass."""
    w = torch.randn(5, requires_grad=True)

    def step(x):
        y = x * w
        hook(y)
        reduced(y).backward()
        g, w.grad = w.grad, None
        return g

    return Program(step, inputs(), state=state)


# -- grad mode ----------------------------------------------------------------------------------------------------


@program(slow=True)
def grad_modes_nested():
    w = torch.randn(5, requires_grad=True)

    def step(x):
        flags = [torch.is_grad_enabled()]
        with torch.no_grad():
            a = x * w
            flags.append(torch.is_grad_enabled())
            with torch.enable_grad():
                b = x * w
                flags.append(b.requires_grad)
            c = b * 2
        with torch.set_grad_enabled(False):
            d = w * 2
        with torch.set_grad_enabled(mode=x.dim() == 2):
            e = (b * w).sum()
        e.backward()
        g, w.grad = w.grad, None
        return flags, a, c, d, e.detach(), g

    return Program(step, inputs(), state=w)


@program()
def grad_mode_as_a_function():
    w = torch.randn(5, requires_grad=True)

    def step(x):
        torch.set_grad_enabled(False)
        a = (x * w).sum()
        torch.set_grad_enabled(True)
        loss = (x * w).pow(2).sum()
        loss.backward()
        with torch.no_grad():
            w.sub_(0.01 * w.grad)
            w.grad.zero_()
        return a, a.requires_grad, loss.item()

    return Program(step, inputs(), state=w)


@program()
def grad_mode_decorators():
    w = torch.randn(5, requires_grad=True)

    @torch.no_grad()
    def target(x):
        return (x * w).tanh()

    @torch.enable_grad()
    def loss(x, y):
        return (x * w - y).pow(2).mean()

    @torch.set_grad_enabled(False)
    def report(x):
        return (x * w).sum(), torch.is_grad_enabled()

    def step(x):
        value = loss(x, target(x) + 1)
        value.backward()
        g, w.grad = w.grad, None
        return value.item(), g, report(x)

    return Program(step, inputs(), state=w)


@program(speculated=3, compiles=3)
def grad_mode_around_the_step_changes():
    model = net()

    def step(x):
        out = model(x)
        if torch.is_grad_enabled():
            out.sum().backward()
        return out.detach()

    def around(number):
        return torch.no_grad() if number in (5, 6, 7) else contextlib.nullcontext()

    return Program(step, inputs(12), state=model, around=around)


@program(refused="leaves a torch mode changed")
def grad_mode_left_changed():
    w = torch.randn(5, requires_grad=True)

    def step(x):
        torch.set_grad_enabled(False)
        return x * w

    return Program(step, inputs(), between=lambda result: torch.set_grad_enabled(True))


@program()
def no_grad_generator():
    w = torch.randn(5, requires_grad=True)

    @torch.no_grad()
    def rows(x):
        for row in x:
            yield (row * w).sum()

    def step(x):
        values = [(value, value.requires_grad) for value in rows(x)]
        loss = (x * w).sum()
        loss.backward()
        g, w.grad = w.grad, None
        return values, g

    return Program(step, inputs(), state=w)


@program()
def inference_mode_for_the_metric():
    model = net()
    opt = sgd(model)

    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.inference_mode():
            right = (model(x).argmax(1) == y).float().mean().item()
        return loss.item(), right

    return Program(step, [(torch.randn(4, 5), torch.randint(3, (4,))) for _ in range(CALLS)], state=model)


@program()
def inference_mode_result():
    model = net()

    @torch.inference_mode()
    def step(x):
        out = model(x)
        return out, out[0], x.view(-1), out.argmax(1)

    return Program(step, inputs(), state=model)


@program()
def inference_mode_around_the_step():
    model = net()

    def step(x):
        return model(x).softmax(1)

    return Program(step, inputs(), state=model, around=lambda number: torch.inference_mode())


@program(speculated=3)
def inference_mode_switched_off_midway():
    model = net()

    def step(x):
        return model(x).softmax(1).detach()

    def around(number):
        return torch.inference_mode() if number < 6 else torch.no_grad()

    return Program(step, inputs(12), state=model, around=around)


# -- autocast -----------------------------------------------------------------------------------------------------


@program()
def autocast_inside():
    model = net()
    opt = sgd(model)

    def step(x, y):
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(x)
            loss = F.cross_entropy(out, y)
        loss.backward()
        opt.step()
        return loss.item(), out.dtype, loss.dtype

    return Program(step, [(torch.randn(4, 5), torch.randint(3, (4,))) for _ in range(CALLS)], state=model)


@program()
def autocast_around():
    model = net()

    def step(x):
        model.zero_grad()
        out = model(x)
        out.float().pow(2).mean().backward()
        return out.detach()

    return Program(step, inputs(), state=model, around=lambda n: torch.autocast("cpu", dtype=torch.bfloat16))


@program(speculated=3, compiles=3)
def autocast_switched_between_calls():
    model = net()

    def step(x):
        return model(x).detach(), torch.is_autocast_enabled("cpu")

    def around(number):
        return torch.autocast("cpu", dtype=torch.bfloat16, enabled=number >= 5)

    return Program(step, inputs(12), state=model, around=around)


@program()
def autocast_weights_used_twice():
    layer = nn.Linear(5, 5)

    def step(x):
        layer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = layer(layer(x))
            with torch.autocast("cpu", enabled=False):
                z = layer(x)
            y = layer(y)
        (y.float().sum() + z.sum()).backward()
        return y.detach(), z.detach()

    return Program(step, inputs(), state=layer)


@program()
def autocast_entered_twice():
    layer = nn.Linear(5, 5)

    def step(x):
        layer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = layer(layer(x))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            z = layer(y)
        (y.float().sum() + z.float().sum()).backward()
        return y.detach(), z.detach()

    return Program(step, inputs(), state=layer)


@program(refused="under an autocast that was entered before")
def autocast_around_an_update():
    model = net()
    opt = sgd(model)
    region = contextlib.ExitStack()

    def step(x):
        opt.zero_grad()
        loss = model(x).float().pow(2).mean()
        loss.backward()
        opt.step()
        return loss.item()

    # One region for all calls: torch keeps the casts that it made in the first.
    enter = {0: lambda: region.enter_context(torch.autocast("cpu", dtype=torch.bfloat16)) and None, 9: region.close}
    return Program(step, inputs(), state=model, before=enter)


@program(speculated=2, compiles=3)
def autocast_to_another_type_between_calls():
    model = net()

    def step(x):
        return model(x).detach()

    def around(number):
        return torch.autocast("cpu", dtype=torch.bfloat16 if number < 6 else torch.float16)

    return Program(step, inputs(12), state=model, around=around)


@program(refused="a torch.func transform")
def step_inside_a_transform(jit):
    w = torch.randn(5)
    loss = jit(lambda w, x: (x * w).pow(2).sum())

    def step(x):
        return torch.func.grad(loss)(w, x)

    return Program(step, inputs(), state=w)


@program(speculated=3)
def step_inside_a_transform_later(jit):
    w = torch.randn(5)

    @jit
    def loss(w, x):
        return (x * w).pow(2).sum()

    count = [0]

    def step(x):
        count[0] += 1
        if count[0] == 6:
            return torch.func.grad(loss)(w, x)
        if count[0] == 7:
            return torch.func.jvp(loss, (w, x), (torch.ones_like(w), x))
        if count[0] == 8:
            return torch.func.vmap(loss, (None, 0))(w, x)
        return loss(w, x)

    return Program(step, inputs(), state=w)


@program(speculated=3)
def forward_mode_later(jit):
    import torch.autograd.forward_ad as fw

    @jit
    def square(x):
        return x * x

    count = [0]

    def step(x):
        count[0] += 1
        if count[0] in (5, 6):
            with fw.dual_level():
                return list(fw.unpack_dual(square(fw.make_dual(x, torch.ones_like(x)))))
        return square(x)

    return Program(step, inputs())


@program()
def autocast_without_cache():
    layer = nn.Linear(5, 5)

    def step(x):
        layer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
            y = layer(layer(x))
        y.float().sum().backward()
        return y.detach()

    return Program(step, inputs(), state=layer)


@program()
def autocast_as_a_decorator():
    model = net()

    @torch.autocast("cpu", dtype=torch.bfloat16)
    def forward(x):
        return model(x)

    def step(x):
        return forward(x).detach().float()

    return Program(step, inputs(), state=model)


@program()
def grad_scaler_switched_off():
    model = net()
    opt = sgd(model)
    scaler = torch.amp.GradScaler("cpu", enabled=False)

    def step(x):
        opt.zero_grad()
        loss = model(x).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        return loss.item(), scaler.get_scale()

    return Program(step, inputs(), state=model)


@program(speculated=0)
def grad_scaler_on():
    model = net()
    opt = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)

    def step(x):
        opt.zero_grad()
        loss = model(x).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        return loss.item(), scaler.get_scale()

    calls = inputs()
    calls[6][0][0, 0] = torch.inf
    return Program(step, calls, state=model)


@program(speculated=4)
def update_skipped_where_not_finite():
    model = net()
    opt = sgd(model)
    scale = torch.tensor(8.0)

    def step(x):
        opt.zero_grad()
        loss = model(x).pow(2).mean()
        (loss * scale).backward()
        finite = torch.stack([p.grad.isfinite().all() for p in model.parameters()]).all()
        if finite:
            for p in model.parameters():
                p.grad.div_(scale)
            opt.step()
        else:
            scale.mul_(0.5)
        return loss.item(), scale

    calls = inputs()
    calls[6][0][0, 0] = torch.inf
    return Program(step, calls, state=model)


# -- other ambient settings ---------------------------------------------------------------------------------------


@program(speculated=3, compiles=3)
def default_dtype_between_calls():
    def step(x):
        return torch.zeros(2) + x.sum(), torch.tensor(1.5), torch.arange(3) / 2

    return Program(
        step,
        inputs(12),
        before={5: lambda: torch.set_default_dtype(torch.float64), 9: lambda: torch.set_default_dtype(torch.float32)},
    )


@program(refused="_set_default_dtype")
def default_dtype_within():
    def step(x):
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        y = torch.ones(3) / 3
        torch.set_default_dtype(before)
        return y, x * 2

    return Program(step, inputs())


@program(speculated=3, compiles=3)
def deterministic_between_calls():
    def step(x):
        return x.cumsum(0), torch.are_deterministic_algorithms_enabled()

    return Program(
        step,
        inputs(12),
        before={
            5: lambda: torch.use_deterministic_algorithms(True),
            9: lambda: torch.use_deterministic_algorithms(False),
        },
    )


@program()
def deterministic_within():
    def step(x):
        torch.use_deterministic_algorithms(True)
        y = x.cumsum(0)
        torch.use_deterministic_algorithms(False)
        return y

    return Program(step, inputs())


@program(refused="set_num_threads")
def threads_within():
    def step(x):
        torch.set_num_threads(1)
        return x @ x.t()

    return Program(step, inputs())


@program(refused="anomaly")
def anomaly_detection_within():
    model = net()

    def step(x):
        with torch.autograd.set_detect_anomaly(True, check_nan=False):
            loss = model(x).sum()
            loss.backward()
        return loss.item()

    return Program(step, inputs(), state=model)


@program(speculated=3)
def anomaly_detection_between_calls():
    w = torch.randn(5, requires_grad=True)

    def step(x):
        w.grad = None
        loss = (x * w).sqrt().sum() if x[0, 0] > 0 else (x * w).sum()
        loss.backward()
        return loss.item()

    calls = [(torch.randn(4, 5).abs(),) for _ in range(CALLS)]
    calls[7][0][:, 1] = -1.0
    calls[7][0][:, 2] = 0.0
    return Program(
        step,
        calls,
        before={
            6: lambda: torch.autograd.set_detect_anomaly(True),
            8: lambda: torch.autograd.set_detect_anomaly(False),
        },
    )


@program(refused="saved_tensors")
def saved_tensors_hooks_within():
    w = torch.randn(5, requires_grad=True)
    seen = []

    def pack(t):
        seen.append(tuple(t.shape))
        return t

    def step(x):
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            loss = (x * w).pow(2).sum()
        loss.backward()
        g, w.grad = w.grad, None
        return g, len(seen)

    return Program(step, inputs(), state=seen)


# -- hooks --------------------------------------------------------------------------------------------------------


@program()
def forward_hooks():
    model = net()
    norms = {}
    model[0].register_forward_pre_hook(lambda module, args: (args[0] * 0.5,))
    model[0].register_forward_hook(lambda module, args, out: norms.__setitem__("first", out.norm().item()))
    model[2].register_forward_hook(lambda module, args, out: out.clamp(-1, 1))
    return training(model, lambda: norms["first"], state=(model, norms))


@program(speculated=4, compiles=3)
def forward_hook_added_and_removed_between_calls():
    model = net()
    handles = []

    def step(x):
        return model(x).detach()

    return Program(
        step,
        inputs(14),
        before={
            4: lambda: handles.append(model[0].register_forward_hook(lambda m, a, out: out * 2)),
            9: lambda: handles.pop().remove(),
        },
    )


@program(speculated=0)
def forward_hook_made_inside():
    model = net()

    def step(x):
        kept = []
        handle = model[0].register_forward_hook(lambda m, a, out: kept.append(out.detach()))
        out = model(x)
        handle.remove()
        return out.detach(), kept

    return Program(step, inputs())


@program()
def full_backward_hook():
    model = net()
    seen = []
    model[0].register_full_backward_hook(lambda m, gi, go: seen.append(go[0].norm().item()))
    opt = sgd(model)

    def step(x):
        loss = model(x.clone().requires_grad_()).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.item(), len(seen)

    return Program(step, inputs(), state=seen)


@program()
def tensor_hook_that_only_computes():
    return scaled(lambda y: y.register_hook(lambda g: g * 2))


@program()
def tensor_hook_that_remembers():
    norms = []
    return scaled(lambda y: y.register_hook(lambda g: norms.append(g.norm().item())), state=norms)


@program()
def tensor_hook_on_the_input():
    model = net()

    def step(x):
        kept = {}
        x = x.clone().requires_grad_()
        x.register_hook(lambda g: kept.__setitem__("grad", g))
        model.zero_grad()
        model(x).sum().backward()
        return kept["grad"]

    return Program(step, inputs())


@program()
def parameter_hook():
    model = net()
    for p in model.parameters():
        p.register_hook(lambda g: g.clamp(-0.1, 0.1))
    return training(model)


@program(speculated=0)
def parameter_hook_with_effects():
    model = net()
    seen = {}
    for name, p in model.named_parameters():
        p.register_hook(lambda g, name=name: seen.__setitem__(name, seen.get(name, 0) + 1))

    def step(x):
        model.zero_grad()
        model(x).sum().backward()
        return dict(seen)

    return Program(step, inputs(), state=(model, seen))


@program(speculated=4, compiles=3)
def parameter_hook_added_between_calls():
    w = torch.randn(5, requires_grad=True)

    def step(x):
        w.grad = None
        (x * w).sum().backward()
        return w.grad.clone()

    return Program(step, inputs(), state=w, before={5: lambda: w.register_hook(lambda g: g * 3) and None})


@program()
def optimizer_in_backward():
    model = net()
    opts = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def update(p):
        opts[p].step()
        opts[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(update)

    def step(x):
        loss = model(x).pow(2).mean()
        loss.backward()
        return loss.item()

    return Program(step, inputs(), state=model)


@program()
def hook_removed_before_backward():
    def reduced(y):
        handle = y.register_hook(lambda g: g * 2)
        z = y.pow(2).sum()
        handle.remove()
        return z

    return scaled(lambda y: None, reduced)


@program()
def hooks_in_order_with_prints():
    def hook(y):
        y.register_hook(lambda g: print("y first", f"{g.norm():.3f}"))
        y.register_hook(lambda g: g.clamp(max=0.1))

    def reduced(y):
        z = y.tanh()
        z.register_hook(lambda g: print("z", g.shape, g.sum()))
        print("before")
        return z.sum()

    return scaled(hook, reduced)


@program()
def hook_called_by_two_backward_passes():
    seen = []

    def reduced(y):
        loss = y.pow(2).sum()
        loss.backward(retain_graph=True)
        return loss

    return scaled(lambda y: y.register_hook(lambda g: seen.append(g.sum().item())), reduced, seen)


@program()
def hooks_and_autograd_grad():
    w = torch.randn(5, requires_grad=True)
    w.register_hook(lambda g: g * 3)

    def step(x):
        y = x * w
        y.register_hook(lambda g: g + 1)
        return torch.autograd.grad(y.pow(2).sum(), [w, y])

    return Program(step, inputs(), state=w)


@program(speculated=3)
def hook_decides_by_the_gradient():
    w = torch.randn(5, requires_grad=True)
    bad = [0]

    def check(g):
        if not g.isfinite().all():
            bad[0] += 1
            return torch.zeros_like(g)

    w.register_hook(check)

    def step(x):
        w.grad = None
        (x * w).sum().backward()
        return w.grad.clone(), bad[0]

    calls = inputs()
    calls[6][0][0, 0] = torch.inf
    return Program(step, calls, state=bad)


@program()
def hook_on_a_retained_gradient():
    w = torch.randn(5, requires_grad=True)

    def step(x):
        y = x * w
        y.retain_grad()
        y.register_hook(lambda g: g * 2)
        y.sum().backward()
        g, w.grad = w.grad, None
        return y.grad, g

    return Program(step, inputs())


@program(refused="registered on a tensor that was there before")
def hook_registered_on_a_parameter_in_the_step():
    w = torch.randn(5, requires_grad=True)

    def step(x):
        handle = w.register_hook(lambda g: g * 2)
        (x * w).sum().backward()
        handle.remove()
        g, w.grad = w.grad, None
        return g

    return Program(step, inputs(), state=w)


@program(refused="leaves the step with a hook")
def hooked_leaf_that_leaves():
    def step(x):
        x = x.clone().requires_grad_()
        x.register_hook(lambda g: g * 2)
        return x

    def later(x):
        x.sum().backward()

    return Program(step, inputs(), between=later)


@program()
def gradient_norm_logged_by_a_hook():
    model = net()
    norms = {}
    for name, p in model.named_parameters():
        p.register_post_accumulate_grad_hook(lambda p, name=name: norms.__setitem__(name, p.grad.norm().item()))
    return training(model, lambda: norms["0.weight"], state=norms)


@program()
def gradients_accumulated_under_a_hook():
    w = torch.randn(5, requires_grad=True)

    def halve(p):
        p.grad.mul_(0.5)

    w.register_post_accumulate_grad_hook(halve)

    def step(x):
        (x * w).sum().backward()
        return w.grad.clone()

    return Program(step, inputs(), state=w)


@program(speculated=0)
def optimizer_hooks():
    model = net()
    opt = sgd(model)
    counts = [0, 0]
    opt.register_step_pre_hook(lambda o, args, kwargs: counts.__setitem__(0, counts[0] + 1))
    opt.register_step_post_hook(lambda o, args, kwargs: counts.__setitem__(1, counts[1] + 1))
    return training(model, lambda: list(counts), state=counts, opt=opt)


# -- custom functions ---------------------------------------------------------------------------------------------


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = x.sigmoid()
        return grad * (s + x * s * (1 - s))


@program()
def function_in_training():
    model = net()
    opt = sgd(model)

    def step(x):
        loss = Swish.apply(model(x)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.item()

    return Program(step, inputs(), state=model)


@program()
def function_of_several():
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w, factor, label):
            ctx.save_for_backward(x, w)
            ctx.factor = factor
            ctx.label = label
            return x * w * factor, x.sum()

        @staticmethod
        def backward(ctx, grad, grad_sum):
            x, w = ctx.saved_tensors
            gx = gw = None
            if ctx.needs_input_grad[0]:
                gx = grad * w * ctx.factor + grad_sum
            if ctx.needs_input_grad[1]:
                gw = (grad * x * ctx.factor).sum(0)
            return gx, gw, None, None

    w = torch.randn(5, requires_grad=True)
    rate = [0.5]

    def step(x):
        rate[0] *= 1.1
        y, total = Scale.apply(x, w, rate[0], "a")
        (y.pow(2).sum() + total).backward()
        g, w.grad = w.grad, None
        return g, y.detach(), total.detach()

    return Program(step, inputs(), state=(w, rate))


@program()
def function_with_effects_in_backward():
    calls = {"forward": 0, "backward": 0}

    class Counted(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            calls["forward"] += 1
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            calls["backward"] += 1
            print("backward", calls["backward"])
            return grad * 2

    w = torch.randn(5, requires_grad=True)

    def step(x):
        Counted.apply(x * w).sum().backward()
        g, w.grad = w.grad, None
        return g

    return Program(step, inputs(), state=calls)


@program()
def function_straight_through():
    class Rounding(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x.round()

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, grad):
            return grad

    model = net()

    def step(x):
        model.zero_grad()
        Rounding.apply(model(x) * 4).sum().backward()
        return model[0].weight.grad.clone()

    return Program(step, inputs(), state=model)


@program()
def function_under_no_grad():
    def step(x):
        with torch.no_grad():
            return Swish.apply(x)

    return Program(step, inputs())


@program()
def function_with_double_backward():
    w = torch.randn(5, requires_grad=True)

    def step(x):
        y = Swish.apply(x * w).sum()
        (g,) = torch.autograd.grad(y, w, create_graph=True)
        g.pow(2).sum().backward()
        out, w.grad = w.grad, None
        return out

    return Program(step, inputs(), state=w)


@program()
def function_in_place_and_non_differentiable():
    class Top(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            index = x.argmax(1)
            ctx.mark_non_differentiable(index)
            ctx.shape = x.shape
            ctx.save_for_backward(index)
            return x.max(1).values, index

        @staticmethod
        def backward(ctx, grad, _):
            (index,) = ctx.saved_tensors
            return torch.zeros(ctx.shape).scatter(1, index[:, None], grad[:, None])

    w = torch.randn(5, requires_grad=True)

    def step(x):
        value, index = Top.apply(x * w)
        value.sum().backward()
        g, w.grad = w.grad, None
        return g, index

    return Program(step, inputs())


@program()
def function_returning_its_input():
    class Same(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            return x, y * 2

        @staticmethod
        def backward(ctx, gx, gy):
            return gx * 3, gy

    w = torch.randn(5, requires_grad=True)

    def step(x):
        h = x * w
        a, b = Same.apply(h, x)
        (a + b).sum().backward()
        g, w.grad = w.grad, None
        return g, a is h, b.requires_grad

    return Program(step, inputs())


@program()
def function_in_place():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            x.mul_(2)
            ctx.mark_dirty(x)
            return x

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    w = torch.randn(5, requires_grad=True)

    def step(x):
        h = x * w
        out = Double.apply(h)
        out.sum().backward()
        g, w.grad = w.grad, None
        return g, out is h, h.detach()

    return Program(step, inputs())


@program()
def function_without_materialised_gradients():
    class Two(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.set_materialize_grads(False)
            return x * 2, x * 3

        @staticmethod
        def backward(ctx, a, b):
            total = None
            for g, factor in ((a, 2), (b, 3)):
                if g is not None:
                    total = g * factor if total is None else total + g * factor
            return total

    w = torch.randn(5, requires_grad=True)

    def step(x):
        a, b = Two.apply(x * w)
        a.sum().backward()
        g, w.grad = w.grad, None
        return g, b.detach()

    return Program(step, inputs())


@program()
def function_that_saves_its_result():
    class Exp(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x.exp()
            ctx.save_for_backward(y, None)
            return y

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, grad):
            y, nothing = ctx.saved_tensors
            again = ctx.saved_tensors[0]
            return grad * y if nothing is None and again is not None else grad

    model = net()
    opt = sgd(model, 0.01)

    def step(x):
        loss = Exp.apply(model(x).tanh()).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.item()

    return Program(step, inputs(), state=model)


@program()
def functions_within_functions():
    class Outer(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            with torch.enable_grad():
                ctx.x = x.detach().requires_grad_()
                ctx.y = Swish.apply(ctx.x).sum(0)
            return ctx.y.detach()

        @staticmethod
        def backward(ctx, grad):
            (g,) = torch.autograd.grad(ctx.y, ctx.x, grad)
            return g

    w = torch.randn(5, requires_grad=True)

    def step(x):
        Outer.apply(x * w).pow(2).sum().backward()
        g, w.grad = w.grad, None
        return g

    return Program(step, inputs())


@program()
def function_used_many_times_with_a_text():
    w = torch.randn(5, requires_grad=True)

    def step(x):
        y = x * w
        for _ in range(3):
            y = Swish.apply(y)
        print(y)
        y.sum().backward(retain_graph=True)
        y.pow(2).sum().backward()
        g, w.grad = w.grad, None
        return g

    return Program(step, inputs())


@program()
def function_with_dropout_inside():
    class Drop(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, p):
            mask = (torch.rand_like(x) > p).to(x)
            ctx.mask, ctx.p = mask, p
            return x * mask / (1 - p)

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.mask / (1 - ctx.p) + torch.randn_like(grad) * 0.01, None

    w = torch.randn(5, requires_grad=True)

    def step(x):
        Drop.apply(x * w, 0.3).sum().backward()
        g, w.grad = w.grad, None
        return g, torch.rand(1)

    return Program(step, inputs())


@program(refused="raises an exception")
def function_that_raises_in_backward():
    class Strict(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            raise ValueError("not today")

    w = torch.randn(5, requires_grad=True)

    def step(x):
        y = Strict.apply(x * w)
        try:
            y.sum().backward()
        except ValueError as error:
            return str(error)

    return Program(step, inputs())


# -- checkpoints --------------------------------------------------------------------------------------------------


@program()
def checkpoint_plain():
    model = net()
    opt = sgd(model)

    def step(x):
        hidden = checkpoint(model[0], x, use_reentrant=False)
        loss = model[2](hidden.relu()).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.item()

    return Program(step, inputs(), state=model)


@program()
def checkpoint_with_dropout():
    model = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 3))

    def step(x):
        model.zero_grad()
        out = checkpoint(model, x, use_reentrant=False)
        out.pow(2).sum().backward()
        return model[0].weight.grad.clone(), torch.rand(2)

    return Program(step, inputs(), state=model)


@program(refused="checkpoint() of a function with effects")
def checkpoint_with_effects():
    model = net()
    calls = [0]

    def part(x):
        calls[0] += 1
        return model(x).tanh()

    def step(x):
        model.zero_grad()
        checkpoint(part, x, use_reentrant=False).sum().backward()
        return calls[0], model[0].weight.grad.clone()

    return Program(step, inputs(), state=calls)


@program(refused="checkpoint() with use_reentrant")
def checkpoint_reentrant():
    model = net()

    def step(x):
        model.zero_grad()
        x = x.clone().requires_grad_()
        checkpoint(model, x, use_reentrant=True).pow(2).sum().backward()
        return x.grad, model[0].weight.grad.clone()

    return Program(step, inputs(), state=model)


@program()
def checkpoint_of_segments():
    model = nn.Sequential(*(nn.Sequential(nn.Linear(5, 5), nn.Tanh()) for _ in range(4)))

    def step(x):
        model.zero_grad()
        out = checkpoint_sequential(model, 2, x, use_reentrant=False)
        out.sum().backward()
        return [p.grad.norm().item() for p in model.parameters()]

    return Program(step, inputs(), state=model)


@program(refused="checkpoint() of a function with effects")
def checkpoint_of_batchnorm():
    norm = nn.BatchNorm1d(5)

    def step(x):
        norm.zero_grad()
        checkpoint(norm, x, use_reentrant=False).pow(3).sum().backward()
        return norm.weight.grad.clone()

    return Program(step, inputs(), state=norm)


@program(refused="checkpoint() of a function with effects")
def checkpoint_without_the_random_state():
    drop = nn.Dropout(0.5)
    w = torch.randn(5, requires_grad=True)

    def step(x):
        w.grad = None
        out = checkpoint(lambda v: drop(v * w).exp(), x, use_reentrant=False, preserve_rng_state=False)
        out.sum().backward()
        return w.grad.clone(), torch.rand(1)

    return Program(step, inputs(), state=w)


@program(refused="checkpoint() of a function with effects")
def checkpoint_of_state_that_changes_before_backward():
    scale = torch.ones(())
    w = torch.randn(5, requires_grad=True)

    def step(x):
        w.grad = None
        scale.fill_(1.0)
        loss = checkpoint(lambda v: (v * w * scale).exp(), x, use_reentrant=False).sum()
        scale.fill_(2.0)
        loss.backward()
        return w.grad.clone()

    return Program(step, inputs(), state=scale)


@program()
def checkpoint_under_no_grad():
    model = net()

    def step(x):
        with torch.no_grad():
            return checkpoint(model, x, use_reentrant=False)

    return Program(step, inputs(), state=model)


# -- transforms ---------------------------------------------------------------------------------------------------


@program()
def func_grad():
    w = torch.randn(5)

    def loss(w, x):
        return (x * w).pow(2).sum()

    def step(x):
        g = torch.func.grad(loss)(w, x)
        w.sub_(0.01 * g)
        return g

    return Program(step, inputs(), state=w)


@program()
def func_vmap():
    w = torch.randn(5)

    def step(x):
        return torch.func.vmap(lambda row: (row * w).sum().tanh())(x)

    return Program(step, inputs(), state=w)


@program()
def func_per_sample_gradients():
    model = net()

    def step(x, y):
        params = {k: v.detach() for k, v in model.named_parameters()}

        def loss(params, row, target):
            out = torch.func.functional_call(model, params, (row[None],))
            return F.cross_entropy(out, target[None])

        return torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(params, x, y)

    return Program(step, [(torch.randn(4, 5), torch.randint(3, (4,))) for _ in range(CALLS)], state=model)


@program(refused="_make_dual")
def func_jvp():
    def step(x):
        return torch.func.jvp(lambda v: v.sin().sum(1), (x,), (torch.ones_like(x),))

    return Program(step, inputs())


@program()
def func_functional_call():
    model = net()

    def step(x):
        params = {name: p * 0.5 for name, p in model.named_parameters()}
        out = torch.func.functional_call(model, params, (x,))
        model.zero_grad()
        out.sum().backward()
        return out.detach()

    return Program(step, inputs(), state=model)


@program()
def autograd_functional_jacobian():
    def step(x):
        return torch.autograd.functional.jacobian(lambda v: v.pow(2).sum(0), x)

    return Program(step, inputs())


# -- parametrizations and averages --------------------------------------------------------------------------------


@program()
def parametrized_symmetric():
    class Symmetric(nn.Module):
        def forward(self, w):
            return w.triu() + w.triu(1).t()

    layer = nn.Linear(5, 5)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    opt = sgd(layer)

    def step(x):
        loss = layer(x).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.item(), layer.weight.detach()

    return Program(step, inputs(), state=layer)


@program()
def parametrized_and_cached():
    class Double(nn.Module):
        def forward(self, w):
            return w * 2

    layer = nn.Linear(5, 5)
    parametrize.register_parametrization(layer, "weight", Double())

    def step(x):
        layer.zero_grad()
        with parametrize.cached():
            out = layer(layer(x))
        out.sum().backward()
        return out.detach()

    return Program(step, inputs(), state=layer)


@program()
def weight_norm_of_both_kinds():
    with warnings.catch_warnings(action="ignore"):  # the old one is deprecated
        old = nn.utils.weight_norm(nn.Linear(5, 5))
    new = nn.utils.parametrizations.weight_norm(nn.Linear(5, 5))
    model = nn.Sequential(old, new)
    opt = sgd(model)

    def step(x):
        loss = model(x).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.item()

    return Program(step, inputs(), state=[p for p in model.parameters()])


@program()
def spectral_norm_of_both_kinds():
    old = nn.utils.spectral_norm(nn.Linear(5, 5))
    new = nn.utils.parametrizations.spectral_norm(nn.Linear(5, 5))
    model = nn.Sequential(old, new)
    opt = sgd(model)

    def step(x):
        loss = model(x).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.item()

    return Program(step, inputs(), state=[*model.parameters(), *model.buffers()])


@program(speculated=4, compiles=3)
def spectral_norm_switched_to_evaluation():
    model = nn.utils.parametrizations.spectral_norm(nn.Linear(5, 5))

    def step(x):
        return model(x).detach()

    return Program(step, inputs(14), before={5: model.eval, 10: model.train}, state=[*model.buffers()])


@program()
def averaged_model():
    model = net()
    opt = sgd(model)
    ema = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))

    def step(x):
        loss = model(x).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        ema.update_parameters(model)
        return loss.item(), ema.n_averaged

    return Program(step, inputs(), state=(model, ema))


@program()
def averaged_by_hand():
    model, shadow = net(), net()
    opt = sgd(model)

    def step(x):
        loss = model(x).pow(2).mean()
        opt.zero_grad(set_to_none=False)
        loss.backward()
        opt.step()
        with torch.no_grad():
            for p, s in zip(model.parameters(), shadow.parameters()):
                s.data.mul_(0.9).add_(p.data, alpha=0.1)
        return loss.item()

    return Program(step, inputs(), state=(model, shadow))


@program()
def clipped_both_ways():
    model = net()
    opt = sgd(model)

    def step(x):
        loss = model(x).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        opt.step()
        return loss.item(), norm

    return Program(step, inputs(), state=model)


@program()
def batchnorm_cumulative():
    norm = nn.BatchNorm1d(5, momentum=None)
    opt = sgd(norm)

    def step(x):
        loss = norm(x).pow(3).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.item()

    return Program(step, inputs(), state=norm)


@program(speculated=5, compiles=3)
def requires_grad_toggled_between_calls():
    model = net()

    def step(x):
        model.zero_grad()
        model(x).sum().backward()
        return [None if p.grad is None else p.grad.norm().item() for p in model.parameters()]

    return Program(
        step,
        inputs(14),
        state=model,
        before={5: lambda: model[0].requires_grad_(False) and None, 10: lambda: model[0].requires_grad_() and None},
    )


@program(speculated=4, compiles=3)
def training_flag_toggled():
    model = nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5), nn.Dropout(0.3))

    def step(x):
        with torch.no_grad():
            return model(x)

    return Program(step, inputs(14), state=model, before={5: model.eval, 10: model.train})


@program(speculated=CALLS - 3)
def dropouts_that_return_their_argument_in_inference_mode():
    model = nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.1), nn.AlphaDropout(0.2), nn.ReLU(), nn.Dropout1d(0.1)).eval()

    def step(x):
        with torch.inference_mode():
            y = model(x)
            z = F.dropout(y, 0.5, training=False)
            z.add_(1)
            return y.sum().item(), z is y, x.sum().item()

    return Program(step, inputs(), state=model)


@program(refused="Tensor.as_subclass inside the step")
def subclass_that_counts_what_is_done_to_it():
    seen = []

    class Counting(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, kinds, args=(), kwargs=None):
            seen.append(func.__name__)
            return super().__torch_function__(func, kinds, args, kwargs or {})

    def step(x):
        y = x.as_subclass(Counting) * 2
        return (y + 1).sum().as_subclass(torch.Tensor), len(seen)

    return Program(step, inputs(), state=seen)


@contextlib.contextmanager
def double(number):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@program()
def numbers_decide_under_another_default_dtype():
    w = torch.ones(3, dtype=torch.float64, requires_grad=True)
    seen = []

    def step(x):
        loss = (w * x).square().sum()
        w.grad = None
        loss.backward()
        if loss.item() < 1e-8:
            return None
        with torch.no_grad():
            w.sub_(w.grad, alpha=0.01)
        seen.append(loss.item() / 3 + int(x.sum()) / 7)
        return torch.rand(2)

    return Program(step, [(torch.randn(3, dtype=torch.float64),) for _ in range(CALLS)], state=(w, seen), around=double)


@program()
def iterations_part_under_another_default_dtype():
    w = torch.ones(3, dtype=torch.float64)

    def step(xs):
        total = torch.zeros(3)
        for x in xs:
            if (x * w).sum() > 0:
                total = total + x.square()
            else:
                total = total - x.exp()
        return total, torch.zeros(2)

    calls = [([torch.randn(3, dtype=torch.float64) for _ in range(6)],) for _ in range(CALLS)]
    return Program(step, calls, state=w, around=double)
