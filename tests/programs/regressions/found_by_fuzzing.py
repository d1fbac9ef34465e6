"""Programs that once differed from eager, found by fuzzing and by injection, reduced."""

import collections
import heapq
import io
import logging
import math
import random

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.harness import CALLS, Program, program


def inputs(count=CALLS, *shape):
    return [(torch.randn(*(shape or (4, 5))),) for _ in range(count)]


class State:
    def __init__(self):
        self.n = 0
        self.total = 0.0
        self.lr = 0.1


@program(speculated=11)
def a_number_and_a_class_change_at_once():
    class One:
        def go(self, x):
            return x

    class Two:
        def go(self, x):
            return x * 2

    thing, st = One(), State()

    def step(x):
        scale = st.lr
        return thing.go(x) * scale

    def change():
        st.lr = 0.2
        thing.__class__ = Two

    return Program(step, inputs(16), {7: change})


@program(speculated=10)
def a_number_and_a_tensors_flag_change_at_once():
    model, st = nn.Linear(5, 3), State()

    def step(x):
        scale = st.lr
        model.zero_grad()
        loss = model(x).pow(2).sum() * scale
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                if p.grad is not None:
                    p -= 0.01 * p.grad

    def change():
        st.lr = 0.2
        model.weight.requires_grad_(False)

    return Program(step, inputs(16), {7: change}, state=model)


@program(speculated=11)
def a_number_and_a_tensors_shape_change_at_once():
    st = State()
    st.buf = torch.ones(5)

    def step(x):
        scale = st.lr
        return (x + st.buf).sum() * scale, st.buf * 2

    def change():
        st.lr = 0.2
        st.buf.resize_(1).fill_(3.0)

    return Program(step, inputs(16), {7: change}, state=st)


# -- arithmetic whose result nobody uses: it may raise all the same ----------------------------------------------------


def numbered(*numbers):
    return [(torch.ones(3), k) for k in numbers]


@program(speculated=6)
def a_quotient_that_is_not_used():
    st = State()

    def step(x):
        st.n += 1
        1.0 / (st.n - 7)
        return x * 2

    return Program(step, inputs(), state=st)


@program(speculated=3)
def a_root_that_is_not_used():
    def step(x, k):
        math.sqrt(k)
        int(k)
        return x * 2

    return Program(step, numbered(1.0, 2.0, 3.0, 4.0, -1.0, 5.0, float("inf"), 6.0))


@program(speculated=2)
def a_text_that_is_not_used():
    def step(x, k):
        "%d" % k
        return x * 2

    return Program(step, numbered(1.0, 2.0, 3.0, 4.0, float("nan"), 5.0))


@program(speculated=3)
def a_number_in_a_text_that_is_not_used():
    source = io.StringIO("".join(f"{line}\n" for line in (1, 2, 3, 4, "x", 6, 7)))

    def step(x):
        int(source.readline())
        return x * 2

    return Program(step, inputs(7), state=source)


@program(speculated=3)
def a_quotient_of_a_fetched_number_that_is_not_used():
    st = State()
    st.buf = torch.zeros(3)

    def step(x, k):
        st.buf.add_(x)
        1.0 / k.item()
        1.0 / (k * 2).item()
        (k * 1e100).item() ** 2
        return x * 2

    numbers = (1, 2, 3, 4, 0, 5, 1e100, 6)
    return Program(step, numbered(*(torch.tensor(float(k), dtype=torch.float64) for k in numbers)), state=st)


@program(speculated=6)
def a_fetched_number_over_one_from_outside():
    st = State()
    st.buf = torch.zeros(3)

    def step(x, k):
        st.buf.add_(x)
        x.sum().item() / k
        return x * 2

    return Program(step, numbered(1, 2, 3, 4, 5, 6, 0, 7, 8, 9), state=st)


@program(speculated=6, compiles=2)
def a_number_from_outside_that_did_not_change_changes():
    """The graph that follows takes it at commit, and it was drawn before its first graph missed."""
    st = State()
    source = random.Random(16)  # 1, 1, 1, 1, 1, 0, 1, 0, 1, 2

    def step(x):
        st.n = source.randint(0, 2)
        return x * 2

    return Program(step, inputs(), state=(st, source))


@program(speculated=24)
def a_random_divisor():
    st = State()
    st.buf = torch.zeros(3)

    def step(x):
        st.buf.add_(x)
        st.total += 1.0 / random.randint(0, 9)
        x.sum().item() / random.randint(0, 9)
        return x * 2

    return Program(step, inputs(40, 3), state=st)


@program(speculated=4)
def a_fetched_divisor_in_an_operand_and_in_a_condition():
    def step(x, k):
        if 1.0 / (k * 2).item() > 100.0:
            return x
        return x * (1.0 / (k * 3).item())

    return Program(step, numbered(*(torch.tensor(float(k)) for k in (1, 2, 3, 4, 5, 0, 6, 7))))


@program(speculated=4)
def an_error_that_is_handled_comes_back():
    st = State()

    def step(x, k):
        try:
            1.0 / k
        except ZeroDivisionError:
            st.n += 1
        return x * 2

    return Program(step, numbered(0, 0, 0, 0, 1, 2, 3, 0, 4, 5), state=st)


# -- reads whose value nobody uses: what is read has to be there -------------------------------------------------------


def unused_read(read, change):
    st = State()
    st.extra, st.table, st.items = 2.0, {"a": 1.0}, [1.0, 2.0]

    def step(x):
        st.n += 1
        read(st)
        return x * 2

    return Program(step, inputs(), {6: lambda: change(st)}, state=st)


@program(speculated=3)
def an_attribute_that_is_not_used_goes():
    def read(st):
        st.extra

    def change(st):
        del st.extra

    return unused_read(read, change)


@program(speculated=3)
def an_operand_that_is_not_used_is_none():
    def read(st):
        st.extra * 2

    def change(st):
        st.extra = None

    return unused_read(read, change)


@program(speculated=3)
def an_item_that_is_not_used_goes():
    def read(st):
        st.table["a"]

    return unused_read(read, lambda st: st.table.pop("a"))


@program(speculated=3)
def an_element_that_is_not_used_goes():
    def read(st):
        st.items[1]

    return unused_read(read, lambda st: st.items.pop())


@program(speculated=4)
def a_number_whose_type_alone_counts():
    st = State()

    def step(x, k):
        if isinstance(k, float):
            st.lr *= 0.9
        return x * 2

    return Program(step, numbered(1.5, 1.5, 1.5, 1.5, 2, 1.5, 1.5, True, 2, 1.5), state=st)


# -- operations that a trace would change ------------------------------------------------------------------------------


@program(speculated=6)
def one_hot_checks_its_classes():
    st = State()

    def step(x, labels):
        st.n += 1
        F.one_hot(labels, 3)
        return F.one_hot(labels, 3) * x

    return Program(step, [(torch.ones(3), torch.tensor([k])) for k in (0, 1, 2, 1, 0, 1, 3, 2, 1, -1, 1)], state=st)


@program()
def tensors_made_of_fetched_numbers():
    st = State()

    def step(x):
        st.n += 1
        total, count = x.sum().item(), (x > 0).sum().item()
        made = torch.tensor(total), torch.tensor([total, 1]), torch.tensor([[total, 2.0], [st.n, 0.5]])
        typed = (
            torch.tensor(count),
            torch.tensor((count, st.n)),
            torch.tensor([count, 2.0]),
            torch.tensor([total, count]),
        )
        options = torch.tensor(total, dtype=torch.float64), torch.tensor([total], requires_grad=True)
        filled = torch.full((3,), total), torch.full((2,), count * 0.5, dtype=torch.float64)
        return made, typed, options, filled

    return Program(step, inputs(), state=st)


# -- changes through views ---------------------------------------------------------------------------------------------


def changed_through(view, change=lambda part: part.mul_(0.1)):
    st = State()
    st.weight = torch.arange(12.0).reshape(3, 4) + 0.1

    def step(x):
        change(view(st.weight))
        made = x * 0.3
        change(view(made))
        return made

    return Program(step, inputs(CALLS, 3, 4), state=st)


@program()
def a_change_through_an_expansion_that_repeats_nothing():
    return changed_through(lambda y: y[0].expand(4))


@program()
def a_change_through_an_expansion_by_ones():
    return changed_through(lambda y: y.broadcast_to(1, 1, 3, 4)[0, :, 1])


@program(refused="through an expanded or unfolded view")
def a_change_of_a_row_of_an_expansion():
    return changed_through(lambda y: y[0].expand(2, 4)[0])


@program(refused="through an expanded or unfolded view")
def zeros_through_an_expansion():
    return changed_through(lambda y: y[0].expand(2, 4), lambda part: part.zero_())


@program(refused="through an expanded or unfolded view")
def a_change_through_windows():
    return changed_through(lambda y: y.unfold(1, 1, 2))


# -- what is reported of errors and of the line that logs
# ------------------------------------------------------------------


def handled(tell, kind=ValueError):
    st = State()
    st.log, st.written = logging.Logger("own"), io.StringIO()
    handler = logging.StreamHandler(st.written)
    handler.setFormatter(logging.Formatter("%(filename)s:%(lineno)d %(funcName)s %(levelname)s %(message)s"))
    st.log.addHandler(handler)
    written, log = st.written, st.log

    def step(x):
        st.n += 1
        try:
            raise kind(f"number {st.n}")
        except kind as error:
            tell(log, error)
        return x * 2

    return Program(step, inputs(), state=(st, written))


@program()
def an_error_is_printed():
    return handled(lambda log, error: print("caught", error))


@program()
def an_error_that_quotes_is_printed():
    return handled(lambda log, error: print(error), KeyError)


@program()
def an_error_is_logged_with_the_line():
    return handled(lambda log, error: log.warning("caught %s, %r", error, error))


@program(refused="asks for the error that is being handled")
def a_traceback_is_logged():
    return handled(lambda log, error: log.exception("caught"))


@program(refused="asks for the error that is being handled")
def an_error_is_logged_with_its_traceback():
    return handled(lambda log, error: log.error("caught", exc_info=error))


@program()
def an_adapter_logs():
    return handled(lambda log, error: logging.LoggerAdapter(log).info("caught"))


@program()
def deep_recursion():
    """Deeper than Python's limit would allow while it is watched, if that counted torchjanus's own frames."""

    def power(x, n):
        return x if n == 0 else power(x, n - 1) * 1.01

    def step(x):
        return power(x, 150) + power(x, 3)

    return Program(step, inputs())


@program(speculated=5, slow=True)
def recursion_without_end():
    def down(x):
        return down(x)

    def step(x):
        try:
            return down(x)
        except RecursionError:
            return x * 2

    return Program(step, inputs())


@program()
def print_options_changed_after_the_text():
    def step(x):
        text = str(x)
        print(x)
        torch.set_printoptions(precision=2)
        return text

    return Program(step, inputs(), between=lambda _: torch.set_printoptions(precision=4))


@program()
def function_with_vjp():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def vjp(ctx, grad):
            return grad * 3

    w = torch.ones(5, requires_grad=True)

    def step(x):
        w.grad = None
        Double.apply(x * w).sum().backward()

    return Program(step, inputs(), state=w)


@program(speculated=0)
def function_with_backward_and_vjp():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

        @staticmethod
        def vjp(ctx, grad):
            return grad * 2

    w = torch.ones(5, requires_grad=True)

    def step(x):
        w.grad = None
        Double.apply(x * w).sum().backward()

    return Program(step, inputs(), state=w)


# -- numbers and texts that native code takes apart --------------------------------------------------------------------


def used(use, *numbers):
    def step(x, k):
        return x * 2, use(k)

    return Program(step, numbered(*numbers))


@program(speculated=1, compiles=9)
def a_number_from_where_to_count():
    return used(lambda k: list(enumerate("ab", k)), 1, 2, 3, 1, 1, 1, 4)


@program(speculated=1, compiles=9)
def a_number_of_bytes():
    return used(lambda k: (bytes(k), torch.Size((k, 2)), list(collections.deque("abc", k))), 1, 2, 3, 1, 1, 1, 0)


@program(speculated=4)
def a_piece_of_a_text():
    return used(lambda k: (str(k)[0], f"{k:.3f}"[:2]), 1.5, 2.5, 3.5, 4.0, 0.5, -1.5, 7.0)


@program(speculated=1, compiles=9)
def the_characters_of_a_text():
    def use(k):
        first, *others = str(k)
        return first, others, list(str(k)), [*f"{k}"], ",".join(str(k)), sorted(str(k))

    return used(use, 1.5, 2.5, 3.5, 1.5, 1.5, 1.5, 4.0)


@program(refused="changes a list that it is given")
def a_list_of_this_call_is_shuffled():
    def use(k):
        made = [[k], [1.0]]
        random.shuffle(made)
        return made

    return used(use, *range(10))


@program(speculated=2, compiles=2)
def a_list_of_this_call_is_a_heap():
    def use(k):
        made = [1.0, 2.0, k]
        heapq.heapify(made)
        return made, heapq.nsmallest(2, [k, 1.0, 3.0])

    return used(use, 3.0, 4.0, 5.0, 6.0, 0.5, 7.0, 0.25)


@program(speculated=4)
def a_new_frozenset_is_asked_for_a_key():
    return used(lambda k: (frozenset(["ab", 1]).__contains__("ab"), k), *range(7))


@program(speculated=4)
def a_named_tuple_is_defined():
    def step(x):
        pair = collections.namedtuple("pair", "a b")
        return pair.__module__ == __name__, tuple(pair(x, 1))

    return Program(step, inputs())


# -- relaxed while something else has changed: found by injection -----------------------------------------------------


@program(speculated=2)
def autocast_and_an_object_change_at_once():
    st = State()
    st.model = nn.Linear(3, 3)

    def step(x):
        return st.model(x).detach()

    def around(number):
        return torch.autocast("cpu", dtype=torch.bfloat16 if number < 6 else torch.float16)

    def change():
        st.model = nn.Linear(3, 3)

    return Program(step, inputs(CALLS, 2, 3), {6: change}, around=around)


@program(speculated=2)
def an_argument_gets_a_hook():
    def step(x):
        x.grad = None
        (x * 2).sum().backward()
        return x.grad.clone()

    calls = [(torch.randn(3, requires_grad=True),) for _ in range(CALLS)]
    calls[6][0].register_hook(lambda grad: grad * 3)
    calls[8][0].register_hook(lambda grad: grad * 5)
    return Program(step, calls)


@program(speculated=3, compiles=6)
def gradients_that_are_thrown_away_come_and_go():
    """Of two models one is used at each call, and the gradients of both are thrown away."""
    models = [nn.Linear(5, 3), nn.Linear(5, 3)]
    optimizer = torch.optim.SGD([p for model in models for p in model.parameters()], lr=0.1)

    def step(x, model):
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    order = (0, 0, 0, 0, 1, 1, 0, 1, 1, 0, 0, 1, 0, 1, 0, 0, 0, 1, 1, 0)
    return Program(step, [(torch.randn(4, 5), models[k]) for k in order], state=models)


@program(speculated=0)
def number_asked_for_what_only_tensors_have():
    state = {"k": 0.5}

    def step(x):
        state["k"] += 1
        return x * state["k"].detach()

    return Program(step, inputs(), state=state)


@program(speculated=7)
def numbers_times_half_precision_in_lists():
    weights = [torch.randn(33).bfloat16(), torch.randn(5, 4).bfloat16(), torch.randn(3)]

    def step(factor):
        torch._foreach_mul_(weights, factor)
        torch._foreach_mul_(weights[:2], [0.9, 1.1])
        return [weight.sum() for weight in weights]

    return Program(step, [(0.9 + 0.01 * call,) for call in range(CALLS)], {"weights": weights})


@program(speculated=9)
def tensors_in_a_list_that_becomes_a_tensor():
    def step(x):
        y = x * 2
        made = torch.tensor([y.sum(), x[0]]), torch.tensor([[y[1], 1.5], [2, x[:1]]]), torch.tensor((x[0],))
        mixed = (
            torch.tensor([x[0].double(), 1]),
            torch.tensor([x.argmax(), True]),
            torch.tensor([x[0]], dtype=torch.float64),
        )
        total, wide = y.sum().item(), x[0].double()
        mixed += torch.tensor([total, wide]), torch.tensor([x[0], total]), torch.tensor([y.argmax().item(), x[1]])
        w = x.clone().requires_grad_()
        (w * torch.tensor([w.detach().sum(), 2.0, x[0]], requires_grad=True)).sum().backward()
        return made, mixed, w.grad

    return Program(step, [(torch.randn(3),) for _ in range(12)])
