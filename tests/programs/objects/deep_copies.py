"""``copy.deepcopy()`` of tensors and of what holds them."""

import collections
import copy
import dataclasses
import pickle
import threading
import types

import torch
from torch import nn

from tests.programs.harness import CALLS, Program, program

RUN_ONE_IN = 12  # Each takes a second or two, or is much like the others.


def inputs(count=CALLS):
    return [(torch.randn(4, 5),) for _ in range(count)]


def net():
    return nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 1))


@program(speculated=14, compiles=2)
def the_best_weights_so_far():
    model = net()
    opt = torch.optim.SGD(model.parameters(), 0.05)
    best = {"loss": float("inf"), "weights": None, "calls": 0}

    def step(x):
        loss = model(x).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if loss.item() < best["loss"]:
            best["loss"] = loss.item()
            best["weights"] = copy.deepcopy(model.state_dict())
            best["calls"] += 1
        return loss.item()

    return Program(step, inputs(18), state=(model, opt, best))


@program()
def weights_and_optimizer_that_are_put_back():
    model = net()
    opt = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    for p in model.parameters():
        opt.state[p]["momentum_buffer"] = torch.zeros_like(p)
    kept = {}

    def step(x):
        kept["model"] = copy.deepcopy(model.state_dict())
        for _ in range(2):
            loss = model(x).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        with torch.no_grad():
            for name, value in model.state_dict().items():
                value.copy_(kept["model"][name] + 0.1 * (value - kept["model"][name]))
        return loss.item()

    return Program(step, inputs(), state=(model, opt, kept))


@program()
def the_state_of_an_optimizer():
    model = nn.Linear(5, 2)
    opt = torch.optim.Adam(model.parameters(), 0.05)
    kept = {}

    def step(x):
        loss = model(x).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        kept["state"] = copy.deepcopy(opt.state_dict())

    return Program(step, inputs(), state=(model, opt, kept))


@program()
def one_tensor_in_several_places():
    kept = []

    def step(x):
        h = x.cos()
        made = copy.deepcopy({"one": h, "both": [h, (h, [x, 1.5, None])], "same": x})
        kept[:] = [made]
        return made["one"] is made["both"][0], made["one"] is h, made["same"] is made["both"][1][1][0]

    return Program(step, inputs(), state=kept)


@program()
def a_copy_that_is_changed():
    model = nn.Linear(5, 2)

    def step(x):
        mine = copy.deepcopy(x)
        mine.add_(1.0)
        weight = copy.deepcopy(model.weight.data)
        weight.mul_(0.5)
        return mine, x, weight, mine @ weight.T

    return Program(step, inputs(), state=model)


@program()
def a_leaf_that_takes_gradients():
    def step(x):
        w = torch.full((5,), 0.5, requires_grad=True)
        other = copy.deepcopy(w)
        (x @ w + x @ (2 * other)).sum().backward()
        return w.grad, other.grad, other.requires_grad, other.is_leaf

    return Program(step, inputs())


@program(refused="copy.deepcopy() of a tensor that shares its memory with another one that was copied")
def tensors_that_share_their_memory():
    model = nn.Linear(5, 5)

    def step(x):
        made = copy.deepcopy([model.weight.detach(), model.weight.detach()])
        made[0].add_(x.mean())
        return made

    return Program(step, inputs(), state=model)


@program()
def tensors_that_share_their_memory_one_by_one():
    model = nn.Linear(5, 5)

    def step(x):
        made = [copy.deepcopy(model.weight.detach()) for _ in range(2)]
        made[0].add_(x.mean())
        return made

    return Program(step, inputs(), state=model)


@program(refused="copy.deepcopy() of a tensor that is a part of another")
def a_part_of_a_tensor():
    def step(x):
        return copy.deepcopy(x[1:])

    return Program(step, inputs())


@program(refused="copy.deepcopy() of a tensor that has gaps")
def an_expanded_tensor():
    def step(x):
        return copy.deepcopy(torch.ones(4, 4)[:, :1].expand(4, 4).t()[:4]), x

    return Program(step, [(torch.randn(1),) for _ in range(CALLS)])


@program()
def a_transposed_tensor():
    def step(x):
        made = copy.deepcopy(x.t())
        return made.stride(), made

    return Program(step, inputs())


@program(speculated=0)
def a_tensor_with_a_backward_graph():
    w = torch.ones(5, requires_grad=True)

    def step(x):
        try:
            return copy.deepcopy(x * w)
        except RuntimeError as error:
            return str(error)[:20]

    return Program(step, inputs(), state=w)


@program(speculated=0)
def a_leaf_with_a_gradient():
    w = torch.ones(5, requires_grad=True)

    def step(x):
        (x @ w).sum().backward()
        made = copy.deepcopy(w)
        return made, made.grad

    return Program(step, inputs(), state=w)


@program(speculated=0)
def a_tensor_with_an_attribute():
    w = torch.ones(5)
    w.label = "w"

    def step(x):
        return copy.deepcopy(w).label, x + 1

    return Program(step, inputs(), state=w)


class Settings:
    """As configurations of libraries are: some names stand for others."""

    names = {"width": "hidden"}

    def __init__(self):
        self.hidden, self.layers, self.rates, self.parent = 3, 2, [0.5, 2.0], self

    def __setattr__(self, name, value):
        super().__setattr__(type(self).names.get(name, name), value)

    def __getattribute__(self, name):
        names = super().__getattribute__("names")
        return super().__getattribute__(names.get(name, name))


@program()
def settings_with_other_names():
    settings = Settings()

    def step(x):
        mine = copy.deepcopy(settings)
        mine.width += 1
        rates = mine.rates
        del mine.rates
        mine.layers = len(rates) + mine.width
        mine.parent.rates = [*rates, 1.0]
        return x * mine.layers, mine.parent is mine, mine.rates, mine

    def other():
        settings.width = 7

    return Program(step, inputs(), {6: other}, settings)


@dataclasses.dataclass(slots=True)
class Slots:
    scale: float
    parts: list
    unset: int = dataclasses.field(init=False)


@dataclasses.dataclass(frozen=True)
class Frozen:
    scale: float
    parts: tuple


class Named(list):
    def __init__(self, parts, name):
        super().__init__(parts)
        self.name = name


class Guarded:
    """Says itself what is to be copied."""

    def __init__(self):
        self.parts, self.lock = [1, 2], threading.Lock()

    def __getstate__(self):
        return {"parts": self.parts}

    def __setstate__(self, state):
        self.__dict__.update(state, lock=None)


@program()
def copies_of_objects_of_all_kinds():
    shared = [1.0]
    kinds = [Slots(2.0, [shared, 3]), Frozen(3.0, (shared, [4])), Named([1, [2]], shared), Guarded()]
    kinds += [collections.deque([shared, 2], maxlen=3), collections.defaultdict(list, a=shared)]
    kinds += [collections.Counter("abca"), types.SimpleNamespace(a=shared, b=2)]

    def step(x):
        flat = [copy.copy(kind) for kind in kinds]
        deep = copy.deepcopy(kinds)
        deep[0].parts[0].append(2.0)
        flat[4].append(len(flat[4]))
        flat[5]["b"].append(1)
        return x * deep[0].scale, flat, deep, flat[0].parts is kinds[0].parts, deep[2].name is deep[0].parts[0]

    def other():
        kinds[0].scale = 5.0

    return Program(step, inputs(), {6: other}, kinds)


@program(refused="raised TypeError")
def a_lock_cannot_be_copied():
    lock = threading.Lock()

    def step(x):
        try:
            copy.deepcopy([lock])
        except TypeError as error:
            return x + 1, str(error)
        return x

    return Program(step, inputs())


@program(speculated=0)
def ordered_dictionary_that_holds_itself_pickled():
    def step(x):
        held = collections.OrderedDict()
        held[1] = held
        made = pickle.loads(pickle.dumps(held))
        return x * (made[1] is made)

    return Program(step, [(torch.ones(2),)] * 6)
