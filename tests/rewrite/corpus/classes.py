"""Classes: bodies inside of functions, super, private names, descriptors, metaclasses, special methods."""

import abc
import collections
import dataclasses
import functools

LOG = []


class Base:
    shared = "base"

    def __init__(self, x):
        self.x = x

    def describe(self):
        return f"Base({self.x})"

    @property
    def prop(self):
        return ("base prop", self.x)

    @prop.setter
    def prop(self, value):
        self.x = value

    @classmethod
    def make(cls, x):
        return cls(x)

    @staticmethod
    def plain(x):
        return x * 2


class Child(Base):
    def __init__(self, x, y=0):
        super().__init__(x)
        self.y = y

    def describe(self):
        return "Child of " + super().describe()

    @property
    def prop(self):
        return ("child prop", super().prop)

    @prop.setter
    def prop(self, value):
        super(Child, type(self)).prop.fset(self, value * 2)

    @classmethod
    def make(cls, x):
        made = super().make(x + 1)
        made.y = "made"
        return made

    def own_class(self):
        return __class__, super().shared, super(Child, self).describe()


def program_super():
    c = Child(1)
    c.prop = 5
    d = Child.make(1)
    return c.describe(), c.prop, c.x, d.x, d.y, d.own_class(), c.plain(4), Child.plain(5), Base.describe(c)


def program_super_in_a_comprehension():
    class A:
        def f(self):
            return 1

    class B(A):
        def f(self):
            return [super(B, self).f() for _ in range(2)], (lambda: super(B, self).f())(), __class__.__name__

    return B().f()


def program_super_missing():
    class A:
        def f(self):
            return super().nope

    return A().f()


def program_super_without_arguments():
    def f():
        return super()

    return f()


def program_class_body():
    k = 3

    class C:
        "Documented."

        a = k
        b = a + 1
        c = [n * 2 for n in range(b)]
        d = [k for _ in range(2)]
        (e, f), g = (1, 2), a and b
        h = f"{a}{k}"
        if a > 2:
            i = "big"
        for j in range(3):
            pass
        a += 10
        x: int = 4
        y: str
        print("in class", a, __qualname__)

        def method(self):
            return self.a, k, C.b

        class Inner:
            z = k

            def method(self):
                return __class__.__qualname__

        lam = lambda self: self.a  # noqa: E731
        del j

    c = C()
    return (
        c.method(),
        C.__doc__,
        C.__annotations__,
        C.__qualname__,
        C.Inner().method(),
        C.method.__qualname__,
        c.lam(),
        sorted(n for n in vars(C) if not n.startswith("__")),
    )


def program_class_body_shadowing():
    x = "outer"

    class C:
        y = x
        x = "inner"
        z = x

        def f(self):
            return x

    return C.y, C.x, C.z, C().f()


def program_class_global():
    class C:
        global CLASS_GLOBAL
        CLASS_GLOBAL = 1
        CLASS_GLOBAL += 1

    return CLASS_GLOBAL, hasattr(C, "CLASS_GLOBAL")


def program_class_nonlocal():
    n = 0

    class C:
        nonlocal n
        n = 5
        n += 1

    return n


class Private:
    __name = "private"

    def __init__(self):
        self.__value = 1
        self.__value += 1
        self.__d = {"__k": 1}

    def __secret(self, __arg):
        return __arg, self.__value

    def read(self):
        def inner():
            __local = self.__value
            return __local

        return self.__secret(3), inner(), [self.__name for _ in "a"], self.__d["__k"], f"{self.__value=}"

    def drop(self):
        del self.__value

    class _Nested:
        def __init__(self):
            self.__value = "nested"


def program_private_names():
    p = Private()
    out = p.read(), sorted(vars(p)), vars(Private._Nested())
    p.drop()
    return out, sorted(vars(p))


def program_private_missing():
    class Oops:
        def f(self):
            return self.__nope

    return Oops().f()


def program_private_global():
    class C:
        def f(self):
            global __shared
            __shared = 1
            return __shared

    return C().f(), "_C__shared" in globals()


class Descriptor:
    def __set_name__(self, owner, name):
        LOG.append(("named", owner.__name__, name))
        self.name = name

    def __get__(self, instance, owner=None):
        LOG.append(("get", instance is None))
        if instance is None:
            return self
        return instance.__dict__.get("_" + self.name, "nothing")

    def __set__(self, instance, value):
        LOG.append(("set", value))
        instance.__dict__["_" + self.name] = value

    def __delete__(self, instance):
        LOG.append("delete")
        del instance.__dict__["_" + self.name]


class NonData:
    def __get__(self, instance, owner):
        LOG.append("nondata")
        return "from class"


class Described:
    d = Descriptor()
    n = NonData()


def program_descriptors():
    x = Described()
    out = [x.d, x.n]
    x.d = 3
    out.append(x.d)
    x.d += 1
    out.append(x.d)
    del x.d
    x.n = "own"
    out += [x.d, x.n, type(Described.d).__name__, Described.n, getattr(x, "d", None), hasattr(x, "zz")]
    return out, LOG


class Fallback:
    def __init__(self):
        self.real = 1

    @property
    def broken(self):
        return self.missing_inside

    def __getattr__(self, name):
        LOG.append(name)
        if name == "missing_inside" or name.startswith("bad"):
            raise AttributeError(name)
        return f"fallback {name}"


def program_getattr_fallback():
    f = Fallback()
    return f.real, f.anything, f.broken, getattr(f, "bad", "default"), hasattr(f, "bad2"), LOG


def program_getattr_error():
    return Fallback().bad_one


class Gate:
    def __getattribute__(self, name):
        LOG.append(f"gate {name}")
        if name == "special":
            return "special"
        return object.__getattribute__(self, name)

    def __getattr__(self, name):
        return f"else {name}"

    def method(self):
        return self.special


def program_getattribute():
    g = Gate()
    g.x = 3
    return g.x, g.method(), g.nothing, LOG


def program_read_only():
    class A:
        @property
        def x(self):
            return 1

    a = A()
    out = [a.x]
    for fail in (lambda: setattr(a, "x", 2), lambda: delattr(a, "x"), lambda: a.y):
        try:
            fail()
        except AttributeError as error:
            out.append(str(error))
    return out


def program_slots():
    class S:
        __slots__ = ("a", "b")

        def __init__(self):
            self.a = 1

    s = S()
    try:
        s.c = 3
    except AttributeError as error:
        return s.a, str(error)


class Meta(type):
    def __new__(mcls, name, bases, namespace, **options):
        LOG.append(("new", name, options))
        return super().__new__(mcls, name, bases, namespace)

    def __init__(cls, name, bases, namespace, **options):
        super().__init__(name, bases, namespace)
        cls.tag = name.lower()

    def __call__(cls, *args, **kwargs):
        LOG.append(("call", args))
        return super().__call__(*args, **kwargs)

    def __instancecheck__(cls, value):
        LOG.append("instancecheck")
        return value == "fits" or super().__instancecheck__(value)

    def __subclasscheck__(cls, other):
        return other is int or super().__subclasscheck__(other)

    def __getitem__(cls, key):
        return f"{cls.__name__}[{key}]"

    def __len__(cls):
        return 7

    def __iter__(cls):
        return iter("meta")

    @property
    def upper(cls):
        return cls.__name__.upper()

    def __getattr__(cls, name):
        if name.startswith("dyn"):
            return name
        raise AttributeError(name)


def program_metaclass():
    class M(metaclass=Meta, option=1):
        def __init__(self, x):
            self.x = x

    m = M(3)
    return (
        m.x,
        M.tag,
        isinstance("fits", M),
        isinstance(m, M),
        isinstance(3, M),
        isinstance("fits", (int, M)),
        issubclass(int, M),
        M[4],
        len(M),
        list(M),
        M.upper,
        M.dynamic,
        hasattr(M, "other"),
        bool(M),
        LOG,
    )


def program_init_subclass():
    class Registry:
        seen = []

        def __init_subclass__(cls, /, tag=None, **kwargs):
            super().__init_subclass__(**kwargs)
            cls.seen.append((cls.__name__, tag))

        def __class_getitem__(cls, item):
            return (cls.__name__, item)

    class A(Registry, tag="a"):
        pass

    class B(A):
        pass

    return Registry.seen, A[int], B["x"]


class Fresh:
    def __new__(cls, *args, **kwargs):
        LOG.append(("new", args, kwargs))
        if args and args[0] == "other":
            return "not an instance"
        return super().__new__(cls)

    def __init__(self, *args, **kwargs):
        LOG.append(("init", args, kwargs))


class OnlyNew:
    def __new__(cls, x):
        self = object.__new__(cls)
        self.x = x
        return self


def program_construction():
    made = Fresh(1, k=2)
    return type(made).__name__, Fresh("other"), OnlyNew(3).x, LOG


def program_init_returns():
    class A:
        def __init__(self):
            return 3

    return A()


def program_too_many_arguments():
    class A:
        pass

    return A(1)


def program_too_many_arguments_for_init():
    class A:
        def __init__(self):
            pass

    return A(1)


def program_abstract():
    class Shape(abc.ABC):
        @abc.abstractmethod
        def area(self):
            """The area."""

        def __init__(self, name):
            self.name = name

        def double(self):
            return self.area() * 2

    class Square(Shape):
        def area(self):
            return 9

    out = [Square("s").double(), isinstance(Square("s"), Shape)]
    try:
        Shape("x")
    except TypeError as error:
        out.append(str(error))
    return out


class Counter(dict):
    def __missing__(self, key):
        LOG.append(key)
        self[key] = 0
        return 0

    def __setitem__(self, key, value):
        LOG.append((key, value))
        super().__setitem__(key, value)


class Stack(list):
    def __init__(self, *items):
        super().__init__(items)

    def push(self, item):
        self.append(item)
        return self

    def __getitem__(self, index):
        return ("item", super().__getitem__(index))

    def __len__(self):
        return super().__len__() + 100

    def __add__(self, other):
        return Stack(*super().__add__(other))


def program_builtin_subclasses():
    c = Counter()
    for letter in "aba":
        c[letter] += 1
    s = Stack(1, 2).push(3)

    class Money(float):
        def __new__(cls, amount, unit="eur"):
            self = super().__new__(cls, amount)
            self.unit = unit
            return self

        def __add__(self, other):
            return Money(float(self) + other, self.unit)

        def __str__(self):
            return f"{float(self):.2f} {self.unit}"

    m = Money(2.5) + 1
    return dict(c), s[0], len(s), bool(s), s + [4], str(m), m.unit, f"{m}", m * 2, LOG


@dataclasses.dataclass(order=True)
class Point:
    x: int
    y: int = 2
    tags: list = dataclasses.field(default_factory=list, compare=False)

    def __post_init__(self):
        self.norm = self.x + self.y


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: int


def program_dataclasses():
    p = Point(1)
    q = dataclasses.replace(p, y=5)
    out = [p, q, p < q, p == Point(1), p.norm, dataclasses.asdict(q), Frozen(1), hash(Frozen(1)) == hash(Frozen(1))]
    try:
        Frozen(1).x = 2
    except dataclasses.FrozenInstanceError as error:
        out.append(str(error))
    return out


Pair = collections.namedtuple("Pair", "left right")


class Named(Pair):
    def total(self):
        return self.left + self.right


def program_namedtuples():
    n = Named(1, right=2)
    left, right = n
    return n, n.total(), n._replace(left=5), left, right, n[0], n._asdict()


class Cached:
    def __init__(self):
        self.calls = 0

    @functools.cached_property
    def value(self):
        self.calls += 1
        return self.calls

    @functools.lru_cache  # noqa: B019
    def method(self, k):
        self.calls += 10
        return self.calls, k

    def __hash__(self):
        return 1

    part = functools.partialmethod(lambda self, a, b: (a, b), 1)


def program_cached():
    c = Cached()
    return c.value, c.value, c.method(1), c.method(1), c.calls, vars(c), c.part(2)


class Callable_:
    def __call__(self, *args, **kwargs):
        return self.helper(*args), kwargs

    def helper(self, *args):
        return args[::-1]


def program_callable_objects():
    c = Callable_()
    instance_only = Callable_()
    instance_only.__call__ = lambda: "never asked"
    return c(1, 2, k=3), instance_only(4), callable(c), list(map(c, [1, 2])), functools.partial(c, 1)(2)


def program_bound_methods():
    c = Child(1)
    describe = c.describe
    unbound = Child.describe
    return describe(), unbound(c), describe.__self__ is c, describe == c.describe, sorted([3, 1], key=c.plain)


def program_method_missing_argument():
    return Child(1).describe(1, 2)


def program_class_missing_argument():
    return Base()


def program_error_in_property():
    class A:
        @property
        def x(self):
            return 1 / 0

    return A().x


def program_error_in_operator():
    class A:
        def __add__(self, other):
            raise ValueError("in add")

    a = A()
    return (
        1,
        a
        + 1,
    )


def program_error_in_init():
    class A:
        def __init__(self):
            self.f()

        def f(self):
            raise KeyError("deep")

    return [
        A()
        for _ in range(1)
    ]


def program_error_in_setter():
    class A:
        def __setattr__(self, name, value):
            raise TypeError(name)

    a = A()
    a.b = 3


def program_error_in_getitem():
    class A:
        def __getitem__(self, key):
            raise KeyError(key)

    return A()[
        "k"
    ]


def program_class_decorators():
    def register(tag):
        def decorate(cls):
            cls.tag = tag
            return cls

        return decorate

    @register("t")
    @functools.total_ordering
    class A:
        def __init__(self, n):
            self.n = n

        def __lt__(self, other):
            return self.n < other.n

        def __eq__(self, other):
            return self.n == other.n

    return A.tag, A(1) <= A(2), A(2) >= A(3), sorted([A(2), A(1)])[0].n


def program_special_lookup_is_on_the_type():
    class A:
        pass

    a = A()
    a.__len__ = lambda: 3
    a.__enter__ = lambda: 3
    try:
        len(a)
    except TypeError as error:
        return str(error)


def without_source(name, text):
    namespace = {"LOG": LOG}
    exec(text, namespace)
    return namespace[name]


def program_access_without_source():
    class A:
        __setattr__ = without_source("f", "def f(self, name, value):\n    LOG.append(name)\n    raise TypeError('frozen')")
        __getattr__ = without_source("g", "def g(self, name):\n    return 'fallback ' + name")

        def __init__(self):
            object.__setattr__(self, "x", 1)
            super().__setattr__("y", 2)

        def plain(self, name):
            try:
                return object.__getattribute__(self, name)
            except AttributeError as error:
                return str(error)

    a = A()
    try:
        a.x = 5
    except TypeError as error:
        return a.x, a.y, a.z, a.plain("x"), a.plain("z"), str(error), LOG


def program_class_whose_order_is_being_worked_out():
    class Meta(type):
        def mro(cls):
            LOG.append((cls.__mro__, cls.__name__, cls.__bases__ == (object,), "f" in cls.__dict__))
            for ask in (lambda: cls.nothing, lambda: super(cls, cls).nothing):
                try:
                    ask()
                except AttributeError as error:
                    LOG.append(str(error))
            return type.mro(cls)

    class A(metaclass=Meta):
        def f(self):
            return 1

    return A().f(), LOG


def program_metaclasses_are_not_asked():
    class Meta(type):
        def __getattribute__(cls, name):
            LOG.append(f"get {name}")
            return type.__getattribute__(cls, name)

        def __subclasscheck__(cls, other):
            LOG.append("subclass check")
            return True

        def __eq__(cls, other):
            LOG.append("equal")
            return cls is other

        __hash__ = type.__hash__

    class Left(metaclass=Meta):
        def __add__(self, other):
            return "left"

        def __lt__(self, other):
            return "less"

        def __init__(self):
            self.x = 1

        def __getitem__(self, key):
            if key > 2:
                raise IndexError
            return key

        def __enter__(self):
            return self

        def __exit__(self, *error):
            return None

    class Right(metaclass=Meta):
        def __radd__(self, other):
            return "right"

        def __gt__(self, other):
            return "greater"

    class Lower(Left):
        def __init__(self):
            super().__init__()

    with Left() as left:
        results = [left + Right(), left < Right(), left.x, left[1], list(left), 2 in left, Lower().x]
    return results, LOG


def program_names_in_attribute_errors():
    class Silent:
        blech = None

        def __getattr__(self, name):
            raise AttributeError()

    class Broken:
        @property
        def broken(self):
            raise AttributeError()

        @property
        def told(self):
            raise AttributeError(name="other", obj=3)

    out = []
    for obj, name in ((Silent(), "bluch"), (Broken(), "broken"), (Broken(), "told")):
        try:
            getattr(obj, name)
        except AttributeError as error:
            out.append((error.name, error.obj is obj))
    try:
        Silent().bluch
    except AttributeError as error:
        out.append((error.name, type(error.obj)))
    return out
