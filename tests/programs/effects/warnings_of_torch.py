"""Warnings of torch's functions: they name the program's line, and come as often as in eager."""

import contextlib
import warnings

import torch

from tests.programs.harness import CALLS, Program, program

weight = torch.linspace(-1, 1, 25).view(5, 5)


def busy(x):
    return torch.tanh(x @ weight).pow(2).mean()


def inputs():
    return [(torch.randn(4, 5),) for _ in range(CALLS)]


@program(refused="mse_loss warns, and each of its warnings is shown")
def of_a_function_in_python():
    def step(x):
        return busy(x) + torch.nn.functional.mse_loss(x, torch.zeros(4, 1))

    return Program(step, inputs())


@program(refused="warns, and each of its warnings is shown")
def of_a_function_that_another_one_calls():
    def step(x):
        return busy(x) + torch.nn.functional.softmax(x).sum()

    return Program(step, inputs())


@program(refused="warns, and each of its warnings is shown")
def of_an_operator():
    def step(x):
        torch.add(torch.zeros(3), 1, out=torch.zeros(2))
        return busy(x)

    return Program(step, inputs())


@program(refused="warns, and each of its warnings is shown")
def recorded_by_the_step():
    def step(x):
        with warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter("always")
            y = busy(x) + torch.nn.functional.mse_loss(x, torch.zeros(4, 1))
        return y, len(shown)

    return Program(step, inputs())


@program()
def ignored_by_the_step():
    def step(x):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            y = busy(x) + torch.nn.functional.mse_loss(x, torch.zeros(4, 1))
        return y

    return Program(step, inputs())


def shown_once(number):
    """Filters that show a warning once per line; what is shown is printed with its line."""

    @contextlib.contextmanager
    def around():
        with warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter("default")
            yield
        print([(str(one.message)[:20], one.lineno) for one in shown if one.filename == __file__])

    return around()


@program(refused="mse_loss warns, and each of its warnings is shown")
def shown_once_for_each_line():
    def step(x):
        y = busy(x) + torch.nn.functional.mse_loss(x, torch.zeros(4, 1))
        return y + torch.nn.functional.mse_loss(x, torch.ones(4, 1))

    return Program(step, inputs(), around=shown_once)


@program()
def turned_into_an_error():
    def around(number):
        made = warnings.catch_warnings()

        @contextlib.contextmanager
        def erring():
            with made:
                warnings.simplefilter("error")
                yield

        return erring()

    def step(x):
        try:
            return busy(x) + torch.nn.functional.mse_loss(x, torch.zeros(4, 1))
        except UserWarning as error:
            return x, str(error)[:20]

    return Program(step, inputs(), around=around)
