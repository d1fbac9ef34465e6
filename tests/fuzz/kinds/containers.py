"""Containers of the program's own, live views and iterators of others, numbers of its own."""

from __future__ import annotations

from tests.fuzz.choices import Choices
from tests.fuzz.kinds.piece import Kind, Piece

__all__ = ["KINDS"]


def views(c: Choices, n: int) -> Piece:
    """Views and iterators that were there before the call."""
    kind = c.pick(("dict", "collections.OrderedDict", "collections.Counter", f"Own{n}"))
    text = f"""
class Own{n}(dict):
    def __missing__(self, key):
        return 3


class Keeper{n}:
    def __init__(self, table):
        self.table = table
        self.keys = table.keys()
        self.pairs = table.items()
"""
    return Piece(
        text,
        f"""
table{n} = {kind}(a=1, b=2)
keys{n}, values{n}, items{n} = table{n}.keys(), table{n}.values(), table{n}.items()
keeper{n} = Keeper{n}(table{n})
proxy{n} = types.MappingProxyType(table{n})
row{n} = [1.0, 2.0, 3.0]
walk{n} = iter(row{n})
get{n} = table{n}.get
""",
        [
            f"table{n}[{c.pick(('len(table%d)' % n, repr('c'), repr('a')))}] = total",
            f"table{n}.pop('b', None)",
            f"table{n}['a'] = 0.5 * table{n}.get('a', 1) + 1",
            f"table{n}.update(d=1)",
            f"if len(table{n}) > 5:\n    table{n}.clear()",
            f"table{n}.setdefault('e', 2)",
            f"row{n}.append(total)",
            f"if len(row{n}) > 8:\n    row{n}[:] = [1.0, 2.0, 3.0]\n    walk{n} = iter(row{n})",
            f"total += next(walk{n}, 0.5)",
            f"keys{n} = table{n}.keys()",
            f"for key{n}, value{n} in items{n}:\n    total = 0.5 * total + value{n}",
            f"keeper{n}.table['f'] = len(keeper{n}.keys)",
        ],
        [
            f"len(keys{n})",
            f"sum(values{n})",
            f"len(items{n})",
            f"float('c' in keys{n})",
            f"len(keeper{n}.pairs)",
            f"float('e' in keeper{n}.keys)",
            f"sum(1 for _ in keys{n})",
            f"len(list(items{n}))",
            f"len(proxy{n})",
            f"proxy{n}.get('a', 0.5)",
            f"get{n}('a', 0.5)",
            f"float(keys{n} == table{n}.keys())",
            f"len(keys{n} & {{'a', 'c'}})",
            f"max(values{n}, default=1)",
            f"len(list(reversed(keys{n})))",
        ],
        [f"table{n}['g'] = 2", f"table{n}.clear()", f"row{n}.append(1.0)", f"table{n}.pop('a', None)"],
        [f"dict(table{n})", f"row{n}", f"table{n}"],
    )


def containers(c: Choices, n: int) -> Piece:
    """Sequences and mappings written in Python."""
    text = f"""
class Seq{n}:
    asked = 0

    def __init__(self, *parts):
        self.parts = list(parts)

    def __getitem__(self, key):
        Seq{n}.asked += 1
        return Seq{n}(*self.parts[key]) if isinstance(key, slice) else self.parts[key]

    def __setitem__(self, key, value):
        self.parts[key] = value

    def __delitem__(self, key):
        del self.parts[key]

    def __len__(self):
        return len(self.parts)

    {
        c.pick(
            (
                f'''def __iter__(self):
        Seq{n}.asked += 1
        yield from self.parts''',
                "",
                '''def __contains__(self, item):
        return any(item == p for p in self.parts)''',
            )
        )
    }

    def append(self, value):
        self.parts.append(value)
        del self.parts[:-5]

    def __iadd__(self, more):
        for one in more:
            self.append(one)
        return self

    def __add__(self, other):
        return Seq{n}(*self.parts, *other)

    def __radd__(self, other):
        return Seq{n}(*other, *self.parts)

    def __eq__(self, other):
        Seq{n}.asked += 1
        return isinstance(other, Seq{n}) and self.parts == other.parts

    def __bool__(self):
        return len(self.parts) > {c.between(0, 3)}


class Table{n}(dict):
    made = 0

    def __missing__(self, key):
        Table{n}.made += 1
        self[key] = {c.pick(("1", "len(self)"))}
        return self[key]

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        Table{n}.made += 1


class User{n}(collections.UserDict):
    def __getitem__(self, key):
        return super().__getitem__(key) * 2


class Rows{n}(collections.UserList):
    def sum(self):
        return sum(self.data)


class Point{n}(collections.namedtuple("Point{n}", "x y")):
    __slots__ = ()

    def norm(self):
        return self.x * self.x + self.y

    def __add__(self, other):
        return type(self)(self.x + other[0], self.y)
"""
    return Piece(
        text,
        f"""
seq{n} = Seq{n}(1, 2, 3)
tab{n} = Table{n}(a=1)
user{n} = User{n}(a=1.0)
rows{n} = Rows{n}([1, 2])
point{n} = Point{n}(1, 2)
chain{n} = collections.ChainMap({{}}, tab{n})
""",
        [
            f"seq{n}.append(total)",
            f"seq{n}[0] = total",
            f"if len(seq{n}) > 2:\n    del seq{n}[-1]",
            f"seq{n} += [1, total]",
            f"more{n} = seq{n} + (1, 2)\ntotal += len(more{n})",
            f"more{n} = [5] + seq{n}\ntotal += more{n}[0]",
            f"first{n}, *rest{n} = seq{n} if len(seq{n}) else (1,)\ntotal += first{n}",
            f"for one{n} in seq{n}:\n    total = 0.5 * total + one{n}",
            f"part{n} = seq{n}[:2]\ntotal += len(part{n})",
            f"tab{n}['b'] = total",
            f"total += tab{n}[{c.pick((repr('zz'), 'len(tab%d)' % n))}]\nif len(tab{n}) > 5:\n    tab{n}.clear()",
            f"tab{n}.pop('zz', None)",
            f"user{n}['a'] = user{n}['a'] * 0.25 + 1",
            f"user{n}.setdefault('b', 2)",
            f"rows{n}.append(total)\ndel rows{n}[:-4]",
            f"rows{n}[0] += 1",
            f"point{n} = point{n} + (1, 0)",
            f"point{n} = point{n}._replace(y=total, x=1)",
            f"chain{n}['q'] = total",
            f"print(*seq{n})",
        ],
        [
            f"len(seq{n})",
            f"Seq{n}.asked",
            f"float(2 in seq{n})",
            f"sum(seq{n})",
            f"float(seq{n} == Seq{n}(1, 2))",
            f"(1.5 if seq{n} else 0.5)",
            f"len(list(reversed(seq{n})))",
            f"tab{n}['a']",
            f"Table{n}.made",
            f"user{n}['a']",
            f"len(user{n})",
            f"rows{n}.sum()",
            f"point{n}.norm()",
            f"point{n}.x",
            f"chain{n}.get('a', 0.5)",
            f"len(chain{n})",
            f"max(seq{n}.parts or [1])",
        ],
        [f"seq{n}.parts.append(2)", f"tab{n}.update(c=1)", f"user{n}['c'] = 3", f"Seq{n}.asked = 0"],
        [f"seq{n}", f"tab{n}", f"user{n}", f"rows{n}", f"point{n}", f"chain{n}.maps", f"Seq{n}", f"Table{n}"],
    )


def numbers(c: Choices, n: int) -> Piece:
    """Operators written in Python, that count, give up, and are asked from the other side."""
    text = f"""
@functools.total_ordering
class Num{n}:
    asked = 0

    def __init__(self, v):
        self.v = v

    def __add__(self, other):
        Num{n}.asked += 1
        if isinstance(other, Num{n}):
            return Num{n}(self.v + other.v)
        return Num{n}(self.v + other) if isinstance(other, (int, float)) else NotImplemented

    __radd__ = __add__

    def __mul__(self, other):
        return {c.pick(("NotImplemented", f"Num{n}(self.v * 0.5)", "self.v * other"))}

    def __rmul__(self, other):
        Num{n}.asked += 1
        return other * self.v

    def __iadd__(self, other):
        self.v = 0.5 * self.v + float(other)
        return self

    def __neg__(self):
        return Num{n}(-self.v)

    def __float__(self):
        Num{n}.asked += 1
        return float(self.v)

    def __index__(self):
        return int(self.v) % 3

    def __eq__(self, other):
        Num{n}.asked += 1
        return self.v == getattr(other, "v", other)

    def __lt__(self, other):
        return self.v < getattr(other, "v", other)

    def __hash__(self):
        Num{n}.asked += 1
        return hash(int(self.v))

    def __round__(self, digits=0):
        return 2

    def __format__(self, spec):
        Num{n}.asked += 1
        return f"<{{self.v:{{spec or '.2f'}}}}>"

    def __divmod__(self, other):
        return self.v // other, 1


class Sub{n}(Num{n}):
    def __radd__(self, other):
        return Num{n}(1)


class Units{n}(float):
    def __new__(cls, v, unit="m"):
        made = super().__new__(cls, v)
        made.unit = unit
        return made

    def __add__(self, other):
        return Units{n}(float(self) + other, self.unit)

    def __repr__(self):
        return f"{{float(self)}}{{self.unit}}"


class Count{n}(int):
    def __add__(self, other):
        return Count{n}(int(self) + int(other) + 1)
"""
    return Piece(
        text,
        f"num{n} = Num{n}(1)\nunits{n} = Units{n}(1.5)\ncount{n} = Count{n}(1)\nseen{n} = {{Num{n}(1): 1.0}}",
        [
            f"num{n} = num{n} + {c.pick(('1', f'Num{n}(1)', f'Sub{n}(2)'))}",
            f"num{n} += 1",
            f"num{n} = -num{n}",
            f"total += float(1 + num{n})",
            f"units{n} = units{n} + 1" if c.chance(50) else f"units{n} = Units{n}(total)",
            f"count{n} = Count{n}(count{n} + 1) if count{n} < 9 else Count{n}(0)",
            f"seen{n}[Num{n}(len(seen{n}))] = total\nif len(seen{n}) > 4:\n    seen{n}.clear()",
            f"total += sorted([Num{n}(2), num{n}, Num{n}(1)])[0].v",
            f"total += [1, 2, 3][num{n}]",
            f"print(f'{{num{n}:.1f}}', units{n})",
            f"try:\n    num{n} + 'a'\nexcept TypeError:\n    total += 1",
            f"total += sum([Num{n}(1), num{n}], Num{n}(0)).v",
        ],
        [
            f"num{n}.v",
            f"float(num{n})",
            f"Num{n}.asked",
            f"float(num{n} > 1)",
            f"float(num{n} == 2)",
            f"units{n}",
            f"len(units{n}.unit)",
            f"count{n}",
            f"float(Num{n}(1) in seen{n})",
            f"seen{n}.get(Num{n}(1), 0.5)",
            f"round(num{n})",
            f"max(num{n}, Num{n}(2)).v",
            f"divmod(num{n}, 2)[0]",
            f"range(5)[num{n}]",
        ],
        [f"num{n}.v = 4", f"Num{n}.asked = 0", f"seen{n}.clear()"],
        [f"num{n}", f"units{n}", f"count{n}", f"Num{n}", f"list(seen{n}.values())"],
    )


KINDS: tuple[tuple[int, Kind], ...] = ((4, views), (3, containers), (3, numbers))
