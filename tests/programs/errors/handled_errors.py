"""Calls of the host that raise in some steps: the handler of the error finds the state where eager would."""

import contextlib
import io
import logging
import os
import queue
import sys
import tempfile
import threading
import warnings

import torch

from tests.programs.harness import CALLS, Program, program

FAILING = 7  # the use in which it raises


def inputs():
    return [(torch.arange(3.0) + n,) for n in range(CALLS)]


class Failing:
    """Raises in one of its uses."""

    def __init__(self):
        self.uses = 0

    def use(self):
        self.uses += 1
        if self.uses == FAILING:
            raise ValueError(f"use {self.uses}")


class Handler(logging.Handler):
    def __init__(self):
        super().__init__()
        self.failing = Failing()

    def emit(self, record):
        self.failing.use()


def logger(*handlers):
    made = logging.Logger("handled")
    for handler in handlers or (Handler(),):
        made.addHandler(handler)
    return made


class Raw(io.RawIOBase):
    def __init__(self):
        super().__init__()
        self.failing = Failing()

    def writable(self):
        return True

    def write(self, text):
        self.failing.use()
        return len(text)


def trying(call, errors=ValueError):
    """A program that writes before a call and after it, and in what handles its error."""
    total = torch.zeros(3)

    def step(x):
        total.add_(x)
        try:
            call()
        except errors:
            total.mul_(2)
            return x * 3
        total.add_(10)
        return x * 2

    return Program(step, inputs(), state=total)


# -- handlers, filters and files of the program's own ------------------------------------------------------------------


@program(speculated=5)
def a_handler_of_a_log_raises():
    log = logger()

    def call():
        log.warning("a")

    return trying(call)


@program(speculated=5)
def a_filter_of_a_log_raises():
    class Filter:
        failing = Failing()

        def filter(self, record):
            self.failing.use()
            return True

    log = logger(logging.NullHandler())
    log.addFilter(Filter())

    def call():
        log.warning("a")

    return trying(call)


@program(speculated=5)
def a_file_of_ones_own_raises():
    file = io.TextIOWrapper(Raw(), write_through=True)

    def call():
        file.write("a")

    return trying(call)


@program(speculated=5)
def what_is_printed_to_raises():
    class Tee:
        failing = Failing()

        def write(self, text):
            self.failing.use()

    tee = Tee()

    def call():
        print("a", file=tee)

    return trying(call)


@program(speculated=5)
def a_text_raises():
    class Shown:
        failing = Failing()

        def __str__(self):
            self.failing.use()
            return "shown"

    shown = Shown()

    def call():
        print(shown)

    return trying(call)


@program(speculated=0)
def what_shows_warnings_raises():
    failing = Failing()

    def show(*args, **kwargs):
        failing.use()

    @contextlib.contextmanager
    def showing(number):
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = show
            yield

    def call():
        warnings.warn("a", stacklevel=1)

    made = trying(call)
    made.around = showing
    return made


# -- native code -----------------------------------------------------------------------------------------------------


@program(speculated=3)
def a_queue_that_is_full():
    waiting = queue.Queue(FAILING - 1)

    def call():
        waiting.put_nowait(1)

    return trying(call, queue.Full)


# The same for both sides, and another one for each process.
PATH = os.path.join(tempfile.gettempdir(), f"torchjanus_handled_errors_{os.getpid()}")


@contextlib.contextmanager
def file_that_is_missing_once(number):
    if number != FAILING:
        with open(PATH, "w"):
            pass
    yield
    if os.path.exists(PATH):
        os.remove(PATH)


@program(speculated=5)
def a_file_that_is_missing():
    def call():
        os.remove(PATH)

    made = trying(call, OSError)
    made.around = file_that_is_missing_once
    return made


@program(speculated=5)
def a_file_that_is_missing_to_a_with_statement():
    total = torch.zeros(3)

    def step(x):
        total.add_(x)
        with contextlib.suppress(FileNotFoundError):
            os.remove(PATH)
            total.add_(10)
        return x * 2

    return Program(step, inputs(), state=total, around=file_that_is_missing_once)


@program(speculated=3)
def a_file_that_is_closed():
    file = open(os.devnull, "w")

    def call():
        print("a", file=file)

    made = trying(call)
    made.before = {FAILING: file.close}
    return made


@program(speculated=3)
def a_barrier_that_breaks():
    barrier = threading.Barrier(1)

    def call():
        barrier.wait()

    made = trying(call, threading.BrokenBarrierError)
    made.before = {FAILING: barrier.abort}
    return made


# -- who handles it --------------------------------------------------------------------------------------------------


@program(speculated=3)
def handled_by_the_caller():
    waiting, total = queue.Queue(FAILING - 1), torch.zeros(3)

    def inner(x):
        total.add_(x)
        waiting.put_nowait(1)
        total.add_(10)
        return x * 2

    def step(x):
        try:
            return inner(x)
        except queue.Full as error:
            return x * 3, type(error).__name__

    return Program(step, inputs(), state=total)


@program(speculated=3)
def a_finally_clause_sees_it():
    waiting, total = queue.Queue(FAILING - 1), torch.zeros(3)

    def step(x):
        done = 0
        try:
            waiting.put_nowait(1)
            done = 1
        finally:
            total.add_(done + 1)
        return x * 2

    return Program(step, inputs(), state=total)


@program(speculated=3)
def handled_in_iterations():
    waiting, total = queue.Queue(3 * FAILING - 2), torch.zeros(3)

    def step(x):
        missed = 0
        for n in range(3):
            try:
                waiting.put_nowait(n)
                total.add_(x)
            except queue.Full:
                missed += 1
        return x * missed

    return Program(step, inputs(), state=total)


@program(speculated=3)
def handled_outside_of_other_handlers():
    waiting, total = queue.Queue(FAILING - 1), torch.zeros(3)

    def step(x):
        try:
            with torch.no_grad():
                try:
                    waiting.put_nowait(1)
                except KeyError:
                    return x
                total.add_(x)
        except queue.Full:
            total.mul_(2)
            return x * 3
        return x * 2

    return Program(step, inputs(), state=total)


@program(speculated=3)
def suppressed_by_a_context_of_ones_own():
    waiting, total = queue.Queue(FAILING - 1), torch.zeros(3)

    class Quiet:
        def __enter__(self):
            return self

        def __exit__(self, kind, error, trace):
            return kind is queue.Full

    def step(x):
        with Quiet():
            waiting.put_nowait(1)
            total.add_(x)
        return x * 2

    return Program(step, inputs(), state=total)


@program(speculated=3)
def suppressed_by_a_generator():
    waiting, total = queue.Queue(FAILING - 1), torch.zeros(3)

    @contextlib.contextmanager
    def quiet():
        try:
            yield
        except queue.Full:
            total.mul_(2)

    def step(x):
        with quiet():
            waiting.put_nowait(1)
            total.add_(x)
        return x * 2

    return Program(step, inputs(), state=total)


@program(speculated=3)
def suppressed_by_a_decorator():
    waiting, total = queue.Queue(FAILING - 1), torch.zeros(3)

    @contextlib.contextmanager
    def quiet():
        try:
            yield
        except queue.Full:
            total.mul_(2)

    @quiet()
    def inner(x):
        waiting.put_nowait(1)
        total.add_(x)
        return x * 2

    def step(x):
        return inner(x), x + 1

    return Program(step, inputs(), state=total)


@program(speculated=3)
def suppressed_by_a_stack():
    waiting, total = queue.Queue(FAILING - 1), torch.zeros(3)

    def step(x):
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.suppress(queue.Full))
            waiting.put_nowait(1)
            total.add_(x)
        return x * 2

    return Program(step, inputs(), state=total)


@program(speculated=3)
def handled_around_a_generator():
    waiting, total = queue.Queue(FAILING - 1), torch.zeros(3)

    def rows(x):
        for row in x:
            total.add_(row)
            yield row
        waiting.put_nowait(1)

    def step(x):
        try:
            for row in rows(x):
                x = x + row
        except queue.Full:
            return x * 3
        return x * 2

    return Program(step, inputs(), state=total)


@program(speculated=5)
def nothing_that_raises_is_left_to_the_end():
    log, total = logger(logging.StreamHandler(sys.__stderr__)), torch.zeros(3)
    log.setLevel(logging.ERROR)

    def step(x):
        total.add_(x)
        try:
            print("a")
            log.info("a")
        except ValueError:
            return x
        total.add_(10)
        return x * 2

    return Program(step, inputs(), state=total)
