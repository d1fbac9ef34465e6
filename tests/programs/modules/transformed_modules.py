"""Transformed or incomplete modules: TorchScript, lazy, parametrized, torch.fx, torch.export, quantized."""

import copy
import sys
import time
import types
import warnings
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.utils import parametrize

from tests.programs.harness import CALLS, Program, program

UNSEEN = "its class keeps it where it cannot be watched"
LAZY = "is a parameter or buffer that is not initialized yet"


def quietly(make, *args):
    """What ``make`` gives, without its warnings that there is something newer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make(*args)


def inputs(*shape, count=CALLS):
    return [(torch.randn(*(shape or (4, 4))),) for _ in range(count)]


def trained(model, *shape, state=None):
    """A step that trains the model by hand; its parameters and buffers are the state."""

    def step(x):
        loss = model(x).square().mean()
        for p in model.parameters():
            p.grad = None
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(0.1 * p.grad)
        return loss.detach()

    def tensors(result):
        held.update({**dict(model.named_parameters()), **dict(model.named_buffers())})

    held = {}
    return Program(step, inputs(*shape), state=(held, state), between=tensors)


# -- TorchScript ----------------------------------------------------------------------------------------------------


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.n = 1

    def forward(self, x):
        return x * self.n

    @torch.jit.export
    def up(self) -> None:
        self.n = self.n + 1


def doubled(x):
    return x * 2 + 1


def added(x, y):
    x.add_(y)
    return x


@program(refused=UNSEEN)
def traced_module():
    model = quietly(torch.jit.trace, nn.Linear(4, 4), torch.ones(1, 4))

    def step(x):
        return model(x).detach()

    return Program(step, inputs(), state=list(model.parameters()))


@program(speculated=0)
def traced_module_trained():
    return trained(quietly(torch.jit.trace, nn.Linear(4, 4), torch.ones(1, 4)))


@program(speculated=0)
def scripted_module_trained():
    return trained(quietly(torch.jit.script, nn.Sequential(nn.Linear(4, 4), nn.ReLU())))


@program(refused=UNSEEN)
def traced_module_in_a_model():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.second = quietly(torch.jit.trace, nn.Linear(4, 4), torch.ones(1, 4))
            self.n = 0

        def forward(self, x):
            self.n += 1
            return self.second(self.first(x)) * self.n

    return trained(Model())


@program(refused=UNSEEN)
def frozen_module():
    model = quietly(torch.jit.freeze, quietly(torch.jit.script, nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()))

    def step(x):
        return model(x).detach().sum()

    return Program(step, inputs())


@program(refused="calls ")
def scripted_function():
    function, model = quietly(torch.jit.script, doubled), nn.Linear(4, 4)

    def step(x):
        return function(model(x)).detach().sum()

    return Program(step, inputs(), state=model)


@program(refused="calls ")
def scripted_function_that_changes_what_it_is_given():
    function, total = quietly(torch.jit.script, added), torch.zeros(4, 4)

    def step(x):
        function(total, x)
        return total.sum()

    return Program(step, inputs(), state=total)


@program(refused=UNSEEN)
def attributes_of_a_traced_module():
    model = quietly(torch.jit.trace, nn.Linear(4, 4), torch.ones(1, 4))

    def step(x):
        made = (x @ model.weight.t() + model.bias).detach().sum()
        return made * model.training, model.code, model.original_name, hasattr(model, "nothing")

    return Program(step, inputs())


@program(speculated=0, reported=UNSEEN)
def number_of_a_scripted_module():
    model = quietly(torch.jit.script, Counting())

    def step(x):
        return x * model.n

    def more():
        model.n = model.n + 1

    return Program(step, inputs(), dict.fromkeys(range(4, CALLS, 2), more), state=[])


@program(speculated=0, reported=UNSEEN)
def method_of_a_scripted_module_that_counts():
    model = quietly(torch.jit.script, Counting())

    def step(x):
        model.up()
        return x * model.n

    return Program(step, inputs())


# -- lazy modules ---------------------------------------------------------------------------------------------------


def kinds(model):
    """The classes of its modules, and how many hooks they have."""
    return [
        (type(m).__name__, len(m._forward_pre_hooks), len(m._load_state_dict_pre_hooks), len(m._state_dict_hooks))
        for m in model.modules()
    ]


def lazily(model, *shape):
    made, seen = trained(model, *shape), []
    first = made.between

    def between(result):
        first(result)
        seen.append(kinds(model))

    made.between = between
    made.state = (made.state, seen)
    return made


@program(reported=LAZY)
def lazy_linear():
    return lazily(nn.LazyLinear(3))


@program(reported=LAZY)
def lazy_convolution():
    return lazily(nn.LazyConv1d(2, 1), 2, 3, 4)


@program(reported=LAZY)
def lazy_transposed_convolution():
    return lazily(nn.LazyConvTranspose1d(2, 1), 2, 3, 4)


@program(reported=LAZY)
def lazy_network():
    return lazily(nn.Sequential(nn.LazyConv2d(2, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3)), 2, 3, 5, 5)


@program(reported=LAZY)
def lazy_batch_norm():
    return lazily(nn.LazyBatchNorm1d(), 5, 3)


@program(reported=LAZY)
def lazy_instance_norm():
    return lazily(nn.LazyInstanceNorm1d(affine=True), 5, 3, 4)


@program(reported=LAZY)
def optimizer_made_behind_a_lazy_module():
    model, held = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(2)), []

    def step(x):
        y = model(x)
        if not held:
            held.append(torch.optim.Adam(model.parameters(), lr=0.1))
        held[0].zero_grad()
        loss = y.square().mean()
        loss.backward()
        held[0].step()
        return loss.detach()

    seen = []
    return Program(step, inputs(), state=(held, seen), between=lambda _: seen.append(kinds(model)))


@program(reported=LAZY)
def lazy_module_described():
    model = nn.LazyLinear(4)

    def step(x):
        open_ones = model.has_uninitialized_params() if hasattr(model, "has_uninitialized_params") else None
        reported = open_ones, model.in_features, type(model).__name__, repr(model)
        return model(x).detach().sum(), reported

    return Program(step, inputs())


@program(reported=LAZY)
def parameter_made_by_hand():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.UninitializedParameter()

        def forward(self, x):
            if isinstance(self.w, nn.UninitializedParameter):
                self.w.materialize((4,))
                with torch.no_grad():
                    self.w.fill_(2.0)
            return x * self.w

    return trained(Model())


@program(refused=LAZY)
def shape_that_is_not_there():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.UninitializedParameter()

        def forward(self, x):
            try:
                return x.sum() * len(self.w.shape)
            except RuntimeError as error:
                return x.sum() * len(str(error))

    model = Model()

    def step(x):
        return model(x)

    return Program(step, inputs(), state=[])


# -- parametrizations and hooks that reparametrize ----------------------------------------------------------------


class Symmetric(nn.Module):
    def forward(self, x):
        return x.triu() + x.triu(1).transpose(-1, -2)

    def right_inverse(self, x):
        return x.triu()


class Doubling(nn.Module):
    n = 0

    def forward(self, x):
        Doubling.n += 1
        return x * 2


@program()
def symmetric_weight():
    model = nn.Linear(4, 4)
    parametrize.register_parametrization(model, "weight", Symmetric())
    return trained(model)


@program()
def weight_norm():
    return trained(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)))


@program()
def weight_norm_by_hooks():
    return trained(quietly(nn.utils.weight_norm, nn.Linear(4, 4)))


@program()
def spectral_norm():
    return trained(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)))


@program()
def spectral_norm_by_hooks():
    return trained(nn.utils.spectral_norm(nn.Linear(4, 4)))


@program()
def orthogonal_weight():
    return trained(nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)))


@program(speculated=0)
def parametrization_registered_in_the_step():
    model = nn.Linear(4, 4)

    def step(x):
        parametrize.register_parametrization(model, "weight", Doubling())
        made = model(x).detach().sum()
        parametrize.remove_parametrizations(model, "weight")
        return made * Doubling.n

    return Program(step, inputs(), state=Doubling, between=lambda _: kinds(model))


@program(speculated=0)
def parametrization_cached():
    model = nn.Linear(4, 4)
    parametrize.register_parametrization(model, "weight", Doubling())

    def step(x):
        with parametrize.cached():
            return (model(x) + model(x)).detach().sum() * Doubling.n

    return Program(step, inputs(), state=Doubling)


# -- graphs as modules ----------------------------------------------------------------------------------------------


@program(speculated=0)
def module_of_fx():
    return trained(torch.fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))))


@program(speculated=0)
def interpreter_of_fx():
    model = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))

    def step(x):
        return torch.fx.Interpreter(model).run(x).detach().sum()

    return Program(step, inputs())


@program(speculated=0)
def exported_module():
    plain = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    return trained(torch.export.export(plain, (torch.ones(4, 4),)).module())


@program(speculated=0)
def exported_batch_norm():
    plain = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    return trained(torch.export.export(plain, (torch.ones(4, 4),)).module())


# -- quantized tensors ----------------------------------------------------------------------------------------------


@program(speculated=0)
def quantized_tensor():
    def step(x):
        made = quietly(torch.quantize_per_tensor, x, 0.1, 0, torch.qint8)
        return made.dequantize().sum(), made.q_scale(), made.int_repr().sum()

    return Program(step, inputs())


@program()
def fake_quantization():
    quantizer = torch.ao.quantization.FakeQuantize.with_args(quant_min=0, quant_max=255)()
    model = nn.Sequential(nn.Linear(4, 4), quantizer)
    return trained(model)


# -- modules that another importer has made -----------------------------------------------------------------------

SOURCE = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.n = torch.nn.Linear(4, 4), 0

    def forward(self, x):
        self.n += 1
        return self.linear(x) * self.n
"""


@program(refused="changes a Net that it is given")
def module_without_source():
    module = types.ModuleType("<torch_package_0>.net")
    exec(compile(SOURCE, "<torch_package_0>.net.py", "exec"), module.__dict__)
    model = module.Net()
    return trained(model, state=vars(model))


# -- tuples with names ----------------------------------------------------------------------------------------------


class Pair(NamedTuple):
    a: torch.Tensor
    n: int = 3

    def total(self):
        return self.a.sum() * self.n


@program()
def named_tuple_with_methods():
    def step(x):
        pair = Pair(x)
        pair = pair._replace(n=pair.n + 1)
        _, n = pair
        return pair.total(), pair, Pair._make([x, n]), pair._asdict()["n"], pair is pair, Pair._fields

    return Program(step, inputs())


@program()
def tuples_of_torch_and_of_python():
    def step(x):
        values, indices = torch.max(x, 1)
        made = torch.sort(x)
        total = made.values.sum() + torch.return_types.max((values, indices)).values.sum()
        named = sys.version_info.major, time.struct_time(range(9)).tm_mon, sys.float_info.dig
        return total, made.indices.sum(), type(made).__name__, made.n_fields, named, made[0].sum(), len(made)

    return Program(step, inputs())


@program()
def copy_of_a_parametrized_module():
    model = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    return trained(copy.deepcopy(model))


@program(speculated=0)
def ensemble_by_vmap():
    """No graph can be made, and torch.func's transforms are left again where the attempt fails."""
    nets = [nn.Linear(4, 2) for _ in range(3)]
    params, _ = torch.func.stack_module_state(nets)

    def loss(one, x):
        return torch.func.functional_call(nets[0], one, (x,)).square().mean()

    def step(x):
        gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(0, None))(params, x)
        with torch.no_grad():
            for name in params:
                params[name].sub_(gradients[name], alpha=0.1)
        return torch.func.vmap(lambda one: torch.func.functional_call(nets[0], one, (x,)))(params)

    def between(_):
        assert torch._C._functorch.peek_interpreter_stack() is None

    return Program(step, inputs(5, 4), state=params, between=between)
