"""Views and iterators made before the call: they show what their containers hold now."""

import collections
import itertools
import types

import torch

from tests.programs.harness import CALLS, Program, program


def inputs():
    return [(torch.randn(3),) for _ in range(CALLS)]


def growing(held):
    return {k: lambda k=k: held.__setitem__(f"b{k}", k) for k in (6,)}


@program()
def the_length_of_keys():
    held = {}
    keys = held.keys()

    def step(x):
        held[len(held)] = 1
        return x * len(keys)

    return Program(step, inputs(), state=held)


@program()
def the_sum_of_values():
    held = {"a": 1.0, "b": 2.0}
    values = held.values()

    def step(x):
        held["a"] += 0.5
        return x * sum(values)

    return Program(step, inputs(), state=held)


@program(speculated=5)
def items_gone_through():
    held = {"a": 1.0, "b": 2.0}
    items = held.items()

    def step(x):
        for key, value in items:
            x = x * value if key == "a" else x + value
        held["a"] += 0.25
        return x

    return Program(step, inputs(), before=growing(held), state=held)


@program()
def keys_that_the_caller_changes():
    held = {"a": 1.0}
    keys = held.keys()

    def step(x):
        return x * len(keys) + ("b7" in keys)

    return Program(step, inputs(), before=growing(held), state=held)


@program(speculated=5)
def values_that_the_caller_changes():
    held = {"a": 1.0}
    values = held.values()

    def step(x):
        return x * sum(values)

    return Program(step, inputs(), before=growing(held), state=held)


@program(speculated=5)
def made_into_lists():
    held = {"a": 1.0, "b": 2.0}
    keys, values, items = held.keys(), held.values(), held.items()

    def step(x):
        names, numbers, pairs = list(keys), tuple(values), sorted(items)
        held["a"] += 1.0
        return x * len(names) + sum(numbers) + pairs[0][1] + max(values) + len(set(keys)) + len(dict(items))

    return Program(step, inputs(), before=growing(held), state=held)


@program(speculated=5)
def asked_what_they_hold():
    held = {"a": 1.0}
    keys, items, values = held.keys(), held.items(), held.values()

    def step(x):
        found = ("b6" in keys) + 2 * (("b7", 7) in items) + 4 * (7 in values)
        held["c"] = 1.0
        return x * (found + 8 * ("c" in keys))

    return Program(step, inputs(), before=growing(held), state=held)


@program(speculated=5)
def keys_as_sets():
    held = {"a": 1.0, "b": 2.0}
    keys = held.keys()

    def step(x):
        both, either = keys & {"a", "b6"}, keys | {"z"}
        return x * len(both) + len(either) - len(keys - {"a"}) + len(keys ^ {"a", "q"}) + keys.isdisjoint({"b7"})

    return Program(step, inputs(), before=growing(held), state=held)


@program(speculated=5)
def keys_compared():
    held = {"a": 1.0, "b": 2.0}
    keys = held.keys()

    def step(x):
        return x * ((keys == {"a", "b"}) + 2 * (keys >= {"b6"}) + 4 * (keys <= {"a", "b", "b6"}))

    return Program(step, inputs(), before=growing(held), state=held)


@program(speculated=5)
def the_truth_of_views():
    held = {}
    keys, items = held.keys(), held.items()

    def step(x):
        if keys:
            x = x * 2
        return x + 1 if not items else x

    return Program(step, inputs(), before=growing(held), state=held)


@program()
def of_an_ordered_dictionary():
    held = collections.OrderedDict(a=1.0, b=2.0)
    keys, values, items = held.keys(), held.values(), held.items()

    def step(x):
        held["a"] += 1.0
        held.move_to_end("a")
        return x * sum(values) + len(keys) + next(iter(items))[1] + list(keys).index("a")

    return Program(step, inputs(), state=held)


@program(speculated=5)
def backwards():
    held = {"a": 1.0, "b": 2.0}
    keys, values = held.keys(), held.values()

    def step(x):
        last = next(iter(reversed(keys)))
        first, *_ = reversed(values)
        return x * first + len(last)

    return Program(step, inputs(), before=growing(held), state=held)


@program()
def the_dictionary_behind_them():
    held = {"a": 1.0}
    keys = held.keys()

    def step(x):
        return x * keys.mapping["a"] + len(keys.mapping)

    return Program(step, inputs(), before=growing(held), state=held)


@program(speculated=5)
def a_read_only_view():
    held = {"a": 1.0}
    shown = types.MappingProxyType(held)

    def step(x):
        held["a"] += 0.5
        return x * shown["a"] + len(shown) + ("b6" in shown) + sum(shown.values()) + shown.get("b7", 0)

    return Program(step, inputs(), before=growing(held), state=held)


@program(speculated=5)
def views_of_a_read_only_view():
    held = {"a": 1.0}
    keys = types.MappingProxyType(held).keys()

    def step(x):
        held["a"] += 0.5
        return x * len(keys) + sum(1 for _ in keys)

    return Program(step, inputs(), before=growing(held), state=held)


@program(speculated=5)
def a_chain_of_dictionaries():
    held, more = {"a": 1.0}, {"b": 2.0}
    chain = collections.ChainMap(held, more)
    keys = chain.keys()

    def step(x):
        held["a"] += 0.5
        return x * chain["a"] + len(keys) + sum(chain.values())

    return Program(step, inputs(), before=growing(more), state=(held, more))


@program()
def the_attributes_of_an_object():
    class Box:
        pass

    box = Box()
    box.n = 0
    space, values = vars(box), vars(box).values()

    def step(x):
        box.n += 1
        return x * space["n"] + sum(values)

    return Program(step, inputs(), state=box)


@program(speculated=5)
def given_to_the_step():
    held = {"a": 1.0}

    def step(x, keys, values):
        held["a"] += 0.5
        return x * len(keys) + sum(values)

    calls = [(torch.randn(3), held.keys(), held.values()) for _ in range(CALLS)]
    return Program(step, calls, before=growing(held), state=held)


@program(speculated=5)
def held_by_an_object():
    class Table:
        def __init__(self):
            self.rows = {"a": 1.0}
            self.keys = self.rows.keys()
            self.items = self.rows.items()

        def total(self):
            return len(self.keys) + sum(v for _, v in self.items)

    table = Table()

    def step(x):
        table.rows["a"] += 1.0
        return x * table.total()

    return Program(step, inputs(), before=growing(table.rows), state=table)


@program(speculated=5)
def tensors_among_the_values():
    held = {"a": torch.ones(3), "b": torch.ones(3)}
    values = held.values()

    def step(x):
        held["a"] = held["a"] * 2
        return x + sum(values)

    def more():
        held["c"] = torch.full((3,), 5.0)

    return Program(step, inputs(), before={5: more}, state=held)


@program()
def an_iterator_of_a_list():
    held = [1.0, 2.0, 3.0] * CALLS
    it = iter(held)

    def step(x):
        return x * next(it)

    return Program(step, inputs(), state=held)


@program()
def a_pair_of_iterators():
    it = zip(itertools.count(1), [2.0] * CALLS)

    def step(x):
        a, b = next(it)
        return x * a + b

    return Program(step, inputs())


@program()
def an_enumeration():
    it = enumerate([3.0] * 2 * CALLS)

    def step(x):
        for number, value in it:
            return x * number + value

    return Program(step, inputs())


@program(speculated=0)
def mapped_and_filtered():
    seen = []

    def twice(value):
        seen.append(value)
        return value * 2

    it = map(twice, filter(lambda v: v % 2, range(100)))

    def step(x):
        return x * next(it) + len(seen)

    return Program(step, inputs(), state=seen)


@program()
def visited_again_and_again():
    it = itertools.cycle([1.0, 2.0, 3.0])

    def step(x):
        return x * next(it)

    return Program(step, inputs())


@program(speculated=0, compiles=8)
def a_generator_that_counts():
    n = [0]

    def each():
        while True:
            n[0] += 1
            yield n[0]

    it = each()

    def step(x):
        return x * next(it) + n[0]

    return Program(step, inputs(), state=n)


@program()
def an_iterator_of_a_deque():
    held = collections.deque(range(50))
    it, back = iter(held), reversed(held)

    def step(x):
        return x * next(it) + next(back)

    return Program(step, inputs(), state=held)


@program()
def an_iterator_of_keys():
    held = {k: float(k) for k in range(50)}
    it, items = iter(held), iter(held.items())

    def step(x):
        return x * next(it) + next(items)[1]

    return Program(step, inputs(), state=held)


@program(refused="uses a memoryview of memory whose size may change")
def a_view_of_bytes():
    held = bytearray(b"abcdef")
    view = memoryview(held)

    def step(x):
        held[0] += 1
        return x * view[0] + len(view) + view.tolist()[1]

    return Program(step, inputs(), state=held)


@program()
def slices_and_pairs_of_iterators():
    it = itertools.islice(itertools.count(), 2, None)
    pairs = itertools.pairwise(range(100))
    chained = itertools.chain([1.0], itertools.repeat(2.0))

    def step(x):
        a, b = next(pairs)
        return x * next(it) + a * b + next(chained)

    return Program(step, inputs())


TABLE = {"a": 1.0}
KEYS = TABLE.keys()


@program(speculated=5)
def of_the_module():
    def step(x):
        TABLE["a"] += 1.0
        return x * len(KEYS) + sum(TABLE.values())

    return Program(step, inputs(), before=growing(TABLE))


@program(speculated=0)
def of_a_class():
    class Space:
        scale = 1.0

    names = vars(Space)
    keys = names.keys()

    def step(x):
        return x * names["scale"] + len(keys)

    def more():
        Space.scale = 3.0
        Space.other = 4.0

    return Program(step, inputs(), before={5: more}, state=Space)


@program(speculated=0)
def an_iterator_of_a_list_that_grows():
    held = []
    it = iter(held)

    def step(x):
        held.append(len(held) * 0.5)
        return x * next(it)

    return Program(step, inputs(), state=held)


@program(speculated=4)
def an_iterator_of_a_list_whose_elements_change():
    held = [1.0, 2.0, 3.0, 4.0] * CALLS
    it = enumerate(reversed(held))

    def step(x):
        for k in range(len(held)):
            held[k] += 1.0
        number, value = next(it)
        return x * value + number

    return Program(step, inputs(), state=held)


@program(speculated=0)
def iterators_within_iterators():
    held, more = [1.0] * 2, collections.deque([5.0] * 50)
    it = zip(itertools.chain(held, itertools.islice(more, 40)), itertools.count())

    def step(x):
        held[1] += 2.0
        held.append(held[1])
        value, number = next(it)
        return x * value + number

    return Program(step, inputs(), state=held)


@program(speculated=4)
def an_iterator_of_items_that_change():
    held = {k: float(k) for k in range(3 * CALLS)}
    it = iter(held.items())

    def step(x):
        for k in range(5):
            held[3 * len(held) // 4 + k] = 7.0 + float(held[0])
        held[0] += 1.0
        key, value = next(it)
        return x * value + key + next(it)[1]

    return Program(step, inputs(), state=held)


@program(speculated=0)
def mapped_after_a_look():
    seen = []

    def twice(value):
        seen.append(value)
        return value * 2

    it = map(twice, range(100))

    def step(x):
        before = len(seen)
        y = x * next(it) + before
        return y * len(seen)

    return Program(step, inputs(), state=seen)


@program(speculated=1)
def a_generator_over_a_list_that_changes():
    held = [1.0] * 3
    it = (value * 2 for value in held)

    def step(x):
        held.append(held[-1] + 1.0)
        held[2] = 9.0
        return x * next(it)

    return Program(step, inputs(), state=held)


@program(speculated=0)
def a_generator_that_keeps_what_it_does():
    kept = {"n": 0.0}

    def each():
        while True:
            kept["n"] += 1.5
            yield kept["n"]

    it = each()

    def step(x):
        before = kept["n"]
        y = x * next(it)
        return y + kept["n"] - before * 2

    return Program(step, inputs(), state=kept)


@program(speculated=0)
def views_shown_by_print():
    held = {"a": 1.0}
    keys, items, shown = held.keys(), held.items(), types.MappingProxyType(held)

    def step(x):
        print(keys, items, shown, f"{keys} {items!r}", "%s" % items)
        held[f"k{len(held)}"] = float(len(held))
        print(keys, list(items), str(shown))
        return x * 2

    return Program(step, inputs(), state=held)


@program()
def changed_while_gone_through():
    held = {"a": 1.0, "b": 2.0}
    keys = held.keys()

    def step(x):
        try:
            for key in keys:
                held[key + "x"] = 1.0
                x = x * 2
        except RuntimeError:
            x = x + 1
        for key in list(keys)[2:]:
            del held[key]
        return x

    return Program(step, inputs(), state=held)


@program(speculated=0)
def returned_and_kept():
    held = {"a": 1.0}
    keys, kept = held.keys(), []

    def step(x):
        held[f"k{len(held)}"] = 1.0
        kept.append(keys)
        return keys, x * len(kept[-1]), keys is kept[0], isinstance(keys, collections.abc.KeysView)

    return Program(step, inputs(), state=(held, kept))


@program(speculated=5)
def merged_and_copied():
    held = {"a": 1.0}
    shown, items = types.MappingProxyType(held), held.items()

    def step(x):
        made = {**shown, "z": 2.0} | dict(items)
        made.update(shown)
        again = shown | {"q": 3.0}
        held["a"] += 1.0
        return x * sum(made.values()) + len(again) + len(shown.copy())

    return Program(step, inputs(), before=growing(held), state=held)


@program(speculated=5)
def items_compared():
    held = {"a": 1.0, "b": 2.0}
    items = held.items()

    def step(x):
        same = (items == {"a": 1.0, "b": 2.0}.items()) + 2 * (("a", 3.0) in items)
        both = items & {("a", 3.0), ("b", 2.0)}
        return x * (same + 4 * len(both))

    def change():
        held["a"] = 3.0

    return Program(step, inputs(), before={5: change}, state=held)


@program()
def views_of_what_a_dictionary_holds():
    held = {"inner": {"a": 1.0}}
    inner = held["inner"].values()
    shown = types.MappingProxyType(held)

    def step(x):
        shown["inner"]["a"] += 1.0
        return x * sum(inner)

    return Program(step, inputs(), state=held)


@program(speculated=0)
def of_a_defaulting_dictionary():
    held = collections.defaultdict(float)
    keys, shown = held.keys(), types.MappingProxyType(held)

    def step(x):
        held[len(keys)] += 1.0
        return x * len(keys) + shown[0] + shown["new"]

    return Program(step, inputs(), state=held)


@program()
def of_a_counter():
    held = collections.Counter("aab")
    items = held.items()

    def step(x):
        held["a"] += 1
        held.update("c")
        return x * sum(n for _, n in items) + max(items, key=lambda item: item[1])[1]

    return Program(step, inputs(), state=held)


class Filling(dict):
    def __missing__(self, key):
        return 7


def _seen_through_a_proxy(make, look, **spec):
    def made():
        held = make(a=1)
        proxy = types.MappingProxyType(held)

        def step(x):
            return x * look(proxy)

        return Program(step, [(torch.ones(3) * k,) for k in range(CALLS)], before={6: lambda: held.pop("a")})

    return made


for _name, _make in {"counter": collections.Counter, "filling": Filling, "user": collections.UserDict}.items():
    for _how, _look in {
        "gets": lambda proxy: 2 if proxy.get("a") else 1,
        "keys": lambda proxy: 1 + len(list(proxy.keys())),
        "items": lambda proxy: 1 + sum(value for _, value in proxy.items()),
        "length": lambda proxy: 1 + len(proxy),
        "membership": lambda proxy: 1 + ("a" in proxy),
    }.items():
        _made = _seen_through_a_proxy(_make, _look)
        _made.__name__ = f"{_how}_of_a_{_name}_behind_a_proxy"
        globals()[_made.__name__] = program(speculated=0, compiles=9)(_made)


@program(refused="calls eval()")
def a_view_of_a_dictionary_in_a_run_that_is_refused():
    held = {"a": 1}

    def step(x):
        names, values = held.keys(), held.values()
        eval("1")
        held[len(held)] = 2
        return x * sum(1 for _ in names), x * len(values), x * (1 in names), list(held.items())[-1][1] * x

    return Program(step, inputs(), state=held)


@program(refused="of a mappingproxy")
def a_view_of_a_counter_in_a_run_that_is_refused():
    held = collections.Counter()
    proxy = types.MappingProxyType(held)

    def step(x):
        names = held.keys()
        proxy.get(0.5)
        held.setdefault(len(held))
        return x * sum(1 for _ in names)

    return Program(step, inputs(), state=held)


def stored(of):
    """A step that keeps a view which it has taken itself; later changes of the dictionary show in it."""

    def make():
        held, kept = {"a": 1, "b": 2}, [None]

        def step(x):
            seen = 0 if kept[0] is None else len(kept[0])
            kept[0] = of(held)
            return x * (seen + len(kept[0]))

        changes = {3: lambda: held.pop("a"), 5: lambda: held.__setitem__("c", 3)}
        return Program(step, inputs(), state=lambda: [list(kept[0]), len(held)], before=changes)

    return make


@program(refused="a new dict_keys leaves the step")
def keys_that_the_step_keeps():
    return stored(dict.keys)()


@program(refused="a new dict_values leaves the step")
def values_that_the_step_keeps():
    return stored(lambda held: held.values())()


@program(refused="a new dict_items leaves the step")
def items_that_the_step_keeps():
    return stored(lambda held: held.items())()
