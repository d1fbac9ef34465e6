"""Code made by exec, eval and compile: found where its source was registered."""

import linecache

SOURCE = """\
def outer(x):
    def inner(y):
        return x + y
    return inner

class K:
    def m(self):
        return [n * 2 for n in range(self.n)], super().__init__

    n = 2

boom = lambda: (
    1 / 0
)
"""


def executed():
    name = "<made by the corpus>"
    linecache.cache[name] = len(SOURCE), None, SOURCE.splitlines(True), name
    namespace = {"__name__": "made"}
    exec(compile(SOURCE, name, "exec"), namespace)
    return namespace


def program_registered_source():
    namespace = executed()
    return namespace["outer"](1)(2), namespace["K"]().m()[0]


def program_registered_source_error():
    return executed()["boom"]()


def program_unregistered_source():
    namespace = {}
    exec("def f(x):\n    return x * 2, [x for _ in 'ab']\n", namespace)
    return namespace["f"](4), eval("lambda q: q + 1")(2)


def program_unregistered_source_error():
    namespace = {}
    exec("def f(x):\n    return x / 0\n", namespace)
    return namespace["f"](4)


def program_exec_in_locals():
    scope = {"a": 2}
    exec("b = a * 3", {}, scope)
    return scope["b"], eval("a + b", {}, scope)
