"""Native code that runs code of the program for the step, which reads what that has changed."""

import contextlib
import copy
import functools
import io
import itertools
import json
import logging
import operator
import pickle
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import nn

from tests.programs.harness import CALLS, Program, program


def inputs():
    return [(torch.randn(3),) for _ in range(CALLS)]


class Counts:
    """Counts how often its text is asked for."""

    def __init__(self):
        self.n = 0

    def __str__(self):
        self.n += 1
        return f"shown {self.n} times"


# -- print -----------------------------------------------------------------------------------------------------------


@program()
def printed_objects_that_count():
    counts = Counts()

    def step(x):
        print(counts)
        return x * counts.n

    return Program(step, inputs(), state=counts)


@program()
def printed_objects_of_classes_that_count():
    class Shown:
        n = 0

        def __repr__(self):
            Shown.n += 1
            return f"<{Shown.n}>"

    shown = Shown()

    def step(x):
        before = Shown.n
        print("a", shown, shown, sep="-", end="!")
        return x * Shown.n + before

    return Program(step, inputs(), state=shown)


@program(speculated=0)
def printed_within_a_list():
    counts = Counts()
    Counts.__repr__ = Counts.__str__

    def step(x):
        print([counts], {"a": counts})
        return x * counts.n

    return Program(step, inputs(), state=counts)


@program()
def printed_formats_that_count():
    class Shown:
        n = 0

        def __format__(self, spec):
            self.n += 1
            return spec * self.n

    shown = Shown()

    def step(x):
        print(f"{shown:ab}", "{:c}".format(shown), format(shown, "d"))
        return x * shown.n

    return Program(step, inputs(), state=shown)


class Tee:
    """A file of the program's own."""

    def __init__(self):
        self.n = 0
        self.lines = []

    def write(self, text):
        self.n += 1
        self.lines.append(text)

    def flush(self):
        self.n += 100


@program()
def printed_to_an_object():
    tee = Tee()

    def step(x):
        print("a", len(tee.lines), file=tee)
        return x * tee.n

    return Program(step, inputs(), state=tee)


@program()
def printed_to_an_object_and_flushed():
    tee = Tee()

    def step(x):
        loss = x.sum()
        print("loss", loss.item(), sep="", end="", file=tee, flush=True)
        print(file=tee)
        print("x" * 3, f"{tee.n}", file=tee)
        return x * tee.n + len(tee.lines)

    return Program(step, inputs(), state=tee)


@program()
def standard_output_is_an_object():
    tee = Tee()

    def step(x):
        with contextlib.redirect_stdout(tee):
            print("a", 1)
        return x * tee.n

    return Program(step, inputs(), state=tee)


@program()
def standard_output_was_replaced():
    tee = Tee()

    def step(x):
        print("a")
        sys.stdout.write("b")
        return x * tee.n

    return Program(step, inputs(), state=tee, around=lambda number: contextlib.redirect_stdout(tee))


@program(speculated=5)
def standard_output_is_replaced_later():
    tee = Tee()

    def step(x):
        print("a")
        return x * (1 + tee.n)

    def around(number):
        return contextlib.redirect_stdout(tee) if number > 6 else contextlib.nullcontext()

    return Program(step, inputs(), state=tee, around=around)


@program(speculated=5)
def standard_error_is_replaced_later():
    tee = Tee()

    def step(x):
        print("a", file=sys.stderr)
        return x * (1 + tee.n)

    def around(number):
        return contextlib.redirect_stderr(tee) if number > 6 else contextlib.nullcontext()

    return Program(step, inputs(), state=tee, around=around)


@program(speculated=0)
def a_text_file_with_a_method_of_its_own():
    class Lines(io.StringIO):
        n = 0

        def write(self, text):
            self.n += len(text)
            return super().write(text)

    lines = Lines()

    def step(x):
        print("abc", file=lines)
        return x * lines.n

    return Program(step, inputs(), state=lines)


@program(speculated=0)
def a_raw_file_below_a_buffer():
    class Raw(io.RawIOBase):
        n = 0

        def writable(self):
            return True

        def write(self, data):
            Raw.n += len(data)
            return len(data)

    file = io.TextIOWrapper(Raw(), write_through=True)

    def step(x):
        print("abc", file=file, flush=True)
        return x * Raw.n

    return Program(step, inputs(), state=file)


# -- logging ---------------------------------------------------------------------------------------------------------


def logger_of(name, handler=None):
    log = logging.getLogger(f"calls_back.{name}")
    log.handlers[:] = [handler] if handler is not None else []
    log.filters[:] = []
    log.setLevel(logging.INFO)
    log.propagate = False
    return log


@program(speculated=0)
def a_handler_that_counts():
    class Handler(logging.Handler):
        n = 0

        def emit(self, record):
            self.n += 1

    handler = Handler()
    log = logger_of("handler", handler)

    def step(x):
        log.info("a")
        return x * handler.n

    return Program(step, inputs(), state=handler, between=lambda _: handler.n)


@program(speculated=0)
def a_filter_that_counts():
    seen = []

    class Filter(logging.Filter):
        def filter(self, record):
            seen.append(record.getMessage())
            return True

    log = logger_of("filter", logging.StreamHandler(io.StringIO()))
    log.addFilter(Filter())

    def step(x):
        log.info("%s", "a")
        return x * len(seen)

    return Program(step, inputs(), state=seen)


@program(speculated=0)
def a_filter_that_is_a_function():
    seen = {"n": 0}

    def keep(record):
        seen["n"] += 1
        return False

    log = logger_of("function", logging.StreamHandler(io.StringIO()))
    log.addFilter(keep)

    def step(x):
        log.warning("a")
        return x * seen["n"]

    return Program(step, inputs(), state=seen)


@program(speculated=0)
def a_formatter_that_counts():
    class Formatter(logging.Formatter):
        n = 0

        def format(self, record):
            Formatter.n += 1
            return super().format(record)

    handler = logging.StreamHandler(io.StringIO())
    handler.setFormatter(Formatter())
    log = logger_of("formatter", handler)

    def step(x):
        log.info("a %d", 1)
        return x * Formatter.n

    return Program(step, inputs(), state=Formatter)


@program(speculated=0)
def a_handler_of_the_parent():
    counts = {"n": 0}

    class Handler(logging.Handler):
        def emit(self, record):
            counts["n"] += record.levelno

    logger_of("parent", Handler())
    log = logging.getLogger("calls_back.parent.child")

    def step(x):
        log.error("a")
        return x * counts["n"]

    return Program(step, inputs(), state=counts)


@program(speculated=0)
def a_logged_object_that_counts():
    counts = Counts()
    log = logger_of("object", logging.StreamHandler(io.StringIO()))

    def step(x):
        log.info("%s", counts)
        return x * counts.n

    return Program(step, inputs(), state=counts)


@program()
def a_logged_object_that_nobody_shows():
    counts = Counts()
    log = logger_of("nobody", logging.StreamHandler(io.StringIO()))

    def step(x):
        log.debug("%s", counts)
        return x * (1 + counts.n)

    return Program(step, inputs(), state=counts)


@program(speculated=0)
def a_record_factory_that_counts():
    seen = []
    log = logger_of("factory", logging.StreamHandler(io.StringIO()))
    kept = logging.getLogRecordFactory()

    def factory(*args, **kwargs):
        seen.append(args[0])
        return kept(*args, **kwargs)

    def step(x):
        log.info("a")
        return x * len(seen)

    @contextlib.contextmanager
    def around(number):
        logging.setLogRecordFactory(factory)
        try:
            yield
        finally:
            logging.setLogRecordFactory(kept)

    return Program(step, inputs(), state=seen, around=around)


@program(speculated=3)
def a_handler_added_later():
    seen = []
    log = logger_of("later", logging.StreamHandler(io.StringIO()))

    class Handler(logging.Handler):
        def emit(self, record):
            seen.append(record.getMessage())

    def step(x):
        log.info("a")
        return x * (1 + len(seen))

    return Program(step, inputs(), before={6: lambda: log.addHandler(Handler())}, state=seen)


@program()
def a_handler_of_which_the_step_reads_nothing():
    seen = []

    class Handler(logging.Handler):
        def emit(self, record):
            seen.append(record.getMessage())

    log = logger_of("nothing", Handler())

    def step(x):
        loss = x.pow(2).sum()
        log.info("%.3f", loss.item())
        return x * loss

    return Program(step, inputs(), state=seen)


@program(speculated=0)
def a_warning_that_is_shown_by_the_program():
    seen = []

    def show(*args, **kwargs):
        seen.append(str(args[0]))

    def step(x):
        warnings.warn(f"a{len(seen)}", stacklevel=1)
        return x * len(seen)

    @contextlib.contextmanager
    def around(number):
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = show
            yield

    return Program(step, inputs(), state=seen, around=around)


# -- copies and bytes ------------------------------------------------------------------------------------------------


class State:
    n = 0

    def __getstate__(self):
        State.n += 1
        return {"n": State.n}


class Reduced:
    n = 0

    def __reduce__(self):
        Reduced.n += 1
        return (int, (Reduced.n,))


@program(speculated=0)
def pickled_state_that_counts():
    State.n, kept = 0, State()

    def step(x):
        pickle.dumps(kept)
        return x * State.n

    return Program(step, inputs(), state=State)


@program(speculated=0)
def pickled_within_a_dictionary():
    Reduced.n, kept = 0, {"a": [Reduced()]}

    def step(x):
        data = pickle.dumps(kept)
        return x * Reduced.n + len(data)

    return Program(step, inputs(), state=Reduced)


@program()
def pickled_and_read_afterwards_only():
    Reduced.n, kept = 0, [Reduced()]

    def step(x):
        before = Reduced.n
        pickle.dump(kept, io.BytesIO())
        return x * before

    return Program(step, inputs(), state=Reduced)


@program(speculated=0)
def a_pickler_with_a_table_of_its_own():
    kept, seen = object(), []

    class Pickler(pickle.Pickler):
        def persistent_id(self, value):
            seen.append(type(value).__name__)
            return "it" if value is kept else None

    def step(x):
        Pickler(io.BytesIO()).dump([kept, 1])
        return x * len(seen)

    return Program(step, inputs(), state=seen)


@program()
def copied_by_methods_that_count():
    class Copied:
        n = 0

        def __copy__(self):
            Copied.n += 1
            return self

        def __deepcopy__(self, memo):
            Copied.n += 10
            return self

    kept = Copied()

    def step(x):
        copy.copy(kept)
        copy.deepcopy([kept])
        return x * Copied.n

    return Program(step, inputs(), state=Copied)


@program(speculated=0)
def saved_by_torch():
    State.n, kept = 0, State()

    def step(x):
        torch.save({"state": kept, "x": 1}, io.BytesIO())
        return x * State.n

    return Program(step, inputs(), state=State)


@program(speculated=4)
def json_by_a_function():
    seen = []

    def shown(value):
        seen.append(1)
        return str(value)

    def step(x):
        text = json.dumps({"a": 1j}, default=shown)
        return x * len(seen) + len(text)

    return Program(step, inputs(), state=seen)


@program(speculated=0)
def json_by_an_encoder():
    class Encoder(json.JSONEncoder):
        n = 0

        def default(self, value):
            Encoder.n += 1
            return str(value)

    def step(x):
        json.dumps({"a": 1j}, cls=Encoder)
        y = x * Encoder.n
        Encoder().encode([1j])
        return y + Encoder.n

    return Program(step, inputs(), state=Encoder)


@program(speculated=4)
def json_to_a_file_of_the_program():
    tee = Tee()

    def step(x):
        json.dump({"a": [1, 2]}, tee)
        return x * tee.n

    return Program(step, inputs(), state=tee)


# -- threads ---------------------------------------------------------------------------------------------------------


@program(speculated=0)
def a_thread_started_and_joined():
    n = [0]

    def work():
        n[0] += 1

    def step(x):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return x * n[0]

    return Program(step, inputs(), state=n)


@program(speculated=4)
def a_thread_with_a_method_of_its_own():
    class Worker(threading.Thread):
        n = 0

        def run(self):
            Worker.n += 1

    def step(x):
        worker = Worker()
        worker.start()
        worker.join()
        return x * Worker.n

    return Program(step, inputs(), state=Worker)


@program(speculated=0)
def a_thread_of_an_object():
    class Work:
        n = 0

        def __call__(self):
            self.n += 1

    work = Work()

    def step(x):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return x * work.n

    return Program(step, inputs(), state=work)


@program(speculated=0)
def submitted_to_a_pool():
    class Work:
        n = 0

        def __call__(self, by):
            self.n += by
            return self.n

    work = Work()

    def step(x):
        with ThreadPoolExecutor(1) as pool:
            y = x * pool.submit(work, 2).result()
            return y + work.n + sum(pool.map(work, [1]))

    return Program(step, inputs(), state=work)


# -- functions that native code calls --------------------------------------------------------------------------------


@program(speculated=0)
def a_cache_in_front_of_a_function_that_counts():
    n = [0]

    @functools.lru_cache(maxsize=None)
    def slow(key):
        n[0] += 1
        return key * 2.0

    def step(x, key):
        y = x * slow(key)
        return y + n[0]

    return Program(step, [(torch.randn(3), k // 2) for k in range(CALLS)], state=n)


@program()
def sorted_by_a_partial_that_counts():
    n = [0]

    def key(by, value):
        n[0] += 1
        return -value * by

    def step(x):
        first = sorted([3.0, 1.0, 2.0], key=functools.partial(key, 2.0))[0]
        return x * first + n[0]

    return Program(step, inputs(), state=n)


@program()
def called_by_name():
    counts = Counts()
    call, get = operator.methodcaller("__str__"), operator.attrgetter("n")

    def step(x):
        call(counts)
        return x * get(counts) + len(list(map(operator.methodcaller("__str__"), [counts])))

    return Program(step, inputs(), state=counts)


@program(speculated=4)
def an_array_of_an_object():
    class Data:
        n = 0

        def __array__(self, dtype=None, copy=None):
            self.n += 1
            return np.full(3, float(self.n))

    data = Data()

    def step(x):
        y = x + torch.from_numpy(np.asarray(data)).float()
        return y * data.n

    return Program(step, inputs(), state=data)


@program(speculated=0)
def vectorized_functions_that_count():
    n = [0]

    def add(value):
        n[0] += 1
        return value + n[0]

    each = np.vectorize(add)

    def step(x):
        total = float(each(np.ones(2)).sum())
        return x * total + n[0]

    return Program(step, inputs(), state=n)


@program(speculated=0)
def numbers_and_paths_of_objects():
    class Index:
        n = 0

        def __index__(self):
            Index.n += 1
            return 1

        def __fspath__(self):
            Index.n += 1
            return "a/b"

    index = Index()

    def step(x):
        import os

        held = [1.0, 2.0, 3.0]
        value = held[index] + len(os.fspath(index)) + operator.index(index) + len(os.path.join(index, "c"))
        return x * value + Index.n

    return Program(step, inputs(), state=Index)


@program(speculated=0)
def rows_written_by_csv():
    import csv

    tee = Tee()
    writer = csv.writer(tee)

    def step(x):
        writer.writerow([1, 2.5])
        return x * tee.n

    return Program(step, inputs(), state=tee)


@program(speculated=0)
def a_subclass_of_random():
    import random

    class Draws(random.Random):
        n = 0

        def random(self):
            self.n += 1
            return 0.5

    draws = Draws(5)

    def step(x):
        return x * draws.uniform(0.0, 1.0) + draws.n + draws.choice([1.0, 2.0])

    return Program(step, inputs(), state=draws)


@program()
def an_iterator_with_a_body_of_its_own():
    class Bar:
        n = 0

        def __init__(self, values):
            self.values = values

        def __iter__(self):
            for value in self.values:
                self.n += 1
                yield value

    bar = Bar([1.0, 2.0])

    def step(x):
        total = sum(bar) + max(bar) + len(list(itertools.chain(bar, [1.0])))
        return x * total + bar.n

    return Program(step, inputs(), state=bar)


# -- what changes tensors, and what sees them ------------------------------------------------------------------------


@program(speculated=0)
def a_text_that_shows_a_tensor_which_changes_later():
    class Shown(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(3))

        def extra_repr(self):
            return f"{self.total.sum().item():.3f}"

    shown = Shown()

    def step(x):
        print(shown)
        shown.total.add_(x)
        print(shown)
        return x * 2

    return Program(step, inputs(), state=shown)


@program(speculated=4)
def a_handler_that_shows_a_tensor_which_changes_later():
    weight, seen = torch.zeros(3), []

    class Handler(logging.Handler):
        def emit(self, record):
            seen.append(float(weight.sum()))

    log = logger_of("tensor", Handler())

    def step(x):
        log.info("a")
        weight.add_(x)
        return x * 2

    return Program(step, inputs(), state=(weight, seen))


@program(speculated=0)
def a_handler_that_changes_a_tensor():
    weight = torch.zeros(3)

    class Handler(logging.Handler):
        def emit(self, record):
            weight.add_(1.0)

    log = logger_of("changes", Handler())

    def step(x):
        log.info("a")
        return x * weight

    return Program(step, inputs(), state=weight)


@program(speculated=4)
def a_handler_that_sees_what_is_written_before_it():
    state, seen = {"n": 0}, []

    class Handler(logging.Handler):
        def emit(self, record):
            seen.append(state["n"])

    log = logger_of("sees", Handler())

    def step(x):
        state["n"] += 1
        log.info("a")
        state["n"] += 10
        return x * state["n"]

    return Program(step, inputs(), state=(state, seen))


@program()
def a_handler_that_draws():
    seen = []

    class Handler(logging.Handler):
        def emit(self, record):
            seen.append(torch.rand(()).item())

    log = logger_of("draws", Handler())

    def step(x):
        log.info("a")
        return x * torch.rand(3)

    return Program(step, inputs(), state=seen)


@program(speculated=0)
def a_global_that_a_handler_sets():
    class Handler(logging.Handler):
        def emit(self, record):
            global SEEN
            SEEN += 1

    log = logger_of("global", Handler())

    def step(x):
        log.info("a")
        return x * SEEN

    return Program(step, inputs())


@program(speculated=0)
def a_variable_that_a_handler_sets():
    seen = 0

    class Handler(logging.Handler):
        def emit(self, record):
            nonlocal seen
            seen += 1

    log = logger_of("variable", Handler())

    def step(x):
        log.info("a")
        return x * seen

    return Program(step, inputs())


SEEN = 0


# -- what is read before such a call, and between two ----------------------------------------------------------------


@program(speculated=0)
def read_before_a_call_whose_result_is_used():
    Reduced.n, kept = 0, [Reduced()]

    def step(x):
        before = Reduced.n
        return x * before + len(pickle.dumps(kept))

    return Program(step, inputs(), state=Reduced)


@program(speculated=0)
def a_list_read_before_an_iterator_that_fills_it():
    seen = [0.5]

    def each():
        for value in range(100):
            seen[0] += 1.0
            yield value

    it = each()

    def step(x):
        before = seen[0]
        return x * before + next(it)

    return Program(step, inputs(), state=seen)


@program(speculated=0)
def decided_by_what_was_read_before():
    seen = {"n": 0}

    def each():
        for value in range(100):
            seen["n"] += 1
            yield float(value)

    it = each()

    def step(x):
        if seen["n"] % 2:
            x = x * 2
        return x + next(it)

    return Program(step, inputs(), state=seen)


@program(speculated=4)
def a_loader_whose_data_counts():
    class Data(torch.utils.data.Dataset):
        n = 0

        def __len__(self):
            return 40

        def __getitem__(self, k):
            self.n += 1
            return torch.full((3,), float(k))

    data = Data()
    loader = iter(torch.utils.data.DataLoader(data, batch_size=2))

    def step(x):
        before = data.n
        batch = next(loader)
        return x * batch.sum() + before

    return Program(step, inputs(), state=data)


@program(speculated=0)
def a_loader_whose_data_is_asked_afterwards():
    class Data(torch.utils.data.Dataset):
        n = 0

        def __len__(self):
            return 40

        def __getitem__(self, k):
            self.n += 1
            return torch.full((3,), float(k))

    data = Data()
    loader = iter(torch.utils.data.DataLoader(data, batch_size=2))

    def step(x):
        batch = next(loader)
        return x * batch.sum() + data.n

    return Program(step, inputs(), state=data)


@program(speculated=4)
def two_logs_and_a_look_between():
    seen = []

    class Handler(logging.Handler):
        def emit(self, record):
            seen.append(record.getMessage())

    log = logger_of("between", Handler())

    def step(x):
        log.info("a")
        n = len(seen)
        log.info("b")
        return x * n

    return Program(step, inputs(), state=seen)


@program(speculated=3)
def an_error_in_a_handler():
    class Handler(logging.Handler):
        n = 0

        def emit(self, record):
            self.n += 1
            if self.n == 6:
                raise ValueError("full")

    handler = Handler()
    log = logger_of("error", handler)
    done = []

    def step(x):
        done.append("before")
        log.info("a")
        done.append("a")
        return x * 2

    return Program(step, inputs(), state=done, between=lambda _: handler.n)


@program(speculated=6)
def an_error_in_a_text():
    class Shown:
        n = 0

        def __str__(self):
            self.n += 1
            if self.n == 6:
                raise ValueError("full")
            return "a"

    shown, done = Shown(), []

    def step(x):
        try:
            print("first", shown)
            done.append("a")
        except ValueError:
            done.append("b")
        return x * 2

    return Program(step, inputs(), state=(done, shown))


@program(speculated=6)
def an_error_in_a_file():
    class File:
        n = 0

        def write(self, text):
            self.n += 1
            if self.n == 12:
                raise OSError("full")

    file, done = File(), []

    def step(x):
        try:
            print("a", file=file)
            done.append("a")
        except OSError:
            done.append("b")
        return x * 2

    return Program(step, inputs(), state=(done, file))


@program()
def callbacks_of_natives():
    counts, names = Counts(), {"a": 2.0, "b": 1.0}
    get = functools.lru_cache(lambda name: names[name])

    def step(x):
        first = sorted(names, key=names.get)[0]
        least = min(names, key=names.__getitem__)
        shown = list(filter(operator.methodcaller("startswith", "a"), names))
        total = functools.reduce(operator.add, map(get, names)) + sum(map(np.float64, [1.0, counts.n]))
        named = max([counts], key=operator.methodcaller("__str__"))
        names["a"] += 0.5
        return x * total + len(first) + len(least) + len(shown) + named.n

    return Program(step, inputs(), state=(names, counts))


@program()
def a_queue_that_a_handler_fills():
    import queue

    lines = queue.Queue()

    class Handler(logging.Handler):
        def emit(self, record):
            lines.put(record.getMessage())

    log = logger_of("queue", Handler())

    def step(x):
        log.info("abc")
        return x * len(lines.get()) + lines.qsize()

    return Program(step, inputs())


@program()
def an_array_that_a_handler_fills():
    seen = np.zeros(3)

    class Handler(logging.Handler):
        def emit(self, record):
            seen[0] += 1.0

    log = logger_of("array", Handler())

    def step(x):
        log.info("abc")
        return x * float(seen[0]) + float(seen.sum())

    return Program(step, inputs(), state=seen)


@program()
def a_seed_set_by_a_handler():
    class Handler(logging.Handler):
        n = 0

        def emit(self, record):
            self.n += 1
            torch.manual_seed(self.n)

    log = logger_of("seed", Handler())

    def step(x):
        log.info("abc")
        return x * torch.rand(3)

    return Program(step, inputs())


@program(speculated=3)
def a_mode_set_by_a_handler():
    class Handler(logging.Handler):
        n = 0

        def emit(self, record):
            self.n += 1
            torch.set_grad_enabled(self.n % 2 == 0)

    log = logger_of("mode", Handler())
    weight = torch.ones(3, requires_grad=True)

    def step(x):
        log.info("abc")
        return (x * weight).requires_grad, torch.is_grad_enabled()

    @contextlib.contextmanager
    def around(number):
        with torch.enable_grad():
            yield

    return Program(step, inputs(), state=weight, around=around)


@program(speculated=0)
def a_context_variable_that_a_handler_sets():
    import contextvars

    seen = contextvars.ContextVar("seen", default=0)

    class Handler(logging.Handler):
        def emit(self, record):
            seen.set(seen.get() + 1)

    log = logger_of("context", Handler())

    def step(x):
        log.info("abc")
        return x * seen.get()

    return Program(step, inputs())


@program(speculated=4)
def a_timer_and_an_event():
    seen, done = [], threading.Event()

    def work():
        seen.append(1)
        done.set()

    def step(x):
        done.clear()
        threading.Timer(0.0, work).start()
        done.wait()
        return x * len(seen)

    return Program(step, inputs(), state=seen)


@program(speculated=0)
def an_object_that_goes_away():
    import weakref

    seen = []

    class Kept:
        pass

    def step(x):
        kept = Kept()
        weakref.finalize(kept, seen.append, 1)
        del kept
        return x * len(seen)

    return Program(step, inputs(), state=seen)


@program(speculated=0)
def run_by_an_event_loop():
    import asyncio

    seen = []

    async def work(k):
        seen.append(k)
        await asyncio.sleep(0)
        return k * 2.0

    def step(x):
        value = asyncio.run(work(len(seen)))
        return x * value + len(seen)

    return Program(step, inputs(), state=seen)


@program(speculated=0)
def a_context_that_runs_a_function():
    import contextvars

    seen = []

    def work():
        seen.append(1)
        return len(seen)

    context = contextvars.copy_context()

    def step(x):
        return x * context.run(work) + len(seen)

    return Program(step, inputs(), state=seen)


@program(speculated=0)
def a_signal_that_the_step_sends():
    import signal

    seen = []

    def caught(number, frame):
        seen.append(number)

    def step(x):
        signal.raise_signal(signal.SIGUSR1)
        return x * len(seen)

    @contextlib.contextmanager
    def around(number):
        kept = signal.signal(signal.SIGUSR1, caught)
        try:
            yield
        finally:
            signal.signal(signal.SIGUSR1, kept)

    return Program(step, inputs(), state=seen, around=around)


@program()
def an_iterator_that_shows_progress():
    class Progress:
        shown = 0

        def __init__(self, values):
            self.values = list(values)

        def __iter__(self):
            for value in self.values:
                Progress.shown += 1
                print("progress", Progress.shown)
                yield value

        def __len__(self):
            Progress.shown += 10
            return len(self.values)

    def step(x):
        progress = Progress(range(3))
        for k in progress:
            x = x + k
        return x * Progress.shown + len(progress)

    return Program(step, inputs(), state=Progress)
