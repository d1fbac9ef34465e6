"""Which code of the program's own native code reaches, and what that may change."""

import functools
import io
import json
import logging
import logging.handlers
import pickle
import threading
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from torchjanus.semantics.known.own_code import reach


class Plain:
    def __init__(self):
        self.n = 0

    def __str__(self):
        return f"{self.n}"


class Counting(Plain):
    def __str__(self):
        self.n += 1
        return f"{self.n}"


def names_of(reached):
    return {fn.__name__ for fn in reached.functions.values()}


def test_data_runs_no_code():
    data = {"a": [1, "b", torch.ones(2), np.ones(2)], 2: (None, {3.0}), "f": io.StringIO(), "j": json.dumps}
    assert not reach([data, len, "text"]).functions
    assert not reach([logging.getLogger("torchjanus.nothing"), nn.Linear(2, 2)]).functions


def test_a_method_that_only_looks_changes_nothing():
    reached = reach([[Plain()]])
    assert names_of(reached) == {"__str__"}
    assert not reached.changes


def test_what_a_method_sets_is_read_off_its_code():
    thing = Counting()
    reached = reach([{"a": thing}])
    assert reached.changes
    assert reached.sets == {"n"}
    assert id(thing) in reached.objects


def test_what_is_called_by_name_is_reached():
    class Asking(Plain):
        def __str__(self):
            return self.helped()

        def helped(self):
            self.asked = True
            return "a"

        def never(self):
            self.other = 1

    assert reach([Asking()]).sets == {"asked"}


def test_a_property_is_reached():
    class Shown(Plain):
        @property
        def value(self):
            self.looked = 1
            return 2

        def __str__(self):
            return str(self.value)

    assert reach([Shown()]).sets == {"looked"}


def test_functions_tell_of_containers_and_variables():
    kept, count = [], 0

    def fills():
        kept.append(1)

    def counts():
        nonlocal count
        count += 1

    def sets():
        global TOTAL
        TOTAL = 1

    assert reach([fills]).items
    assert id(kept) in reach([fills]).objects
    assert len(reach([counts]).cells) == 1
    assert {name for _, name in reach([sets]).variables} == {"TOTAL"}


def test_functions_are_found_wherever_they_are_held():
    kept = []

    def fills(*args):
        kept.append(1)

    class Holder:
        __slots__ = ("call",)

        def __call__(self):
            return self.call()

    holder = Holder()
    holder.call = fills
    wrapped = functools.lru_cache(fills)
    held = [
        functools.partial(fills, 1),
        threading.Thread(target=fills),
        wrapped,
        np.vectorize(fills),
        holder,
        iter([fills]),
    ]
    for value in (*held, map(fills, [1]), (call() for call in [fills])):
        assert reach([value]).items, value


def test_a_logger_reaches_handlers_filters_and_formatters_up_to_where_it_stops():
    parent, child = logging.getLogger("own_code.parent"), logging.getLogger("own_code.parent.child")
    parent.propagate = False

    class Handler(logging.Handler):
        def emit(self, record):
            self.count = 1

    class Formatter(logging.Formatter):
        def format(self, record):
            self.formatted = 1

    handler = Handler()
    handler.setFormatter(Formatter())
    parent.addHandler(handler)
    assert reach([child]).sets == {"count", "formatted"}
    child.propagate = False
    assert not reach([child]).changes


def _failed(shown):
    try:
        raise ValueError(shown)
    except ValueError as error:
        return error


def test_errors_run_no_function_that_raised_them():
    kept = []

    def fails(value):
        kept.append(value)
        raise ValueError(value)

    try:
        fails(1)
    except ValueError as error:
        reached = reach([error])
    assert not reached.changes
    assert not reached.functions


def test_what_is_shown_of_a_frame_is_reached():
    counting = Counting()
    assert reach([_failed(counting)]).sets == {"n"}


def test_records_that_a_handler_keeps_are_shown_at_most():
    tensor, counting, kept = torch.ones(2), Counting(), []

    class Handler(logging.Handler):
        def emit(self, record):
            kept.append(record)

    handler, buffer = Handler(), logging.handlers.BufferingHandler(100)
    buffer.emit(logging.LogRecord("a", 20, "a", 1, "%s", (tensor,), None))
    reached = reach([handler, buffer])
    assert reached.items
    assert id(tensor) not in reached.objects
    buffer.emit(logging.LogRecord("a", 20, "a", 1, "%s", (counting,), None))
    assert "n" in reach([buffer]).sets


def test_data_classes_change_nothing_when_they_are_shown():
    @dataclass(frozen=True)
    class Pair:
        a: int
        b: str = ""

    assert not reach([Pair(1)]).changes


def test_modules_are_asked_for_what_they_show_only():
    class Net(nn.Module):
        def forward(self, x):
            self.calls = 1
            return x

        def extra_repr(self):
            return "a"

    reached = reach([nn.Sequential(Net())])
    assert names_of(reached) == {"extra_repr"}
    assert not reached.changes


def test_a_pickler_of_the_program_is_reached():
    class Pickler(pickle.Pickler):
        def persistent_id(self, value):
            self.seen = value

    assert reach([Pickler(io.BytesIO())]).sets == {"seen"}


def test_code_that_calls_libraries_may_do_anything():
    import random

    class Draws(Plain):
        def __str__(self):
            return str(random.random())

    assert reach([Draws()]).world


def test_objects_are_not_asked_by_methods_of_their_own():
    asked = []

    class Shy:
        def __getattribute__(self, name):
            asked.append(name)
            return object.__getattribute__(self, name)

        def __getattr__(self, name):
            asked.append(name)
            raise AttributeError(name)

    reach([Shy(), [Shy()]])
    assert not asked


TOTAL = 0
