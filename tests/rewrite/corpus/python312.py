"""Syntax of Python 3.12: type parameters, type aliases, f-strings without limits."""


def program_generic_functions():
    def first[T](xs: list[T], default: T = None) -> T:
        def inner():
            return T, xs

        return xs[0] if xs else default, inner()[0].__name__

    return first([1]), first.__type_params__, first.__annotations__["return"].__name__


def generic[T, *Ts, **P](x: T) -> tuple[T]:
    return x, T, Ts, P, generic.__type_params__[0] is T


def program_module_level_generic():
    return generic(1)


def program_generic_classes():
    class Box[T: (int, str)]:
        kind = T

        def __init__(self, x: T):
            self.x = x

        def get[U](self, other: U) -> tuple[T, U]:
            return self.x, other, T, U

        def __secret(self):
            return super().__repr__ is not None

        def both(self):
            return self.__secret(), __class__.__name__

    class IntBox(Box[int]):
        pass

    return Box(1).get("a"), Box.__type_params__, IntBox(3).both(), Box.kind.__constraints__


def program_type_alias():
    type Pair[A] = tuple[A, A]
    type Lazy = undefined_name  # noqa: F821
    return Pair.__name__, Pair[int], Pair.__type_params__, type(Lazy).__name__


def program_strings():
    d = {"k": [1, 2]}
    return f"{d["k"][0]}", f"{f"{f"{1 + 1}"}"}", f"{", ".join(str(x) for x in d["k"])}", f"{
        d["k"]  # a comment
        !r:>10}"


def program_inlined_comprehensions():
    x = "outer"
    a = [x for x in range(3)]
    b = [lambda: x for x in range(2)]
    c = [[x for y in range(2)] for x in range(2)]
    d = {x: [x for x in x] for x in "ab"}  # no locals() in here: CPython 3.13.0 crashes on that
    return x, a, [f() for f in b], c, d


def program_inlined_comprehension_error():
    return [
        x
        / 0
        for x in (1,)
    ]


class Holder:
    items = [n for n in range(3)]
    pairs = [(n, m) for n in items for m in range(n)]

    def f(self):
        return [self.__class__.__name__ for _ in self.items]


def program_comprehension_in_class():
    return Holder.items, Holder.pairs, Holder().f()
