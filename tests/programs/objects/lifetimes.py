"""Generators, coroutines, context variables, thread-locals, weak references and finalizers inside of the step."""

import asyncio
import collections
import collections.abc
import contextlib
import contextvars
import gc
import itertools
import threading
import weakref

import torch

from tests.programs.harness import CALLS, Program, program


def inputs(count=CALLS, *shape):
    return [(torch.randn(*(shape or (4, 5))),) for _ in range(count)]


class Box:
    def __init__(self):
        self.n = 0
        self.log = []


# -- generators -----------------------------------------------------------------------------------------------------


@program()
def generator_consumed():
    box = Box()

    def halves(x):
        while x.shape[0] > 1:
            box.n += 1
            x = x[: x.shape[0] // 2]
            yield x

    def step(x):
        return [h.sum() for h in halves(x)], sum(h.shape[0] for h in halves(x)), box.n

    return Program(step, inputs(), state=box)


@program()
def generator_partly_consumed():
    box = Box()

    def count(x):
        try:
            for i in range(5):
                box.n += 1
                yield x * i
        finally:
            box.log.append("closed")

    def step(x):
        made = count(x)
        first, second = next(made), next(made)
        made.close()
        return first + second, box.n, len(box.log), next(made, "over")

    return Program(step, inputs(), state=box)


@program()
def generator_dropped_half_way():
    box = Box()

    def count(x):
        try:
            yield x
            yield x * 2
        finally:
            box.log.append(x.shape[0])

    def step(x):
        for y in count(x):
            break
        return y, len(box.log)

    return Program(step, inputs(), state=box)


@program()
def generator_send_throw_close():
    box = Box()

    def talk():
        got = []
        try:
            while True:
                try:
                    got.append((yield len(got)))
                except ValueError as error:
                    got.append(str(error))
                    box.n += 1
        finally:
            box.log.append(len(got))

    def step(x):
        made = talk()
        out = [next(made), made.send(x.shape[0]), made.throw(ValueError("v")), made.send(x)]
        made.close()
        try:
            made.send(1)
        except StopIteration as stop:
            out.append(stop.value)
        return out, box.n, len(box.log)

    return Program(step, inputs(), state=box)


@program()
def yield_from():
    box = Box()

    def inner(x):
        got = yield x
        box.n += got
        return x + got

    def outer(x):
        one = yield from inner(x)
        two = yield from inner(one)
        yield from [two, two * 2]
        return two

    def drive(made):
        out = [next(made)]
        out.append(made.send(1))
        out.append(made.send(2))
        out.extend(made)
        return out

    def step(x):
        return drive(outer(x)), box.n

    return Program(step, inputs(), state=box)


@program()
def generator_return_value():
    def work(x):
        yield x
        return x.shape[0]

    def step(x):
        made = work(x)
        next(made)
        try:
            next(made)
        except StopIteration as stop:
            return stop.value * x

    return Program(step, inputs())


@program()
def generator_context_manager():
    box = Box()

    @contextlib.contextmanager
    def scaled(factor):
        box.n += 1
        box.log.append("in")
        try:
            yield factor * 2
        except KeyError:
            box.log.append("caught")
        finally:
            box.log.append("out")

    def step(x):
        with scaled(3) as factor:
            y = x * factor
        with scaled(1):
            raise KeyError("k")
        return y, box.n, box.log[-2], len(box.log)

    return Program(step, inputs(), state=box)


@program()
def exit_stack_and_suppress():
    box = Box()

    def step(x):
        with contextlib.ExitStack() as stack:
            stack.callback(box.log.append, x.shape[0])
            stack.enter_context(contextlib.nullcontext(3))
            y = x + 1
        with contextlib.suppress(ZeroDivisionError):
            y = y * (1 // 0)
        return y, len(box.log), box.log[-1]

    return Program(step, inputs(), state=box)


@program(compiles=4)
def itertools_inside():
    box = Box()

    box.start = 3

    def less(value):
        return value < box.start + 2

    def step(x):
        box.n += 1
        numbers = itertools.count(box.start)
        taken = list(itertools.islice(numbers, 3))
        pairs = list(itertools.pairwise(taken))
        total = list(itertools.accumulate([box.n, box.n])), list(itertools.takewhile(less, [box.n, 1, 100, 2]))
        total = *total, list(itertools.starmap(pow, [(box.n, 2)])), list(itertools.compress("ab", [box.n, 0]))
        chained = list(itertools.chain(taken, x.shape))
        groups = [(k, len(list(g))) for k, g in itertools.groupby("aabbb")]
        return x * taken[0], pairs, total, chained, groups, next(numbers)

    return Program(step, inputs(22), {9: lambda: setattr(box, "start", 40)}, state=box)


@program()
def iterator_class():
    class Down:
        def __init__(self, n):
            self.n = n

        def __iter__(self):
            return self

        def __next__(self):
            if self.n == 0:
                raise StopIteration
            self.n -= 1
            return self.n

    def step(x):
        return [x * i for i in Down(3)], list(Down(2)), max(Down(4)), sum(Down(3)), dict(zip("ab", Down(5)))

    return Program(step, inputs())


@program(refused="leaves the step")
def generator_returned():
    def step(x):
        return (y * 2 for y in x)

    return Program(step, inputs(), between=None)


@program(refused="leaves the step")
def iterator_stored():
    box = Box()

    def step(x):
        box.it = iter([1, 2])
        return x

    return Program(step, inputs(), state=None, between=None)


# -- coroutines -----------------------------------------------------------------------------------------------------


@program()
def coroutine_driven_by_hand():
    box = Box()

    class Pause:
        def __await__(self):
            got = yield "pause"
            return got

    async def work(x):
        box.n += 1
        got = await Pause()
        return x * got

    def step(x):
        made = work(x)
        asked = made.send(None)
        try:
            made.send(x.shape[0])
        except StopIteration as stop:
            return asked, stop.value, box.n

    return Program(step, inputs(), state=box)


@program(refused="asyncio")
def asyncio_run_inside():
    box = Box()

    async def work(x):
        box.n += 1
        await asyncio.sleep(0)
        return x * 2

    def step(x):
        return asyncio.run(work(x)), box.n

    return Program(step, inputs(), state=box)


# -- context variables and thread-locals ----------------------------------------------------------------------------

scale = contextvars.ContextVar("scale", default=2.0)
unset = contextvars.ContextVar("unset")


@program()
def context_variable_read():
    tokens = []

    def step(x):
        try:
            unset.get()
        except LookupError:
            pass
        return x * scale.get(), unset.get(5)

    return Program(step, inputs(16), {7: lambda: tokens.append(scale.set(3.0))}, around=None)


@program()
def context_variable_set_and_reset():
    def inner(x):
        return x * scale.get()

    def step(x):
        token = scale.set(x.shape[0])
        try:
            return inner(x)
        finally:
            scale.reset(token)

    return Program(step, inputs())


@program(refused="context variable 'scale'")
def context_variable_left_set():
    def step(x):
        scale.set(x.shape[0])
        return x

    return Program(step, inputs())


@program()
def thread_local_attributes():
    local = threading.local()
    seen = []
    local.n = 0
    local.seen = []

    def step(x):
        local.n += 1
        local.seen.append(x.shape[0])
        local.last = x
        return x * local.n, hasattr(local, "other"), len(local.seen)

    return Program(step, inputs(), state=None, between=lambda out: seen.append(dict(vars(local))))


@program()
def lock_held_for_a_moment():
    box = Box()
    lock = threading.Lock()

    def step(x):
        with lock:
            box.n += 1
        return x * box.n

    return Program(step, inputs(), state=box)


# -- weak references ------------------------------------------------------------------------------------------------


class Thing:
    def __init__(self, value):
        self.value = value


@program(refused="weak reference")
def weak_reference_read():
    thing = Thing(torch.ones(5))
    box = Box()
    box.ref = weakref.ref(thing)

    def step(x):
        found = box.ref()
        found.value = found.value + 1
        return x * found.value

    return Program(step, inputs(), state=thing)


@program(refused="weak reference")
def weak_reference_that_dies():
    things = [Thing(1.0)]
    box = Box()
    box.ref = weakref.ref(things[0])

    def step(x):
        found = box.ref()
        return x * 2 if found is None else x * found.value

    return Program(step, inputs(16), {6: lambda: (things.clear(), gc.collect())}, state=things)


@program(refused="weak reference")
def weak_reference_exchanged():
    things = [Thing(1.0), Thing(3.0)]
    box = Box()
    box.ref = weakref.ref(things[0])

    def step(x):
        return x * box.ref().value

    return Program(step, inputs(16), {6: lambda: setattr(box, "ref", weakref.ref(things[1]))}, state=things)


@program(compiles=3)
def weak_reference_made_inside():
    thing = Thing(1.0)
    box = Box()

    def step(x):
        ref = weakref.ref(thing)
        box.same = ref() is thing
        return x * ref().value

    return Program(step, inputs(), state=(thing, box))


@program(refused="weak")
def weak_reference_stored():
    thing = Thing(1.0)
    box = Box()

    def step(x):
        made = Thing(2.0)
        box.ref = weakref.ref(made)
        return x, box.ref() is made

    return Program(step, inputs(), state=thing)


@program(refused="WeakKeyDictionary")
def weak_key_dictionary():
    thing = Thing(1.0)
    cache = weakref.WeakKeyDictionary()

    def step(x):
        cache[thing] = cache.get(thing, 0) + 1
        return x * cache[thing]

    return Program(step, inputs(), state=thing)


@program(refused="WeakValueDictionary")
def weak_value_dictionary():
    thing = Thing(1.0)
    cache = weakref.WeakValueDictionary(k=thing)

    def step(x):
        return x * cache["k"].value

    return Program(step, inputs(), state=thing)


# -- finalizers -----------------------------------------------------------------------------------------------------


class Noisy:
    log: list = []

    def __init__(self, value):
        self.value = value

    def __del__(self):
        Noisy.log.append(self.value)


@program(refused="__del__")
def finalizer_runs_in_the_step():
    def step(x):
        made = Noisy(1)
        del made
        return x, len(Noisy.log)

    return Program(step, inputs(), state=Noisy)


@program(refused="__del__")
def finalizer_of_a_returned_object():
    def step(x):
        return Noisy(x.shape[0])

    return Program(step, inputs())


@program(refused="finalize")
def finalizer_registered():
    thing = Thing(1)
    log = []

    def step(x):
        weakref.finalize(thing, log.append, 1)
        return x

    return Program(step, inputs(), state=thing)


class Tracked:
    def __del__(self):
        pass  # when it runs is not compared: whoever looks at the state after a call holds on to what it finds


@program(refused="drops a Tracked")
def finalizer_of_an_object_dropped():
    box = Box()

    def fill():
        box.held, box.items, box.table = Tracked(), [Tracked()], {"a": Tracked()}

    def step(x):
        box.held = None
        box.items.clear()
        box.table.pop("a", None)
        return x

    return Program(step, inputs(), dict.fromkeys(range(CALLS), fill))


@program(refused="__del__")
def finalizer_of_an_object_replaced():
    box = Box()
    box.held = None

    def step(x):
        box.held = Tracked()
        return x

    return Program(step, inputs())


@program(refused="whose class has a __del__")
def lifetimes_in_iterations_that_a_tensor_ends():
    class Noisy:
        def __init__(self, name):
            self.name = name

        def __del__(self):
            print("gone", self.name)

    def step(x):
        number = 0
        while x.norm() > 0.5:
            held = Noisy(number)
            x = x * 0.7
            number += 1
            print("made", held.name)
        return x

    return Program(step, [(torch.full((3,), 1.0 + n % 4),) for n in range(CALLS)])


@program(refused="calls locals()")
def locals_in_iterations_that_a_tensor_ends():
    def step(x):
        seen = locals()
        while x.norm() > 0.5:
            x = x * 0.7
            y = x + 1
        return y, sorted(map(str, seen)), sorted(locals())

    return Program(step, [(torch.full((3,), 1.0 + n % 4),) for n in range(CALLS)])


# -- objects that the record of a run could keep --------------------------------------------------------------------


class Ending(collections.OrderedDict):
    """Notes when it is gone. Holds the one before."""

    gone: list = []

    def __del__(self):
        Ending.gone.append(self.number)


@program(refused="a Ending, whose class has a __del__")
def pairs_that_hold_nested_objects():
    Ending.gone = []

    def step(x):
        nested = None
        for number in range(4):
            nested = Ending([(None, nested)])
            nested.number = number
        del nested
        return x * 2, list(Ending.gone)

    return Program(step, inputs())


class Joining(collections.abc.MutableMapping):
    """Fills itself by a method that its class holds under another name."""

    gone: list = []
    __join = collections.abc.MutableMapping.update

    def __init__(self, other, **names):
        self.held = {}
        self.__join(other, **names)

    def __getitem__(self, key):
        return self.held[key]

    def __setitem__(self, key, value):
        self.held[key] = value

    def __delitem__(self, key):
        del self.held[key]

    def __iter__(self):
        return iter(self.held)

    def __len__(self):
        return len(self.held)

    def __del__(self):
        Joining.gone.append(self.number)


@program(refused="a Joining, whose class has a __del__")
def methods_that_are_looked_up_before_they_are_called():
    Joining.gone = []

    def step(x):
        nested = None
        for number in range(4):
            nested = Joining([(None, nested)], number=number)
            nested.number = number
        del nested
        return x * 2, list(Joining.gone)

    return Program(step, inputs())


class Link:
    """One of a chain: the next one holds it, and it knows the next one by a proxy."""

    def __init__(self, number, before):
        self.number, self.before, self.after = number, before, None
        if before is not None:
            before.after = weakref.proxy(self)


@program(refused="to which there is a weak proxy")
def objects_that_have_proxies_are_dropped():
    box = Box()
    box.last = Link(1, Link(0, None))

    def step(x):
        box.n += 1
        box.last = Link(box.n, box.last)
        box.last.before.before = None
        return x * box.last.before.after.number

    return Program(step, inputs(), state=box)
