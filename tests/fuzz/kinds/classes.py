"""Classes: orders of inheritance with cooperative calls, metaclasses, classes made in the step, what classes change."""

from __future__ import annotations

from tests.fuzz.choices import Choices
from tests.fuzz.kinds.piece import Kind, Piece

__all__ = ["KINDS"]

# Names of bases by class, in an order in which they can be made. The last class is the one of which objects are made.
ORDERS = (
    {"A": "", "B": "A"},
    {"A": "", "B": "A", "C": "B"},
    {"A": "", "B": "", "C": "A B"},
    {"A": "", "B": "A", "C": "A", "D": "B C"},
    {"A": "", "B": "", "C": "A", "D": "B", "E": "C D"},
    {"A": "", "B": "A", "C": "A", "D": "B", "E": "C D"},
)


def inheritance(c: Choices, n: int) -> Piece:
    """Cooperative constructors and methods along a method resolution order."""
    order = c.pick(ORDERS)
    native = c.pick(("", "", "dict", "list", "Exception"))
    text = f"""
class Root{n}{f"({native})" if native else ""}:
    made = 0

    def __init__(self, *args, **kwargs):
        super().__init__()
        Root{n}.made += 1
        self.count = 0
        self.trail = []

    def run(self, v):
        self.trail.append("root")
        del self.trail[:-6]
        return v

    @property
    def level(self):
        return self.count * 0.5

    @classmethod
    def tally(cls, by=1):
        cls.made += by
        return cls.made

    @staticmethod
    def plain(v):
        return v + 1
"""
    for name, bases in order.items():
        inherited = ", ".join(f"{base}{n}" for base in bases.split()) or f"Root{n}"
        text += f"\n\nclass {name}{n}({inherited}):\n"
        body = []
        if c.chance(60):
            body.append(
                f"    def __init__(self, *args, **kwargs):\n        super().__init__(*args, **kwargs)\n"
                f"        self.{name.lower()} = len(args) + {c.between(1, 3)}\n        {name}{n}.made += 1\n"
            )
        if c.chance(70):
            after = c.pick(
                ("super().run(v) + 1", "super().run(v * 0.5)", f"super({name}{n}, self).run(v) + self.count")
            )
            body.append(
                f"    def run(self, v):\n        self.count += 1\n        self.trail.append({name!r})\n"
                f"        return {after}\n"
            )
        if c.chance(30):
            body.append("    @property\n    def level(self):\n        return super().level + 1\n")
        if c.chance(30):
            body.append("    @classmethod\n    def tally(cls, by=2):\n        return super().tally(by) + 1\n")
        if c.chance(20):
            body.append("    def __getattribute__(self, name):\n        return super().__getattribute__(name)\n")
        if c.chance(20):
            body.append(
                "    def __setattr__(self, name, value):\n        super().__setattr__(name, value)\n"
                "        super().__setattr__('last', name)\n"
            )
        if c.chance(20):
            body.append(
                f"    def __new__(cls, *args, **kwargs):\n        made = super().__new__(cls)\n"
                f"        made.born = Root{n}.made\n        return made\n"
            )
        text += "\n".join(body) or "    pass\n"
    last = f"{list(order)[-1]}{n}"
    other = f"{c.pick(list(order))}{n}"
    return Piece(
        text,
        f"obj{n} = {last}()",
        [
            f"total += obj{n}.run({c.pick(('1', '0.5', 'total'))})",
            f"new{n} = {last}()\ntotal += new{n}.run(1)",
            f"new{n} = {last}({c.pick(('1', '1, 2', '*[1, 2]', '3, k=4'))})\nobj{n}.kept = new{n}",
            f"obj{n}.count += 1",
            f"total += {c.pick((last, f'obj{n}'))}.tally()",
            f"total += super({last}, obj{n}).run(2)",
            f"bound{n} = super({last}, obj{n}).run\ntotal += bound{n}(1)",
            f"total += {other}.run(obj{n}, 1)",
            f"total += obj{n}.plain(total)",
            f"obj{n} = type(obj{n})()" if c.chance(50) else f"obj{n}.__init__()",
        ],
        [
            f"Root{n}.made",
            f"obj{n}.count",
            f"obj{n}.level",
            f"len(obj{n}.trail)",
            f"float(isinstance(obj{n}, {other}))",
            f"float(issubclass({other}, Root{n}))",
            f"len(type(obj{n}).__mro__)",
            f"getattr(obj{n}, 'a', 2)",
            f"len(vars(obj{n}))",
        ],
        [f"obj{n}.count = 7", f"Root{n}.made = 0", f"{other}.run = lambda self, v: v * 2", f"Root{n}.extra = 1"],
        [f"obj{n}", f"Root{n}", last],
    )


def metaclass(c: Choices, n: int) -> Piece:
    """Classes whose class is the program's: counting, keeping single objects, answering for the class."""
    parts = [
        f"""
    def __call__(cls, *args, **kwargs):
        Meta{n}.calls += 1
        made = super().__call__(*args, **kwargs)
        made.number = Meta{n}.calls
        return made
""",
        f"""
    def __call__(cls, *args):
        if cls not in Meta{n}.single:
            Meta{n}.single[cls] = super().__call__(*args)
        return Meta{n}.single[cls]
""",
        f"""
    def __call__(cls, *args):
        made = cls.__new__(cls, *args)
        Meta{n}.calls += 1
        if isinstance(made, cls):
            made.__init__(*args)
        return made
""",
        "",
    ]
    more = [
        "    def __getattr__(cls, name):\n        Meta.calls += 1\n        return len(name)\n",
        "    def __len__(cls):\n        return len(Meta.made)\n",
        "    def __getitem__(cls, key):\n        Meta.calls += 1\n        return key * 2\n",
        "    def __contains__(cls, key):\n        return key in Meta.made\n",
        "    def __iter__(cls):\n        return iter(list(Meta.made))\n",
        "    def __instancecheck__(cls, obj):\n        Meta.calls += 1\n        return hasattr(obj, 'v')\n",
        "    def __setattr__(cls, name, value):\n        Meta.made.append(name)\n        super().__setattr__(name, value)\n",
        "    @property\n    def rate(cls):\n        return Meta.calls * 0.5\n",
        "    def __add__(cls, other):\n        return len(Meta.made) + other\n",
        "    def __bool__(cls):\n        return Meta.calls % 2 == 0\n",
    ]
    taken = [part.replace("Meta", f"Meta{n}") for part in more if c.chance(40)]
    text = f"""
class Meta{n}(type):
    calls = 0
    made = []
    single = {{}}

    def __new__(mcs, name, bases, space, **kwargs):
        mcs.made.append(name)
        return super().__new__(mcs, name, bases, space)
{c.pick(parts)}
{chr(10).join(taken)}

class Thing{n}(metaclass=Meta{n}):
    def __init__(self, v=1):
        self.v = v


class Sub{n}(Thing{n}):
    factor = 2
"""
    joined = "".join(taken)
    numbers = [f"Meta{n}.calls", f"len(Meta{n}.made)", f"thing{n}.v", f"float(type(Sub{n}) is Meta{n})"]
    numbers += [f"Thing{n}.whatever"] * ("__getattr__" in joined) + [f"len(Thing{n})"] * ("__len__" in joined)
    numbers += [f"Thing{n}[2]"] * ("__getitem__" in joined) + [f"float('x' in Thing{n})"] * ("__contains__" in joined)
    numbers += [f"len(list(Thing{n}))"] * ("__iter__" in joined) + [f"Sub{n}.rate"] * ("rate" in joined)
    numbers += [f"float(isinstance(thing{n}, Sub{n}))"] + [f"(Thing{n} + 1)"] * ("__add__" in joined)
    numbers += [f"(1.5 if Sub{n} else 0.5)"]
    return Piece(
        text,
        f"thing{n} = Thing{n}()",
        [
            f"thing{n} = Thing{n}({c.pick(('2', '', 'total'))})",
            f"total += Sub{n}(3).v",
            f"Sub{n}.factor += 1",
            f"thing{n}.v += 1",
            f"Fresh{n} = Meta{n}('Fresh', (Thing{n},), {{'w': 3}})\ntotal += Fresh{n}.w",
            f"class Late{n}(Thing{n}):\n    late = total\ntotal += Late{n}().v",
        ],
        numbers,
        [f"Meta{n}.calls = 5", f"Thing{n}.extra = 1", f"Meta{n}.made.clear()"],
        [f"thing{n}", f"Meta{n}", f"Thing{n}", f"Sub{n}"],
    )


def made_classes(c: Choices, n: int) -> Piece:
    """Classes that the step makes, with what Python calls then."""
    text = f"""
class Named{n}:
    def __init__(self, start=0):
        self.start = start

    def __set_name__(self, owner, name):
        Base{n}.names.append(name)
        self.name = name

    def __get__(self, instance, owner=None):
        return self if instance is None else self.start + len(self.name)


class Base{n}:
    seen = []
    names = []

    def __init_subclass__(cls, weight=1, **kwargs):
        super().__init_subclass__(**kwargs)
        Base{n}.seen.append(weight)
        cls.weight = weight

    def __class_getitem__(cls, key):
        Base{n}.seen.append(0)
        return key
"""
    return Piece(
        text,
        f"kept{n} = []",
        [
            f"class New{n}(Base{n}):\n    pass\ntotal += New{n}.weight",
            f"class New{n}(Base{n}, weight={c.pick(('2', 'len(kept%d)' % n))}):\n    a = Named{n}(1)\n"
            f"    def get(self):\n        return self.a + total * 0\nobj{n} = New{n}()\ntotal += obj{n}.get()",
            f"class New{n}(Base{n}):\n    first = Named{n}()\n    second = Named{n}(2)\n"
            f"kept{n}.append(New{n}.weight)\ndel kept{n}[:-3]",
            f"Made{n} = type('Made', (Base{n},), {{'a': Named{n}(), 'k': 3}})\ntotal += Made{n}.k + Made{n}().a",
            f"class Plain{n}:\n    value = total\n    def get(self):\n        return self.value\ntotal = Plain{n}().get() + 1",
            f"class Fault{n}(Exception):\n    pass\ntry:\n    raise Fault{n}('x')\nexcept Fault{n} as error:\n    total += 1",
            f"total += Base{n}[1]",
            f"Pair{n} = collections.namedtuple('Pair{n}', 'a b')\ntotal += Pair{n}(1, 2).b",
        ],
        [f"len(Base{n}.seen)", f"len(Base{n}.names)", f"sum(Base{n}.seen)", f"len(kept{n})"],
        [f"Base{n}.seen.clear()", f"kept{n}.append(9)"],
        [f"Base{n}.seen", f"Base{n}.names", f"kept{n}"],
    )


def changing(c: Choices, n: int) -> Piece:
    """Objects that change their class, functions that change their code, classes that change their methods."""
    text = f"""
class One{n}:
    k = 1

    def run(self, v):
        return v + self.k

    def __len__(self):
        return 1


class Two{n}(One{n}):
    k = 2

    def run(self, v):
        return v * 2 + self.k

    def __len__(self):
        return 2

    def __add__(self, other):
        return self.k + other


class Odd{n}:
    k = 3

    def run(self, v):
        return v - 1

    def __len__(self):
        return 3


def first{n}(v, w=1):
    return v + w


def second{n}(v, w=2):
    return v * w


def third{n}(v, w=2, *more):
    return v - w
"""
    return Piece(
        text,
        f"one{n} = One{n}()\nturn{n} = [0]\ncodes{n} = [f.__code__ for f in (first{n}, second{n}, third{n})]",
        [
            f"one{n}.__class__ = Two{n} if type(one{n}) is One{n} else One{n}",
            f"one{n}.__class__ = (One{n}, Two{n}, Odd{n})[turn{n}[0] % 3]\nturn{n}[0] += 1",
            f"turn{n}[0] += 1\nfirst{n}.__code__ = codes{n}[turn{n}[0] % 3]",
            f"first{n}.__code__, second{n}.__code__ = second{n}.__code__, first{n}.__code__",
            f"first{n}.__defaults__ = (turn{n}[0] * 0.5,)\nturn{n}[0] += 1",
            f"One{n}.run = {c.pick((f'Two{n}.run', 'lambda self, v: v + 3'))}",
            f"one{n}.run = {c.pick(('lambda v: v + 4', f'types.MethodType(Odd{n}.run, one{n})'))}",
            f"vars(one{n}).pop('run', None)",
            f"total += one{n}.run(1)",
            f"One{n}.k += 1",
            f"setattr(One{n}, 'k', One{n}.k + 1)",
            f"if 'k' in vars(one{n}):\n    del one{n}.k\nelse:\n    one{n}.k = 5",
            f"One{n}.__len__ = lambda self: 4",
            f"Two{n}.__bases__ = (One{n},)",
            f"first{n}.calls = getattr(first{n}, 'calls', 0) + 1",
        ],
        [
            f"one{n}.k",
            f"len(one{n})",
            f"first{n}(2)",
            f"second{n}(2)",
            f"one{n}.run(1.5)",
            f"float(isinstance(one{n}, Two{n}))",
            f"len(type(one{n}).__name__)",
            f"turn{n}[0]",
            f"getattr(first{n}, 'calls', 0)",
            f"first{n}.__defaults__[0]",
        ],
        [f"one{n}.__class__ = Two{n}", f"second{n}.__code__ = codes{n}[2]", f"Two{n}.k = 6", f"one{n}.k = 2.5"],
        [f"one{n}", f"turn{n}", f"One{n}", f"Two{n}", f"first{n}", f"second{n}"],
    )


def abstract(c: Choices, n: int) -> Piece:
    """Abstract classes, virtual subclasses, protocols."""
    text = f"""
class Shape{n}(abc.ABC):
    asked = 0

    @abc.abstractmethod
    def area(self):
        return 1

    @property
    @abc.abstractmethod
    def name(self): ...

    @classmethod
    def __subclasshook__(cls, other):
        Shape{n}.asked += 1
        return True if hasattr(other, "area_of") else NotImplemented


class Square{n}(Shape{n}):
    def __init__(self, side):
        self.side = side

    def area(self):
        return super().area() + self.side ** 2

    @property
    def name(self):
        return "square"


class Foreign{n}:
    def area(self):
        return 2


class Ducky{n}:
    area_of = 1
"""
    return Piece(
        text,
        f"square{n} = Square{n}(2)\nforeign{n} = Foreign{n}()",
        [
            f"square{n}.side = 0.5 * square{n}.side + 1",
            f"total += square{n}.area()",
            f"Shape{n}.register(Foreign{n})",
            f"try:\n    Shape{n}()\nexcept TypeError:\n    total += 1",
            f"total += sum(s.area() for s in (square{n}, foreign{n}))",
            f"match square{n}:\n    case Shape{n}(name='square', side=s):\n        total = s * 0.5\n    case _:\n        total = 0",
            f"class Open{n}(Shape{n}):\n    def area(self):\n        return 3\n    name = 'open'\ntotal += Open{n}().area()",
        ],
        [
            f"float(isinstance(foreign{n}, Shape{n}))",
            f"float(issubclass(Ducky{n}, Shape{n}))",
            f"len(Shape{n}.__abstractmethods__)",
            f"square{n}.area()",
            f"len(square{n}.name)",
        ],
        [f"square{n}.side = 3"],
        [f"square{n}", f"foreign{n}"],
    )


KINDS: tuple[tuple[int, Kind], ...] = (
    (4, inheritance),
    (3, metaclass),
    (3, made_classes),
    (4, changing),
    (2, abstract),
)
