"""What a step drops, and the program sees it go: finalizers, weak references, files, views of memory, generators."""

import collections
import io
import mmap
import os
import tempfile
import weakref

import numpy as np
import torch
from torch import nn

from tests.programs.harness import CALLS, Program, program


class Noisy:
    def __init__(self, name):
        self.name = name

    def __del__(self):
        print("gone", self.name)


class Quiet:
    def __init__(self, name):
        self.name = name


class Box:
    pass


weight = torch.linspace(-1, 1, 25).view(5, 5)


def busy(x):
    for _ in range(3):
        x = torch.tanh(x @ weight)
    return (x * x).mean()


def inputs():
    return [(torch.randn(4, 5),) for _ in range(CALLS + 4)]


def filled(step, fill, **options):
    """A program whose step finds something new at each call."""
    return Program(step, inputs(), dict.fromkeys(range(CALLS + 4), fill), **options)


def path_of(name):
    return os.path.join(tempfile.gettempdir(), f"dropped-{os.getpid()}-{name}")


@program(refused="drops a Noisy")
def taken_from_a_queue():
    queue = collections.deque()

    def step(x):
        item = queue.popleft()
        y = busy(x)
        print("has", item.name)
        item = None
        print("after")
        return y + busy(x * 2)

    return filled(step, lambda: queue.append(Noisy("q")))


@program(refused="drops a Noisy")
def attribute_replaced():
    box = Box()

    def step(x):
        y = busy(x)
        print("has", box.held.name)
        box.held = None
        print("after")
        return y + busy(x * 2)

    return filled(step, lambda: setattr(box, "held", Noisy("a")))


@program(refused="drops a Quiet")
def held_by_what_is_dropped():
    box = Box()

    def fill():
        box.held = Quiet("h")
        box.held.items = [Noisy("inner")]

    def step(x):
        y = busy(x)
        print("has", box.held.name)
        box.held = None
        print("after")
        return y + busy(x * 2)

    return filled(step, fill)


@program(refused="drops a Noisy")
def passed_to_a_function_before():
    items = []

    def helper(item, x):
        return busy(x) + len(item.name)

    def step(x):
        item = items.pop()
        z = helper(item, x)
        del item
        print("after")
        return z

    return filled(step, lambda: items.append(Noisy("a")))


@program(refused="to which there is a weak reference")
def callback_of_a_weak_reference():
    box = Box()
    refs = []

    def fill():
        refs.clear()
        box.held = Quiet("w")
        refs.append(weakref.ref(box.held, lambda ref: print("gone")))

    def step(x):
        y = busy(x)
        print("has", box.held.name)
        box.held = None
        print("after")
        return y

    return filled(step, fill)


@program(refused="to which there is a weak reference")
def item_with_a_registered_finalizer():
    table = {}

    def fill():
        table["k"] = Quiet("z")
        weakref.finalize(table["k"], print, "gone")

    def step(x):
        y = busy(x)
        table.pop("k")
        print("after")
        return y

    return filled(step, fill)


@program(refused="to which there is a weak reference")
def tensor_with_a_registered_finalizer():
    box = Box()

    def fill():
        box.held = torch.ones(3)
        weakref.finalize(box.held, print, "gone")

    def step(x):
        y = busy(x)
        box.held = box.held + 1
        print("after")
        return y

    return filled(step, fill)


@program(refused="makes a weak reference")
def weak_reference_to_a_tensor_of_the_step():
    def step(x):
        y = x * 2
        ref = weakref.ref(y)
        z = busy(y)
        y = None
        print(ref() is None)
        return z

    return Program(step, inputs())


@program(refused="makes a weak reference")
def module_made_and_dropped():
    layer = nn.Linear(5, 5)

    def step(x):
        y = layer(x).mean()
        made = nn.Linear(2, 2)
        weakref.finalize(made, print, "gone")
        made = None
        print("after")
        return y.detach()

    return Program(step, inputs())


@program(refused="makes a TextIOWrapper, which closes its file")
def file_that_is_not_closed():
    def step(x):
        name = path_of("one")
        file = open(name, "w")
        file.write("hello")
        file = None
        size = os.path.getsize(name)
        return busy(x) * size

    return Program(step, inputs())


@program(refused="makes a TextIOWrapper, which closes its file")
def files_as_temporaries():
    def step(x):
        name = path_of("two")
        open(name, "w").write("hello")
        print(open(name).read())
        return busy(x)

    return Program(step, inputs())


@program()
def file_that_with_closes():
    def step(x):
        name = path_of("three")
        with open(name, "w") as file:
            file.write("hello")
        with open(name) as file:
            print(file.read())
        return busy(x)

    return Program(step, inputs())


@program(refused="which holds a _TemporaryFileCloser")
def temporary_file():
    def step(x):
        file = tempfile.NamedTemporaryFile()
        name = file.name
        file = None
        print(os.path.exists(name))
        return busy(x)

    return Program(step, inputs())


@program(refused="drops a generator, which runs its handlers")
def generator_from_before():
    box = Box()

    def numbers():
        try:
            yield 1
            yield 2
        finally:
            print("closed")

    def fill():
        box.held = numbers()
        next(box.held)

    def step(x):
        y = busy(x)
        n = next(box.held)
        box.held = None
        print("after")
        return y * n

    return filled(step, fill)


@program(refused="uses a memoryview of memory whose size may change")
def view_passed_to_a_function():
    received = bytearray(b"abc")

    def part(view, x):
        return busy(x) * len(view)

    def step(x):
        y = part(memoryview(received), x)
        received.append(1)
        print(len(received))
        return y + busy(x)

    return Program(step, inputs(), state=received)


@program(refused="uses a ndarray of memory whose size may change")
def array_over_bytes_that_grow():
    received = bytearray(b"abcd")

    def step(x):
        y = busy(x)
        array = np.frombuffer(received, np.uint8)
        print(int(array.sum()))
        array = None
        received.append(1)
        return y + busy(x)

    return Program(step, inputs(), state=received)


@program(refused="uses a memoryview of memory whose size may change")
def map_of_a_file_that_is_closed():
    name = path_of("four")
    with open(name, "wb") as new:
        new.write(b"a" * 4096)

    def step(x):
        y = busy(x)
        with open(name, "r+b") as file:
            mapped = mmap.mmap(file.fileno(), 0)
            view = memoryview(mapped)[:3]
            n = view[0]
            view = None
            mapped.close()
        return y * n

    return Program(step, inputs())


@program(refused="uses a memoryview of memory whose size may change")
def buffer_of_a_file_in_memory():
    file = io.BytesIO(b"abc")

    def step(x):
        y = busy(x)
        n = file.getbuffer().nbytes
        file.seek(0, 2)
        file.write(b"x")
        return y * n

    return Program(step, inputs())


@program(refused="uses a memoryview of memory whose size may change")
def temporary_view_that_the_callee_drops():
    received = bytearray(b"abc")

    def part(view, x):
        n = len(view)
        view = None
        received.append(1)
        return busy(x) * n

    def step(x):
        return part(memoryview(received), x)

    return Program(step, inputs(), state=received)


@program(refused="uses a memoryview of memory whose size may change")
def temporary_view_as_a_keyword():
    received = bytearray(b"abc")

    def part(x, *, view):
        n = len(view)
        del view
        received.append(1)
        return busy(x) * n

    def step(x):
        return part(x, view=memoryview(received))

    return Program(step, inputs(), state=received)


@program(refused="uses a ndarray of memory whose size may change")
def temporary_array_over_bytes_that_grow():
    received = bytearray(b"abc")

    def part(array, x):
        n = int(array.sum())
        del array
        received.append(1)
        return busy(x) * n

    def step(x):
        return part(np.frombuffer(received, np.uint8), x)

    return Program(step, inputs(), state=received)


@program(refused="makes a Noisy")
def temporaries_that_callees_drop():
    def inner(a, b=1, *, c=2):
        print(a.name)
        a = None
        print("inner, after")
        return b + c

    def outer(a, x):
        k = inner(Noisy("other"), c=3)
        a = None
        print("outer, after")
        return busy(x) * k

    def step(x):
        return outer(Noisy("one"), x)

    return Program(step, inputs())


@program(refused="makes a Noisy")
def temporary_dropped_before_an_error():
    def part(a, x):
        a = None
        print("after")
        raise ValueError("no")

    def step(x):
        try:
            return part(Noisy("one"), x)
        except ValueError as error:
            print(error)
        return busy(x)

    return Program(step, inputs())
