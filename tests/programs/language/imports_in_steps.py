"""Imports within the step: modules, and what ``from`` takes out of them, changed between the calls."""

import sys
import types

import torch

from tests.programs.harness import Program, program

NAME = "settings_of_imports"
settings = types.ModuleType(NAME)
sys.modules[NAME] = settings

settings.scale, settings.double, settings.weight, settings.names = (
    2.0,
    lambda x: x * 2,
    torch.arange(3.0),
    {"bias": 0.5},
)
CALLS = [(torch.full((3,), 1.0 + call),) for call in range(10)]


@program(speculated=5)
def number_by_name():
    def step(x):
        from settings_of_imports import scale

        return x * scale

    return Program(step, CALLS, before={6: lambda: setattr(settings, "scale", 3.0)})


@program(speculated=5)
def number_by_module():
    def step(x):
        import settings_of_imports as held

        return x * held.scale

    return Program(step, CALLS, before={6: lambda: setattr(settings, "scale", 3.0)})


@program(speculated=5)
def function_by_another_name():
    def step(x):
        from settings_of_imports import double as twice

        return twice(x)

    return Program(step, CALLS, before={6: lambda: setattr(settings, "double", lambda x: x * 5)})


@program(speculated=7)
def tensor_and_dictionary():
    def step(x):
        from settings_of_imports import names, weight

        weight.add_(x)
        return weight * names["bias"]

    return Program(step, CALLS, before={6: lambda: settings.weight.zero_()}, state=settings)


@program(speculated=7)
def kept_for_a_function_within():
    def step(x):
        from settings_of_imports import scale

        def scaled(y):
            return y * scale

        return scaled(x)

    return Program(step, CALLS)


@program(speculated=7)
def stored_globally():
    def step(x):
        global found_scale
        from settings_of_imports import scale as found_scale

        return x + found_scale

    return Program(step, CALLS, before={8: lambda: globals().pop("found_scale")}, between=lambda _: print(found_scale))
