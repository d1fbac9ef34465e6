"""What arms of iterations leave in names, containers and objects: texts, keys, functions, partly built lists."""

import collections
import functools
import types

import torch
from torch import nn

from tests.programs.harness import Program, program

RUN_ONE_IN = 32  # Each takes a second or more: a loop or a recursive function is compiled for any trip count or tree.

SIGNS = [[1.0, -1.0, 1.0, -1.0]] * 3 + [[-1.0] * 4, [1.0] * 4, [-1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, -1.0]] * 3


def mixed():
    """Rounds go both ways in the first calls, then one way, and then the first or the last goes another."""
    return [(torch.tensor(row) * (1 + k),) for k, row in enumerate(SIGNS)]


class Box:
    pass


class Slots:
    __slots__ = ("w",)


STATE = {}


@program(speculated=3, compiles=6)
def a_tensor_set_by_one_way():
    def step(y):
        for t in y:
            if t > 0:
                best = t * 2
        try:
            return best
        except UnboundLocalError:
            return None

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def a_text_set_by_one_way():
    def step(y):
        for t in y:
            if t > 0:
                best = "yes"
        try:
            return best
        except UnboundLocalError:
            return None

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def a_number_set_by_one_way():
    def step(y):
        for t in y:
            if t > 0:
                best = 3
        try:
            return best
        except UnboundLocalError:
            return None

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def a_text_returned():
    def step(y):
        for t in y:
            label = "p" if t > 0 else "n"
        return label

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def a_text_that_decides():
    def step(y):
        for t in y:
            label = "p" if t > 0 else "n"
        return y * 2 if label == "p" else y * 3

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def a_global_that_decides():
    def step(y):
        for t in y:
            STATE["mode"] = "p" if t > 0 else "n"
        return y * 2 if STATE["mode"] == "p" else y * 3

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def a_slot():
    def step(y):
        o = Slots()
        for t in y:
            o.w = "p" if t > 0 else "n"
        return o.w

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def a_slot_that_was_empty():
    def step(y):
        o = Slots()
        for t in y:
            if t > 0:
                o.w = 1
        return hasattr(o, "w")

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def a_set_that_grows():
    def step(y):
        s = set()
        for t in y:
            s.add("p" if t > 0 else "n")
        return sorted(s)

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def counted_texts():
    def step(y):
        c = collections.Counter()
        for t in y:
            c["p" if t > 0 else "n"] += 1
        return dict(c)

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def deep_in_dictionaries():
    def step(y):
        d = {"a": {"b": {"c": {"d": {"e": 0}}}}}
        for t in y:
            if t > 0:
                d["a"]["b"]["c"]["d"]["e"] = "x"
        return d

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def far_in_a_list():
    def step(y):
        r = ["n"] * 100
        for i, t in enumerate(y):
            if t > 0:
                r[50] = "x"
        return r[50]

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def kept_by_filter():
    def step(y):
        return list(filter(lambda t: t > 0, y))

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def made_by_map():
    def step(y):
        return list(map(lambda t: "p" if t > 0 else "n", y))

    return Program(step, mixed())


@program(speculated=12)
def largest_by_key():
    def step(y):
        ts = [t for t in y]
        return max(ts, key=lambda t: (t * t).item())

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def a_generator_goes_on():
    def step(y):
        def gen():
            yield 1
            yield 2
            yield 3
            yield 4
            yield 5

        g = gen()
        for t in y:
            if t > 0:
                next(g)
        return next(g)

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def one_of_two_objects():
    def step(y):
        a = Box()
        b = Box()
        a.w = y * 2
        b.w = y * 3
        best = a
        for t in y:
            best = a if t > 0 else b
        best.w = best.w + 1
        return a.w, b.w

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def one_of_two_lists():
    def step(y):
        a = [y * 2]
        b = [y * 3]
        best = a
        for t in y:
            best = a if t > 0 else b
        best.append(y)
        return len(a), len(b)

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def dictionaries_appended():
    def step(y):
        r = []
        for t in y:
            r.append({"v": t})
            if t > 0:
                r[-1]["s"] = "p"
        return r

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def pairs_appended():
    def step(y):
        r = []
        for t in y:
            r.append((t * 2, "p" if t > 0 else "n"))
        return r

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def an_older_element_changed():
    def step(y):
        r = ["a", "b"]
        for t in y:
            r.append(t * 2)
            if t > 0:
                r[0] = "z"
        return r

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def put_in_front():
    def step(y):
        r = []
        for t in y:
            if t > 0:
                r.insert(0, t * 2)
            else:
                r.append(t * 3)
        return r

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def those_that_are_positive():
    def step(y):
        return [t * 2 for t in y if t > 0]

    return Program(step, mixed())


@program(speculated=12)
def numbers_in_a_comprehension():
    def step(y):
        return [1 if t > 0 else 0 for t in y]

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def fetched_in_a_comprehension():
    def step(y):
        return [t.item() if t > 0 else 0.0 for t in y]

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def tensors_in_a_comprehension():
    def step(y):
        return [t * 2 if t > 0 else t * 3 for t in y]

    return Program(step, mixed())


@program(speculated=12)
def a_comprehension_stacked():
    def step(y):
        return torch.stack([t * 2 if t > 0 else t * 3 for t in y])

    return Program(step, mixed())


@program(speculated=12)
def a_comprehension_by_number_stacked():
    def step(y):
        return torch.stack([y[i] * 2 if y[i] > 0 else y[i] * 3 for i in range(4)])

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def two_loops_in_a_comprehension():
    def step(y):
        return [("p" if t > 0 else "n") + s for s in "ab" for t in y]

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def a_comprehension_in_another():
    def step(y):
        return [["p" if t > 0 else "n" for t in r] for r in y.view(2, 2)]

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def texts_in_a_set():
    def step(y):
        return sorted({"p" if t > 0 else "n" for t in y})

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def texts_in_a_dictionary():
    def step(y):
        return {i: ("p" if t > 0 else "n") for i, t in enumerate(y)}

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def keys_in_a_comprehension():
    def step(y):
        return {("p" if t > 0 else "n"): t * 2 for t in y}

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def texts_of_calls():
    def f(t):
        return "p" if t > 0 else "n"

    def step(y):
        return [f(t) for t in y]

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def pairs_in_a_comprehension():
    def step(y):
        return [(t * 2, "p") if t > 0 else (t * 3, "n") for t in y]

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def tensors_from_before_the_iterations():
    def step(y):
        a = y * 2
        b = y * 3
        return [a if t > 0 else b for t in y]

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def weights_chosen_and_summed():
    ws = [torch.ones(4), torch.ones(4) * 2]

    def step(y):
        return sum([ws[0] if t > 0 else ws[1] for t in y])

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def a_comprehension_that_raises():
    def f(t):
        try:
            found = [1 / 0 if t > 0 else "z" for _ in range(2)]
            return found[0]
        except ZeroDivisionError:
            return "e"

    def step(y):
        return [f(t) for t in y]

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def keys_of_regions():
    def step(y):
        r = {}
        if y[0] > 0:
            r["a"] = 1
        if y[1] > 0:
            r["b"] = "s"
        if y[2] > 0:
            r["c"] = y
        if y[3] > 0:
            r["d"] = y * 2
        if y.sum() > 0:
            r["e"] = True
        return r

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def attributes_of_regions():
    def step(y):
        r = Box()
        if y[0] > 0:
            r.a = 1
        if y[1] > 0:
            r.b = "s"
        if y[2] > 0:
            r.c = y
        if y[3] > 0:
            r.d = y * 2
        if y.sum() > 0:
            r.e = True
        return sorted(vars(r))

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def lists_of_regions():
    def step(y):
        r = []
        if y[0] > 0:
            r.append("a")
        if y[1] > 0:
            r.append("b")
        if y[2] > 0:
            r.append("c")
        if y[3] > 0:
            r.append("d")
        if y.sum() > 0:
            r.append("e")
        return r

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def a_key_by_default():
    def step(y):
        r = {}
        for t in y:
            if t > 0:
                r.setdefault("a", []).append(t)
        return r

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def a_key_deleted():
    def step(y):
        r = {"a": 1, "b": 2}
        for t in y:
            if t > 0:
                r.pop("a", None)
        return r

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def a_namespace():
    def step(y):
        r = types.SimpleNamespace()
        for t in y:
            if t > 0:
                r.a = 2
        return vars(r)

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def a_list_of_a_closure():
    def step(y):
        r = []

        def f(t):
            if t > 0:
                r.append("p")
            else:
                r.append("n")

        for t in y:
            f(t)
        return r

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def a_variable_of_the_step():
    def step(y):
        r = "z"

        def f(t):
            nonlocal r
            r = "p" if t > 0 else "n"

        for t in y:
            f(t)
        return r

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def bytes_of_iterations():
    def step(y):
        b = bytearray()
        for t in y:
            b.append(1 if t > 0 else 2)
        return bytes(b)

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def dictionaries_in_a_list():
    def step(y):
        ds = [{"n": i} for i in range(4)]
        for d, t in zip(ds, y):
            if t > 0:
                d["x"] = "p"
        return ds

    return Program(step, mixed())


@program(speculated=12)
def a_key_of_each_way():
    def step(y):
        r = {}
        for t in y:
            r["a"] = t * 2 if t > 0 else t * 3
        return r

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def a_partial_function():

    def step(y):
        f = lambda a, b: (a, b)
        for t in y:
            f = functools.partial(lambda a, b: (a, b), "p" if t > 0 else "n")
        return f(1)

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def a_function_without_name():
    def step(y):
        f = lambda: 0
        for t in y:
            f = (lambda: "p") if t > 0 else (lambda: "n")
        return f()

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def a_function_of_a_function():
    def mk(s):
        return lambda: s

    def step(y):
        f = mk("z")
        for t in y:
            f = mk("p") if t > 0 else mk("n")
        return f()

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def a_method():
    class A:
        def p(self):
            return "p"

        def n(self):
            return "n"

    def step(y):
        a = A()
        f = a.p
        for t in y:
            f = a.p if t > 0 else a.n
        return f()

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def a_function_of_torch():
    def step(y):
        f = torch.relu
        for t in y:
            f = torch.sin if t > 0 else torch.cos
        return f(y)

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def texts_appended():
    def step(y):
        r = []
        for t in y:
            r.append("p" if t > 0 else "n")
        return r

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def texts_printed():
    def step(y):
        r = []
        for t in y:
            r.append("p" if t > 0 else "n")
        print(r)
        return y

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def an_item_of_a_list():
    M = ["z", "z"]

    def step(y):
        for t in y:
            M[0] = "p" if t > 0 else "n"
        return "".join(M)

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def an_attribute_that_decides():
    class A:
        def __init__(s):
            s.mode = "z"

        def f(s, t):
            if t > 0:
                s.mode = "p"
            else:
                s.mode = "n"

    a = A()

    def step(y):
        for t in y:
            a.f(t)
        return y * 2 if a.mode == "p" else y * 3

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def a_variable_of_the_maker():
    mode = "z"

    def step(y):
        nonlocal mode
        for t in y:
            mode = "p" if t > 0 else "n"
        return y * 2 if mode == "p" else y * 3

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def states_before_each_iteration():
    def step(y):
        h = y.sum() * 0
        hs = []
        for t in y:
            hs.append(h)
            h = h * 0.5 + t if t > 0 else h - t
        return torch.stack(hs), h

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def one_of_two_in_two_iterations():
    def step(y):
        a = y * 2
        r = []
        for i in range(2):
            r.append(a if y[i] > 0 else y * 3)
        return r

    return Program(step, mixed())


@program(speculated=12)
def an_object_made_anew():
    class State:
        def __init__(s, h, c):
            s.h = h
            s.c = c

    def step(y):
        st = State(y * 0, y * 0)
        for t in y:
            st = State(st.h + t, st.c) if t > 0 else State(st.h, st.c + t)
        return st.h, st.c

    return Program(step, mixed())


@program(speculated=12)
def a_dictionary_made_anew():
    def step(y):
        st = {"h": y * 0, "c": y * 0}
        for t in y:
            if t > 0:
                st = {"h": st["h"] + t, "c": st["c"]}
            else:
                st = {"h": st["h"], "c": st["c"] * 0.5 + t}
        return st

    return Program(step, mixed())


@program(speculated=12)
def a_tuple_made_anew():
    def step(y):
        st = (y * 0, y * 0)
        for t in y:
            if t > 0:
                st = (st[0] + t, st[1])
            else:
                st = (st[0], st[1] * 0.5 + t)
        return st

    return Program(step, mixed())


@program(speculated=12)
def a_long_list_stacked():
    def step(y):
        outs = []
        z = torch.cat([y] * 20)
        for t in z:
            outs.append(t * 2 if t > 0 else t * 3)
        return torch.stack(outs)

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def a_long_list_of_texts():
    def step(y):
        outs = []
        z = torch.cat([y] * 20)
        for t in z:
            outs.append("p" if t > 0 else "n")
        return outs[-1], len(outs)

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def texts_of_two_loops():
    def step(y):
        out = []
        for i in range(2):
            row = []
            for j in range(2):
                row.append("p" if y[2 * i + j] > 0 else "n")
            out.append("".join(row))
        return out

    return Program(torch.no_grad()(step), mixed())


@program(speculated=3, compiles=6)
def counted_by_a_comprehension():
    def step(y):
        r = [z for t in y if (z := t * 2) > 0]
        return len(r)

    return Program(torch.no_grad()(step), mixed())


@program(speculated=3, compiles=6)
def two_lists_and_their_lengths():
    def step(y):
        p = []
        n = []
        for t in y:
            if t > 0:
                p.append(t)
            else:
                n.append(t)
        return len(p), len(n)

    return Program(torch.no_grad()(step), mixed())


@program(speculated=3, compiles=6)
def containers_of_regions():
    def step(y):
        tags = set()
        d = {}
        if y[0] > 0:
            tags.add("a")
        else:
            d["x"] = 1
        if y[1] > 0:
            tags.add("b")
        if y[2] > 0:
            d.setdefault("k", []).append("v")
        if y[3] > 0:
            d["y"] = "q"
        if y.sum() > 0:
            mode = "pos"
        else:
            mode = "neg"
        return sorted(tags), d, mode

    return Program(torch.no_grad()(step), mixed())


@program(speculated=3, compiles=6)
def objects_of_regions():
    def step(y):
        a = Box()
        b = Box()
        a.n = 1
        b.n = 2
        c = a
        if y[0] > 0:
            c = b
        if y[1] > 0:
            c.n = 5
        if y[2] > 0:
            a.z = y
        if y[3] > 0:
            b.z = y * 2
        return a.n, b.n, hasattr(a, "z"), hasattr(b, "z")

    return Program(torch.no_grad()(step), mixed())


@program(speculated=3, compiles=6)
def texts_in_a_list_of_a_module():
    class Net(nn.Module):
        def __init__(s):
            super().__init__()
            s.l = nn.Linear(1, 1)
            s.trace = []

        def forward(s, t):
            if t > 0:
                s.trace.append("p")
                return s.l(t.view(1, 1))
            s.trace.append("n")
            return -s.l(t.view(1, 1))

    net = Net()

    def step(y):
        net.trace = []
        o = torch.cat([net(t) for t in y])
        return o, "".join(net.trace)

    return Program(torch.no_grad()(step), mixed(), state=net)


@program(speculated=3, compiles=6)
def a_new_list_in_a_global():
    def step(y):
        STATE["r"] = []
        for t in y:
            STATE["r"].append("p" if t > 0 else "n")
        return "".join(STATE["r"])

    return Program(torch.no_grad()(step), mixed())


@program(speculated=3, compiles=6)
def a_new_dictionary_in_a_global():
    def step(y):
        STATE["d"] = {"a": {}}
        for t in y:
            if t > 0:
                STATE["d"]["a"]["k"] = "v"
        return len(STATE["d"]["a"])

    return Program(torch.no_grad()(step), mixed())


@program(speculated=3, compiles=6)
def a_new_dictionary_in_a_log():
    log = []

    def step(y):
        log.append({})
        for t in y:
            if t > 0:
                log[-1]["k"] = "v"
        return len(log[-1])

    return Program(torch.no_grad()(step), mixed(), state=log)


@program(speculated=3, compiles=6)
def a_new_object_in_an_attribute():
    a = Box()

    def step(y):
        a.s = Box()
        a.s.tag = "z"
        for t in y:
            a.s.tag = "p" if t > 0 else "n"
        return a.s.tag

    return Program(torch.no_grad()(step), mixed())


@program(speculated=3, compiles=6)
def tensors_in_a_new_list_of_a_module():
    class Net(nn.Module):
        def __init__(s):
            super().__init__()
            s.hist = []

        def forward(s, t):
            r = t * 2 if t > 0 else t * 3
            s.hist.append(r)
            return r

    net = Net()

    def step(y):
        net.hist = []
        for t in y:
            net(t)
        return torch.stack(net.hist)

    return Program(torch.no_grad()(step), mixed())


@program(speculated=3, compiles=6)
def texts_in_a_new_dictionary_of_a_module():
    class Net(nn.Module):
        def __init__(s):
            super().__init__()
            s.cache = {}

        def forward(s, t, i):
            s.cache[i] = "p" if t > 0 else "n"
            return t * 2

    net = Net()

    def step(y):
        net.cache = {}
        r = torch.stack([net(t, i) for i, t in enumerate(y)])
        return r, net.cache

    return Program(torch.no_grad()(step), mixed())


@program(speculated=3, compiles=6)
def tensors_of_comprehensions_in_another():
    def step(y):
        return torch.stack([torch.stack([t * 2 if t > 0 else t * 3 for t in r]) for r in y.view(2, 2)])

    return Program(torch.no_grad()(step), mixed())


@program(speculated=3, compiles=6)
def a_key_of_a_global():
    def step(y):
        for t in y:
            if t > 0:
                STATE["a"] = 1
        r = "a" in STATE
        STATE.clear()
        return r

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def a_tensor_under_a_key_of_a_global():
    def step(y):
        for t in y:
            if t > 0:
                STATE["a"] = t * 2
        r = len(STATE)
        STATE.clear()
        return r

    return Program(step, mixed())


@program(speculated=2, compiles=6)
def an_attribute_that_was_not_there():
    a = Box()

    def step(y):
        for t in y:
            if t > 0:
                a.x = 1
        r = hasattr(a, "x")
        if r:
            del a.x
        return r

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def an_attribute_that_was_none():
    a = Box()
    a.x = None

    def step(y):
        a.x = None
        for t in y:
            if t > 0:
                a.x = t * 2
        return a.x is None

    return Program(step, mixed())


@program(speculated=3, compiles=6)
def keys_of_a_dictionary_from_before():
    d = {}

    def step(y):
        e = d
        for t in y:
            if t > 0:
                e["a"] = t * 2
        r = list(e)
        e.clear()
        return r

    return Program(step, mixed())
