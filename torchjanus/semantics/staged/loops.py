"""Loops that staged values end: one iteration is run once, and becomes the body of a loop of the graph.

What the body sets of numbers and tensors is carried from one iteration to the next. Where an iteration leaves a value
of another type than it found, it is run again with what both are.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from types import CellType
from typing import Any

import torch

from torchjanus.core.errors import refused
from torchjanus.core.kinds import isinstance
from torchjanus.rewrite.hooks.lifted import BREAK, CONTINUE, RETURN, Exit, cells_of
from torchjanus.semantics.staged.known_loops import KnownLoops
from torchjanus.semantics.staged.merging import same_ordinary, same_type
from torchjanus.semantics.staged.regions import Arm, Part, flag_of, kinds_of
from torchjanus.semantics.staged.unknown.journal import contents_of
from torchjanus.semantics.staged.unknown.places import (
    Place,
    flat,
    grown_lists,
    held_by,
    is_carried,
    lists_in,
    parts_of,
    put,
    value_of,
)
from torchjanus.semantics.staged.unknown.values import (
    NumberType,
    Poison,
    StagedList,
    StagedNumber,
    StagedRange,
    StagedValue,
    Unbound,
)  # fmt: skip
from torchjanus.tracegraph.graph import Block, Const, Operand, Ref, Sequence

__all__ = ["Loops"]

MOST_WIDENED = 8  # times that an iteration is run until its values have types that stay


class Loops(KnownLoops):
    """Loops that staged values end, and others."""

    def repeat(
        self, names: tuple[str, ...], test: Part, body: Callable[..., Any], over: StagedRange | None
    ) -> Exit | None:
        """Make a loop of one iteration. ``over``: what a ``for`` goes over. Return how the loop is left."""
        variables: dict[str, Place] = {**cells_of(test, body)}
        initial = {name: held_by(variables[name]) for name in names if name in variables}
        types = {name: value for name, value in initial.items() if is_carried(value)}
        self.initials.append(initial)
        try:
            for _ in range(MOST_WIDENED):
                writes = self.builder.writes.copy()
                tried: Any = self._iteration(types, variables, test, body, over)
                grown = grown_lists(tried.body.before, tried.body.after)
                if not grown:
                    others = self._others(tried, variables, types)
                    wider = others or self._widened(types, tried, variables)
                    if wider is None:
                        return self._looped(tried, initial, variables, over)
                    types |= wider
                    initial |= {name: held_by(variables[name]) for name in others}
                del tried
                self.builder.writes = writes
                if grown:
                    self.lengthen(grown)
                    initial |= {name: held_by(variables[name]) for name in initial}
        finally:
            self.initials.pop()
        raise refused("staged-left", "a loop whose values change their kind in each iteration", "", "", self.place)

    def _others(self, tried: _Tried, variables: dict[str, Place], types: dict[str, Any]) -> dict[str, Any]:
        """Return what an iteration changes besides the variables that its own statements set, by names which
        ``variables`` has from then on: variables of other functions, and lists, with what they held before."""
        found: dict[str, Any] = {}
        if tried.body.is_dead:
            return found
        known = {id(place): name for name, place in variables.items()}
        for number, (obj, contents) in tried.body.after.items():
            if not isinstance(obj, CellType | StagedList) or known.get(number) in types:
                continue
            before = held_by(obj)
            if before is Unbound:  # an iteration may leave what an earlier one has set
                end = value_of(obj, contents)
                if id(end) in self.builder.unsure or id(end) in self.builder.checked:
                    name = known.get(number) or f"{self._name_of(obj)}\0{number}"
                    variables[name], found[name] = obj, end
                continue
            is_list = isinstance(before, StagedList) or (type(before) is list and all(map(is_carried, before)))
            if is_carried(before) or (is_list and isinstance(value_of(obj, contents), StagedList | list)):
                name = known.get(number) or f"{self._name_of(obj)}\0{number}"
                variables[name], found[name] = obj, before
        return found

    def _param(self, like: Any) -> Any:
        """A loop-carried value as the iteration finds it."""
        if isinstance(like, torch.Tensor):
            return self.fakes.renewed(self.symbols(like))
        if isinstance(like, StagedValue) or type(like) in (int, float, bool):
            return self.made(self.type_of(like))
        parts = [self._param(part) for part in like]
        made = type(like)(*parts) if hasattr(like, "_fields") else type(like)(parts)
        if isinstance(made, list):  # another one in each iteration
            self.either[id(made)] = made
        return made

    def _iteration(
        self, types: dict[str, Any], variables: dict[str, Place], test: Part, body: Callable[..., Any],
        over: StagedRange | None,
    ) -> _Tried:  # fmt: skip
        params = {name: self._param(like) for name, like in types.items()}
        for name, value in params.items():
            if held_by(variables[name]) is Unbound:
                self.builder.unsure[id(value)] = value, name.partition("\0")[0]
        leaves = [leaf for value in params.values() for leaf in flat(value)]
        refs = tuple(self.builder.tensor(one) if isinstance(one, torch.Tensor) else one.ref for one in leaves)
        index = None
        if over is not None:
            index = self.made(NumberType("int"))
            refs = (index.ref, *refs)

        def begin() -> None:
            for name, value in params.items():
                put(variables[name], value)

        def tested() -> Any:
            begin()
            return self.truth(self.compute(operator.lt, (index, over.count)) if over is not None else test())

        def once() -> Any:
            begin()
            return body() if over is None else body(over.element(index))

        asked = self.run("test", tested, variables, refs)
        own = {id(variables[name]): value for name, value in params.items()}
        if asked.is_dead or any(
            number not in own or held[0] is not (own[number].ref if isinstance(obj, StagedList) else own[number])
            for number, (obj, held) in asked.after.items()
        ):
            raise refused(
                "staged-mutation", "the test of a staged loop that raises, or changes variables or objects", "",
                "Change them in the body.", self.place,
            )  # fmt: skip
        done = self.run("body", once, variables, refs)
        return _Tried(params, index, asked, done)

    def _widened(self, types: dict[str, Any], tried: _Tried, variables: dict[str, Place]) -> dict[str, Any] | None:
        """The kinds of loop-carried values that hold for a second iteration, too, where they are others than those
        tried; None if those tried do."""
        if tried.body.is_pending:
            return None
        wider: dict[str, Any] = {}
        for name, value in tried.params.items():
            end = self._end(tried, variables[name], value)
            joined = self._wide(value, end, name)
            if joined is not None:
                wider[name] = joined
        for obj, _ in tried.body.after.values():
            if not isinstance(obj, CellType | StagedList):
                raise refused(
                    "staged-mutation", f"a {type(obj).__name__} that changes in a staged loop",
                    "How often it changes is known only when the graph runs.",
                    "Carry what changes in local variables, or loop over something of known length.", self.place,
                )  # fmt: skip
        return wider or None

    def _end(self, tried: _Tried, place: Place, otherwise: Any) -> Any:
        known = tried.body.after.get(id(place))
        return otherwise if known is None else value_of(place, known[1])

    def _wide(self, param: Any, end: Any, name: str) -> Any:
        """What both are, if the end of an iteration is not what its beginning was taken for."""
        if param is end:
            return None
        if isinstance(end, Poison):
            end._raise()
        if isinstance(param, torch.Tensor) and isinstance(end, torch.Tensor):
            fake = self.symbols(end)
            if self.fakes.takes(param, fake):
                return None
            joined = self.fakes.joined(param, fake)
            if joined is not None:
                return joined
        elif isinstance(param, StagedNumber) and isinstance(end, StagedNumber | int | float):
            if same_type(param.type, self.type_of(end)) or param.type.kind == "number":
                return None
            return self.join(param, end, name)
        elif isinstance(param, StagedList | list) and isinstance(end, StagedList | list):
            if isinstance(param, StagedList) and isinstance(end, StagedList) and self.same_list(param.type, end.type):
                return None
            type_ = self.list_type(param, end)
            if type_ is not None:
                return self.made(type_)
        elif isinstance(param, StagedValue) and isinstance(end, StagedValue) and same_type(param.type, end.type):
            return None
        if isinstance(param, tuple | list) and type(param) is type(end) and len(param) == len(end):
            parts = [self._wide(one, other, name) for one, other in zip(param, end, strict=True)]
            if all(part is None for part in parts):
                return None
            kept = [one if part is None else part for one, part in zip(param, parts, strict=True)]
            return type(param)(kept)
        joined = self.join(param, end, name)
        if isinstance(joined, Poison):
            joined._raise()
        raise self.refusal_of_difference(name, "one kind before", "another one after an iteration")

    def _looped(
        self, tried: _Tried, initial: dict[str, Any], variables: dict[str, Place], over: StagedRange | None
    ) -> Exit | None:
        """Make the loop of an iteration whose types stay."""
        slots: list[tuple[Any, Operand, Operand]] = []  # what is there afterwards, first value, end of an iteration
        later: dict[str, Any] = {}
        body = tried.body

        def within(value: Any) -> Operand:
            with self.builder.block(body.block):
                return self.side(value)

        unsure: list[tuple[Any, str]] = []
        dead = body.is_dead
        for name, value in tried.params.items():
            end = value if dead else self._end(tried, variables[name], value)
            made = self._param(value)
            later[name] = made
            if initial[name] is Unbound:
                unsure.append((made, name.partition("\0")[0]))
            self.either |= {id(one): one for held in (made, initial[name], end) for one in lists_in(held)}
            for out, first, last in parts_of(made, initial[name], end):
                slots.append((out, self.side(first), within(last)))
        extra: list[Ref] = []
        for number, (obj, contents) in body.after.items():
            name = self._name_of(obj)
            if dead or number in {id(variables[one]) for one in tried.params}:
                continue
            before = contents_of(obj)
            end = contents[0] if contents else Unbound
            if before and same_ordinary(before[0], end):
                continue
            if before and before[0] is not end:
                poison = self.different(name, "one object before a staged loop", "another one after an iteration")
                obj.cell_contents = poison
                continue
            made = self._unsure(end, name)
            if isinstance(made, Poison) or not isinstance(made, torch.Tensor | StagedValue):
                obj.cell_contents = made
                continue
            slots.append((made, self.side(Unbound), within(end)))
            ref = self.builder.tensor(made) if isinstance(made, torch.Tensor) else made.ref
            extra.append(Ref(self.builder.value(ref.value.type, ref.value.alias), ref.version))
            unsure.append((made, name))
            later[f"\0{number}"] = (obj, made)
        left = body.left if not dead else None
        kinds = kinds_of(left) & {BREAK, RETURN}
        flags: tuple[Exit, Ref] | None = None
        if kinds and left is not None:
            flags = self._flags(tried, left, slots, extra)
        head = () if tried.index is None else (tried.index.ref,)
        params = (*body.block.params, *extra)
        outs = [self.builder.tensor(one) if isinstance(one, torch.Tensor) and not self.builder.knows(one)
                else self.ref_of(one, checked=False) for one, _, _ in slots]  # fmt: skip
        body.block.yields = tuple(end for _, _, end in slots)
        body.block.params = tried.test.block.params = params
        with self.builder.block(tried.test.block):
            tried.test.block.yields = (self.operand(tried.test.left),)
        if flags is not None:
            self._guard_test(tried, flags[1])
        carried = Sequence(tuple, tuple(first for _, first, _ in slots))
        fields: list[tuple[str, Operand]] = [("construct", Const("while" if over is None else "for"))]
        fields += [("carried", carried), *([("index", Const(0))] if head else [])]
        self.builder.emit("loop", fields, tuple(outs), self.place, [tried.test.block, body.block])
        for name, value in later.items():
            if name[0] == "\0":
                value[0].cell_contents = value[1]
            else:
                put(variables[name], value)
        for value, name in unsure:
            if self.trying:
                raise self.unsure_in_try(name)
            self.builder.unsure[id(value)] = value, name
        return None if flags is None else flags[0]

    def _flags(
        self, tried: _Tried, left: Exit, slots: list[tuple[Any, Operand, Operand]], extra: list[Ref]
    ) -> tuple[Exit, Ref]:
        """Carry how the loop is left: that, and the flag as an iteration finds it."""
        body = tried.body
        flag, found = self.made(NumberType("int")), self.made(NumberType("int"))
        with self.builder.block(body.block):
            now = flag_of(left)
            if CONTINUE in left.kinds and not isinstance(now, int):
                now = self.compute(operator.and_, (now, BREAK | RETURN))
            slots.append((flag, Const(0), self.side(now)))
        extra.append(found.ref)
        made = self._copy(left.value)
        parts: list[tuple[Any, tuple[Any, ...]]] = []
        self.leaves(made, (left.value,), parts)
        for one, (value,) in parts:
            with self.builder.block(body.block):
                slots.append((one, self.side(Unbound), self.side(value)))
            ref = self.builder.tensor(one) if isinstance(one, torch.Tensor) else one.ref
            extra.append(Ref(self.builder.value(ref.value.type, ref.value.alias), ref.version))
        ends = () if tried.test.left is True else (0,)
        return Exit(left.kinds - {0, CONTINUE} | {*ends}, made, flag), found.ref

    def _guard_test(self, tried: _Tried, flag: Ref) -> None:
        """Let the test of a loop be asked only if the loop has not been left."""
        asked = tried.test.block
        inner = Block("then", asked.nodes, asked.yields)
        outer = Block("test", params=asked.params)
        ended = Block("else", yields=(Const(False),))
        with self.builder.block(outer):
            going, result = self.builder.value("bool"), self.builder.value("bool")
            fields: tuple[tuple[str, Operand], ...] = (
                ("func", Const(operator.eq)), ("args", Sequence(tuple, (flag, Const(0)))),
            )  # fmt: skip
            self.builder.emit("compute", fields, (Ref(going),), self.place)
            on = (("construct", Const("left")), ("on", Ref(going)))
            self.builder.emit("switch", on, (Ref(result),), self.place, [inner, ended])
        outer.yields = (Ref(result),)
        tried.test.block = outer


@dataclass
class _Tried:
    """One iteration that was run on values of unknown content: its parameters by variable, its index in a loop over a
    range, its test and its body."""

    params: dict[str, Any]
    index: Any
    test: Arm
    body: Arm
