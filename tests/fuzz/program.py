"""Whole made-up programs: the text of a module in the form of the corpus, with one function marked ``@program``.

What comes out is read, pasted into ``tests/programs/regressions/found_by_fuzzing.py`` and run by
``tests/programs/harness.py`` like any other program. Programs are deterministic: what a clock says decides nothing
that is kept.
"""

from __future__ import annotations

from dataclasses import fields

from hypothesis import strategies

from tests.fuzz import words
from tests.fuzz.choices import Choices
from tests.fuzz.expressions import KEYS, WIDTH, Expressions, Features, Scope
from tests.fuzz.statements import Lines, Statements, indented

__all__ = ["CALLS", "NAME", "sources"]

CALLS = 12
NAME = "fuzzed"

IMPORTS = """
import collections
import contextlib
import dataclasses
import io
import itertools
import logging
import math
import random
import time
import warnings

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.harness import Call, Program, program

LOG = logging.getLogger("program")
CONFIG = {"scale": 0.5, "on": True}
g_scale = 2.0


def set_scale(value):
    global g_scale
    g_scale = max(value, 0.125)


class Boom(Exception):
    def __init__(self, text, code):
        super().__init__(text)
        self.code = code
"""

SECTION = """
class Section:
    def __init__(self, st):
        self.st = st

    def __enter__(self):
        self.st.n += 1
        return self

    def __exit__(self, kind, error, trace):
        self.st.total += 0.5
        return SWALLOWS and kind is Boom


@contextlib.contextmanager
def section_of(st):
    st.lr *= 2.0
    try:
        yield st
    finally:
        st.lr *= 0.5
"""

RECORD = """
@dataclasses.dataclass
class Record:
    value: float
    name: str = "r"
"""

GAUGE = """
class Gauge:
    __slots__ = ("level",)

    def __init__(self):
        self.level = 1.0


gauge = Gauge()
"""

# How likely (in percent) a program has a feature. Extern calls are in a quarter of the programs.
ODDS = {
    "lists": 45, "tensors_in_lists": 25, "deque": 20, "table": 40, "tags": 15, "counter": 15, "ordered": 10,
    "defaults": 10, "pair": 20, "record": 20, "slots": 15, "module": 45, "weight": 20, "data_branches": 25,
    "data_loops": 15, "periodic": 10, "items": 35, "random": 35, "host_random": 10, "numpy": 8, "clock": 8,
    "iterator": 8, "stream": 8, "raising": 30, "operation_errors": 15, "second": 15, "scale": 30, "shared": 15,
    "words": 25, "windows": 12,
}  # fmt: skip


class Writer:
    """Writes one program."""

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self.has = Features(**{f.name: choices.chance(ODDS[f.name]) for f in fields(Features)})
        self.write = Expressions(choices, self.has)
        self.statements = Statements(choices, self.has, self.write)

    def module(self) -> str:
        c = self.choices
        lines: Lines = IMPORTS.strip("\n").split("\n")
        if self.has.shared:
            lines += ["", "g_list = [1.0, 2.0]"]
        if self.has.windows:
            lines += ["", "TEXT = torch.arange(48.0) % 7 - 3"]
        lines += SECTION.replace("SWALLOWS", str(c.chance(50))).split("\n")
        if self.has.record:
            lines += RECORD.split("\n")
        if self.has.slots:
            lines += GAUGE.split("\n")
        lines += self.outside()
        lines += self.state_class()
        if self.has.module:
            lines += self.module_class()
        helpers = [self.helper(number) for number in range(c.weighted([(3, 0), (3, 1), (2, 2)]))]
        for text in helpers:
            lines += text
        lines += ["", "", "@program()", f"def {NAME}():", *indented(self.body())]
        return "\n".join(line.rstrip() for line in lines) + "\n"

    def outside(self) -> Lines:
        """What is there before the calls, outside of the program."""
        has = self.has
        iterators = ("iter([0.5 + i for i in range(500)])", "itertools.count(1)", "(0.5 * i for i in range(500))")
        lines: Lines = []
        if has.numpy:
            lines += ["rng = np.random.default_rng(7)"]
        if has.iterator:
            lines += [f"feed = {self.choices.pick(iterators)}"]
        if has.stream:
            lines += ["sink = io.StringIO()", "source = io.StringIO('\\n'.join('x' * (i % 4) for i in range(500)))"]
        if has.clock:
            lines += ["last_clock = [0.0]"]
        return lines

    def state_class(self) -> Lines:
        has = self.has
        attributes = {
            "n": "0", "total": "0.0", "lr": "0.1", "best": "None", "flag": "True", "mode": "'warm'", "_level": "1.0",
            "buf": f"torch.ones({WIDTH})", "acc": "torch.zeros(())", "mat": f"torch.eye({WIDTH}) * 2",
            "out": f"torch.zeros({WIDTH})", "alias": f"torch.ones({WIDTH})", "row": f"torch.ones({WIDTH})",
        }  # fmt: skip
        optional = {
            "lists": {"items": "[0.5, 1.5]", "nested": "[]"},
            "tensors_in_lists": {"hist": f"[torch.ones({WIDTH})]"},
            "deque": {"recent": "collections.deque([1.0], maxlen=3)"},
            "table": {"table": "{'a': 1.0, 'b': 2.0}", "table2": "{}"},
            "tags": {"tags": "{'a'}"},
            "counter": {"counts": "collections.Counter(hit=1)"},
            "ordered": {"ordered": "collections.OrderedDict(a=1.0)"},
            "defaults": {"sums": "collections.defaultdict(float)"},
            "pair": {"pair": "(0.5, 1.0)"},
            "record": {"record": "Record(1.0)"},
            "words": words.STATE,
        }
        for feature, more in optional.items():
            if getattr(has, feature):
                attributes |= more
        lines = ["", "", "class State:", "    made = 0", "", "    def __init__(self):"]
        lines += [f"        self.{name} = {value}" for name, value in attributes.items()]
        scope = Scope(state="self", inside="method", depth=1)
        scope.add("num", "v")
        lines += ["", "    def bump(self, v):", *indented(indented(self.statements.block(scope, 1, 2)))]
        if self.choices.chance(50):
            lines += [f"        return {self.write.number(scope)}"]
        lines += ["", "    @property", "    def level(self):", "        return self._level", ""]
        lines += ["    @level.setter", "    def level(self, value):", "        self._level = 0.5 * value"]
        # An object may be given this class between two calls.
        lines += ["", "", "class Other(State):", "    def bump(self, v):", "        self.total = 0.25 * self.total + v"]
        return [*lines, "        return 0.125"]

    def module_class(self) -> Lines:
        c = self.choices
        lines = ["", "", "class Net(nn.Module):", "    def __init__(self):", "        super().__init__()"]
        lines += [f"        self.lin = nn.Linear({WIDTH}, {WIDTH})"]
        lines += [f"        self.register_buffer('mean', torch.zeros({WIDTH}))", "        self.calls = 0"]
        norm = c.weighted([(4, ""), (1, f"nn.LayerNorm({WIDTH})"), (1, f"nn.BatchNorm1d({WIDTH})")])
        if norm:
            lines += [f"        self.norm = {norm}"]
        lines += ["", "    def forward(self, t):"]
        body = ["self.calls += 1"] if c.chance(50) else []
        body += ["t = self.lin(t)"]
        body += [f"t = {c.pick(('torch.relu(t)', 'torch.tanh(t)', 'F.gelu(t)'))}"]
        if norm:
            body += ["t = self.norm(t)"]
        if self.has.random:
            body += ["t = F.dropout(t, 0.25, self.training)"]
        if c.chance(40):
            body += [
                "if self.training:",
                "    with torch.no_grad():",
                "        self.mean.mul_(0.9).add_(t.mean(0), alpha=0.1)",
            ]
        return [*lines, *indented(indented(body)), "        return t"]

    def helper(self, number: int) -> Lines:
        c = self.choices
        kind = c.pick(("M", "S", "num"))
        name = f"helper{number}"
        scope = Scope({"M": ["t"], "num": ["s"]}, state="ST", inside="helper", depth=1)
        body = self.statements.block(scope, 1, 3)
        text = self.write.number(scope) if kind == "num" else self.write.tensor(kind, scope)
        default = c.pick(("", "=1.0"))
        lines = ["", "", f"def {name}(t, s{default}):", *indented(body), f"    return {text}"]
        self.write.helpers.append((kind, name))
        return lines

    def body(self) -> Lines:
        c, has = self.choices, self.has
        lines = ["global ST", "st = ST = State()"]
        state = ["st"]
        if has.second:
            lines.append(f"other = {c.pick(('State()', 'State()', 'st'))}")
            state.append("other")
        if has.slots:
            state.append("gauge")
        if has.module:
            optimizer = c.weighted(
                [
                    (3, "torch.optim.SGD(model.parameters(), lr=0.1)"),
                    (2, "torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)"),
                    (2, "torch.optim.Adam(model.parameters(), lr=0.01)"),
                    (1, "torch.optim.AdamW(model.parameters(), lr=0.01)"),
                    (1, "torch.optim.RMSprop(model.parameters(), lr=0.01)"),
                ]
            )
            lines += ["model = Net()", f"opt = {optimizer}"]
            state += ["model", "opt.state", "opt.param_groups"]
        if has.weight:
            lines += [f"weight = torch.randn({WIDTH}).requires_grad_()", f"velocity = torch.zeros({WIDTH})"]
            state += ["weight", "velocity"]
        state += ["rng"] * has.numpy + ["feed"] * has.iterator + ["sink", "source"] * has.stream
        if has.scale:
            lines += ["scale = 1.5"]
        scope = Scope({"M": ["x"], "num": ["k"]})
        step: Lines = ["nonlocal scale"] * has.scale + ["nonlocal weight"] * has.weight
        step += ["st.n += 1"] if c.chance(60) else []
        step += self.statements.block(scope, 2, 7)
        if has.clock:
            step += ["last_clock[0] = 0.0"]
        step.append(self.result(scope))
        lines += ["", "def step(x, k=1.5):", *indented(step), ""]
        if has.scale:
            state.append("lambda: scale")
        return [*lines, *self.schedule(state)]

    def result(self, scope: Scope) -> str:
        c, write = self.choices, self.write
        parts = []
        for _ in range(c.between(1, 3)):
            parts.append(
                c.weighted(
                    [
                        (6, lambda: write.any_tensor(scope, 1)[1]),
                        (2, lambda: write.number(scope)),
                        (1, lambda: "st.buf"),
                        (1, lambda: "x"),
                        (1, lambda: write.text(scope)),
                        (1 * self.has.lists, lambda: "list(st.items)"),
                        (1 * self.has.table, lambda: "dict(st.table)"),
                        (1, lambda: f"[{write.number(scope)}, {write.any_tensor(scope, 1)[1]}]"),
                    ]
                )()
            )
        return f"return {', '.join(parts)}"

    def schedule(self, state: list[str]) -> Lines:
        """The calls, stable at first, and what happens between them."""
        c, has = self.choices, self.has
        rows = [4] * CALLS
        numbers = ["1.5"] * CALLS
        for number in range(5, CALLS):
            if c.chance(15):
                rows[number] = c.pick((2, 3, 5))
            if c.chance(15):
                numbers[number] = c.pick(("0.5", "2.5", "2", "True"))
        if c.chance(20):
            numbers = [str(0.5 + 0.25 * i) for i in range(CALLS)]
        keyword = c.below(CALLS) if c.chance(10) else -1
        lines = ["calls = ["]
        for number, (count, value) in enumerate(zip(rows, numbers, strict=True)):
            x = f"torch.randn({count}, {WIDTH})"
            lines.append(f"    Call({x}, {'k=' * (number == keyword)}{value}),")
        lines += ["]"]
        changes: list[tuple[int, str]] = [
            (2, "st.flag = not st.flag"),
            (2, "st.lr = 0.25"),
            (1, "st.mode = 'main'"),
            (1, f"st.buf = torch.full(({WIDTH},), 3.0)"),
            (1, "st.buf.zero_()"),
            (1, "st.n = 3"),
            (1, "st.n = 3.5"),
            (1, "st.best = 2.5"),
            (1, "st.alias = st.buf"),
            (1, "st.row = st.mat[0]"),
            (1, "st.total = 1"),
            (1, "st.__class__ = Other"),
            (1, "State.bump = Other.bump"),
            (1, "st.buf.resize_(1).fill_(0.5)"),
            (1, "st.buf = st.buf.double().float()"),
            (1, "st.mat = st.mat.t()"),
            (1, "torch.manual_seed(3)"),
            (1, "random.seed(3)"),
            (1, "CONFIG.update(scale=0.75)"),
            (1, "CONFIG.update(on=False)"),
            (1, "set_scale(3.0)"),
            (2 * has.lists, "st.items.append(2.5)"),
            (1 * has.lists, "st.items = [1, 2.0]"),
            (1 * has.tensors_in_lists, "st.hist.append(st.buf)"),
            (1 * has.tensors_in_lists, "st.hist = []"),
            (1 * has.deque, "st.recent.append(4.0)"),
            (1 * has.table, "st.table.update(c=3.0)"),
            (1 * has.table, "st.table = {'b': 2.0, 'a': 1}"),
            (1 * has.tags, "st.tags.add('b')"),
            (2 * has.module, "opt.param_groups[0].update(lr=0.02)"),
            (2 * has.module, "model.train(not model.training)"),
            (1 * has.module, "model.lin.weight.requires_grad_(False)"),
            (1 * has.module, "model.zero_grad()"),
            (1 * has.weight, "weight.grad = None"),
            (1 * has.slots, "gauge.level = 3"),
            (1 * has.second, "other.friend = other"),
            (1 * has.second, "other.buf = st.buf"),
            (1 * has.record, f"st.record = Record(2, {c.pick(KEYS)!r})"),
            *((2 * has.words, change) for change in words.CHANGES),
        ]
        before: Lines = []
        for number in sorted({c.between(4, CALLS - 1) for _ in range(c.weighted([(2, 0), (4, 1), (3, 2), (1, 3)]))}):
            # Several things at once: what is relaxed for one of them must not hide another.
            several = sorted({c.weighted(changes) for _ in range(c.weighted([(3, 1), (2, 2), (1, 4)]))})
            lines += ["", f"def change{number}():", *indented(several)]
            before.append(f"{number}: change{number}")
        lines += ["", f"return Program(step, calls, before={{{', '.join(before)}}}, state=({', '.join(state)},))"]
        return lines


@strategies.composite
def sources(draw: strategies.DrawFn) -> str:
    """The texts of made-up programs."""
    return Writer(Choices(draw)).module()
