"""Rare kinds of lookup: metaclasses, ``super()``, enumerations, views of dictionaries."""

import collections
import contextvars
import enum
import functools
import inspect
import random
import types

import torch
from torch import nn

from tests.programs.harness import Program, program


def inputs(count=12):
    return [(torch.randn(4, 3),) for _ in range(count)]


class Singleton(type):
    """Makes one instance of each class."""

    made = {}
    asked = 0
    scale = 2.0

    def __call__(cls, *args, **kwargs):
        Singleton.asked += 1
        if cls not in cls.made:
            cls.made[cls] = super().__call__(*args, **kwargs)
        return cls.made[cls]


class Tracker(metaclass=Singleton):
    total = 0

    def __init__(self, name="t"):
        self.name, self.values = name, []

    @classmethod
    def count(cls):
        cls.total += 1

    def log(self, value):
        self.values.append(value)
        self.count()


@program(speculated=9, compiles=1)
def the_one_instance_of_a_class():
    def step(x):
        Tracker().log(x.sum().item())
        return x * 2, Tracker.total, Tracker() is Tracker(), len(Tracker().values)

    return Program(step, inputs(), state=(Tracker, Singleton))


@program(speculated=9, compiles=2)
def a_table_of_a_metaclass():
    def step(x):
        Tracker.made.setdefault("log", []).append(x.sum().item())
        return x * Tracker.scale

    return Program(step, inputs(), before={6: lambda: setattr(Singleton, "scale", 3.0)}, state=Singleton)


class Kinds(type):
    """Keeps the classes by their names."""

    by_name = {}

    def __new__(meta, name, bases, namespace, **options):
        cls = super().__new__(meta, name, bases, namespace)
        Kinds.by_name[options.get("kind", name)] = cls
        return cls

    def __init__(cls, name, bases, namespace, **options):
        super().__init__(name, bases, namespace)

    def __call__(cls, *args):
        made = type.__call__(cls, *args)
        made.kind = cls.__name__
        return made


class Square(metaclass=Kinds, kind="square"):
    def __init__(self, weight):
        self.weight = weight

    def __call__(self, x):
        return x.square().mean() * self.weight


class Absolute(Square, kind="abs"):
    def __call__(self, x):
        return super().__call__(x) + x.abs().mean() * self.weight


@program(speculated=8, compiles=2)
def losses_of_a_registry():
    weight = nn.Parameter(torch.ones(3))

    def step(x, kind):
        loss = Kinds.by_name[kind](0.5)
        weight.grad = None
        loss(x * weight).backward()
        with torch.no_grad():
            weight.sub_(weight.grad, alpha=0.1)
        return loss.kind, weight.grad.sum()

    calls = [(x, ("square", "abs")[i % 2]) for i, (x,) in enumerate(inputs(14))]
    return Program(step, calls, state=weight)


class Base:
    log, scale = [], 2.0
    table = {"sums": []}


class Middle(Base):
    pass


class Derived(Middle):
    log = None

    def run(self, x):
        super().log.append(x.sum().item())
        super().table["sums"].append(len(super().log))
        return x * super().scale


@program(speculated=12, compiles=3)
def what_super_gives():
    made = Derived()

    def changed():
        Base.scale = 3.0

    def put_before():
        Middle.scale = 5.0

    return Program(lambda x: made.run(x), inputs(24), before={8: changed, 14: put_before}, state=(Base, made))


class Mode(enum.Enum):
    TRAIN = "train"
    EVAL = "eval"

    def __init__(self, text):
        self.history, self.count = [], 0


@program(speculated=9, compiles=1)
def members_that_keep_something():
    def step(x):
        Mode.TRAIN.history.append(x.sum().item())
        Mode("eval").count += 1
        Mode["EVAL"].history.append(Mode.EVAL.count)
        return x * Mode.EVAL.count, [mode.value for mode in Mode]

    return Program(step, inputs(), state=(Mode.TRAIN.__dict__, Mode.EVAL.__dict__))


class Lazy:
    def __init__(self):
        self.made, self.log = 0, []

    @functools.cached_property
    def basis(self):
        self.made += 1
        return torch.arange(3.0) + self.made

    @functools.cached_property
    def history(self):
        return self.log


@program(speculated=9, compiles=3)
def properties_that_are_computed_once():
    kept = {}

    def step(x, name):
        lazy = kept.get(name)
        if lazy is None:
            lazy = kept[name] = Lazy()
        lazy.history.append(x.sum().item())
        return x * lazy.basis + Lazy().basis, lazy.made

    return Program(step, [(x, "ab"[i > 7]) for i, (x,) in enumerate(inputs(16))], state=kept)


@program(speculated=9, compiles=1)
def the_default_of_a_context_variable():
    history = []
    variable = contextvars.ContextVar("variable", default=history)

    def step(x):
        variable.get().append(x.sum().item())
        return x * 2

    return Program(step, inputs(), state=history)


@program(speculated=9, compiles=1)
def an_attribute_that_a_module_makes_up():
    module, held = types.ModuleType("made_up"), {"log": []}
    module.__getattr__ = lambda name: held[name]

    def step(x):
        module.log.append(x.sum().item())
        return x * 2

    return Program(step, inputs(), state=held)


@program(speculated=7)
def a_list_seen_by_the_view_of_a_class():
    def step(x):
        vars(Base)["table"]["sums"].append(x.sum().item())
        Base.__dict__["log"].append(1)
        return x * 2

    return Program(step, inputs(), state=Base)


@program()
def a_list_seen_by_a_view():
    held = {"log": [], "more": collections.deque()}
    view = types.MappingProxyType(held)

    def step(x):
        view.get("log").append(x.sum().item())
        for part in view.values():
            part.append(x.mean().item())
        return x * 2

    return Program(step, inputs(), state=held)


@program(speculated=9, compiles=2)
def functions_by_the_class_of_an_argument():
    weight = nn.Parameter(torch.ones(3))

    @functools.singledispatch
    def total(value, scale=1):
        raise TypeError(type(value).__name__)

    @total.register
    def _(value: torch.Tensor, scale=1):
        return (value * weight).mean() * scale

    @total.register(list)
    @total.register(tuple)
    def _(value, scale=1):
        return sum(total(part, scale=scale) for part in value)

    @total.register
    def _(value: float, scale=1):
        return weight[0] * value

    def step(x, number):
        weight.grad = None
        total([x, (x, number)], scale=2).backward()
        with torch.no_grad():
            weight.sub_(weight.grad, alpha=0.1)
        try:
            total("text")
        except TypeError as error:
            return str(error)

    calls = [(x, 0.5 * i) for i, (x,) in enumerate(inputs(16))]

    def another():
        total.register(float)(lambda value, scale=1: weight[1] * value * scale)

    return Program(step, calls, before={8: another}, state=weight)


class Recorder:
    def __init__(self):
        self.lines, self.sums = [], collections.Counter()

    @functools.singledispatchmethod
    def log(self, value, name):
        raise NotImplementedError

    @log.register
    def _(self, value: torch.Tensor, name):
        self.lines.append((name, value.item()))

    @log.register
    def _(self, value: int, name):
        self.sums[name] += value


@program(speculated=9, compiles=1)
def methods_by_the_class_of_an_argument():
    recorder = Recorder()

    def step(x):
        recorder.log(x.sum(), "sum")
        recorder.log(len(x), "rows")
        return x * 2

    return Program(step, inputs(), state=recorder)


@program(speculated=8, compiles=2)
def an_implementation_is_registered_later():
    @functools.singledispatch
    def double(value):
        return value * 2

    def register():
        double.register(torch.Tensor)(lambda value: value * 3)

    return Program(lambda x: double(x) + 1, inputs(14), before={6: register})


class Terms:
    shared = []

    def __init__(self):
        self.log, self.loss_a, self.loss_b = [], 1.0, 2.0

    @property
    def history(self):
        return self.log

    def term_mean(self, x):
        return x.mean() * self.loss_a

    def term_square(self, x):
        return x.square().mean() * self.loss_b


@program(speculated=9, compiles=3)
def members_that_inspect_finds():
    terms = Terms()

    def step(x):
        total = len(inspect.getmembers(terms, inspect.ismethod))
        for name, member in inspect.getmembers(terms):
            if name.startswith("term_"):
                total = total + member(x)
            elif isinstance(member, list):
                member.append(x.sum().item())
        return total

    before = {6: lambda: setattr(terms, "loss_a", 3.0), 11: lambda: setattr(Terms, "term_sum", lambda self, x: x.sum())}
    return Program(step, inputs(16), before=before, state=(terms, Terms))


@program(speculated=9, compiles=1)
def attributes_that_inspect_finds():
    terms = Terms()

    def step(x):
        inspect.getattr_static(terms, "log").append(x.sum().item())
        inspect.getattr_static(terms, "shared").append(len(terms.log))
        for found in (inspect.getattr_static(terms, "history"), inspect.getattr_static(Terms, "term_mean")):
            Terms.shared.append(type(found).__name__)
        return x * len(terms.history), inspect.getattr_static(terms, "none", 3)

    return Program(step, inputs(), state=(terms, Terms))


@program(speculated=8, compiles=2)
def defaults_that_inspect_tells():
    terms = Terms()

    def scaled(x, terms=terms, factor=2.0):
        return x * terms.loss_a * factor

    def step(x):
        reported = inspect.signature(scaled).parameters
        reported["terms"].default.log.append(x.sum().item())
        inspect.getfullargspec(scaled).defaults[0].log.append(reported["factor"].default)
        return scaled(x, factor=inspect.getcallargs(scaled, x)["factor"]) * reported["terms"].default.loss_a

    def other_defaults():
        scaled.__defaults__ = (terms, 3.0)

    return Program(step, inputs(16), before={6: other_defaults}, state=terms)


@program(refused="calls getclosurevars(): it looks at variables behind the back of the watch")
def variables_that_inspect_tells():
    log = []

    def step(x):
        inspect.getclosurevars(step).nonlocals["log"].append(x.sum().item())
        return x * len(log)

    return Program(step, inputs())


class Settings:
    def __init__(self):
        self.held = {"near": 1.0, "far": 2.0}

    @property
    def near(self):
        return self.held["near"]

    @near.setter
    def near(self, value):
        self.held["near"] = value

    @property
    def far(self):
        return self.held["far"]


@program(speculated=15, compiles=4)
def properties_by_names_that_change():
    settings = Settings()

    def step(x, name):
        setattr(settings, random.choice(["near", "other"]), x.sum().item())
        return x * getattr(settings, name), hasattr(settings, name + "est")

    calls = [(x, ("near", "far")[i * i % 7 < 3]) for i, (x,) in enumerate(inputs(32))]
    return Program(step, calls, state=settings)
