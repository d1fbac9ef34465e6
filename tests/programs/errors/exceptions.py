"""Errors raised and caught: by the program, by Python, by torch on particular values; context managers."""

import contextlib
import math

import torch
from torch import nn

from tests.programs.harness import CALLS, Program, program


def inputs(count=CALLS, *shape):
    return [(torch.randn(*(shape or (4, 5))),) for _ in range(count)]


def matrices(count=12, bad=(7,)):
    return [((-1.0 if i in bad else 1.0) * torch.eye(3) * (i + 1),) for i in range(count)]


class Trainer:
    def __init__(self):
        self.model = nn.Linear(5, 3)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.log = []
        self.count = self.skipped = 0

    def train(self, x):
        self.opt.zero_grad()
        loss = self.model(x).pow(2).mean()
        loss.backward()
        self.opt.step()
        return loss.item()


# -- raised by the program ------------------------------------------------------------------------------------------


@program()
def raise_and_handle_each_call():
    t = Trainer()

    def step(x):
        t.count += 1
        try:
            t.log.append("before")
            raise KeyError("mine", 3)
        except KeyError as error:
            t.log.append(error.args[0])
        else:
            t.log.append("never")
        finally:
            t.log.append("finally")
        return t.train(x)

    return Program(step, inputs(), state=t)


@program()
def own_exception_class_with_fields():
    class TooSmall(ValueError):
        def __init__(self, size, wanted):
            super().__init__(f"{size} < {wanted}")
            self.size = size

    state = {"sizes": []}

    def check(x):
        if x.shape[0] < 5:
            raise TooSmall(x.shape[0], 5)
        return x

    def step(x):
        try:
            y = check(x)
        except TooSmall as error:
            state["sizes"].append(error.size)
            y = x * 2
        return y.sum().item()

    return Program(step, [*inputs(8), *inputs(6, 6, 5)], state=state)


@program(speculated=6)
def raised_when_a_counter_says_so():
    t = Trainer()

    def step(x):
        t.count += 1
        loss = t.train(x)
        if t.count % 5 == 4:
            raise RuntimeError(f"call {t.count}")
        t.log.append(loss)
        return loss

    return Program(step, inputs(18), state=t)


@program(speculated=6, compiles=3)
def handled_when_a_counter_says_so():
    t = Trainer()

    def step(x):
        t.count += 1
        try:
            if t.count % 5 == 4:
                raise StopAsyncIteration(t.count)
            t.log.append(t.train(x))
        except StopAsyncIteration as error:
            t.skipped += error.args[0]
        return x.sum().item()

    return Program(step, inputs(24), state=t)


@program(speculated=4)
def loss_decides_whether_to_raise():
    t = Trainer()

    def step(x):
        t.count += 1
        loss = t.model(x).pow(2).mean().item()
        if loss > 100.0:
            raise FloatingPointError(f"loss {loss:.3f}")
        return loss + t.train(x)

    calls = inputs(12)
    calls[6] = (torch.full((4, 5), 1e3),)
    return Program(step, calls, state=t)


@program(speculated=9, compiles=3)
def nan_is_skipped_by_a_handler():
    t = Trainer()

    def guarded(x):
        loss = t.model(x).sum()
        if torch.isnan(loss):
            raise ArithmeticError("nan")
        return loss

    def step(x):
        try:
            t.opt.zero_grad()
            guarded(x).backward()
            t.opt.step()
        except ArithmeticError:
            t.skipped += 1
        return t.skipped

    calls = inputs(14)
    calls[6] = calls[9] = (torch.full((4, 5), float("nan")),)
    return Program(step, calls, state=t)


@program(speculated=4)
def assert_with_a_message():
    t = Trainer()

    def step(x, limit):
        t.count += 1
        loss = t.train(x)
        assert x.shape[1] == 5, f"shape {tuple(x.shape)}"
        assert limit > 2, "limit"
        t.log.append(limit)
        return loss

    calls = [(x, 3) for (x,) in inputs(14)]
    calls[6] = (calls[6][0], 1)
    return Program(step, calls, state=t)


@program()
def raise_from_and_bare_raise():
    log = []

    def inner(x):
        try:
            try:
                raise ValueError("low")
            except ValueError as low:
                raise TypeError("high") from low
        except TypeError:
            log.append("seen")
            raise

    def step(x):
        try:
            inner(x)
        except TypeError as error:
            log.append((type(error.__cause__).__name__, type(error.__context__).__name__))
        return x * 2

    return Program(step, inputs(), state=log)


@program(speculated=5)
def chained_error_leaves_the_step():
    state = {"n": 0}

    def step(x, table):
        state["n"] += 1
        y = x * state["n"]
        try:
            k = table["k"]
        except KeyError as missing:
            raise LookupError("no k") from missing
        return y * k

    calls = [(x, {"k": 2.0}) for (x,) in inputs(12)]
    calls[7] = (calls[7][0], {})
    return Program(step, calls, state=state)


@program()
def finally_overrides_the_return():
    log = []

    def one(x):
        try:
            return x + 1
        finally:
            log.append("one")

    def two(x):
        for _ in range(3):
            try:
                continue
            finally:
                x = x * 2
        return x

    def step(x):
        try:
            raise OSError("lost")
        except OSError:
            result = two(one(x))
        return result

    return Program(step, inputs(), state=log)


@program()
def except_star_and_groups():
    log = []

    def step(x):
        try:
            raise ExceptionGroup("several", [ValueError("v"), TypeError("t"), KeyError("k")])
        except* ValueError as group:
            log.append(len(group.exceptions))
        except* (TypeError, KeyError) as group:
            log.append(sorted(type(e).__name__ for e in group.exceptions))
        return x.exp()

    return Program(step, inputs(), state=log)


@program(speculated=5)
def group_leaves_the_step():
    state = {"n": 0}

    def step(x, bad):
        state["n"] += 1
        try:
            if bad:
                raise ExceptionGroup("several", [ValueError("v"), OSError("o")])
        except* ValueError:
            state["n"] += 100
        return x * state["n"]

    calls = [(x, False) for (x,) in inputs(12)]
    calls[6] = (calls[6][0], True)
    return Program(step, calls, state=state)


@program()
def handler_in_a_loop_with_else():
    log = []

    def step(x):
        total = x
        for k in (1, 0, 2):
            try:
                if k == 0:
                    raise ZeroDivisionError("mine")
            except ZeroDivisionError:
                log.append("zero")
                continue
            else:
                total = total / k
        return total

    return Program(step, inputs(), state=log)


@program(speculated=5)
def generator_closed_by_an_error():
    log = []

    def numbers():
        try:
            yield 1
            yield 2
        finally:
            log.append("closed")

    def step(x, bad):
        made = numbers()
        try:
            for k in made:
                x = x * k
                if bad:
                    raise RuntimeError("stop")
        finally:
            made.close()
        return x

    calls = [(x, False) for (x,) in inputs(12)]
    calls[7] = (calls[7][0], True)
    return Program(step, calls, state=log)


# -- raised by Python's operations ----------------------------------------------------------------------------------


@program(speculated=6, compiles=3)
def division_by_a_number_of_the_heap():
    state = {"k": 2, "caught": 0}

    def step(x):
        try:
            share = 1 / state["k"]
        except ZeroDivisionError as error:
            state["caught"] += 1
            share = float(len(str(error)))
        return x * share

    changes = {
        at: (lambda k: lambda: state.update(k=k))(k) for at, k in enumerate([2, 2, 2, 2, 0, 0, 0, 0, 3, 4, 0, 5])
    }
    return Program(step, inputs(16), changes, state=state)


@program(speculated=6, compiles=3)
def handler_seen_first():
    """The first runs all take the handler's way: that must not become the only way."""
    state = {"k": 0, "caught": 0}

    def step(x):
        try:
            share = 1 / state["k"]
        except ZeroDivisionError:
            state["caught"] += 1
            share = -1.0
        return x * share

    return Program(step, inputs(16), {6: lambda: state.update(k=4), 11: lambda: state.update(k=0)}, state=state)


@program(speculated=4, compiles=3)
def key_error_from_a_changing_key():
    table = {"a": 1.0, "b": 2.0}
    state = {"missed": 0}

    def step(x, key):
        try:
            k = table[key]
        except KeyError as error:
            state["missed"] += 1
            k = float(len(error.args[0]))
        return x * k

    keys = ["a"] * 6 + ["zz"] * 4 + ["a", "b", "zz", "a"]
    return Program(step, [(x, k) for (x,), k in zip(inputs(14), keys)], state=state)


@program(speculated=4, compiles=4)
def key_error_from_fetched_data():
    table = {0: 1.0, 1: 2.0}
    state = {"missed": 0}

    def step(x, n):
        try:
            k = table[n.item()]
        except KeyError:
            state["missed"] += 1
            k = 0.5
        return x * k

    numbers = [0] * 6 + [7] * 4 + [1, 0, 7, 0]
    return Program(step, [(x, torch.tensor(n)) for (x,), n in zip(inputs(14), numbers)], state=state)


@program(speculated=4, compiles=4)
def index_error_from_a_changing_index():
    values = [1.0, 2.0, 3.0]
    state = {"at": 0, "caught": 0}

    def step(x):
        try:
            k = values[state["at"]]
        except IndexError:
            state["caught"] += 1
            k = -1.0
        return x * k

    changes = {5: lambda: state.update(at=9), 8: lambda: state.update(at=1), 11: lambda: values.extend([7.0] * 9)}
    return Program(step, inputs(16), changes, state=state)


@program(speculated=4, compiles=4)
def text_that_is_no_number():
    state = {"text": "3", "caught": 0}

    def step(x):
        try:
            k = int(state["text"])
        except ValueError as error:
            state["caught"] += 1
            k = len(str(error))
        return x * k

    changes = {5: lambda: state.update(text="three"), 9: lambda: state.update(text="4")}
    return Program(step, inputs(14), changes, state=state)


@program(speculated=4, compiles=4)
def overflow_of_math():
    state = {"k": 1.0, "caught": 0}

    def step(x):
        try:
            scale = math.exp(state["k"])
        except OverflowError:
            state["caught"] += 1
            scale = 1e30
        try:
            root = math.sqrt(1000.0 - state["k"])
        except ValueError:
            root = 0.0
        return x * scale, root

    changes = {
        i: (lambda k: lambda: state.update(k=k))(float(k))
        for i, k in enumerate([1, 2, 3, 4, 5, 800, 900, 1200, 6, 2000])
    }
    return Program(step, inputs(14), changes, state=state)


@program(speculated=4, compiles=4)
def overflow_of_a_power():
    state = {"k": 1.5}

    def step(x):
        return x * state["k"] ** 900.0

    changes = {i: (lambda k: lambda: state.update(k=k))(k) for i, k in enumerate([1.01, 1.02, 1.03, 1.01, 50.0, 1.02])}
    return Program(step, inputs(12), changes, state=state)


@program(speculated=4, compiles=4)
def overflow_of_a_fetched_power():
    """Eager raises after the update; what came before it is kept, what comes after it is not made."""
    t = Trainer()

    def step(x):
        t.count += 1
        loss = t.train(x)
        t.log.append("trained")
        value = (loss + 1.0) ** 200.0
        t.log.append("computed")
        return value

    calls = [(x * 0.1,) for (x,) in inputs(14)]
    calls[7] = (torch.full((4, 5), 100.0),)
    return Program(step, calls, state=t)


@program(speculated=4, compiles=4)
def math_domain_error_of_a_fetched_number():
    t = Trainer()

    def step(x):
        t.count += 1
        low = t.model(x).min().item()
        t.train(x)
        try:
            value = math.log(low + 5.0)
        except ValueError:
            t.skipped += 1
            value = 0.0
        return value

    calls = inputs(14)
    calls[7] = calls[10] = (torch.randn(4, 5) * 100,)
    return Program(step, calls, state=t)


@program(speculated=4, compiles=4)
def attribute_error_and_getattr():
    class Options:
        pass

    options = Options()
    state = {"caught": 0}

    def step(x):
        try:
            k = options.scale
        except AttributeError:
            state["caught"] += 1
            k = 1.0
        return x * k * getattr(options, "other", 2.0)

    def appears():
        options.scale = 3.0

    def goes():
        del options.scale
        options.other = 5.0

    return Program(step, inputs(16), {6: appears, 11: goes}, state=(state, options))


@program()
def unpacking_of_the_wrong_length():
    state = {"caught": []}

    def step(x):
        try:
            a, b = (x, x, x)
        except ValueError as error:
            state["caught"].append(str(error))
            a = b = x
        try:
            a.no_such_method()
        except AttributeError as error:
            state["caught"].append(type(error).__name__)
        try:
            "text" + 1
        except TypeError as error:
            state["caught"].append(str(error))
        return a + b

    return Program(step, inputs(), state=state)


# -- raised by torch ------------------------------------------------------------------------------------------------


@program(speculated=5)
def cholesky_with_a_handler():
    state = {"good": 0, "bad": 0, "last": None}

    def step(x):
        state["last"] = "entered"
        try:
            low = torch.linalg.cholesky(x)
            state["good"] += 1
        except torch.linalg.LinAlgError as error:
            state["bad"] += 1
            state["last"] = type(error).__name__
            low = torch.zeros_like(x)
        return low.sum()

    return Program(step, matrices(14, bad=(7, 10, 11)), state=state)


@program(speculated=5)
def cholesky_bad_at_first():
    """Runs that took the handler's way must not become a graph for all."""
    state = {"bad": 0}

    def step(x):
        try:
            low = torch.linalg.cholesky(x)
        except torch.linalg.LinAlgError:
            state["bad"] += 1
            low = torch.zeros_like(x)
        return low.sum()

    return Program(step, matrices(14, bad=(0, 1)), state=state)


@program(speculated=5)
def unused_result_of_a_check():
    """Nothing uses the factor, and still eager raises."""
    state = {"bad": 0}

    def step(x):
        try:
            torch.linalg.cholesky(x)
        except RuntimeError:
            state["bad"] += 1
        return x.sum()

    return Program(step, matrices(14, bad=(7, 10)), state=state)


@program(speculated=5)
def unused_index_out_of_range():
    state = {"bad": 0}

    def step(x, ids):
        try:
            x[ids]
        except IndexError:
            state["bad"] += 1
        return x.sum()

    calls = [(x, torch.tensor([9 if i in (6, 9) else 1])) for i, (x,) in enumerate(inputs(14))]
    return Program(step, calls, state=state)


@program(speculated=5)
def update_before_a_bad_index():
    """What was updated before the error stays updated."""
    t = Trainer()
    table = nn.Embedding(5, 3)

    def step(x, ids):
        t.count += 1
        loss = t.train(x)
        t.log.append(loss)
        out = table(ids).sum().item()
        t.log.append(out)
        return out

    calls = [(x, torch.tensor([i % 5, 11 if i == 7 else 0])) for i, (x,) in enumerate(inputs(12))]
    return Program(step, calls, state=(t, table))


@program(speculated=5)
def update_before_a_handled_bad_target():
    t = Trainer()

    def step(x, y):
        loss = t.train(x)
        try:
            extra = nn.functional.cross_entropy(t.model(x), y).item()
        except IndexError as error:
            t.log.append(str(error))
            extra = -1.0
        return loss + extra

    calls = [(x, torch.tensor([0, 1, 2, 9 if i in (6, 10) else 0])) for i, (x,) in enumerate(inputs(13))]
    return Program(step, calls, state=t)


@program()
def item_of_many_elements():
    state = {"caught": 0}

    def step(x):
        try:
            value = x.item()
        except RuntimeError:
            state["caught"] += 1
            value = x.sum().item()
        return value

    return Program(
        step,
        [*inputs(8), *((torch.randn(1, 1),) for _ in range(6))],
        state=state,
    )


@program()
def shapes_that_do_not_fit():
    """The error follows from the shapes, and those are guarded: the handler's way is a graph of its own."""
    state = {"caught": 0}

    def step(x):
        try:
            y = x @ torch.ones(6, 2)
        except RuntimeError:
            state["caught"] += 1
            y = x @ torch.ones(5, 2)
        return y

    return Program(step, [*inputs(8), *inputs(6, 4, 6)], state=state)


@program(refused="raises _LinAlgError")
def always_raises_inside_torch():
    state = {"caught": 0}

    def step(x):
        try:
            torch.linalg.cholesky(-torch.eye(3) + 0 * x[:3, :3])
        except RuntimeError:
            state["caught"] += 1
        return x * 2

    return Program(step, inputs(), state=state)


@program(refused="Tensor.backward raises RuntimeError")
def error_in_backward():
    t = Trainer()

    def step(x):
        t.count += 1
        y = t.model(x).sum()
        try:
            x.sum().backward()
        except RuntimeError:
            t.skipped += 1
        y.backward()
        t.opt.step()
        t.opt.zero_grad()
        return y.item()

    return Program(step, inputs(14), state=t)


# -- context managers -----------------------------------------------------------------------------------------------


class Recorder:
    def __init__(self, swallow):
        self.swallow, self.log = swallow, []

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, error, trace):
        self.log.append(None if kind is None else kind.__name__)
        return self.swallow


@program(speculated=5, compiles=3)
def manager_that_swallows():
    quiet, loud = Recorder(True), Recorder(False)

    def step(x, bad):
        with quiet, loud as inner:
            inner.log.append("body")
            if bad:
                raise ValueError("bad")
            inner.log.append("end")
        return x * 2

    calls = [(x, i in (5, 6, 7, 8, 11)) for i, (x,) in enumerate(inputs(16))]
    return Program(step, calls, state=(quiet, loud))


@program(speculated=5)
def manager_swallows_an_error_of_torch():
    quiet = Recorder(True)
    state = {"good": 0}

    def step(x):
        low = x
        with quiet:
            low = torch.linalg.cholesky(x)
            state["good"] += 1
        return low.sum()

    return Program(step, matrices(14, bad=(0, 7, 10)), state=(quiet, state))


@program(speculated=5)
def suppress_of_contextlib():
    table = {"a": 1.0}
    state = {"n": 0}

    def step(x, key):
        with contextlib.suppress(KeyError):
            state["n"] += 1
            x = x * table[key]
            state["n"] += 10
        return x + 1

    keys = ["a"] * 6 + ["b"] + ["a"] * 5
    return Program(step, [(x, k) for (x,), k in zip(inputs(12), keys)], state=state)


@program(speculated=5)
def contextmanager_that_catches():
    log = []

    @contextlib.contextmanager
    def guarded(name):
        log.append(name)
        try:
            yield len(log)
        except ValueError as error:
            log.append(str(error))
        else:
            log.append("fine")
        finally:
            log.append("out")

    def step(x, bad):
        with guarded("g"):
            if bad:
                raise ValueError("bad")
            x = x * 2
        return x

    calls = [(x, i in (6, 9)) for i, (x,) in enumerate(inputs(14))]
    return Program(step, calls, state=log)


@program()
def exit_stack():
    log = []

    def step(x):
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(contextlib.nullcontext())
            y = x * 2
            log.append("body")
        return y

    return Program(step, inputs(), state=log)


@program(speculated=5)
def error_inside_no_grad():
    """The grad mode is put back by the error on its way out."""
    t = Trainer()

    def step(x, bad):
        try:
            with torch.no_grad():
                y = t.model(x)
                if bad:
                    raise ValueError("bad")
        except ValueError:
            t.skipped += 1
            y = t.model(x)
        t.log.append(torch.is_grad_enabled())
        return y.detach(), t.train(x)

    calls = [(x, i in (6, 9)) for i, (x,) in enumerate(inputs(14))]
    return Program(step, calls, state=t)


@program(speculated=4)
def error_after_many_effects(jit):
    """Each kind of effect before the error is there, none after it."""
    t = Trainer()
    seen = {"calls": 0}
    buffer = torch.zeros(3)

    def step(x, key):
        seen["calls"] += 1
        print("call", seen["calls"])
        buffer.add_(1)
        t.log.append(t.train(x))
        draw = torch.rand(2)
        k = {"a": 1.0, "b": 2.0}[key]
        buffer.mul_(2)
        print("after", k)
        seen["last"] = k
        return draw * k

    keys = ["a"] * 6 + ["q"] + ["a"] * 3 + ["q", "a"]
    return Program(jit(step), [(x, k) for (x,), k in zip(inputs(12), keys)], state=(t, seen, buffer))


@program(speculated=3)
def many_calls_raise():
    """Half of the calls raise: they are not watched for ever, and the other half stays speculated."""
    t = Trainer()

    def step(x):
        t.count += 1
        low = torch.linalg.cholesky(x)
        t.log.append(t.count)
        return low.sum()

    return Program(step, matrices(20, bad=tuple(range(5, 20, 2))), state=t)


class Noted(Exception):
    last = ""

    def __setattr__(self, name, value):
        super().__setattr__("last", name)


@program()
def an_error_that_notes_its_attributes_is_returned():
    def step(x):
        error = Noted(x.shape[0])
        error.kind = 1
        return x * 2, error.last, Noted("made").last

    return Program(step, inputs())


@program()
def an_error_that_notes_its_attributes_is_kept():
    kept = []

    def step(x):
        kept[:] = [Noted("made")]
        return x * 2

    return Program(step, inputs(), state=lambda: [one.last for one in kept])


@program(speculated=0)
def an_error_that_notes_its_attributes_is_raised():
    raised = []

    def step(x):
        raise Noted(x.shape[0])

    def caught(x):
        try:
            step(x)
        except Noted as error:
            raised.append(error.last)
        return x * 2

    return Program(caught, inputs(), state=raised)
