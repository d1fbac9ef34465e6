"""What a program can find out about itself: signatures, frames, source, pickles, warnings."""

import builtins
import collections
import copy
import enum
import inspect
import logging
import pickle
import sys
import traceback
import typing
import warnings


def documented(a: int, /, b="x", *c, d=1, **e) -> str:
    """Has a docstring."""
    return inspect.currentframe().f_code.co_name


class Thing:
    """A thing."""

    def __init__(self, n):
        self.n = n

    def method(self, k=2):
        return sys._getframe(0).f_lineno, sys._getframe(1).f_code.co_name

    def __eq__(self, other):
        return self.n == other.n

    def __reduce__(self):
        return Thing, (self.n,)


def program_signatures():
    def inner(x, *, y: "int" = 3):
        return x

    return (
        str(inspect.signature(documented)),
        str(inspect.signature(inner)),
        str(inspect.signature(Thing.method)),
        str(inspect.signature(lambda q: q)),
        inspect.getdoc(documented),
        inspect.getsource(documented).splitlines()[0],
        inspect.getsource(inner).splitlines()[0].strip(),
        inspect.isfunction(inner),
        inner.__code__.co_varnames,
        inner.__code__.co_firstlineno,
        inner.__code__.co_name,
        inner.__closure__,
        inner.__module__,
    )


def program_kinds():
    def g():
        yield

    async def c():
        pass

    async def ag():
        yield

    return (
        inspect.isgeneratorfunction(g),
        inspect.iscoroutinefunction(c),
        inspect.isasyncgenfunction(ag),
        inspect.isgeneratorfunction(c),
        inspect.isclass(Thing),
        inspect.ismethod(Thing(1).method),
    )


def program_frames():
    def inner():
        return [frame.f_code.co_name for frame in (sys._getframe(0), sys._getframe(1))], sys._getframe(1).f_lineno

    return documented(1), Thing(1).method(), inner(), [f.function for f in inspect.stack()[:1]]


def program_stack_of_calls():
    def a():
        return b()

    def b():
        return [c() for _ in range(1)][0]

    def c():
        names = []
        frame = sys._getframe(0)
        while frame is not None and frame.f_code.co_name != "program_stack_of_calls":
            names.append((frame.f_code.co_name, frame.f_lineno))
            frame = frame.f_back
        return names

    return a()


def program_pickle():
    thing = Thing(3)
    again = pickle.loads(pickle.dumps(thing))
    return again == thing, pickle.loads(pickle.dumps(documented)) is documented, copy.deepcopy(thing).n, copy.copy(thing).n


def program_namedtuple_module():
    Local = collections.namedtuple("Local", "a b")
    return Local(1, 2), Local.__module__


def program_warnings():
    def deprecated():
        warnings.warn("old", DeprecationWarning, stacklevel=2)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        deprecated()
        warnings.warn("here", stacklevel=1)
    return [(str(w.message), w.filename, w.lineno) for w in caught]


def program_logging():
    records = []

    class Keep(logging.Handler):
        def emit(self, record):
            records.append((record.getMessage(), record.funcName, record.lineno))

    logger = logging.Logger("corpus")
    logger.addHandler(Keep())
    logger.warning("said %d", 3)
    try:
        raise ValueError("x")
    except ValueError:
        logger.exception("failed")
    return records


def program_formatted_traceback():
    def bad(n):
        return bad(n - 1) if n else {}["k"]

    try:
        bad(2)
    except KeyError:
        return traceback.format_exc().splitlines()[-8:]


def program_deep_recursion():
    def depth(n):
        return 0 if n == 0 else 1 + depth(n - 1)

    return depth(500)


def program_function_is_the_users():
    def f():
        return f

    return f() is f, documented is globals()["documented"], Thing.method is Thing.__dict__["method"]


def program_globals_and_locals():
    x = 1
    y = [z for z in range(2)]
    return sorted(locals()), [sorted(locals()) for q in range(1)], globals() is sys.modules[__name__].__dict__


def program_lines_while_running():
    lines = []
    lines.append(sys._getframe().f_lineno)
    lines.append(
        sys._getframe().f_lineno
    )
    return lines


def program_dir_and_vars():
    a = 1
    return dir(), vars(), sorted(vars(Thing(2))), "method" in dir(Thing)


def program_classes_that_look_at_their_callers():
    made = typing.TypeVar("T"), typing.NewType("Id", int), enum.Enum("Colour", "RED GREEN")
    return [each.__module__ for each in made]


def program_replaced_len():
    def first_called_now(values):
        first, *rest = values
        return [f"{first}{one}" for one in rest if 0 < one < 9], len(values)

    plain = builtins.len
    builtins.len = lambda values: 4
    try:
        return first_called_now([1, 2, 3]), [len(each) for each in ("a", (), {})]
    finally:
        builtins.len = plain
