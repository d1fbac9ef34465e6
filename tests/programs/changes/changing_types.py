"""Values that change in more than their value: types, classes, callees, containers of other lengths and keys."""

import collections
import enum
import itertools

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.harness import Program, program

RUN_ONE_IN = 12  # Each takes a second or two, or is much like the others.

MANY = 16


class State:
    def __init__(self, **given):
        self.__dict__.update(given)


def batches(count=MANY):
    return [(torch.randn(4, 5), torch.randint(3, (4,))) for _ in range(count)]


def net():
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))


def trained(model, loss_of, *columns, before=None, state=None):
    """Steps of SGD; each call gets a batch and one element of each column."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x, y, *given):
        loss = loss_of(x, y, *given)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    calls = [(*batch, *given) for batch, given in zip(batches(len(columns[0]) if columns else MANY), zip(*columns))]
    return Program(step, calls if columns else batches(), before or {}, state=(model, state))


# -- types of values ---------------------------------------------------------------------------------------------------


@program(speculated=10)
def int_and_float():
    model = net()

    def loss_of(x, y, scale):
        return F.cross_entropy(model(x) * scale, y)

    return trained(model, loss_of, [1, 2, 3, 4, 0.5, 5, 0.25, 0.75, 6, 7, 0.125, 8, 1.5, 9, 2.5, 3])


@program(speculated=10)
def none_and_tensor():
    model = net()

    def loss_of(x, y, mask):
        out = model(x)
        if mask is not None:
            out = out * mask
        return F.cross_entropy(out, y)

    return trained(model, loss_of, [torch.rand(4, 3) if k in (4, 6, 7, 10, 11, 14) else None for k in range(MANY)])


@program(speculated=9)
def number_and_tensor():
    model = net()

    def loss_of(x, y, weight):
        return F.cross_entropy(model(x), y) * weight

    return trained(
        model, loss_of, [0.5, 0.25, 0.75, 1.0, *(torch.tensor(0.1 * k) if k % 3 else k / 10 for k in range(12))]
    )


@program(speculated=7, compiles=3)
def none_number_and_text():
    model = net()

    def loss_of(x, y, temperature):
        out = model(x)
        if isinstance(temperature, str):
            out = out / float(temperature)
        elif temperature is not None:
            out = out / temperature
        return F.cross_entropy(out, y)

    return trained(
        model, loss_of, [None, None, None, None, 2.0, 3.0, None, 4.0, "2", "2", None, "2", 1.5, "2", 2.5, None]
    )


@program(speculated=9)
def bool_and_int():
    model = net()

    def loss_of(x, y, flag):
        out = model(x)
        return F.cross_entropy(out * 2 if flag else out, y) * (flag + 1)

    return trained(model, loss_of, [True, True, True, True, 1, 2, True, 3, 4, True, 5, 6, True, 7, 8, True])


@program(speculated=11)
def state_that_begins_as_none():
    model, st = net(), State(average=None)

    def loss_of(x, y):
        loss = F.cross_entropy(model(x), y)
        value = loss.item()
        st.average = value if st.average is None else 0.9 * st.average + 0.1 * value
        return loss

    return trained(model, loss_of, state=st)


@program(speculated=11)
def tensor_that_begins_as_none():
    model, st = net(), State(hidden=None)

    def loss_of(x, y):
        out = model(x)
        hidden = out if st.hidden is None else out + 0.5 * st.hidden
        st.hidden = hidden.detach()
        return F.cross_entropy(hidden, y)

    return trained(model, loss_of, state=st)


# -- classes and callees -----------------------------------------------------------------------------------------------


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 3)

    def forward(self, x):
        return self.linear(x).tanh()


@program(speculated=5, compiles=6)
def two_classes_with_the_same_methods():
    models = [net(), Wide()]

    def loss_of(x, y, model):
        return F.cross_entropy(model(x), y)

    chosen = [models[int(k in (4, 5, 7, 10, 11, 14))] for k in range(MANY)]
    return trained(nn.ModuleList(models), loss_of, chosen)


@program(speculated=11)
def object_of_another_class_from_some_call_on():
    class Mean:
        def __call__(self, out, y):
            return F.cross_entropy(out, y)

    class Smooth:
        def __call__(self, out, y):
            return F.cross_entropy(out, y, label_smoothing=0.1)

    model, st = net(), State(criterion=Mean())
    change = {7: lambda: setattr(st, "criterion", Smooth())}
    return trained(model, lambda x, y: st.criterion(model(x), y), before=change, state=st)


@program(speculated=8, compiles=3)
def several_callees_at_one_call_site():
    model = net()

    def loss_of(x, y, activation):
        return F.cross_entropy(activation(model(x)), y)

    callees = itertools.cycle([torch.tanh, F.relu, lambda v: v * 2])
    chosen = [F.relu] * 4 + [next(callees) for _ in range(14)]
    return trained(model, loss_of, chosen)


@program(speculated=9)
def callee_of_a_table_by_name():
    model = net()
    losses = {"hard": F.cross_entropy, "soft": lambda out, y: (out.softmax(1) - F.one_hot(y, 3)).pow(2).sum()}

    def loss_of(x, y, name):
        return losses[name](model(x), y)

    return trained(model, loss_of, ["hard" if k < 4 or k % 2 else "soft" for k in range(MANY)])


@program(speculated=9, compiles=5)
def bound_methods_of_two_objects():
    models = [Wide(), Wide()]

    def loss_of(x, y, forward):
        return F.cross_entropy(forward(x), y)

    chosen = [models[int(k % 5 == 4)].forward for k in range(MANY + 2)]
    return trained(nn.ModuleList(models), loss_of, chosen)


# -- optional arguments ------------------------------------------------------------------------------------------------


@program(speculated=8, compiles=3)
def optional_arguments():
    model = net()

    def step(x, y, mask=None, *, weight=None):
        model.zero_grad()
        out = model(x)
        if mask is not None:
            out = out * mask
        loss = F.cross_entropy(out, y, weight=weight)
        loss.backward()
        return loss.item(), model[0].weight.grad.norm()

    calls = [(*batch, torch.rand(4, 3)) if 4 <= k < 8 or k % 2 else batch for k, batch in enumerate(batches())]
    return Program(step, calls, state=model)


@program(speculated=9)
def optional_output():
    model = net()

    def step(x, y, hidden):
        model.zero_grad()
        first = model[0](x)
        out = model[2](model[1](first))
        loss = F.cross_entropy(out, y)
        loss.backward()
        return (loss.item(), first.detach()) if hidden else loss.item()

    calls = [(*batch, k in (4, 5, 8, 9, 12)) for k, batch in enumerate(batches())]
    return Program(step, calls, state=model)


# -- lists -------------------------------------------------------------------------------------------------------------


@program(speculated=13)
def list_that_grows():
    model, st = net(), State(losses=[], outputs=[])

    def loss_of(x, y):
        out = model(x)
        loss = F.cross_entropy(out, y)
        st.losses.append(loss.item())
        st.outputs.append(out.detach().sum())
        return loss * (1 + 0 * st.losses[-1]) + 0 * st.outputs[-1]

    return trained(model, loss_of, state=st)


@program(speculated=20)
def mean_of_a_list_that_grows():
    model, st = net(), State(losses=[])

    def loss_of(x, y, _):
        loss = F.cross_entropy(model(x), y)
        st.losses.append(loss.item())
        st.mean, st.best, st.worst = sum(st.losses) / len(st.losses), min(st.losses), max(st.losses)
        return loss

    return trained(model, loss_of, range(34), state=st)


@program(speculated=20)
def mean_of_the_last_ones():
    model, st = net(), State(losses=[])

    def loss_of(x, y, _):
        loss = F.cross_entropy(model(x), y)
        st.losses.append(loss.item())
        recent = st.losses[-4:]
        st.mean = sum(recent) / len(recent)
        return loss

    return trained(model, loss_of, range(30), state=st)


@program(speculated=20)
def window_of_the_last_ones():
    model, st = net(), State(window=collections.deque(maxlen=12))

    def loss_of(x, y, _):
        loss = F.cross_entropy(model(x), y)
        st.window.append(loss.item())
        st.mean = sum(st.window) / len(st.window)
        return loss

    return trained(model, loss_of, range(36), state=st)


@program(speculated=20, compiles=3)
def history_whose_type_changes():
    """The sum of ints is an int, that of floats a float, and of both neither row serves."""
    st = State(counts=[1] * 9)

    def step(x, k):
        st.counts.append(k)
        total = sum(st.counts)
        return x * total, total, max(st.counts)

    def floats():
        st.counts[:] = [float(k) for k in st.counts]

    def mixed():
        st.counts[0] = 7

    calls = [(torch.ones(3), k if k < 12 else k * 0.5) for k in range(34)]
    return Program(step, calls, {12: floats, 26: mixed, 27: floats}, state=st)


@program(speculated=8, compiles=3)
def list_of_mixed_elements():
    model = net()

    def loss_of(x, y, parts):
        out = model(x)
        for part in parts:
            if isinstance(part, torch.Tensor):
                out = out + part
            elif part is not None:
                out = out * part
        return F.cross_entropy(out, y)

    def parts(k):
        return [0.5 + k, torch.ones(3), None] if k < 5 or k % 2 else [torch.rand(3), 2.0 * k]

    return trained(model, loss_of, [parts(k) for k in range(MANY)])


@program(speculated=8, compiles=3)
def lists_of_two_lengths():
    model = net()

    def loss_of(x, y, views):
        return sum(F.cross_entropy(model(x * view), y) for view in views) / len(views)

    return trained(model, loss_of, [[1.0 + j + k for j in range(2 + (k > 5 and k % 2))] for k in range(MANY)])


@program(speculated=13)
def element_by_a_counter():
    model, st = net(), State(n=0)
    table = [0.1 * k for k in range(20)]

    def loss_of(x, y):
        scale = table[st.n] + table[-1 - st.n // 2] + table[st.n % 3]
        st.n += 1
        return F.cross_entropy(model(x) * scale, y)

    return trained(model, loss_of, state=(st, table))


@program(speculated=8)
def element_by_a_counter_that_leaves_the_list():
    st, table = State(n=0), [0.5, 1.0, 2.0, 3.0, 4.0, 5.0]

    def step(x):
        try:
            x = x * table[st.n]
        except IndexError:
            x = x - 1
        st.n += 1
        return x

    return Program(step, [(torch.ones(3),)] * 14, state=st)


@program(speculated=3)
def index_that_becomes_a_float():
    st, table = State(n=0), [0.1 * k for k in range(9)]

    def step(x):
        try:
            x = x * table[st.n]
        except TypeError as error:
            st.error = str(error)
        st.n += 1
        return x

    return Program(step, [(torch.ones(3),)] * 10, {6: lambda: setattr(st, "n", 2.5)}, state=st)


@program(speculated=11)
def layer_by_a_counter():
    st = State(n=0)
    layers = nn.ModuleList(nn.Linear(5, 5) for _ in range(3))

    def step(x):
        layer = layers[st.n % 3]
        st.n += 1
        layer.weight.grad = None
        layer(x).pow(2).sum().backward()
        return layer.weight.grad

    return Program(step, [(torch.randn(4, 5),) for _ in range(MANY)], state=(st, layers))


# -- dictionaries ------------------------------------------------------------------------------------------------------


@program(speculated=11)
def keys_that_are_only_written():
    model, log = net(), {}

    def loss_of(x, y, name):
        loss = F.cross_entropy(model(x), y)
        log[name] = loss.item()
        return loss

    return trained(model, loss_of, [f"loss/{k}" for k in range(MANY)], state=log)


@program(speculated=11)
def keys_of_a_counter():
    model, log, st = net(), {}, State(n=0)

    def loss_of(x, y):
        loss = F.cross_entropy(model(x), y)
        log[f"loss/{st.n}"] = log[st.n] = loss.item()
        st.n += 1
        return loss

    return trained(model, loss_of, state=(log, st))


TASKS = ["red", "green", "blue", "grey", "green", "red", "blue", "red", "grey", "green", "red", "blue"]


@program(speculated=12, compiles=3)
def weight_by_a_key():
    model = net()
    weights = {"red": 1.0, "green": 0.5, "blue": 0.25, "grey": 2.0}

    def loss_of(x, y, task):
        return F.cross_entropy(model(x), y) * weights[task] * weights.get(task + "!", 1.0)

    change = {15: lambda: weights.__setitem__("red", 3), 18: lambda: weights.pop("blue") and weights.update(blue=1)}
    return trained(model, loss_of, TASKS * 2, before=change, state=weights)


@program(speculated=12, compiles=3)
def meter_by_a_key():
    class Meter:
        def __init__(self):
            self.total, self.count, self.last = 0.0, 0, None

        def update(self, value):
            self.total += value
            self.count += 1
            self.last = value

    model, meters = net(), {task: Meter() for task in set(TASKS)}

    def loss_of(x, y, task):
        loss = F.cross_entropy(model(x), y)
        meters[task].update(loss.item())
        return loss * meters[task].count

    return trained(model, loss_of, TASKS * 2, state=[meters[task] for task in sorted(meters)])


@program(speculated=6, compiles=5)
def two_meters_that_may_be_one():
    class Meter:
        count = 0

    meters = {task: Meter() for task in set(TASKS)}

    def step(x, first, second):
        meters[first].count += 1
        meters[second].count += 2
        return x * meters[first].count

    calls = list(zip(itertools.repeat(torch.ones(2)), TASKS * 2, TASKS[1:] + TASKS[:1] + TASKS))
    return Program(step, calls, state=[meters[task] for task in sorted(meters)])


@program(speculated=12, compiles=3)
def head_by_a_key():
    heads = nn.ModuleDict({task: nn.Linear(5, 3) for task in sorted(set(TASKS))})

    def step(x, y, task):
        head = heads[task]
        head.zero_grad()
        loss = F.cross_entropy(head(x), y)
        loss.backward()
        with torch.no_grad():
            for p in head.parameters():
                p -= 0.1 * p.grad
        return loss.item()

    return Program(step, [(*b, task) for b, task in zip(batches(24), TASKS * 2)], state=heads)


@program(speculated=12, compiles=3)
def counts_by_a_key():
    counts = {}

    def step(x, task):
        counts[task] = counts.get(task, 0) + 1
        return x * counts[task]

    return Program(step, [(torch.ones(3), task) for task in TASKS * 2], state=counts)


@program(speculated=9, compiles=3)
def batch_of_two_kinds():
    model = net()

    def loss_of(x, y, batch):
        out = model(x)
        if "mask" in batch:
            out = out * batch["mask"]
        for name, weight in batch.items():
            if name != "mask":
                out = out + weight
        return F.cross_entropy(out, y)

    def batch(k):
        return {"a": 0.1 * k} if k < 5 or k % 3 else {"mask": torch.rand(3), "b": 0.2 * k}

    return trained(model, loss_of, [batch(k) for k in range(MANY + 2)])


@program(speculated=9, compiles=3)
def keyword_arguments_of_two_kinds():
    model = net()

    def scores(x, **options):
        out = model(x)
        return out / options["temperature"] if "temperature" in options else out * options.get("scale", 1.0)

    def loss_of(x, y, options):
        return F.cross_entropy(scores(x, **options), y)

    return trained(
        model, loss_of, [{"scale": 1.0 + k} if k < 5 or k % 3 else {"temperature": 2.0 + k} for k in range(18)]
    )


# -- schedules ---------------------------------------------------------------------------------------------------------


class Phase(enum.Enum):
    WARM = 1
    MAIN = 2
    COOL = 3


@program(speculated=9, compiles=3)
def schedule_of_texts():
    model, st = net(), State(phase="warm")

    def loss_of(x, y, phase):
        st.phase = phase
        scale = 0.1 if phase == "warm" else 1.0 if st.phase in ("main", "more") else 0.01
        return F.cross_entropy(model(x), y) * scale

    return trained(model, loss_of, ["warm"] * 5 + ["main"] * 6 + ["cool"] * 6 + ["main", "warm"], state=st)


@program(speculated=9, compiles=3)
def schedule_of_an_enumeration():
    model = net()

    def loss_of(x, y, phase):
        if phase is Phase.WARM:
            scale = 0.1
        elif phase == Phase.MAIN:
            scale = 1.0
        else:
            scale = 0.1 / phase.value
        return F.cross_entropy(model(x), y) * scale

    phases = [Phase.WARM] * 5 + [Phase.MAIN] * 6 + [Phase.COOL] * 6 + [Phase.MAIN, Phase.WARM]
    return trained(model, loss_of, phases)


@program(speculated=13, compiles=5)
def names_that_are_looked_at():
    """Of names that change at each call only what the program asks of them decides its way."""

    def step(x, name):
        if name.startswith("val"):
            return x + len(name)
        return x * 2 if name.endswith("0") else x * 3

    names = [f"{'val' if k % 3 == 2 else 'train'}/{k}" for k in range(36)]
    return Program(step, [(torch.ones(3), name) for name in names])


@program(speculated=20)
def name_that_is_stored_and_printed():
    st = State(name="")

    def step(x, name):
        before, st.name = st.name, name
        print(f"{before} -> {name.upper()}: {x.sum().item():.2f}")
        return {"name": name, "sum": x.sum()}

    return Program(step, [(torch.full((3,), float(k)), f"step {k}") for k in range(26)], state=st)


@program()
def counter_that_wraps_around():
    model, st = net(), State(n=0, k=0)

    def loss_of(x, y):
        st.n += 1
        st.k = st.n % 4
        return F.cross_entropy(model(x), y) * (1 + st.k) / st.n

    return trained(model, loss_of, state=st)
