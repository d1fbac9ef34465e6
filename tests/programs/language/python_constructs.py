"""Python's own constructs in and around a step: loops, calls, classes, exceptions, printing, logging."""

import collections
import contextlib
import functools
import itertools
import logging
import math

import torch
from torch import nn

from tests.programs.harness import CALLS, Call, Program, program

log = logging.getLogger("program")


def inputs(count=CALLS, *shape):
    return [(torch.randn(*(shape or (4, 5))),) for _ in range(count)]


@program()
def loops_of_all_kinds():
    names = {"a": 1.0, "b": 2.0}
    pairs = [(1, 2), (3, 4)]

    def step(x):
        for (a, b), row in zip(pairs, x):
            x = x + a * row * b
        for i, row in enumerate(x, 1):
            x = x + i * row.mean()
        for name, value in names.items():
            x = x * value
        for i in reversed(range(3)):
            x = x - i
        for i in range(len(pairs)):
            x = x + pairs[i][0]
        for key in sorted(names):
            x = x + len(key)
        for k in names:
            x = x + names[k]
        n = 0
        while n < 3:
            n += 1
            if n == 2:
                continue
            x = x * n
        else:
            x = x + 1
        for i in itertools.count():
            if i > 2:
                break
            x = x + i
        return x

    return Program(step, inputs())


@program()
def functions_of_all_kinds():
    def keywords(a, /, b=2, *rest, c, d=4, **extra):
        return a * b + sum(rest) + c * d + sum(extra.values())

    def decorated(fn):
        @functools.wraps(fn)
        def inner(*args, **kwargs):
            return fn(*args, **kwargs) + 1

        return inner

    @decorated
    def plus(x):
        return x

    scaled = functools.partial(lambda k, x: x * k, 3)

    def fib(n):
        return n if n < 2 else fib(n - 1) + fib(n - 2)

    def rows(x):
        for row in x:
            yield row * 2

    def step(x):
        out = keywords(x, 3, 1, 2, c=5, e=6)
        out = plus(out) + scaled(out) + (lambda v: v - 1)(out)
        out = out * fib(6)
        return out, list(rows(x)), functools.reduce(lambda a, b: a + b, x), [*map(torch.sum, x)]

    return Program(step, inputs())


@program()
def context_managers_and_finally():
    class Counting:
        entered = left = 0

        def __enter__(self):
            self.entered += 1
            return self

        def __exit__(self, *args):
            self.left += 1
            return False

    counting = Counting()
    trail = []

    @contextlib.contextmanager
    def scaled(k):
        trail.append("in")
        try:
            yield k
        finally:
            trail.append("out")

    def step(x):
        with counting as c, scaled(3) as k:
            x = x * k * c.entered
        try:
            with torch.no_grad(), torch.enable_grad():
                return x
        finally:
            counting.left += 10

    return Program(step, inputs(), state=(counting, trail))


@program()
def exceptions_inside():
    table = {"a": 2.0}

    def step(x):
        try:
            k = table["missing"]
        except KeyError as error:
            k = len(error.args)
        try:
            if x.shape[0] == 4:
                raise ValueError("four")
        except (TypeError, ValueError) as error:
            k += len(str(error))
        else:
            k = 0
        finally:
            k *= 2
        return x * k

    return Program(step, inputs())


@program(speculated=5)
def raises_on_some_calls():
    state = {"n": 0, "log": []}
    model = nn.Linear(5, 3)

    def step(x, key):
        state["n"] += 1
        model.zero_grad()
        loss = model(x).sum()
        loss.backward()
        k = {"a": 1, "b": 2}[key]
        state["log"].append(loss.item())
        assert x.shape[0] == 4, "four rows"
        return loss.item() * k

    keys = ["a"] * 6 + ["zzz"] + ["a"] * 3 + ["b"] * 3 + ["a", "zzz", "a"]
    calls = [(x, k) for (x,), k in zip(inputs(len(keys)), keys)]
    calls[8] = (torch.randn(3, 5), "a")
    return Program(step, calls)


@program(speculated=5)
def torch_raises_on_some_calls():
    seen = []

    def step(x):
        seen.append(x.shape[1])
        return x @ torch.ones(5, 2)

    calls = inputs(14)
    calls[7] = calls[11] = (torch.randn(4, 6),)
    return Program(step, calls)


@program(speculated=5)
def operation_raises_on_some_values():
    state = {"before": 0, "after": 0}

    def step(x):
        state["before"] += 1
        low = torch.linalg.cholesky(x)
        state["after"] += 1
        return low.sum()

    good = [(torch.eye(3) * (i + 1),) for i in range(12)]
    good[7] = (-torch.eye(3),)
    return Program(step, good)


@program(speculated=5)
def index_out_of_range_on_some_values():
    table = nn.Embedding(5, 3)
    state = {"n": 0}

    def step(ids):
        state["n"] += 1
        return table(ids).sum().detach()

    calls = [(torch.tensor([i % 5, 0]),) for i in range(12)]
    calls[7] = (torch.tensor([7, 0]),)
    return Program(step, calls)


@program(speculated=0)
def raises_on_every_call():
    state = {"n": 0}

    def step(x):
        state["n"] += 1
        raise RuntimeError(f"call {state['n']}")

    return Program(step, inputs())


@program(speculated=5)
def raises_on_the_first_call():
    state = {"model": None, "n": 0}

    def step(x):
        state["n"] += 1
        return x * state["model"]

    return Program(step, inputs(12), {1: lambda: state.update(model=torch.ones(5))})


@program()
def printing():
    state = {"n": 0}

    def step(x):
        state["n"] += 1
        loss = x.pow(2).mean()
        print(f"step {state['n']:03d} loss {loss.item():.4f}", end="; ")
        print("number", loss.item(), "and", state["n"], sep=" | ")
        print(f"{loss:.3f} {loss.item()!r:>20} {state['n']!s}")
        print("%d %.2f" % (state["n"], loss.item()), "{} {:.1f}".format(state["n"], loss.item()))
        return loss

    return Program(step, inputs())


@program()
def printing_a_tensor():
    def step(x):
        print("tensor", x.mean())

    return Program(step, inputs())


@program(speculated=4, compiles=5)
def printing_every_third_call():
    state = {"n": 0}

    def step(x):
        state["n"] += 1
        loss = x.pow(2).mean()
        if state["n"] % 3 == 0:
            print(f"{state['n']}: {loss.item():.4f}")
        return loss

    return Program(step, inputs(16))


@program()
def logging_and_warnings():
    import warnings

    state = {"n": 0}

    def step(x):
        state["n"] += 1
        log.info("step %d loss %.3f", state["n"], x.mean().item())
        log.debug("not shown %s", state["n"])
        warnings.warn(f"call {state['n']}")
        return x.sum()

    return Program(step, inputs())


@program()
def warnings_in_a_callers_name():
    import warnings

    def old(x):
        warnings.warn("old() is called", FutureWarning, stacklevel=2)
        return x * 2

    def older(x, number):
        def inner(x):
            warnings.warn(f"older() is called, {number}", stacklevel=3)
            return x + 1

        return inner(x)

    def step(x):
        y = old(x)
        for number in range(2):
            y = older(y, number)
        return old(y).sum()

    return Program(step, inputs())


@program()
def order_of_effects():
    log_list = []

    def step(x):
        log_list.append("a")
        print("one", x.sum().item())
        log_list.append(x.mean().item())
        print("two", len(log_list))

    return Program(step, inputs())


@program()
def classes_and_operators():
    class Vector:
        def __init__(self, t):
            self.t = t

        def __add__(self, other):
            return Vector(self.t + other.t)

        def __mul__(self, k):
            return Vector(self.t * k)

        __rmul__ = __mul__

        def __getitem__(self, i):
            return self.t[i]

        def __len__(self):
            return self.t.shape[0]

        def __bool__(self):
            return True

        def __call__(self, k):
            return self * k

        def __eq__(self, other):
            return isinstance(other, Vector) and self.t.shape == other.t.shape

        __hash__ = None

        @property
        def total(self):
            return self.t.sum()

        @staticmethod
        def of(t):
            return Vector(t)

        @classmethod
        def ones(cls, n):
            return cls(torch.ones(n))

    keep = Vector(torch.ones(5))

    def step(x):
        v = Vector.of(x[0]) + keep * 2 + 3 * Vector.ones(5)
        w = v(2)
        return w.total, w[1:], len(w), v == w, v != w, bool(v)

    return Program(step, inputs())


@program()
def inheritance_and_super():
    class Base:
        scale = 2

        def __init__(self):
            self.n = 0

        def run(self, x):
            self.n += 1
            return x * self.scale

    class Child(Base):
        scale = 3

        def run(self, x):
            return super().run(x) + self.n

    child = Child()

    def step(x):
        return child.run(x), isinstance(child, Base), type(child).__name__, hasattr(child, "zz")

    return Program(step, inputs())


@program()
def method_as_step():
    class Trainer:
        def __init__(self):
            self.model = nn.Linear(5, 3)
            self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1)
            self.n = 0

        def step(self, x):
            self.n += 1
            self.opt.zero_grad()
            loss = self.model(x).pow(2).mean()
            loss.backward()
            self.opt.step()
            return loss.item() / self.n

    trainer = Trainer()
    return Program(trainer.step, inputs())


@program(speculated=6, compiles=4)
def decorated_method_of_two_instances(jit):
    class Trainer:
        def __init__(self, k):
            self.w = torch.full((5,), k)
            self.n = 0

        @jit
        def step(self, x):
            self.n += 1
            self.w.add_(x.mean(0))
            return self.w * self.n

    one, two = Trainer(1.0), Trainer(2.0)

    def run(which, x):
        return (one if which else two).step(x)

    return Program(run, [(i % 3 != 0, x) for i, (x,) in enumerate(inputs(20))], state=(one, two))


@program(speculated=9, compiles=3)
def speculated_functions_calling_each_other(jit):
    state = {"inner": 0, "outer": 0}

    @jit
    def inner(x):
        state["inner"] += 1
        return x * 2

    @jit
    def outer(x):
        state["outer"] += 1
        return inner(x) + inner(x + 1)

    def run(x):
        return outer(x), inner(x)

    return Program(run, inputs(14), state=state)


@program(speculated=0, compiles=4)
def recursive_speculated_function(jit):
    @jit
    def power(x, n):
        return x if n == 0 else power(x, n - 1) * 2

    return Program(power, [(x, 3) for (x,) in inputs()])


@program()
def callable_object():
    class Step:
        def __init__(self):
            self.n = 0

        def __call__(self, x, scale=2):
            self.n += 1
            return x * scale + self.n

    return Program(Step(), [Call(x) for (x,) in inputs()])


@program(speculated=4, compiles=4)
def keyword_arguments():
    def step(x, *more, k=1.0, **rest):
        return x * k + sum(more) + rest.get("bias", 0)

    calls = []
    for i, (x,) in enumerate(inputs(20)):
        calls.append([Call(x), Call(x, 1, k=i * 0.5), Call(x, bias=i)][(i // 7) % 3])
    return Program(step, calls)


@program()
def numbers_in_python():
    state = {"n": 1, "x": 0.5}

    def step(x):
        state["n"] += 1
        n, f = state["n"], state["x"]
        state["x"] = math.sin(f) + 1e-3 * n
        values = (n // 2, n % 3, n**2, -n, +n, ~n, n << 1, n & 3, n | 4, n ^ 1, divmod(n, 4), abs(-n), round(f, 2))
        more = (
            int(f * 10),
            float(n),
            max(n, 2),
            min(f, 1),
            math.sqrt(n),
            math.floor(f),
            str(n),
            f"{f:.2f}",
            n / 3,
            2**-n,
        )
        return x * n * f, values, more

    return Program(step, inputs(12))


@program(speculated=0, compiles=8)
def number_decides_a_branch():
    state = {"n": 0}

    def step(x):
        state["n"] += 1
        if state["n"] > 6:
            return x * 2
        if state["n"] % 2 == 0 and x.shape[0] == 4:
            return x + 1
        return x

    return Program(step, inputs(20))


@program()
def strings_and_dict_keys():
    table = {f"layer{i}": torch.full((5,), float(i)) for i in range(3)}

    def step(x):
        total = x
        for i in range(3):
            total = total + table[f"layer{i}"]
        name = "-".join(table)
        kind = "float" if "32" in str(x.dtype) else "other"
        return total, name.upper(), kind.replace("f", "F"), name.split("-")[0], name[:3]

    return Program(step, inputs())


@program()
def counters_of_collections():
    seen = collections.Counter()

    def step(x):
        seen.update(["a", "b", "a"])
        seen["c"] += 1
        return x * seen["a"]

    return Program(step, inputs())


@program()
def walrus_and_match():
    class Config:
        mode = "train"

    config = Config()

    def step(x):
        if (n := x.shape[0]) > 2:
            x = x * n
        match config.mode:
            case "train":
                return x + 1
            case _:
                return x - 1

    return Program(step, inputs(14), {7: lambda: setattr(config, "mode", "eval")})


@program(speculated=3, compiles=3)
def match_of_a_number():
    def step(x, k):
        match k:
            case 1:
                return x * 2
            case 2 | 3:
                return x * 3
            case float():
                return x / k
            case None:
                return x
            case _:
                return x - k

    return Program(step, [(torch.ones(3), k) for k in (1, 1, 1, 1, 2, 1, 2, 2, 2, 0.5, 3, 7, None, 1)])


@program(speculated=2, compiles=5)
def match_of_parts():
    state = {"history": [1, 2]}

    def step(x, command):
        match command:
            case ["scale", k]:
                x = x * k
            case {"shift": k, **others}:
                x = x + k + len(others)
            case (str() as name, *rest):
                x = x - len(name) * len(rest)
        match state["history"]:
            case [1, *_, last]:
                x = x * last
            case _:
                x = -x
        return x

    commands = [["scale", 2]] * 4 + [["scale", 3]] * 3 + [{"shift": 1, "by": 2}] * 3 + [("a", 1, 2)] * 3
    change = {6: lambda: state["history"].append(5), 11: lambda: state["history"].insert(0, 2)}
    return Program(step, [(torch.ones(3), command) for command in commands], change, state=state)


@program()
def match_of_classes():
    def step(x, k):
        match k:
            case bool():
                return x
            case float() | int():
                return x * k
            case None:
                return -x
            case _:
                return x @ k

    return Program(step, [(torch.ones(3), k * 0.5) for k in range(CALLS)])


@program(speculated=0)
def outside_iterator():
    source = iter(range(100))

    def step(x):
        return x * next(source)

    return Program(step, inputs())


@program(speculated=0)
def random_module():
    import random

    def step(x):
        return x * random.random()

    return Program(step, inputs())


@program()
def row_appended_then_changed():
    rows = []
    current = [0]

    def step(x):
        row = [x.sum().item()]
        rows.append(row)
        row.append(2)
        rows.append(current)
        current[0] += 1

    return Program(step, inputs(), state=(rows, current))


@program()
def nested_containers_changed():
    state = {"a": {"b": [1, {"c": 2}]}, "t": (torch.zeros(3), [1])}

    def step(x):
        state["a"]["b"][0] += 1
        state["a"]["b"][1]["c"] *= 1.5
        state["t"][0].add_(1)
        state["t"][1][0] = x
        state["a"]["new"] = state["a"]["b"]
        return state["a"]["b"][0] + state["a"]["b"][1]["c"]

    return Program(step, inputs())


@program(speculated=4, compiles=4)
def attribute_shadows_method():
    class Thing:
        def scale(self):
            return 2

    thing = Thing()

    def step(x):
        return x * thing.scale()

    return Program(step, inputs(16), {7: lambda: setattr(thing, "scale", lambda: 5)})


@program(speculated=4, compiles=4)
def class_of_an_object_changed():
    class One:
        def go(self, x):
            return x

    class Two:
        def go(self, x):
            return x * 2

    thing = One()

    def step(x):
        return thing.go(x)

    return Program(step, inputs(16), {7: lambda: setattr(thing, "__class__", Two)})


@program(speculated=4, compiles=4)
def same_object_in_two_places():
    a, b = [torch.zeros(5)], [torch.ones(5)]
    pair = {"a": a, "b": b}

    def step(x):
        pair["a"][0].add_(x.mean(0))
        return pair["b"][0] * 2, pair["a"] is pair["b"]

    return Program(step, inputs(16), {7: lambda: pair.update(b=a)})


@program()
def dict_grows_each_call():
    table = {}
    state = {"n": 0}

    def step(x):
        state["n"] += 1
        table["last"] = x.mean().item()
        table.pop("old", None)
        return x

    return Program(step, inputs())


@program()
def dict_key_changes_each_call():
    table = {}
    state = {"n": 0}

    def step(x):
        state["n"] += 1
        table[state["n"]] = x.mean().item()
        return x

    return Program(step, inputs())
