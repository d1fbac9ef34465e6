"""How attributes are found: descriptors, special methods that are no Python functions, slots, delegation."""

from __future__ import annotations

from tests.fuzz.choices import Choices
from tests.fuzz.kinds.piece import Kind, Piece

__all__ = ["KINDS"]


def descriptors(c: Choices, n: int) -> Piece:
    """Data and other descriptors, properties, cached properties."""
    kept = c.pick(("vars(instance)[self.name]", "self.values[id(instance) * 0]", "instance._held"))
    text = f"""
class Data{n}:
    def __init__(self):
        self.reads = 0
        self.values = {{}}

    def __set_name__(self, owner, name):
        self.name = name

    def __get__(self, instance, owner=None):
        if instance is None:
            return self
        self.reads += 1
        return {kept}

    def __set__(self, instance, value):
        {kept} = value * {c.pick(("1", "0.5"))}

    def __delete__(self, instance):
        {kept} = 0


class Reader{n}:
    def __init__(self, fn):
        self.fn = fn
        self.reads = 0

    def __get__(self, instance, owner=None):
        self.reads += 1
        return self if instance is None else self.fn(instance)


class Owner{n}:
    made = 0
    data = Data{n}()
    other = Data{n}()

    def __init__(self):
        self._held = 1
        self.data = 2
        self.other = 1
        self._level = 1.0

    @Reader{n}
    def read(self):
        return self._held + 1

    @property
    def level(self):
        return self._level

    @level.setter
    def level(self, value):
        Owner{n}.made += 1
        self._level = value * 0.5

    @level.deleter
    def level(self):
        self._level = 0.25

    @functools.cached_property
    def cached(self):
        Owner{n}.made += 1
        return self._held * 2

    total = property(lambda self: self._held + self._level)
    inner = property(operator.attrgetter("_level"))
    method = functools.partialmethod(lambda self, a, b: a + b * self._held, 2)


class Child{n}(Owner{n}):
    @property
    def level(self):
        return super().level + 1

    @level.setter
    def level(self, value):
        Owner{n}.level.fset(self, value)
"""
    return Piece(
        text,
        f"own{n} = {c.pick((f'Owner{n}', f'Child{n}'))}()",
        [
            f"own{n}.data = {c.pick(('3', 'total', f'own{n}.data + 1'))}",
            f"own{n}.data += 1",
            f"del own{n}.data",
            f"own{n}.other, own{n}.data = own{n}.data, own{n}.other",
            f"own{n}.level = {c.pick(('2', 'total'))}",
            f"own{n}.level += 1",
            f"if type(own{n}) is Owner{n}:\n    del own{n}.level",
            f"vars(own{n}).pop('cached', None)",
            f"own{n}._held += 1",
            f"vars(own{n})['read'] = 5",
            f"vars(own{n}).pop('read', None)",
            f"Owner{n}.data.reads = 0",
            f"total += own{n}.method(1)",
            f"total += Owner{n}.level.fget(own{n})",
            f"try:\n    own{n}.total = 1\nexcept AttributeError:\n    total += 1",
            f"setattr(own{n}, 'data', getattr(own{n}, 'other') + 1)",
            f"fresh{n} = Owner{n}()\nfresh{n}.data = total\ntotal = fresh{n}.data + fresh{n}.cached",
        ],
        [
            f"own{n}.data",
            f"own{n}.other",
            f"own{n}.read",
            f"own{n}.level",
            f"own{n}.cached",
            f"own{n}.total",
            f"own{n}.inner",
            f"own{n}.method(2)",
            f"Owner{n}.data.reads",
            f"Owner{n}.made",
            f"len(vars(own{n}))",
        ],
        [f"own{n}.data = 4", f"own{n}._level = 3.0", f"vars(own{n}).pop('cached', None)", f"Owner{n}.made = 0"],
        [f"own{n}", f"Owner{n}", f"vars(Owner{n})['data']"],
    )


def native_specials(c: Choices, n: int) -> Piece:
    """Special methods that are methods of C classes, partials, classes, objects."""
    get = c.pick(("dict.get", "dict.__getitem__", "lambda self, name: dict.get(self, name, 1)"))
    text = f"""
class Attrs{n}(dict):
    __getattr__ = {get}
    __setattr__ = dict.__setitem__
    __delattr__ = dict.__delitem__


class Stack{n}(list):
    __lshift__ = list.append
    __ior__ = list.__iadd__
    __rshift__ = list.remove
    __call__ = list.count
    __pos__ = list.copy
    __matmul__ = list.index


class Held{n}:
    n = 1
    extra = 2


class Reach{n}:
    def __init__(self):
        self.held = Held{n}()
        self.items = [1, 2]

    inner = property(operator.attrgetter("held.n"))
    last = property(operator.itemgetter(-1))
    __getitem__ = functools.partialmethod(lambda self, k, d: self.items[d], 0)
    __len__ = property(lambda self: self.items.__len__)
    __contains__ = staticmethod(lambda item: item == 2)
    __call__ = Held{n}
    __format__ = staticmethod("{{:}}".format)
    __eq__ = operator.is_
    __hash__ = object.__hash__


class Forward{n}:
    def __init__(self, target):
        self.target = target

    def __call__(self, *args):
        Held{n}.n += 1
        return self.target(*args)


class Odd{n}:
    def __init__(self):
        self.v = 2

    __add__ = Forward{n}(lambda other: other + 1)
    __neg__ = Forward{n}(lambda: 3)
    __len__ = Forward{n}(lambda: 2)
    __bool__ = Forward{n}(lambda: False)
    __lt__ = functools.partial(max, 0)
    __radd__ = classmethod(lambda cls, other: other + 2)
"""
    return Piece(
        text,
        f"attrs{n} = Attrs{n}(a=1.0, b=2)\nstack{n} = Stack{n}([1, 2])\nreach{n} = Reach{n}()\nodd{n} = Odd{n}()",
        [
            f"attrs{n}.a = 0.5 * attrs{n}.a + 1",
            f"attrs{n}.b += 1",
            f"attrs{n}.c = total",
            f"attrs{n}.pop('c', None)",
            f"if 'c' in attrs{n}:\n    del attrs{n}.c",
            f"attrs{n}['a'] = attrs{n}['b'] * 0.5",
            f"attrs{n}.update(a=2.0)",
            f"setattr(attrs{n}, 'b', getattr(attrs{n}, 'a') + 1)",
            f"stack{n} << total\ndel stack{n}[:-4]",
            f"same{n} = stack{n}\nsame{n} |= [1]\ndel stack{n}[:-4]",
            f"if 2 in stack{n}:\n    stack{n} >> 2",
            f"copy{n} = +stack{n}\ncopy{n}.append(3)\ntotal += len(copy{n})",
            f"reach{n}.held.n += 1",
            f"reach{n}.items[0] += 1",
            f"Held{n}.n += 1",
            f"reach{n}.held = Held{n}()",
            f"total += reach{n}().extra",
            f"total += odd{n} + 1",
            f"total += -odd{n}",
            f"try:\n    total += attrs{n}.missing or 0\nexcept KeyError:\n    total += 2",
        ],
        [
            f"attrs{n}.a",
            f"attrs{n}.b",
            f"len(attrs{n})",
            f"len(stack{n})",
            f"stack{n}(1)",
            f"reach{n}.inner",
            f"reach{n}[0]",
            f"float(2 in reach{n})",
            f"float(reach{n} == reach{n})",
            f"Held{n}.n",
            f"(1 + odd{n})",
            f"len(odd{n})",
            f"(1.0 if odd{n} else 2.0)",
            f"(odd{n} < 3)",
        ],
        [f"attrs{n}.a = 3.0", f"stack{n}.append(2)", f"reach{n}.held.n = 4", f"attrs{n}.d = 1"],
        [f"attrs{n}", f"stack{n}", f"reach{n}", f"Held{n}"],
    )


def slots(c: Choices, n: int) -> Piece:
    """Classes with slots, and what comes of reading what is not set."""
    text = f"""
class Slim{n}:
    __slots__ = ("a", "b", "_c")

    def __init__(self, a):
        self.a = a
        self._c = 1

    @property
    def c(self):
        return self._c

    @c.setter
    def c(self, value):
        self._c = value


class Wide{n}(Slim{n}):
    __slots__ = ("d", "__dict__")

    def __getattr__(self, name):
        if name == "b":
            return 0.75
        raise AttributeError(name)


class Tight{n}(Slim{n}):
    __slots__ = ()

    def __setattr__(self, name, value):
        super().__setattr__(name, value * 1)
        Slim{n}._c.__set__(self, 2)
"""
    return Piece(
        text,
        f"slim{n} = {c.pick((f'Slim{n}(1)', f'Wide{n}(2)', f'Tight{n}(3)'))}",
        [
            f"slim{n}.a += 1",
            f"slim{n}.b = total",
            f"if hasattr(slim{n}, 'b') and type(slim{n}) is not Wide{n}:\n    del slim{n}.b",
            f"slim{n}.c = slim{n}.a * 0.5",
            f"if type(slim{n}) is Wide{n}:\n    slim{n}.e = 2",
            f"try:\n    slim{n}.zz = 1\nexcept AttributeError:\n    total += 1",
            f"Slim{n}.a.__set__(slim{n}, 4)",
            f"new{n} = Wide{n}(total)\nnew{n}.d = 1\nslim{n}.b = new{n}.b + new{n}.d",
        ],
        [
            f"slim{n}.a",
            f"slim{n}.c",
            f"getattr(slim{n}, 'b', 0.5)",
            f"float(hasattr(slim{n}, 'b'))",
            f"Slim{n}._c.__get__(slim{n})",
        ],
        [f"slim{n}.a = 5", f"slim{n}.b = 2.5"],
        [f"slim{n}"],
    )


def delegation(c: Choices, n: int) -> Piece:
    """Objects that delegate what is asked of them."""
    guard = c.pick(("getattr(self._inner, name)", "vars(self._inner)[name]"))
    text = f"""
class Inner{n}:
    rate = 0.5

    def __init__(self):
        self.v = 1
        self.items = [1.0, 2.0]

    def bump(self, by=1):
        self.v += by
        return self.v

    def __len__(self):
        return len(self.items)


class Proxy{n}:
    asked = 0

    def __init__(self, inner):
        object.__setattr__(self, "_inner", inner)

    def __getattr__(self, name):
        Proxy{n}.asked += 1
        return {guard if "getattr" in guard else f"{guard} if name in vars(self._inner) else getattr(self._inner, name)"}

    def __setattr__(self, name, value):
        setattr(self._inner, name, value)

    def __delattr__(self, name):
        delattr(self._inner, name)

    def __len__(self):
        return len(self._inner)

    def __getitem__(self, key):
        return self._inner.items[key]


class Watcher{n}(Inner{n}):
    log = []

    def __getattribute__(self, name):
        if not name.startswith("_"):
            Watcher{n}.log.append(name)
            del Watcher{n}.log[:-5]
        return {c.pick(("super().__getattribute__(name)", "object.__getattribute__(self, name)"))}

    def __dir__(self):
        return ["v"]
"""
    return Piece(
        text,
        f"proxy{n} = Proxy{n}({c.pick((f'Inner{n}()', f'Watcher{n}()', f'Proxy{n}(Inner{n}())'))})",
        [
            f"proxy{n}.v += 1",
            f"proxy{n}.v = total",
            f"total += proxy{n}.bump()",
            f"proxy{n}.w = 2",
            f"if hasattr(proxy{n}, 'w'):\n    del proxy{n}.w",
            f"proxy{n}.items.append(total)\ndel proxy{n}.items[:-4]",
            f"object.__setattr__(proxy{n}, '_inner', Inner{n}())",
            f"total += sum(proxy{n}.items)",
            f"watched{n} = Watcher{n}()\ntotal += watched{n}.bump(2)",
            f"total += len(dir(Watcher{n}()))",
        ],
        [
            f"proxy{n}.v",
            f"proxy{n}.rate",
            f"len(proxy{n})",
            f"proxy{n}[0]",
            f"Proxy{n}.asked",
            f"len(Watcher{n}.log)",
            f"getattr(proxy{n}, 'w', 0.25)",
        ],
        [f"proxy{n}.v = 3", f"Proxy{n}.asked = 0"],
        [f"proxy{n}", f"Proxy{n}", f"Watcher{n}"],
    )


def records(c: Choices, n: int) -> Piece:
    """Data classes."""
    text = f"""
@dataclasses.dataclass
class Rec{n}:
    made = 0
    v: float
    name: str = "r"
    parts: list = dataclasses.field(default_factory=list)
    hidden: int = dataclasses.field(default=1, repr=False, compare=False)
    start: dataclasses.InitVar[int] = 2

    def __post_init__(self, start):
        Rec{n}.made += 1
        self.parts.append(start)

    @property
    def double(self):
        return self.v * 2


@dataclasses.dataclass(frozen=True, order=True)
class Frozen{n}:
    a: int = 1
    b: float = 0.5

    def moved(self, by):
        return dataclasses.replace(self, a=self.a + by)


@dataclasses.dataclass(slots=True, kw_only=True)
class Slotted{n}:
    a: int
    b: int = 2


@dataclasses.dataclass
class More{n}(Rec{n}):
    more: int = 3

    def __post_init__(self, start):
        super().__post_init__(start + 1)
        self.more += 1
"""
    return Piece(
        text,
        f"rec{n} = Rec{n}(1.0)\nfrozen{n} = Frozen{n}()\nslot{n} = Slotted{n}(a=1)",
        [
            f"rec{n}.v += 1",
            f"rec{n} = Rec{n}(total, {c.pick(('start=3', 'parts=[1]', 'name=str()'))})",
            f"rec{n} = More{n}(2.0)",
            f"frozen{n} = frozen{n}.moved(1)",
            f"frozen{n} = dataclasses.replace(frozen{n}, b=total)",
            f"slot{n}.a += 1",
            f"slot{n} = Slotted{n}(a=slot{n}.b, b=slot{n}.a)",
            f"try:\n    frozen{n}.a = 2\nexcept dataclasses.FrozenInstanceError:\n    total += 1",
            f"total += dataclasses.asdict(frozen{n})['b']",
            f"total += max(frozen{n}, Frozen{n}(2)).a",
            f"table{n} = {{frozen{n}: 1, Frozen{n}(): 2}}\ntotal += table{n}.get(Frozen{n}(1, 0.5), 0)",
            f"rec{n}.parts.append(1)\ndel rec{n}.parts[:-3]",
            f"match frozen{n}:\n    case Frozen{n}(1, b):\n        total = b\n    case Frozen{n}(a=a):\n        total = a",
            f"print(frozen{n})",
        ],
        [
            f"rec{n}.v",
            f"rec{n}.double",
            f"Rec{n}.made",
            f"len(rec{n}.parts)",
            f"frozen{n}.a",
            f"frozen{n}.b",
            f"float(frozen{n} < Frozen{n}(2))",
            f"float(rec{n} == Rec{n}(1.0))",
            f"slot{n}.a",
            f"len(dataclasses.fields(rec{n}))",
            f"len(repr(rec{n}))",
        ],
        [f"rec{n}.v = 4", f"Rec{n}.made = 0", f"slot{n}.b = 5"],
        [f"rec{n}", f"frozen{n}", f"slot{n}", f"Rec{n}"],
    )


def enums(c: Choices, n: int) -> Piece:
    """Enumerations, flags, and numbers that are such."""
    text = f"""
class Phase{n}(enum.Enum):
    WARM = "warm"
    MAIN = "main"
    DONE = "done"
    COLD = "warm"

    @property
    def rate(self):
        return {{"warm": 0.5, "main": 1.0}}.get(self.value, 0.25)

    def after(self):
        order = list(type(self))
        return order[(order.index(self) + 1) % len(order)]

    @classmethod
    def _missing_(cls, value):
        return cls.DONE


class Level{n}(enum.IntEnum):
    LOW = 1
    HIGH = 2
    TOP = enum.auto()


class Opt{n}(enum.Flag):
    A = enum.auto()
    B = enum.auto()
    C = A | B


class Pair{n}(float, enum.Enum):
    HALF = 0.5
    TWO = 2.0

    def __str__(self):
        return self.name.lower()
"""
    return Piece(
        text,
        f"phase{n} = [Phase{n}.WARM]\nlevel{n} = [Level{n}.LOW]\nopt{n} = [Opt{n}.A]\nby{n} = {{p: 0 for p in Phase{n}}}",
        [
            f"phase{n}[0] = phase{n}[0].after()",
            f"phase{n}[0] = Phase{n}({c.pick((repr('main'), repr('zz'), f'phase{n}[0].value'))})",
            f"phase{n}[0] = Phase{n}['MAIN']",
            f"level{n}[0] = Level{n}(level{n}[0] % 3 + 1)",
            f"opt{n}[0] ^= Opt{n}.B",
            f"opt{n}[0] = opt{n}[0] | Opt{n}.A if Opt{n}.B in opt{n}[0] else Opt{n}.C",
            f"by{n}[phase{n}[0]] += 1",
            f"match phase{n}[0]:\n    case Phase{n}.WARM:\n        total = 1\n    case Phase{n}.MAIN:\n        total = 2\n"
            f"    case _:\n        total = 3",
            f"print(phase{n}[0], level{n}[0], Pair{n}.TWO)",
            f"total += sum(level for level in Level{n})",
        ],
        [
            f"phase{n}[0].rate",
            f"level{n}[0]",
            f"level{n}[0].value",
            f"(level{n}[0] + 0.5)",
            f"float(phase{n}[0] is Phase{n}.COLD)",
            f"float(Opt{n}.B in opt{n}[0])",
            f"opt{n}[0].value",
            f"Pair{n}.TWO",
            f"len(Phase{n})",
            f"by{n}[Phase{n}.WARM]",
            f"len(str(phase{n}[0]))",
        ],
        [f"phase{n}[0] = Phase{n}.DONE", f"level{n}[0] = Level{n}.TOP", f"opt{n}[0] = Opt{n}.C"],
        [f"phase{n}", f"level{n}", f"opt{n}", f"by{n}"],
    )


KINDS: tuple[tuple[int, Kind], ...] = (
    (4, descriptors),
    (4, native_specials),
    (2, slots),
    (3, delegation),
    (3, records),
    (2, enums),
)
