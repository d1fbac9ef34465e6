"""Objects that count accesses to them: watching accesses nothing that the program does not access."""

from __future__ import annotations

import torch

from tests.programs.harness import Program, program


class Asked:
    """Counts all that it is asked for, its class included."""

    asked = 0

    def __init__(self):
        self.v = 1.0

    def __getattribute__(self, name):
        Asked.asked += 1
        return object.__getattribute__(self, name)

    def run(self, x):
        return x * self.v


class Other:
    pass


class Pretending:
    """Says that it is of another class, and counts who wants to know."""

    asked = 0

    @property
    def __class__(self):
        Pretending.asked += 1
        return Other

    def run(self, x):
        return x + 1


class Forwarding:
    def __init__(self, inner):
        self.__inner = inner

    def __getattribute__(self, name):
        if name.startswith("_Forwarding__"):
            return object.__getattribute__(self, name)
        return getattr(self.__inner, name)


def calls(count=10):
    return [(torch.linspace(-1, 1, 4) + i,) for i in range(count)]


@program()
def reads_an_attribute():
    one = Asked()

    def step(x):
        return x * one.v

    return Program(step, calls(), state=(Asked,))


@program()
def calls_a_method():
    one = Asked()

    def step(x):
        return one.run(x) + one.run(x)

    return Program(step, calls(), state=(Asked,))


@program()
def hands_it_on():
    one = Asked()

    def helper(thing, x, *rest, **more):
        return x + len(rest) + len(more), thing

    def step(x):
        y, thing = helper(one, x, one, k=one)
        return y, [thing]

    return Program(step, calls(), state=(Asked,))


@program()
def puts_it_into_containers():
    one = Asked()

    def step(x):
        row, table = [one, one], {"a": one}
        row.append(table["a"])
        first, *rest = row
        return x * len(rest) + (first is one)

    return Program(step, calls(), state=(Asked,))


@program()
def keeps_it():
    class Holder:
        pass

    holder, one = Holder(), Asked()

    def step(x):
        holder.thing = one
        return x + (holder.thing is one)

    return Program(step, calls(), state=(Asked,))


@program()
def makes_it():
    def step(x):
        one = Asked()
        one.v = 2.0
        return one.run(x)

    return Program(step, calls(), state=(Asked,))


@program()
def asks_for_its_class():
    one = Asked()

    def step(x):
        return x + isinstance(one, Asked) + isinstance(one, dict)

    return Program(step, calls(), state=(Asked,))


@program()
def reads_what_was_counted():
    one = Asked()

    def step(x):
        return x * one.v + Asked.asked

    return Program(step, calls(), state=(Asked,))


@program()
def pretends_to_be_a_dictionary():
    one = Pretending()

    def step(x):
        return one.run(x)

    return Program(step, calls(), state=(Pretending,))


@program()
def pretends_when_asked():
    one = Pretending()

    def step(x):
        return one.run(x) + isinstance(one, Other) + (one.__class__ is Other)

    return Program(step, calls(), state=(Pretending,))


@program()
def forwards_all_but_its_own():
    class Inner:
        rate = 0.5

    one = Forwarding(Inner())

    def step(x):
        return x * one.rate

    return Program(step, calls())


@program()
def made_within_the_step():
    class Inner:
        rate = 0.5

    def step(x):
        class Local:
            def __init__(self, inner):
                self._inner = inner

            def __getattribute__(self, name):
                if name.startswith("_"):
                    return object.__getattribute__(self, name)
                return getattr(self._inner, name)

        return x * Local(Inner()).rate

    return Program(step, calls())


@program()
def descriptors_that_count():
    class Reader:
        reads = 0

        def __get__(self, instance, owner=None):
            Reader.reads += 1
            return self if instance is None else instance.v

    class Owner:
        read = Reader()
        v = 2.0

    one = Owner()

    def step(x):
        return x * one.read

    return Program(step, calls(), state=(Reader,))


class Sizes:
    """A number and a sequence of numbers, which counts what it is asked for."""

    def __init__(self):
        self.asked = []

    def __index__(self):
        self.asked.append("index")
        return 1

    def __len__(self):
        self.asked.append("len")
        return 2

    def __getitem__(self, place):
        self.asked.append(place)
        return (0, 2)[place]


@program(refused="takes a Sizes: its contents are not part of the graph")
def subscripts_tensors():
    sizes, weights = Sizes(), torch.arange(12.0).view(4, 3)

    def step(x):
        y = weights[sizes], weights[0, sizes], weights.__getitem__(sizes)
        weights[sizes] = x[0]
        weights[3, sizes] = x[1]
        return y

    return Program(step, calls(), state=(sizes, weights))


@program(refused="takes a Sizes: its contents are not part of the graph")
def is_an_argument_of_functions_of_torch():
    sizes = Sizes()

    def step(x):
        return torch.zeros(sizes), x.select(0, sizes), x.reshape(sizes, 4), torch.ones(2, sizes), x.topk(sizes)

    return Program(step, calls(), state=sizes)


@program(refused="raises RuntimeError")
def is_an_argument_of_a_function_that_raises():
    sizes = Sizes()

    def step(x):
        try:
            return x.sum(sizes)
        except RuntimeError:
            return x * 2

    return Program(step, calls(), state=sizes)
