"""Expressions of the made-up programs, by the kind of what they give.

Kinds of tensors, by shape: ``M`` (B, 3), ``V`` (3,), ``S`` (), ``R`` (B,), ``Q`` (3, 3). Other kinds: ``num`` a float,
``int``, ``bool``, ``text``. B, the number of rows of the argument ``x``, may change from call to call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.fuzz import words
from tests.fuzz.choices import Choices

__all__ = ["TENSORS", "Expressions", "Features", "Scope"]

WIDTH = 3
TENSORS = ("M", "V", "S", "R", "Q")


@dataclass
class Features:
    """What a program has at all. Each program has some: those with everything would all be alike."""

    lists: bool = False
    tensors_in_lists: bool = False
    deque: bool = False
    table: bool = False
    tags: bool = False
    counter: bool = False
    ordered: bool = False
    defaults: bool = False
    pair: bool = False
    record: bool = False
    slots: bool = False
    module: bool = False
    weight: bool = False
    data_branches: bool = False
    data_loops: bool = False  # trip counts that change, or that tensors decide
    periodic: bool = False
    items: bool = False
    random: bool = False
    host_random: bool = False
    numpy: bool = False
    clock: bool = False
    iterator: bool = False
    stream: bool = False
    raising: bool = False
    operation_errors: bool = False
    second: bool = False  # a second State object, that may be the first
    scale: bool = False  # a closure's number
    shared: bool = False  # a global list
    words: bool = False  # names that change, tables that are read by them, histories
    windows: bool = False  # parts of a text between integers that tensors hold


@dataclass
class Scope:
    """The local names that can be used here, by kind, and what surrounds this place."""

    names: dict[str, list[str]] = field(default_factory=dict)
    state: str = "st"
    inside: str = "step"  # step, helper or method
    loops: int = 0
    depth: int = 0
    guarded: int = 0  # try statements around

    def of(self, kind: str) -> list[str]:
        return self.names.get(kind, [])

    def add(self, kind: str, name: str) -> None:
        self.names.setdefault(kind, []).append(name)

    def child(self, loop: bool = False, guarded: bool = False) -> Scope:
        names = {kind: list(known) for kind, known in self.names.items()}
        return Scope(names, self.state, self.inside, self.loops + loop, self.depth + 1, self.guarded + guarded)


class Expressions:
    """Writes expressions. ``depth`` bounds how far they nest."""

    def __init__(self, choices: Choices, features: Features) -> None:
        self.choices = choices
        self.has = features
        self.helpers: list[tuple[str, str]] = []  # (kind of the result, name): called with (M, num)

    # -- tensors ------------------------------------------------------------------------------------------------------

    def tensor(self, kind: str, scope: Scope, depth: int = 2) -> str:
        c, has = self.choices, self.has
        st = scope.state
        leaf: list[tuple[int, Callable[[], str]]] = [(6, lambda n=n: n) for n in scope.of(kind)]  # type: ignore[misc]
        deep: list[tuple[int, Callable[[], str]]] = []

        def sub(other: str) -> str:
            return self.tensor(other, scope, depth - 1)

        def num() -> str:
            return self.number(scope, depth - 1)

        if kind == "M":
            deep = [
                (6, lambda: f"{sub('M')} * {num()}"),
                (4, lambda: f"({sub('M')} + {sub('V')})"),
                (3, lambda: f"({sub('M')} - {sub('M')})"),
                (3, lambda: f"torch.relu({sub('M')})"),
                (2, lambda: f"{self.named(sub('M'))}.clone()"),
                (2, lambda: f"torch.tanh({sub('M')})"),
                (2, lambda: f"({sub('M')} @ {sub('Q')})"),
                (1, lambda: f"torch.where({sub('M')} > {num()}, {sub('M')}, {sub('V')})"),
                (1, lambda: f"F.softmax({sub('M')}, dim=1)"),
                (1, lambda: f"{self.named(sub('M'))}.clamp(-1.0, {c.pick(('1.0', '0.5'))})"),
                (1, lambda: f"{self.named(sub('M'))}.flip(0)"),
                (1, lambda: f"{self.named(sub('Q'))}[0].expand(x.shape[0], {WIDTH})" if "x" in scope.of("M") else "x"),
                (1, lambda: f"torch.cat([{self.named(sub('M'))}[:1], {self.named(sub('M'))}[1:]])"),
                (3 * has.random, lambda: f"F.dropout({sub('M')}, 0.5)"),
                (2 * has.random, lambda: f"torch.rand_like({sub('M')})"),
            ]
            for wanted, name in self.helpers:
                if wanted == "M" and scope.inside == "step":
                    deep.append((6, lambda name=name: f"{name}({sub('M')}, {num()})"))  # type: ignore[misc]
        elif kind == "V":
            leaf += [(3, lambda: f"{st}.buf"), (1, lambda: f"torch.ones({WIDTH})")]
            deep = [
                (4, lambda: f"{self.named(sub('M'))}.sum(0)"),
                (3, lambda: f"{self.named(sub('M'))}.mean(0)"),
                (2, lambda: f"{self.named(sub('M'))}[{c.pick((0, -1))}]"),
                (3, lambda: f"{sub('V')} * {num()}"),
                (2, lambda: f"({sub('V')} + {sub('S')})"),
                (1, lambda: f"{self.named(sub('V'))}.abs()"),
                (1, lambda: f"{self.named(sub('Q'))}.diagonal()"),
                (1, lambda: f"torch.full(({WIDTH},), {num()})"),
                (1, lambda: f"torch.tensor([{num()}, 1.0, {num()}])"),
                (3 * has.random, lambda: f"torch.rand({WIDTH})"),
                (3 * has.tensors_in_lists, lambda: f"sum({st}.hist, torch.zeros({WIDTH}))"),
                (2 * has.tensors_in_lists, lambda: f"({st}.hist[-1] if {st}.hist else {st}.buf)"),
                (2 * (has.module and scope.inside == "step"), lambda: "model.mean"),
            ]
        elif kind == "S":
            leaf += [(2, lambda: f"{st}.acc"), (1, lambda: f"torch.tensor({c.pick(('2.0', '0.25'))})")]
            deep = [
                (5, lambda: f"{self.named(sub('M'))}.sum()"),
                (3, lambda: f"{self.named(sub('V'))}.mean()"),
                (2, lambda: f"{self.named(sub('V'))}[{c.pick((0, 1, -1))}]"),
                (2, lambda: f"{self.named(sub('M'))}.max()"),
                (2, lambda: f"{self.named(sub('Q'))}.trace()"),
                (2, lambda: f"{sub('S')} * {num()}"),
                (2, lambda: f"torch.dot({sub('V')}, {sub('V')})"),
                (2 * has.random, lambda: "torch.rand(())"),
            ]
            for wanted, name in self.helpers:
                if wanted == "S" and scope.inside == "step" and "x" in scope.of("M"):
                    deep.append((5, lambda name=name: f"{name}({sub('M')}, {num()})"))  # type: ignore[misc]
        elif kind == "R":
            deep = [
                (4, lambda: f"{self.named(sub('M'))}.sum(1)"),
                (3, lambda: f"{self.named(sub('M'))}[:, {c.below(WIDTH)}]"),
                (1, lambda: f"{self.named(sub('M'))}.max(dim=1).values"),
                (1, lambda: f"({sub('M')} @ {sub('V')})"),
            ]
        elif kind == "Q":
            leaf += [(3, lambda: f"{st}.mat"), (1, lambda: f"torch.eye({WIDTH})")]
            deep = [
                (2, lambda: f"torch.outer({sub('V')}, {sub('V')})"),
                (2, lambda: f"({self.named(sub('M'))}.t() @ {sub('M')})"),
                (2, lambda: f"{self.named(sub('Q'))}.t()"),
                (2, lambda: f"{sub('Q')} * {num()}"),
            ]
        if kind in ("M", "R") and not scope.of("M"):
            return f"torch.ones(2, {WIDTH})" if kind == "M" else "torch.ones(2)"
        if depth <= 0 or (leaf and c.chance(35)):
            if leaf:
                return c.weighted(leaf)()
            return {"R": f"{scope.of('M')[0] if scope.of('M') else 'x'}.sum(1)"}[kind]
        return c.weighted(deep)()

    @staticmethod
    def named(text: str) -> str:
        """The text as something that a dot or a subscript can follow."""
        return (
            text
            if text.replace(".", "").replace("_", "").isalnum() or (text.endswith(")") and _closed(text))
            else (f"({text})")
        )

    def any_tensor(self, scope: Scope, depth: int = 2) -> tuple[str, str]:
        kinds = TENSORS if scope.of("M") else ("V", "S", "Q")
        kind = self.choices.pick(kinds)
        return kind, self.tensor(kind, scope, depth)

    # -- numbers ------------------------------------------------------------------------------------------------------

    def number(self, scope: Scope, depth: int = 1) -> str:
        """A float (or sometimes an int) of moderate size."""
        c, has, st = self.choices, self.has, scope.state
        leaf: list[tuple[int, Callable[[], str]]] = [
            (4, lambda: c.pick(("0.5", "2.0", "-1.0", "0.1", "3", "1"))),
            (2, lambda: f"{st}.lr"),
            (1, lambda: f"{st}.total"),
            (1, lambda: f"{st}.n"),
            (1, lambda: "g_scale"),
            (1, lambda: "CONFIG['scale']"),
            *((3, lambda n=n: n) for n in scope.of("num")),  # type: ignore[misc]
            *((1, lambda n=n: n) for n in scope.of("int")),  # type: ignore[misc]
            (2 * (has.scale and scope.inside == "step"), lambda: "scale"),
            (1 * has.lists, lambda: f"len({st}.items)"),
            (1 * has.table, lambda: f"{st}.table['a']"),
            (1 * has.pair, lambda: f"{st}.pair[{c.below(2)}]"),
            (1 * has.record, lambda: f"{st}.record.value"),
            (1 * has.counter, lambda: f"{st}.counts['hit']"),
            (1 * has.slots, lambda: "gauge.level"),
        ]
        deep: list[tuple[int, Callable[[], str]]] = [
            (2, lambda: f"({self.number(scope, depth - 1)} + {self.number(scope, depth - 1)})"),
            (2, lambda: f"({self.number(scope, depth - 1)} * {self.number(scope, depth - 1)})"),
            (1, lambda: f"abs({self.number(scope, depth - 1)})"),
            (1, lambda: f"max({self.number(scope, depth - 1)}, 0.5)"),
            (1, lambda: f"min({self.number(scope, depth - 1)}, {self.number(scope, depth - 1)})"),
            (1, lambda: f"math.sin({self.number(scope, depth - 1)})"),
            (1, lambda: f"float({self.number(scope, depth - 1)})"),
            (1, lambda: f"round({self.number(scope, depth - 1)}, 3)"),
            (1, lambda: f"({self.number(scope, 0)} if {self.condition(scope)} else {self.number(scope, 0)})"),
            (3 * has.items, lambda: f"{self.named(self.tensor('S', scope, depth))}.item()"),
            (1 * has.items, lambda: f"float({self.tensor('S', scope, depth)})"),
            (1 * has.lists, lambda: f"sum({st}.items)"),
            (1 * has.lists, lambda: f"({st}.items[-1] if {st}.items else 0.0)"),
            (1 * has.lists, lambda: f"sum(v * 0.5 for v in {st}.items)"),
            (1 * has.deque, lambda: f"sum({st}.recent)"),
            (1 * has.table, lambda: f"{st}.table.get({c.pick(KEYS)!r}, 0.0)"),
            (1 * has.table, lambda: f"sum({st}.table.values())"),
            (1 * has.defaults, lambda: f"{st}.sums[{c.pick(KEYS)!r}]"),
            (
                3 * has.host_random,
                lambda: c.pick(("random.random()", "random.uniform(0.0, 1.0)", "random.randint(0, 3)")),
            ),
            (3 * has.numpy, lambda: c.pick(("float(rng.random())", "float(np.random.rand())", "int(rng.integers(3))"))),
            (2 * has.iterator, lambda: "next(feed)"),
            *(words.numbers(c, st) if has.words else ()),
        ]
        for wanted, name in self.helpers:
            if wanted == "num" and scope.inside == "step" and "x" in scope.of("M"):
                deep.append((3, lambda name=name: f"{name}(x, {self.number(scope, depth - 1)})"))  # type: ignore[misc]
        if depth <= 0 or c.chance(60):
            return c.weighted(leaf)()
        return c.weighted(deep)()

    # -- conditions ---------------------------------------------------------------------------------------------------

    def condition(self, scope: Scope) -> str:
        c, has, st = self.choices, self.has, scope.state
        options: list[tuple[int, Callable[[], str]]] = [
            (5, lambda: f"{st}.flag"),
            (3, lambda: f"{st}.n {c.pick(('<', '>='))} {c.between(5, 9)}"),
            (3, lambda: f"{st}.mode == {c.pick(MODES)!r}"),
            (2, lambda: f"{st}.best is None"),
            (2, lambda: f"{st}.lr > {c.pick(('0.05', '0.2'))}"),
            (1, lambda: f"not {st}.flag or {st}.n > {c.between(4, 8)}"),
            (3 * (scope.inside == "step"), lambda: f"x.shape[0] {c.pick(('>', '<=', '=='))} {c.between(2, 4)}"),
            (2 * (scope.inside == "step"), lambda: f"k > {c.pick(('1.0', '2.0'))}"),
            (1 * (scope.inside == "step"), lambda: f"isinstance(k, {c.pick(('int', 'float'))})"),
            (1, lambda: "CONFIG['on']"),
            (1 * has.lists, lambda: f"len({st}.items) {c.pick(('<', '>'))} {c.between(2, 5)}"),
            (1 * has.lists, lambda: f"{st}.items"),
            (1 * has.table, lambda: f"{c.pick(KEYS)!r} in {st}.table"),
            (1 * has.tags, lambda: f"{c.pick(KEYS)!r} {c.pick(('in', 'not in'))} {st}.tags"),
            (1 * (has.second and scope.inside == "step"), lambda: f"other is {st}"),
            (1 * has.periodic, lambda: f"{st}.n % {c.between(2, 3)} == 0"),
            (
                2 * has.data_branches,
                lambda: f"{self.named(self.tensor('S', scope, 1))}.item() > {c.pick(('0.0', '-5.0', '5.0'))}",
            ),
            (1 * has.data_branches, lambda: f"{self.tensor('S', scope, 1)} < 100.0"),
            (2 * has.data_branches, lambda: f"{self.tensor('S', scope, 1)} > 0"),
            (1 * has.data_branches, lambda: f"({self.tensor('V', scope, 1)} > 0.5).any()"),
            (1 * has.data_branches, lambda: f"torch.isfinite({self.tensor('V', scope, 1)}).all()"),
            (1 * has.host_random, lambda: "random.random() < 0.9"),
            (1 * has.module * (scope.inside == "step"), lambda: "model.training"),
            (1 * has.weight * (scope.inside == "step"), lambda: "weight.grad is None"),
            *(words.conditions(c, st) if has.words else ()),
        ]
        return c.weighted(options)()

    def text(self, scope: Scope) -> str:
        """A text, for output: formatted numbers and the like."""
        c, st = self.choices, scope.state
        return c.weighted(
            [
                (2, lambda: repr(c.pick(KEYS))),
                (3, lambda: f"f'n {{{st}.n}}'"),
                (2, lambda: f'f"{{{self.number(scope, 0)}:.3f}}"'),
                (1, lambda: f"'%s at %d' % ({st}.mode, {st}.n)"),
                (1, lambda: f"{st}.mode.upper()"),
            ]
        )()


KEYS = ("a", "b", "c")
MODES = ("warm", "main")


def _closed(text: str) -> bool:
    """Whether the last bracket belongs to the whole text: in ``f(a)(b)`` and ``a.b(c)``, not in ``a * b(c)``."""
    depth = 0
    for char in text:
        if char in "([":
            depth += 1
        elif char in ")]":
            depth -= 1
        elif char == " " and depth == 0:
            return False
    return True
