"""What is foreign to the watched program, and what is known of a foreign call's effects."""

from __future__ import annotations

import functools
import heapq
import io
import logging
import random
import time
import types
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch

from torchjanus.semantics.known import foreign, foreign_effects
from torchjanus.trace.effects import PURE, WORLD


@pytest.mark.parametrize("name", ["numpy", "numpy.linalg", "random", "json", "torch.utils.data", "torch.utils.data.x"])
def test_modules_that_are_not_looked_into(name: str) -> None:
    assert foreign.is_foreign_module(name)


@pytest.mark.parametrize(
    "name", ["torch", "torch.nn", "torch.utils", "torchjanus.core", "functools", "__main__", __name__, ""]
)
def test_modules_that_are_looked_into(name: str) -> None:
    assert not foreign.is_foreign_module(name)


@pytest.mark.parametrize("value", [np.zeros(2), np.float32(1), random.Random(0), io.StringIO()])
def test_objects_that_only_foreign_code_understands(value: Any) -> None:
    assert foreign.is_foreign_object(value, was_there=False)


@pytest.mark.parametrize("value", [1, "text", [], {}, deque(), torch.ones(1), foreign, types.SimpleNamespace(), len])
def test_objects_that_a_watch_understands(value: Any) -> None:
    assert not foreign.is_foreign_object(value, was_there=True)


def test_a_native_iterator_is_foreign_only_if_it_was_there_before_the_call() -> None:
    generator = (n for n in ())
    assert foreign.is_foreign_object(generator, was_there=True)
    assert not foreign.is_foreign_object(generator, was_there=False)


def test_numbers_of_numpy() -> None:
    assert foreign.is_numpy_scalar(np.int64(3))
    assert foreign.is_numpy_scalar(np.bool_(True))
    assert not foreign.is_numpy_scalar(3)
    assert not foreign.is_numpy_scalar(np.zeros(()))


def test_effects_of_functions() -> None:
    assert foreign_effects.effects_of(print, "print", None) is foreign_effects.OUTPUT
    assert foreign_effects.effects_of(logging.info, "info", None) is foreign_effects.OUTPUT
    assert foreign_effects.effects_of(torch.manual_seed, "manual_seed", None) is foreign_effects.TORCH_GENERATOR
    assert foreign_effects.effects_of(time.perf_counter, "perf_counter", None).reads == {"clock"}
    assert foreign_effects.effects_of(time.sleep, "sleep", None).writes == {"clock"}
    assert foreign_effects.effects_of(np.sum, "sum", None) is foreign_effects.ARRAYS
    assert foreign_effects.effects_of(np.copyto, "copyto", None) is WORLD
    assert foreign_effects.effects_of(np.add, "add", None, keywords=("out",)) is WORLD
    assert foreign_effects.effects_of(eval, "eval", None) is WORLD


def test_effects_of_methods_of_generators_are_undone_by_their_state() -> None:
    generator = random.Random(3)
    effects = foreign_effects.effects_of(generator.random, "random", generator)
    assert effects.writes == {f"generator {id(generator)}"}
    assert effects.undo is not None
    state = effects.undo.save(generator)
    drawn = generator.random()
    effects.undo.restore(generator, state)
    assert generator.random() == drawn
    drawing = np.random.default_rng(0)
    assert foreign_effects.effects_of(drawing.normal, "normal", drawing).undo is not None
    assert foreign_effects.effects_of(drawing.shuffle, "shuffle", drawing) is WORLD  # it writes to what it is given


def test_effects_of_methods_of_arrays() -> None:
    array = np.zeros(3)
    assert foreign_effects.effects_of(array.sum, "sum", array) is foreign_effects.ARRAYS
    assert foreign_effects.effects_of(array.sort, "sort", array) is WORLD
    assert foreign_effects.effects_of(array.sum, "sum", array, keywords=("out",)) is WORLD


@functools.cache
def table(n: int) -> int:
    return n * n


def test_a_cache_of_the_users_own_is_pure() -> None:
    assert foreign_effects.is_users_cache(table)
    assert foreign_effects.effects_of(table, "table", None) is PURE
    assert not foreign_effects.is_users_cache(table.__wrapped__)


def test_functions_that_numpy_calls_for_each_element_are_the_users() -> None:
    effects = foreign_effects.effects_of(np.frompyfunc(abs, 1, 1), "abs", None)
    assert effects.world
    assert effects.user_code


def test_what_is_made_a_tensor_of() -> None:
    assert foreign.only_makes_tensor(torch.tensor, (np.zeros(2),), {})
    assert foreign.only_makes_tensor(torch.as_tensor, (np.float64(1),), {"dtype": torch.float32})
    assert not foreign.only_makes_tensor(torch.tensor, ([1, 2],), {})
    assert not foreign.only_makes_tensor(torch.ones, (3,), {})
    assert foreign.only_makes_tensor(torch.tensor, (), {})  # it raises, and runs nobody's code


@pytest.mark.parametrize("name", ["choice", "choices", "sample"])
def test_places_are_drawn_by_the_same_numbers_as_elements(name: str) -> None:
    elements = list("abcdefg")
    given = () if name == "choice" else (3,) if name == "sample" else ()
    drawn = getattr(random.Random(5), name)(elements, *given)
    places = foreign_effects.draw_places(random.Random(5), name, len(elements), *given)
    assert drawn == (elements[places] if name == "choice" else [elements[place] for place in places])
    assert foreign_effects.is_draw(getattr(random.Random(5), name))


def test_drawing_of_nothing_raises_as_it_does_for_elements() -> None:
    with pytest.raises(IndexError):
        foreign_effects.draw_places(random.Random(0), "choice", 0)
    assert not foreign_effects.is_draw(random.random)


def test_functions_that_change_the_container_they_are_given() -> None:
    assert foreign_effects.changes_in_place(random.shuffle)
    assert foreign_effects.changes_in_place(heapq.heappush)
    assert not foreign_effects.changes_in_place(sorted)
    assert foreign_effects.changes_arrays("sort")
    assert not foreign_effects.changes_arrays("sum")


def test_values_that_hold_functions_of_the_users() -> None:
    assert foreign.runs_user_code(lambda: 0)
    assert foreign.runs_user_code(functools.partial(functools.partial(test_numbers_of_numpy), 1))
    assert not foreign.runs_user_code(len)
    assert not foreign.runs_user_code(random.Random(0).choice)
    assert not foreign.runs_user_code(3)
