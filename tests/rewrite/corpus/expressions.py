"""Expressions: evaluation order, truth, operators, comparisons, comprehensions, strings."""

LOG = []


def note(label, value=None):
    LOG.append(label)
    return value


class Truth:
    """Counts how often its truth is asked for."""

    def __init__(self, name, value):
        self.name, self.value = name, value

    def __bool__(self):
        LOG.append(f"bool {self.name}")
        return self.value

    def __repr__(self):
        return self.name


T, F = Truth("T", True), Truth("F", False)


def program_boolean_values():
    return (T and F, F and T, T or F, F or T, T and F or T, F or (T and F), (F or T) and F, not T, not (T and F), LOG)


def program_boolean_values_nested():
    out = [
        (a and b or c, (a or b) and c, a and (b or c), a or b or c, a and b and c, not a and b, not (a or b) or c)
        for a in (T, F)
        for b in (T, F)
        for c in (T, F)
    ]
    return out, LOG


def program_boolean_tests():
    out = []
    for a in (T, F):
        for b in (T, F):
            for c in (T, F):
                if a and b or c:
                    out.append(1)
                if not (a or b) and not c:
                    out.append(2)
                if a if b else c:
                    out.append(3)
                while not a and b:
                    out.append(4)
                    break
                x = 1 if a or not b else 2
                out.append(x)
                assert a or not a
    return out, LOG


class Bad:
    def __bool__(self):
        return 3


class Sized:
    def __init__(self, n):
        self.n = n

    def __len__(self):
        LOG.append("len")
        return self.n


def program_bad_truth():
    if Bad():
        return 1


def program_bad_truth_in_and():
    return Bad() and 1


def program_length_as_truth():
    return bool(Sized(0)), not Sized(2), 1 if Sized(1) else 2, len(Sized(3)), LOG


def program_negative_length():
    return len(Sized(-1))


def program_length_of_the_wrong_type():
    return 1 if Sized("a") else 2


class Comparing:
    def __init__(self, name, answer=True):
        self.name, self.answer = name, answer

    def _compare(op):
        def compare(self, other):
            LOG.append(f"{self.name} {op} {getattr(other, 'name', other)}")
            return self.answer

        return compare

    __lt__, __le__, __gt__, __ge__, __eq__, __ne__ = map(_compare, ["<", "<=", ">", ">=", "==", "!="])
    __hash__ = None


class Derived(Comparing):
    def __gt__(self, other):
        LOG.append(f"derived {self.name} > {other.name}")
        return NotImplemented


def program_comparisons():
    a, b, d = Comparing("a"), Comparing("b", NotImplemented), Derived("d")
    out = [a < b, a == b, b == a, b != a, a < d, d < a, b <= a]
    return out, LOG


def program_comparison_unsupported():
    return Comparing("a", NotImplemented) < Comparing("b", NotImplemented)


def program_equal_by_identity():
    a, b = Comparing("a", NotImplemented), Comparing("b", NotImplemented)
    return a == a, a == b, a != b, a != a, LOG


class OnlyEqual:
    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        LOG.append("eq")
        return self.value == getattr(other, "value", other)


def program_not_equal_from_equal():
    return OnlyEqual(1) != OnlyEqual(1), OnlyEqual(1) != 2, 1 == OnlyEqual(1), OnlyEqual(T) != OnlyEqual(F), LOG


def program_chains():
    out = []
    for a in range(3):
        for b in range(3):
            out.append((a < note("b", b) < note("c", 2), 0 <= a != b >= note("d", 1), a < b > a == a))
            if 0 < a < note("e", b):
                out.append("in")
            if not 0 < a < b:
                out.append("out")
    return out, LOG


def program_chain_values():
    a, b = Comparing("a", F), Comparing("b", T)
    return a < b < a, b < a < b, b < b < b, (b < b < a if b < a < a else 0), LOG


def program_chain_in_generator():
    def g():
        x = 1 < (yield "first") < (yield "second") < 100
        yield x

    one, two = g(), g()
    out = [next(one), next(two)]
    out += [one.send(5), two.send(0), one.send(50)]
    return out


def program_chain_unsupported():
    return 1 < 2 < "a"


class Vector:
    def __init__(self, *xs):
        self.xs = xs

    def __repr__(self):
        return f"{type(self).__name__}{self.xs}"

    def __add__(self, other):
        LOG.append("add")
        if isinstance(other, Vector):
            return Vector(*(a + b for a, b in zip(self.xs, other.xs)))
        return NotImplemented

    def __radd__(self, other):
        LOG.append("radd")
        return Vector(*(other + a for a in self.xs)) if isinstance(other, int) else NotImplemented

    def __mul__(self, k):
        return Vector(*(a * k for a in self.xs))

    __rmul__ = __mul__

    def __matmul__(self, other):
        return sum(a * b for a, b in zip(self.xs, other.xs))

    def __imul__(self, k):
        LOG.append("imul")
        self.xs = tuple(a * k for a in self.xs)
        return self

    def __neg__(self):
        return Vector(*(-a for a in self.xs))

    def __invert__(self):
        return "inverted"

    def __pos__(self):
        return self

    def __abs__(self):
        return 5

    def __getitem__(self, key):
        LOG.append(key)
        return self.xs[key] if isinstance(key, (int, slice)) else key

    def __pow__(self, other, modulus=None):
        return ("pow", other, modulus)

    def __rsub__(self, other):
        LOG.append("rsub")
        return ("rsub", other)


class Special(Vector):
    def __radd__(self, other):
        LOG.append("special radd")
        return "special"


def program_operators():
    v, w, s = Vector(1, 2), Vector(3, 4), Special(5, 6)
    u = v
    u *= 3
    v += w
    x = 5
    x += v
    return v + w, 3 + v, v * 2, 2 * v, v @ w, -v, ~v, +v, abs(v), v**2, u, x, v + s, s + v, 1 - v, LOG


def program_sequence_plus_reflected():
    class Right:
        def __radd__(self, other):
            return ("radd", other)

        def __rmul__(self, other):
            return ("rmul", other)

        def __rmod__(self, other):
            return ("rmod", other)

    x = [1]
    x += Right()
    y = "a"
    y += Right()
    return [1] + Right(), "a" + Right(), (1,) + Right(), [1] * Right(), x, y, 3 + Right(), 3 % Right(), 2.0 * Right()


def program_sequence_plus_declined():
    class Right:
        def __radd__(self, other):
            LOG.append("asked")
            return NotImplemented

    try:
        [1] + Right()
    except TypeError as error:
        return str(error), LOG


def program_unsupported_operand():
    return Vector(1) + "a"


def program_unsupported_reflected():
    return "a" - Vector(1) + (3 + Vector("b"))


def program_unsupported_power():
    class A:
        def __rpow__(self, other):
            return NotImplemented

    return 2 ** A()


def program_unsupported_inplace():
    class A:
        def __iadd__(self, other):
            return NotImplemented

        def __add__(self, other):
            return NotImplemented

    a = A()
    a += 1


def program_native_operators():
    x = 7
    x //= 2
    x <<= 3
    x |= 1
    y = [1, 2]
    z = y
    y += (3,)
    y *= 2
    return (
        x,
        y is z,
        y,
        7 % 3,
        2**-1,
        1 ^ 3,
        6 & 3,
        8 >> 1,
        -x,
        ~x,
        +x,
        not x,
        "%s-%d" % ("a", 2),
        3 @ Vector(1) if 0 else 1,
    )


def program_division_by_zero():
    a = 1
    return a / (a - 1)


def program_membership():
    class Iterating:
        def __iter__(self):
            LOG.append("iter")
            return iter([1, OnlyEqual(2)])

    class Containing:
        def __contains__(self, value):
            LOG.append(value)
            return T if value == 1 else F

    class Indexed:
        def __getitem__(self, index):
            if index > 3:
                raise IndexError
            return index * 10

    return (
        1 in Iterating(),
        2 in Iterating(),
        3 not in Iterating(),
        1 in Containing(),
        2 not in Containing(),
        20 in Indexed(),
        25 in Indexed(),
        [*Indexed()],
        None is None,
        1 is not None,
        LOG,
    )


def program_membership_unsupported():
    return 1 in 2


def program_conditional():
    return [(1 if note("test", n % 2) else note("else", 2)) for n in range(3)], LOG


def program_walrus():
    out = []
    while (n := len(out)) < 3:
        out.append(n)
    total = 0
    squares = [total := total + k * k for k in range(4)]
    if any((last := k) > 1 for k in range(5)):
        out.append(last)
    return out, squares, total, n, last, [(y := 3), y]


def program_comprehensions():
    k = 10
    rows = [[1, 2], [3], []]
    return (
        [x + k for row in rows if row for x in row if x != 2],
        {x: [x * y for y in range(x)] for x in range(3)},
        {a for a, *b in [(1, 2), (3,)]},
        sorted(x for x in {3, 1, 2} if x > 1 and k),
        [(a, b) for a, (b, *_) in enumerate(["xy", "zw"])],
        [lambda: x for x in range(2)][0](),
        [[y for y in range(x)] for x in range(3)],
        list(x for x in (y * 2 for y in range(3))),
    )


def program_comprehension_targets():
    class Box:
        pass

    box = Box()
    d = {}
    out = [box.x for box.x in range(3)], [d["k"] for d["k"] in "ab"]
    return out, box.x, d


def program_comprehension_error():
    return [1 / x for x in (2, 1, 0)]


def program_generator_expression_is_lazy():
    def source():
        LOG.append("started")
        yield 1

    g = (x + 1 for x in source())
    LOG.append("made")
    return list(g), LOG


def program_generator_expression_of_a_number():
    return (x for x in 5)


def program_displays():
    a = [1, 2]
    d = {"x": 1}
    return [*a, 3, *"bc"], (*a, *a), {*a, 5}, {**d, "y": 2, **{"x": 3}}, [*range(2)], {note("k", 1): note("v", 2)}, LOG


def program_double_star_display_error():
    return {**3}


def program_star_display_error():
    return [*3]


def program_subscripts():
    v = Vector(1, 2, 3)
    m = list(range(10))
    i = 2
    return v[0], v[1:], v[::2], v[1:2, ...], v[:, i], v[()], m[i:-1:2], m[-1], {"a": {"b": 1}}["a"]["b"], "abc"[i], LOG


def program_subscript_errors():
    out = []
    for bad in (lambda: [1][3], lambda: {}["k"], lambda: 3[0], lambda: "a"["b"], lambda: None[1:2]):
        try:
            bad()
        except Exception as error:
            out.append((type(error).__name__, str(error)))
    return out


class Formatted:
    def __format__(self, spec):
        LOG.append(spec)
        return f"<{spec}>"

    def __str__(self):
        return "str"

    def __repr__(self):
        return "repr"


def program_strings():
    x, width, name = 3.14159, 10, "é"
    f = Formatted()
    return (
        f"{x}",
        f"{x:.2f}",
        f"{x!r:>{width}}|",
        f"{name!a}",
        f"{f}{f:abc}{f!s}{f!r}{f!r:>6}",
        f"{x=}",
        f"{x = :.1f}",
        f"{{}}{1 + 1}",
        f"{'nested ' + f'{x:{width}.{2}}'}",
        f"ab{width}",
        f"{(lambda y: y * 2)(4)}",
        f"""{x}""",
        f"",
        LOG,
    )


def program_string_of_the_wrong_type():
    class Wrong:
        def __str__(self):
            return 3

    return f"{Wrong()}"


def program_format_error():
    return f"{'a':d}"


def program_text_functions():
    f = Formatted()
    return str(f), repr(f), format(f, "x"), "%s %r" % (f, f), "{} {!r} {:z}".format(f, f, f), str(), str(b"a", "ascii")


def program_evaluation_order():
    d = {}

    def get(label, value):
        LOG.append(label)
        return value

    get("obj", d)[get("key", "k")] = get("value", 1)
    get("obj", d)[get("key", "k")] += get("more", 2)
    get("f", print)(get("a", 1), *get("b", [2]), sep=get("c", "-"), **get("d", {}))
    x = get("left", 1) + get("right", 2) * get("third", 3)
    {get("k1", 1): get("v1", 1), get("k2", 2): get("v2", 2)}
    get("o", [1, 2, 3])[get("lo", 0) : get("hi", 2)]
    get("a", 1) < get("b", 2) < get("c", 3)
    a = b = get("both", [])
    d["x"], d["y"] = get("x", 1), get("y", 2)
    return LOG, x, a is b, d


def program_constants():
    return -1, 2**10, "a" * 3, 1 + 2j, (1, 2), ..., None, True, b"x", 10_000, not False, -0.0


def program_none_against_objects():
    class Plain:
        pass

    class Equal:
        def __eq__(self, other):
            LOG.append("asked")
            return other is None

    return None != Plain(), None == Plain(), Plain() != None, None != Equal(), None == Equal(), Equal() in [None], LOG


def program_length_hints():
    class Told:
        def __init__(self, answer):
            self.answer = answer

        def __iter__(self):
            LOG.append("iter")
            return iter((1, 2))

        def __length_hint__(self):
            LOG.append("hint")
            if isinstance(self.answer, type):
                raise self.answer("no")
            return self.answer

    class Sized(Told):
        def __len__(self):
            LOG.append("len")
            if self.answer == 7:
                raise TypeError("not this time")
            return self.answer

    out = [list(Told(9)), tuple(Told(NotImplemented)), [*Told(2)], sorted(Told(3)), list(Told(TypeError))]
    out += [list(Sized(4)), list(Sized(7)), set(Sized(5)), sum(Sized(6))]
    for wrong in (-1, "x", ValueError):
        for made in (Told, Sized):
            try:
                list(made(wrong))
            except Exception as error:
                out.append(repr(error))
    return out, LOG
