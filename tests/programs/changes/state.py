"""State on Python objects: counters, averages, containers, closures, globals."""

import collections
import dataclasses
from typing import NamedTuple

import torch
from torch import nn

from tests.programs.harness import CALLS, Program, program

steps_done = 0
losses_seen: list = []
config = {"scale": 2.0}


def inputs(count=CALLS, *shape):
    return [(torch.randn(*(shape or (4, 5))),) for _ in range(count)]


class Trainer:
    def __init__(self, width=3):
        self.model = nn.Linear(5, width)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.total = 0.0
        self.count = 0
        self.losses = []
        self.best = float("inf")
        self.last = None

    def loss(self, x):
        return self.model(x).pow(2).mean()

    def train(self, x):
        self.opt.zero_grad()
        loss = self.loss(x)
        loss.backward()
        self.opt.step()
        return loss


@program()
def running_average():
    t = Trainer()

    def step(x):
        t.total += t.train(x).item()
        t.count += 1
        return t.total / t.count

    return Program(step, inputs())


@program()
def list_of_numbers():
    t = Trainer()

    def step(x):
        t.losses.append(t.train(x).item())
        return len(t.losses)

    return Program(step, inputs())


@program()
def list_of_numbers_without_length():
    t = Trainer()

    def step(x):
        t.losses.append(t.train(x).item())

    return Program(step, inputs())


@program()
def list_of_tensors():
    t = Trainer()

    def step(x):
        t.losses.append(t.train(x).detach())

    return Program(step, inputs())


@program()
def list_of_parameters_copies():
    t = Trainer()

    def step(x):
        t.train(x)
        t.losses.append(t.model.weight.detach().clone())
        t.last = t.model.weight.detach()

    return Program(step, inputs())


@program()
def deque_with_maxlen():
    t = Trainer()
    window = collections.deque(maxlen=4)

    def step(x):
        window.append(t.train(x).item())

    return Program(step, inputs())


@program(speculated=0, compiles=5)
def deque_mean():
    t = Trainer()
    window = collections.deque(maxlen=4)

    def step(x):
        window.append(t.train(x).item())
        return sum(window) / len(window)

    return Program(step, inputs())


@program()
def dict_counters():
    t = Trainer()
    counts = {"calls": 0, "rows": 0}

    def step(x):
        t.train(x)
        counts["calls"] += 1
        counts["rows"] += x.shape[0]
        counts["last"] = counts["calls"] - 1

    return Program(step, inputs())


@program()
def counter_and_defaultdict():
    seen = collections.Counter()
    sums = collections.defaultdict(float)

    def step(x):
        value = x.sum()
        seen["calls"] += 1
        sums["x"] += value.item()
        return value * 2

    return Program(step, inputs())


@dataclasses.dataclass
class Progress:
    epoch: int = 0
    loss: float = 0.0
    history: list = dataclasses.field(default_factory=list)


@program()
def dataclass_state():
    t, progress = Trainer(), Progress()

    def step(x):
        progress.epoch += 1
        progress.loss = 0.9 * progress.loss + 0.1 * t.train(x).item()
        progress.history.append((progress.epoch, progress.loss))
        return progress

    return Program(step, inputs())


@program()
def nested_objects():
    t = Trainer()
    t.stats = Progress()
    t.stats.inner = Progress()

    def step(x):
        t.stats.inner.epoch += 2
        t.stats.inner.last = x
        t.stats.epoch = t.stats.inner.epoch + 1
        return x * t.stats.epoch

    return Program(step, inputs())


class Metered:
    scale = 1.5

    def __init__(self):
        self._value = 0.0
        self.reads = 0

    @property
    def value(self):
        self.reads += 1
        return self._value * self.scale

    @value.setter
    def value(self, new):
        self._value = float(new)


@program()
def properties():
    m = Metered()

    def step(x):
        m.value = m.value + 1
        return x * m.value

    return Program(step, inputs())


class Lazy:
    def __init__(self):
        object.__setattr__(self, "data", {"n": 1, "w": torch.ones(5)})

    def __getattr__(self, name):
        try:
            return self.data[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name, value):
        self.data[name] = value


@program()
def getattr_setattr():
    lazy = Lazy()

    def step(x):
        lazy.n = lazy.n + 1
        lazy.w = lazy.w * 0.5
        return (x * lazy.w * lazy.n, hasattr(lazy, "nothing"), getattr(lazy, "other", 3))

    return Program(step, inputs())


class Slotted:
    __slots__ = ("n", "t")

    def __init__(self):
        self.n = 0
        self.t = torch.zeros(5)


@program()
def slots():
    s = Slotted()

    def step(x):
        s.n += 1
        s.t = s.t + x.sum(0)
        return s.t / s.n

    return Program(step, inputs())


class Shared:
    count = 0
    table: dict = {}


@program()
def class_attributes_written():
    def step(x):
        Shared.count += 1
        Shared.table["last"] = x.mean().item()
        return x * Shared.count

    return Program(step, inputs(), state=Shared)


@program()
def globals_written():
    def step(x):
        global steps_done
        steps_done += 1
        losses_seen.append(x.sum().item())
        return x * steps_done * config["scale"]

    return Program(step, inputs(16), {6: lambda: config.update(scale=3.0), 10: lambda: config.update(scale=4.0)})


@program()
def nonlocal_counter():
    n = 0
    total = torch.zeros(5)

    def step(x):
        nonlocal n, total
        n += 1
        total = total + x.sum(0)
        return total / n

    return Program(step, inputs())


@program()
def closure_made_by_a_function():
    def make(scale):
        count = [0]

        def inner(x):
            count[0] += 1
            return x * scale * count[0]

        return inner

    one, two = make(2), make(3.0)

    def step(x):
        return one(x) + two(x)

    return Program(step, inputs())


@program()
def swap_of_buffers():
    class Pair:
        pass

    p = Pair()
    p.a, p.b = torch.zeros(3), torch.ones(3)

    def step(x):
        p.a, p.b = p.b, p.a
        p.a += x
        return p.a - p.b

    return Program(step, inputs(CALLS, 3))


@program(speculated=4)
def double_buffer_in_a_list():
    buffers = [torch.zeros(3), torch.ones(3)]
    state = {"which": 0}

    def step(x):
        current = buffers[state["which"]]
        current.add_(x)
        state["which"] = 1 - state["which"]
        return current.sum().item()

    return Program(step, inputs(16, 3))


@program()
def hidden_state_carried():
    cell = nn.GRUCell(5, 6)
    opt = torch.optim.SGD(cell.parameters(), lr=0.1)
    t = Trainer()
    t.hidden = torch.zeros(4, 6)

    def step(x):
        t.hidden = t.hidden.detach()
        t.hidden = cell(x, t.hidden)
        loss = t.hidden.pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.item()

    return Program(step, inputs())


@program()
def hidden_state_detached_at_the_end():
    cell = nn.LSTMCell(5, 6)
    opt = torch.optim.SGD(cell.parameters(), lr=0.1)
    state = {"h": (torch.zeros(4, 6), torch.zeros(4, 6))}

    def step(x):
        h, c = cell(x, state["h"])
        loss = h.pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        state["h"] = (h.detach(), c.detach())
        return loss.item()

    return Program(step, inputs())


@program()
def best_so_far():
    t = Trainer()

    def step(x):
        loss = t.train(x).item()
        t.best = min(t.best, loss)
        return t.best

    return Program(step, inputs(16))


@program(speculated=0, compiles=4)
def best_so_far_by_branch():
    t = Trainer()

    def step(x):
        loss = t.train(x).item()
        if loss < t.best:
            t.best = loss
            t.last = t.model.weight.detach().clone()
        return t.best

    return Program(step, inputs(16))


@program()
def attribute_deleted_and_made():
    t = Trainer()
    t.cache = torch.ones(5)

    def step(x):
        old = t.cache
        del t.cache
        t.cache = old + x.mean(0)
        return t.cache

    return Program(step, inputs())


@program()
def cache_filled_on_first_call():
    t = Trainer()
    t.mask = None

    def step(x):
        if t.mask is None:
            t.mask = torch.tril(torch.ones(4, 4))
        return t.mask @ x

    return Program(step, inputs())


@program()
def memo_dict():
    memo = {}

    def mask(n):
        if n not in memo:
            memo[n] = torch.tril(torch.ones(n, n))
        return memo[n]

    def step(x):
        return mask(x.shape[0]) @ x

    return Program(step, inputs())


class Point(NamedTuple):
    x: torch.Tensor
    n: int


@program()
def namedtuple_state():
    t = Trainer()
    t.point = Point(torch.zeros(5), 0)

    def step(x):
        t.point = Point(t.point.x + x.mean(0), t.point.n + 1)
        t.point = t.point._replace(n=t.point.n + 1)
        return t.point

    return Program(step, inputs())


@program()
def same_tensor_stored_twice():
    t = Trainer()

    def step(x):
        y = x * 2
        t.one = y
        t.two = y
        t.three = [y, x]
        return y

    return Program(step, inputs())


@program()
def queue_of_tensors_fifo():
    queue = [torch.zeros(5) for _ in range(3)]

    def step(x):
        queue.append(x.mean(0))
        old = queue.pop(0)
        return old

    return Program(step, inputs())


@program()
def moco_like_queue():
    queue = torch.zeros(8, 5)
    state = {"ptr": 0}

    def step(x):
        ptr = state["ptr"]
        queue[ptr : ptr + 4] = x
        state["ptr"] = (ptr + 4) % 8
        return queue.sum().item()

    return Program(step, inputs(14))


@program()
def list_extended_and_insert():
    log = []

    def step(x):
        log.extend([x.sum().item(), x.mean().item()])
        log.insert(0, 1)
        both = log
        both += [2]

    return Program(step, inputs())


@program()
def set_and_dict_methods():
    seen = set()
    table = {"a": 1}

    def step(x):
        seen.add("k")
        table.update(a=table.get("a", 0) + 1, b=x)
        table.setdefault("c", 5)
        return table["a"] + table.get("zz", 1)

    return Program(step, inputs())


@program()
def meter_class():
    class AverageMeter:
        def __init__(self):
            self.reset()

        def reset(self):
            self.val = self.avg = self.sum = self.count = 0

        def update(self, val, n=1):
            self.val = val
            self.sum += val * n
            self.count += n
            self.avg = self.sum / self.count

    t, meter = Trainer(), AverageMeter()

    def step(x):
        loss = t.train(x)
        meter.update(loss.item(), x.size(0))
        return meter.avg

    return Program(step, inputs(12), {8: meter.reset})


@program()
def module_buffer_assigned():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(5))
            self.register_buffer("n", torch.tensor(0))
            self.steps = 0

        def forward(self, x):
            self.n += 1
            self.steps += 1
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
            return x - self.mean / self.n

    model = Net()
    return Program(model, inputs(), state=model)
