"""New objects made in the step: what is returned or stored is made again at each call, with real values."""

import collections
import copy
import dataclasses
import enum
import functools
import types
from typing import NamedTuple

import torch
from torch import nn

from tests.programs.harness import CALLS, Program, program


def inputs(count=CALLS, *shape):
    return [(torch.randn(*(shape or (4, 5))),) for _ in range(count)]


class Counted:
    def __init__(self):
        self.n = 0
        self.kept = None


# -- slots ----------------------------------------------------------------------------------------------------------


class Slots:
    __slots__ = ("a", "b", "unset")

    def __init__(self, a, b):
        self.a, self.b = a, b


class MoreSlots(Slots):
    __slots__ = ("__dict__", "c")


@program()
def slots_returned():
    c = Counted()

    def step(x):
        c.n += 1
        return Slots(x * 2, c.n)

    return Program(step, inputs(), state=c)


@program()
def slots_in_a_subclass_with_a_dict():
    def step(x):
        made = MoreSlots(x, x.shape[0])
        made.c = [made]
        made.free = x.sum().item()
        return made

    return Program(step, inputs())


@program()
def slots_stored_and_changed_later():
    c = Counted()

    def step(x):
        if c.kept is None:
            c.kept = Slots(x * 2, 1)
        c.kept.a = c.kept.a + x
        c.kept.b += 1
        return c.kept.b

    return Program(step, inputs(), state=c)


@dataclasses.dataclass(slots=True)
class SlottedData:
    x: torch.Tensor
    n: int = 0
    tags: list = dataclasses.field(default_factory=list)


@program()
def dataclass_with_slots():
    c = Counted()

    def step(x):
        c.n += 1
        made = SlottedData(x + 1, c.n)
        made.tags.append(c.n)
        return made

    return Program(step, inputs(), state=c)


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: torch.Tensor
    n: float = 0.5


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenSlots:
    x: torch.Tensor
    n: float


@program()
def frozen_dataclasses():
    c = Counted()

    def step(x):
        c.n += 1
        made = Frozen(x * c.n, x.sum().item())
        c.kept = dataclasses.replace(made, n=made.n + 1)
        try:
            made.n = 3
        except dataclasses.FrozenInstanceError as error:
            reported = str(error)
        return made, FrozenSlots(x, made.n), reported

    return Program(step, inputs(), state=c)


@dataclasses.dataclass
class Config:
    rate: float = 0.1
    names: list = dataclasses.field(default_factory=lambda: ["a"])
    inner: object = None


@program(compiles=3)
def dataclasses_as_dicts():
    config = Config(inner=Ordered(2.0, "o"))

    def step(x):
        return dataclasses.asdict(config)["rate"] * x, dataclasses.astuple(config)[1], dataclasses.replace(config)

    change = {6: lambda: setattr(config, "rate", 0.7), 9: lambda: config.names.append("b")}
    return Program(step, inputs(18), change, state=config)


@dataclasses.dataclass(order=True)
class Ordered:
    score: float
    name: str = dataclasses.field(compare=False, default="")


@program()
def dataclasses_compared():
    def step(x):
        made = [Ordered(float(i), str(i)) for i in (2, 0, 1)]
        return sorted(made)[0].name, max(made), made[0] == Ordered(2.0), made[1] < made[0], x

    return Program(step, inputs())


# -- classes of all kinds -------------------------------------------------------------------------------------------


class WithNew:
    made = 0

    def __new__(cls, value):
        self = super().__new__(cls)
        self.first = value
        cls.made += 1
        return self

    def __init__(self, value):
        self.second = value


@program()
def new_and_init():
    def step(x):
        one = WithNew(x * 2)
        return one, one.first is one.second, WithNew.made

    return Program(step, inputs(), state=WithNew)


class Mine(list):
    def __init__(self, *args):
        super().__init__(*args)
        self.name = "mine"


class MyDict(dict):
    pass


class MyStr(str):
    pass


class MyFloat(float):
    pass


class MyInt(int):
    pass


class MySet(set):
    pass


class MyTuple(tuple):
    pass


@program()
def subclasses_of_builtin_containers():
    def step(x):
        made = Mine([x, 1])
        made.append(x.sum().item())
        table = MyDict(a=x)
        table["b"] = made
        table.extra = 5
        several = MyTuple((x, made))
        several.tag = "t"
        return made, table, MySet({1, 2}), several

    return Program(step, inputs())


@program(compiles=3)
def subclasses_of_numbers():
    c = Counted()
    c.rate = 2.0

    def step(x):
        made = MyFloat(c.rate)
        made.unit = "m"
        return made, x * float(made), MyInt(x.shape[0])

    return Program(step, inputs(16), {8: lambda: setattr(c, "rate", 3.0)}, state=c)

    return Program(step, inputs())


@program()
def subclasses_of_texts():
    def step(x):
        return MyStr("abc"), x

    return Program(step, inputs())


@program(speculated=6)
def default_dicts_and_counters():
    c = Counted()

    def step(x):
        c.n += 1
        groups = collections.defaultdict(list)
        groups["a"].append(x)
        groups[c.n % 2].append(c.n)
        counts = collections.Counter("abca")
        counts["n"] += c.n
        del groups[c.n % 2]
        return groups, counts, collections.OrderedDict(z=groups, y=1)

    return Program(step, inputs(), state=c)


@program()
def default_dict_used_by_the_caller():
    def step(x):
        groups = collections.defaultdict(list)
        groups["a"].append(x * 2)
        return groups

    return Program(step, inputs(), between=lambda groups: groups["later"].append(1))


@program()
def deques_and_chain_maps():
    def step(x):
        queue = collections.deque([1, 2, 3], maxlen=2)
        queue.append(x)
        return queue, collections.ChainMap({"a": x}, {"b": 1})

    return Program(step, inputs())


@program()
def simple_namespace():
    c = Counted()

    def step(x):
        c.n += 1
        out = types.SimpleNamespace(x=x * 2, n=c.n)
        out.me = out
        out.total = out.n + 1
        c.kept = out
        return out

    return Program(step, inputs(), state=c)


class Trouble(Exception):
    def __init__(self, text, value):
        super().__init__(text)
        self.value = value


@program()
def exceptions_made_and_caught():
    c = Counted()

    def step(x):
        try:
            raise Trouble("no", x.shape[0])
        except Trouble as error:
            c.n += error.value
            return c.n, error.args, str(error), x

    return Program(step, inputs(), state=c)


@program()
def exceptions_returned():
    c = Counted()

    def step(x):
        c.n += 1
        made = Trouble("text", c.n)
        return made, ValueError("a", 3), KeyError("k").args

    return Program(step, inputs(), state=c)


@program(refused="traceback")
def exceptions_that_were_raised_returned():
    def step(x):
        try:
            raise Trouble("no", 1)
        except Trouble as error:
            return error

    return Program(step, inputs(), between=None)


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Bits(enum.IntFlag):
    A = 1
    B = 2


@program(compiles=3)
def enums():
    c = Counted()
    c.color = Color.RED

    def step(x):
        old = c.color
        c.color = Color.BLUE if c.color is Color.RED else Color.RED
        return old, Color["RED"], Color(2).name, c.color.value, c.color == Color.RED, {Color.RED: x}, list(Color)

    return Program(step, inputs(16), state=c)


@program()
def int_flags():
    c = Counted()
    c.flags = Bits.A

    def step(x):
        both = c.flags | Bits.B
        return both, Bits.A in both, x * int(both)

    return Program(step, inputs(), state=c)


class Pair(NamedTuple):
    x: torch.Tensor
    n: int = 3


Other = collections.namedtuple("Other", "p q")


@program()
def named_tuples():
    c = Counted()

    def step(x):
        c.n += 1
        one = Pair(x, c.n)
        two = one._replace(n=one.n + 1)
        three = Other._make([two, 5])
        c.kept = three
        return one, two, three, three._asdict(), Pair(x), one.n < two.n, three.p is two

    return Program(step, inputs(), state=c)


@program()
def named_tuples_of_a_class_made_in_the_call():
    net = nn.ModuleList([nn.Linear(5, 5), nn.Linear(5, 5)])
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def features(x):
        outputs = collections.namedtuple("Outputs", ["first", "second"])
        first = torch.relu(net[0](x))
        return outputs(first, net[1](first))

    def step(x):
        optimizer.zero_grad()
        found = features(x)
        loss = found.second.square().mean() + sum(one.mean() for one in found)
        loss.backward()
        optimizer.step()
        kind = type(found)
        names = kind.__name__, kind._fields, kind.__module__ == __name__, kind.__qualname__, kind is type(features(x))
        spaced = collections.namedtuple("Spaced", "p q")(loss.detach(), 2)
        return loss.detach(), names, spaced.p + spaced.q, spaced[1], len(found)

    return Program(step, inputs(), state=net)


# -- shapes of the heap --------------------------------------------------------------------------------------------


class Node:
    def __init__(self, value, parent=None):
        self.value, self.parent, self.children = value, parent, []
        if parent is not None:
            parent.children.append(self)


@program()
def tree_with_parents():
    c = Counted()

    def step(x):
        c.n += 1
        root = Node(x)
        left, right = Node(c.n, root), Node(x.sum().item(), root)
        left.twin, right.twin = right, left
        return root

    return Program(step, inputs(), state=c)


@program()
def linked_list_on_the_heap():
    c = Counted()

    def step(x):
        c.n += 1
        c.kept = (c.n, x.sum().item(), c.kept if c.n % 3 else None)
        return c.n

    return Program(step, inputs(14), state=c)


@program()
def shared_objects_in_results_and_state():
    c = Counted()

    def step(x):
        inner = {"n": c.n, "x": x}
        c.n += 1
        c.kept = [inner, inner]
        c.again = {"same": c.kept, "inner": inner}
        return inner, c.kept, (inner,)

    return Program(step, inputs(), state=c)


@program()
def containers_from_before_put_into_new_ones():
    c = Counted()
    c.items, c.table = [1, 2], {"a": 1}

    def step(x):
        made, table, queue = [], {}, collections.deque()
        made.append(c.items)
        made.insert(0, c.table)
        table.setdefault("i", c.items)
        table["t"] = c.table
        queue.append(c.items)
        pair = (c.items, c.table)
        default = table.get("none", c.items)
        error = ValueError(c.items)
        out = made[1] is c.items, made[0] is c.table, default is c.items, error.args[0] is c.items, queue[0] is pair[0]
        return out, made, table, queue, pair, table.pop("none", c.table) is c.table, x

    return Program(step, inputs(), state=c)


@program()
def new_objects_changed_after_they_were_stored():
    c = Counted()

    def step(x):
        made = []
        c.kept = made
        made.append(x)
        c.kept.append(x.shape[0])
        made.extend(c.kept[:1])
        c.table = {}
        c.table["late"] = made
        return len(made), c.kept is made

    return Program(step, inputs(), state=c)


@program()
def numbers_left_in_objects_are_plain():
    c = Counted()
    c.rate = 0.5

    def step(x):
        c.rate *= 0.9
        holder = Counted()
        holder.rate = c.rate
        holder.n = {"r": (c.rate, [c.rate])}
        c.kept = holder
        return holder, [type(holder.rate).__name__]

    return Program(step, inputs(), state=c, between=lambda out: copy.deepcopy(out) and None)


# -- functions ------------------------------------------------------------------------------------------------------


@program()
def closure_returned_and_called():
    c = Counted()
    seen = []

    def step(x):
        c.n += 1
        n, scaled = c.n, x * c.n

        def later(y, z=2, *, w=c.n):
            return scaled + y * n * z + w

        return later

    return Program(step, inputs(), state=(c, seen), between=lambda f: seen.append(f(1.0, w=3)))


@program()
def lambda_stored_and_called_by_the_next_call():
    c = Counted()

    def step(x):
        before = c.kept() if c.kept is not None else None
        y = x.sum()
        c.kept = lambda: y * 2
        return before

    return Program(step, inputs(14), state=c)


@program()
def closures_that_share_a_variable():
    c = Counted()

    def make(start):
        count = start

        def up():
            nonlocal count
            count += 1
            return count

        def get():
            return count

        return up, get

    def step(x):
        c.n += 1
        up, get = make(c.n)
        up()
        return up, get, get(), x

    log = []
    return Program(step, inputs(), state=(c, log), between=lambda out: log.append((out[0](), out[1]())))


@program()
def closure_over_a_variable_from_before():
    shared = 0

    def step(x):
        nonlocal shared
        shared += 1

        def later():
            nonlocal shared
            shared += 100
            return shared

        return later, x

    return Program(step, inputs(), between=lambda out: out[0]())


@program()
def recursive_closure():
    def step(x):
        def fact(n):
            return 1 if n == 0 else n * fact(n - 1)

        return fact, fact(3) * x

    return Program(step, inputs(), between=lambda out: out[0](4))


@program()
def function_with_attributes():
    def step(x):
        def later():
            return x

        later.tag = "tag"
        later.calls = [x.shape[0]]
        return later

    return Program(step, inputs(), between=lambda f: f.calls.append(f()))


@program()
def function_code_is_the_users_own():
    found = []

    def step(x):
        def later(y):
            return [y * i for i in range(2)]

        return later

    def look(f):
        found.append((f.__code__.co_names, f.__code__.co_consts[1:], f.__qualname__, f.__module__ == step.__module__))

    return Program(step, inputs(), state=found, between=look)


@program()
def bound_methods_and_partials():
    c = Counted()
    log = []

    class Adder:
        def __init__(self, n):
            self.n = n

        def add(self, y):
            return y + self.n

    def step(x):
        c.n += 1
        adder = Adder(c.n)
        part = functools.partial(adder.add, y=x)
        return adder.add, part, functools.partial(max, c.n), [].append, adder

    return Program(step, inputs(), state=(c, log), between=lambda out: log.append((out[0](1), out[1](), out[2](3))))


@program()
def method_of_an_object_from_before_stored():
    c = Counted()

    class Owner:
        def hello(self):
            return 1

    owner = Owner()

    def step(x):
        c.kept = owner.hello
        c.table = {"m": owner.hello}
        return x + c.kept()

    return Program(step, inputs(), state=(c, owner))


@program(refused="class")
def classes_made_in_the_step():
    def step(x):
        class Local:
            value = 3

        return Local(), x

    return Program(step, inputs())


@program()
def local_class_used_inside_only():
    def step(x):
        class Local:
            def __init__(self, n):
                self.n = n

            def double(self):
                return self.n * 2

        return x * Local(x.shape[0]).double()

    return Program(step, inputs())


# -- nn.Module ------------------------------------------------------------------------------------------------------


@program()
def module_registration_in_the_step():
    net = nn.Linear(5, 3).requires_grad_(False)
    extra = nn.Parameter(torch.ones(3), requires_grad=False)

    def step(x):
        net.register_buffer("seen", x.mean(0))
        net.extra = extra
        out = net(x) * net.extra + net.seen.sum()
        names = [name for name, _ in net.named_parameters()], list(net._buffers)
        del net.extra
        return out, names, hasattr(net, "extra")

    return Program(step, inputs(), state=net)


@program()
def buffer_replaced_and_deleted():
    net = nn.Module()
    net.register_buffer("mean", torch.zeros(5))

    def step(x):
        net.mean = net.mean * 0.5 + x.mean(0)
        net.plain = 3
        out = net.mean.sum().item(), net.plain, "mean" in net._buffers
        del net.plain
        return out

    return Program(step, inputs(), state=net)


@program()
def module_given_a_submodule():
    net = nn.Sequential(nn.Linear(5, 5))
    spare = nn.Tanh()

    def step(x):
        net.add_module("act", spare)
        y = net(x).detach()
        names = [name for name, _ in net.named_children()]
        del net.act
        return y, names, len(net)

    return Program(step, inputs(), state=net)


@program()
def module_made_in_the_step():
    def step(x):
        net = nn.Sequential(nn.Flatten(), nn.ReLU())
        return net(x), len(net)

    return Program(step, inputs())


@program()
def module_with_weights_made_in_the_step():
    def step(x):
        net = nn.Linear(5, 2)
        nn.init.constant_(net.weight, 0.5)
        nn.init.zeros_(net.bias)
        return net(x).detach()

    return Program(step, inputs())


@program(refused="registered by code")
def module_returned():
    def step(x):
        return nn.ReLU(), x

    return Program(step, inputs())


@program()
def deep_copies_of_state():
    c = Counted()
    c.table = {"n": 1, "w": torch.ones(3), "l": [1, 2]}

    def step(x):
        c.table["n"] += 1
        kept = copy.copy(c.table)
        return kept, dict(c.table), list(c.table["l"]), x

    return Program(step, inputs(), state=c)


class Ranked:
    """Ordered by one method only, which Python asks from the other side, too."""

    def __init__(self, value):
        self.value = value

    def __lt__(self, other):
        return self.value < other.value


@program(speculated=8, compiles=3)
def the_largest_by_one_method():
    held = [Ranked(value) for value in (3.0, 1.0, 2.0)]

    def step(x):
        return x * max(held).value, held[0] > held[1], held[0] == held[1], held[2] != held[2]

    return Program(step, [(x,) for x in torch.randn(14, 3)], before={8: lambda: setattr(held[1], "value", 5.0)})


@dataclasses.dataclass
class Progress:
    calls: int = 0
    recent: list = dataclasses.field(default_factory=list)


@program(speculated=8, compiles=1)
def a_dataclass_as_a_dictionary():
    progress = Progress()

    def step(x):
        progress.calls += 1
        progress.recent = [progress.calls, x.sum().item()]
        return dataclasses.asdict(progress), dataclasses.astuple(progress)

    return Program(step, [(x,) for x in torch.randn(12, 3)], state=progress)


class Quantity:
    """Answers where a tensor has no answer."""

    def __init__(self, value):
        self.value, self.asked = value, 0

    def __rmul__(self, other):
        self.asked += 1
        return other * self.value

    def __radd__(self, other):
        return other + self.value

    def __rpow__(self, other):
        return other.abs() ** self.value

    def __rfloordiv__(self, other):
        return other // self.value

    def __gt__(self, other):
        return other < self.value


@program(speculated=8, compiles=3)
def what_tensors_have_no_answer_to():
    quantity = Quantity(2.0)

    def step(x):
        y = x * quantity
        y += quantity
        return y, x**quantity, x // quantity, (x < quantity).sum(), sum([x, quantity, quantity])

    before = {8: lambda: setattr(quantity, "value", 3.0)}
    return Program(step, [(x,) for x in torch.randn(12, 3)], before=before, state=quantity)
