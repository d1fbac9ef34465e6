"""Filters of warnings that change when a graph is in use, and the lines that warnings of native code name."""

import contextlib
import warnings

import numpy as np
import torch
from torch import nn

from tests.programs.harness import Program, program

COUNT = 20

weight = torch.linspace(-1, 1, 25).view(5, 5)
zeros = np.array([0.0, 1.0])


def busy(x):
    for _ in range(3):
        x = torch.tanh(x @ weight)
    return (x * x).mean()


def calls():
    return [(torch.randn(4, 5),) for _ in range(COUNT)]


def under(actions):
    """Let each call run under one of these filters, and print what was shown."""

    @contextlib.contextmanager
    def around(number):
        with warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter(actions(number))
            yield
        print([(str(one.message)[:40], one.lineno, one.filename.rpartition("/")[2]) for one in shown])

    return around


def errors_at_times(number):
    return "error" if number in (10, 12, 14) else "always"


def shown_at_last(number):
    return "ignore" if number < 6 else "always"


@program(speculated=10)
def errors_for_a_while():
    def step(x):
        warnings.warn("careful", UserWarning, stacklevel=1)
        return busy(x)

    return Program(step, calls(), around=under(errors_at_times))


@program(speculated=5, compiles=6)
def all_kinds_of_filters():
    def step(x):
        warnings.warn("careful", UserWarning, stacklevel=1)
        return busy(x)

    kinds = ("ignore", "error", "once", "default", "always", "module")
    return Program(step, calls(), around=under(lambda number: kinds[number % 6]))


@program(speculated=10)
def errors_that_the_step_handles():
    def step(x):
        try:
            warnings.warn("careful", UserWarning, stacklevel=1)
        except UserWarning:
            x = x * 2
        return busy(x)

    return Program(step, calls(), around=under(errors_at_times))


@program(speculated=3)
def warning_of_torch_shown_at_last():
    def step(x):
        return busy(x) + nn.functional.mse_loss(x, x[:1])

    return Program(step, calls(), around=under(shown_at_last))


@program(speculated=10)
def warning_of_an_array_shown_at_last():
    def step(x):
        return busy(x), zeros / 0.0

    return Program(step, calls(), around=under(shown_at_last))


@program(speculated=10)
def lines_of_warnings_of_arrays():
    def step(x):
        y = busy(x)
        log = np.log(zeros)
        mean = np.mean(np.array([]))
        quotient = zeros / 0
        root = np.sqrt(-zeros[1])
        return y, log, mean, quotient, root

    return Program(step, calls(), around=under(lambda number: "always"))


@program(speculated=10)
def lines_of_warnings_in_functions():
    def helper(array):
        return np.log(array)

    class Owner:
        def divided(self):
            return zeros / 0

    owner = Owner()

    def step(x):
        return busy(x), helper(zeros), owner.divided()

    return Program(step, calls(), around=under(lambda number: "always"))


@program(speculated=10)
def lines_of_warnings_of_what_tensors_hold():
    def step(x):
        return busy(x), np.log((x[0] * 0).numpy())

    return Program(step, calls(), around=under(lambda number: "always"))


@program(speculated=10)
def shown_once_for_each_line():
    def step(x):
        y = busy(x)
        return y, np.log(zeros), np.log(zeros)

    return Program(step, calls(), around=under(lambda number: "default"))
