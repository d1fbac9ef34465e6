"""Switches and loops: both arms, and one iteration, are run once, and become regions of the graph.

A part that is run is an ``Arm``: its nodes stand in a block of its own, and what it has changed of variables and
objects is taken back when it ends.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import CellType
from typing import Any

import torch

from torchjanus.core.errors import JanusError, Refused, refused
from torchjanus.core.kinds import isinstance
from torchjanus.rewrite.hooks.lifted import RETURN, Exit, cells_of
from torchjanus.semantics.staged.merging import Merging, is_plain, raised
from torchjanus.semantics.staged.unknown.journal import Journal, contents_of, reachable, restore, unchanged
from torchjanus.semantics.staged.unknown.places import Place, cells_holding, grown_apart, value_of
from torchjanus.semantics.staged.unknown.tensors import is_fake
from torchjanus.semantics.staged.unknown.values import NumberType, Pending, Poison, StagedList, StagedValue, Unbound
from torchjanus.tracegraph.graph import Block, Const, Operand, Ref

__all__ = ["Arm", "Part", "Regions", "flag_of", "kinds_of"]

Part = Callable[[], Any]

_MOST_LENGTHENED = 8  # times that arms are run until all lists have become such of unknown length


@dataclass
class Raised:
    """How an arm is left that raises ``error``."""

    error: BaseException


@dataclass
class Arm:
    """A part that was run. ``left``: the Exit, None, Raised, or the value of an expression; ``after``: what the objects
    and variables hold in the end that it has changed, by id."""

    block: Block
    left: Any
    after: dict[int, tuple[Any, Any]]
    before: dict[int, tuple[Any, Any]]
    is_pending: bool = False

    @property
    def is_dead(self) -> bool:
        """Whether nothing comes after it."""
        return self.is_pending or isinstance(self.left, Raised)


class Regions(Merging):
    """Control flow that staged values decide."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.journals: list[Journal] = []
        self.thrown: dict[int, BaseException] = {}  # errors that statements of the program have raised, by id
        self.variables: dict[int, str] = {}  # names of variables, by id of their cells
        self.was_there: Callable[[Any], bool] = lambda obj: False  # whether an object is from before the call
        self.advanced = 0  # how often something was advanced that cannot go back: a generator of the program's own
        self.initials: list[dict[str, Any]] = []  # what variables held before the loops that are being made
        self.either: dict[int, Any] = {}  # objects of which a variable holds one or another, by id

    def changes(self, obj: Any) -> None:
        """The program is about to change an ordinary object."""
        if id(obj) in self.either:
            what = "list" if isinstance(obj, StagedList) else type(obj).__name__
            raise refused(
                "staged-mutation", f"a {what} is changed that may be one of two objects",
                "Which of them it is is known only when the graph runs.", "Change them where it is decided.",
                self.place,
            )  # fmt: skip
        if self.journals and not self.journals[-1].note(obj):
            raise self._changed_one_way(obj)

    def lengthen(self, lists: dict[int, CellType | None]) -> None:
        """Let ordinary lists be lists of unknown length from here on (see ``grown_lists``)."""
        for cell in lists.values():
            holding = [] if cell is None else cells_holding(cell, {*map(id, self.initials)})
            if not holding:
                raise refused(
                    "staged-mutation", "a list that becomes longer or shorter where a staged value decides",
                    "How long it is is known only when the graph runs, and others than local variables may hold it.",
                    "Keep it in one local variable, and append to it in the same function.", self.place,
                )  # fmt: skip
            made = self.list_of(holding[0].cell_contents)
            for one in holding:
                if self.journals:
                    self.journals[-1].note(one)
                one.cell_contents = made

    def _changed_one_way(self, obj: Any) -> Refused:
        what = f"a {type(obj).__name__} that changes where a staged value decides"
        return refused("staged-mutation", what, "Whether it does is known only when the graph runs.",
                       "Return what changes instead.", self.place)  # fmt: skip

    def advances(self, iterator: Any) -> None:
        """The program is about to take elements of an iterator of its own."""
        self.advanced += 1
        held = [contents for journal in self.journals for _, contents in journal.before.values()]
        if held and id(iterator) in reachable(held):
            raise self._changed_one_way(iterator)

    def compares_identity(self, *objects: Any) -> None:
        """The program asks whether two objects are one."""
        if not any(one is None for one in objects) and any(id(one) in self.either for one in objects):
            raise refused("staged-value", "which of two objects a variable holds", "", "Compare what they hold.",
                          self.place)  # fmt: skip

    def _note_either(self, known: int, arms: list[Arm]) -> None:
        """Of what was merged since: objects that the program can still reach by another way."""
        before: set[int] | None = None
        for objects in self.copies[known:]:
            if before is None:
                before = reachable(contents for arm in arms for _, contents in arm.before.values())
            if any(id(one) in before or self.was_there(one) for one in objects[1:]):
                self.either |= {id(one): one for one in objects}

    # ---- running parts ----

    def run(self, role: str, part: Part, variables: Mapping[str, Place], params: tuple[Ref, ...] = ()) -> Arm:
        """Run a part in a block of its own, and take back what it has changed."""
        block = Block(role, params=params)
        return self._go(block, part, variables, {})

    def go_on(self, arm: Arm, part: Part, variables: Mapping[str, Place]) -> Arm:
        """Run what follows an arm, within it."""
        return self._go(arm.block, part, variables, arm.after)

    def _go(self, block: Block, part: Part, variables: Mapping[str, Place], held: dict[int, tuple[Any, Any]]) -> Arm:
        journal = Journal()
        for cell in variables.values():
            journal.note(cell)
        for obj, contents in held.values():
            journal.note(obj)
            restore(obj, contents)
        self.journals.append(journal)
        for name, cell in variables.items():
            self.variables[id(cell)] = name
        unsure, site, pending = self.builder.unsure, self.site, False
        self.builder.unsure = dict(unsure)
        uses = [(value, self.ref_of(value, checked=False)) for value, _ in unsure.values()]
        left: Any = None
        try:
            with self.builder.block(block):
                try:
                    left = part()
                except Pending:
                    pending = True
                except JanusError:
                    raise
                except Exception as error:
                    left = self._raises(error)
        finally:
            self.journals.pop()
            self.builder.unsure, self.site = unsure | self.builder.unsure, site
            for value, ref in uses:  # what was checked within the part is not yet checked behind it
                self.builder.rebind(value, ref)
            before = journal.before
            after = journal.take_back()
        if self.journals:  # what is changed here is changed within the part around it, too
            for obj, _ in before.values():
                self.journals[-1].note(obj)
        changed = {number: one for number, one in after.items() if not unchanged(one[1], before[number][1])}
        return Arm(block, left, changed, before, pending)

    def _raises(self, error: Exception) -> Raised:
        """Record that an arm raises this error. Raises Refused where that is none of the program's, or in a ``try``."""
        if isinstance(error, RecursionError):
            raise refused(
                "staged-recursion", "a function that calls itself without end", "A staged value decides whether it "
                "does: each call is staged, and calls itself again.", "Mark it with torchjanus.stage.", self.place,
            ) from error  # fmt: skip
        if id(error) not in self.thrown:
            raise refused(
                "staged-value", f"{type(error).__name__} on one of two ways: {str(error)[:200]}", "No statement of the "
                "program raises it, so it may be that a value is not known here.",
                "Do it outside of the staged function.", self.place,
            ) from error  # fmt: skip
        if self.trying:
            raise refused(
                "staged-try", f"{type(error).__name__} raised within try, where a staged value decides",
                "Whether it is raised is known only when the graph runs, and handlers run when the function is staged.",
                "Move the try statement out of the staged function.", self.place,
            ) from error  # fmt: skip
        if any(isinstance(one, StagedValue) for one in error.args):
            raise refused("staged-value", "an error with a staged value", "", "", self.place) from error
        fields = (("name", Const("raise")), ("func", Const(raised)), ("args", self.operand((type(error), error.args))))
        self.builder.emit("op", fields, (), self.place)
        return Raised(error)

    # ---- switches ----

    def fork(
        self, predicate: Any, then: Part, orelse: Part, rest: Part | None, construct: str,
        around: tuple[Callable[..., Any] | None, ...] = (),
    ) -> Any:  # fmt: skip
        """Run both arms; what follows runs in an arm, if only that goes on there. Return how the statement is left.
        ``around``: parts of the program that share the arms' variables, if the arms are no such parts."""
        variables = cells_of(*(around or (then, orelse, rest)))
        for _ in range(_MOST_LENGTHENED):
            writes, advanced = self.builder.writes.copy(), self.advanced
            arms, follows = self._arms(then, orelse, rest, variables)
            grown = {} if any(arm.is_dead for arm in arms) else grown_apart([(arm.before, arm.after) for arm in arms])
            if not grown:
                left = self.merge(predicate, arms, construct, exits=True)
                return self.after(left, follows)
            del arms
            if self.advanced != advanced:
                raise self._changed_one_way([])
            self.builder.writes = writes
            self.lengthen(grown)  # and run the arms again
        raise refused("staged-mutation", "lists that become longer in ever new ways", "", "", self.place)

    def _arms(
        self, then: Part, orelse: Part, rest: Part | None, variables: Mapping[str, Place]
    ) -> tuple[list[Arm], Part | None]:
        """Run two arms, and in one what follows, if only that goes on there. Return what still follows."""
        arms = [self.run("then", then, variables), self.run("else", orelse, variables)]
        if rest is not None:
            going = [not arm.is_dead and arm.left is None for arm in arms]
            ended = [arm.is_dead or (arm.left is not None and 0 not in kinds_of(arm.left)) for arm in arms]
            for number in (0, 1):
                if going[number] and ended[1 - number]:
                    arms[number] = self.go_on(arms[number], rest, variables)
                    return arms, None
        return arms, rest

    def after(self, left: Any, rest: Part | None, around: tuple[Callable[..., Any] | None, ...] = ()) -> Any:
        """What follows a statement that was left so."""
        if rest is None:
            return left
        if left is None:
            return rest()
        if 0 not in left.kinds:
            return left
        goes_on = self.compute(operator.eq, (left.flag, 0))
        others = Exit(left.kinds - {0}, left.value, left.flag)
        return self.fork(goes_on, rest, lambda: others, None, "rest", around or (rest,))

    def choose(self, predicate: Any, then: Part, orelse: Part, construct: str) -> Any:
        """Run both parts of a conditional expression, and return the value of the one that the predicate chooses."""
        variables = cells_of(then, orelse)
        arms = [self.run("then", then, variables), self.run("else", orelse, variables)]
        return self.merge(predicate, arms, construct, exits=False)

    def merge(self, predicate: Any, arms: list[Arm], construct: str, *, exits: bool) -> Any:
        """Make a switch of two arms. Return how it is left, or its value."""
        if all(arm.is_pending for arm in arms):
            raise Pending
        slots: list[tuple[Any, tuple[Any, ...]]] = []
        names: dict[int, str] = {}
        known = len(self.copies)
        live = [arm for arm in arms if not arm.is_dead]
        settled = self._changed(arms, live, slots, names)
        if exits:
            left = self._exits(arms, live, slots)
        else:
            left = self._joined([arm.left for arm in live], "the value of the expression", len(arms), arms, slots)
        self._note_either(known, arms)
        outs: list[Ref] = []
        yields: list[list[Operand]] = [[] for _ in arms]
        for made, sides in slots:
            outs.append(self.bind(made, sides, names.get(id(made), "a variable")))
            for arm, side, into in zip(arms, sides, yields, strict=True):
                with self.builder.block(arm.block):
                    into.append(Const(None) if side is _DEAD else self.side(side))
        for arm, operands in zip(arms, yields, strict=True):
            arm.block.yields = tuple(operands)
        fields = (("construct", Const(construct)), ("on", self.operand(predicate)))
        if not any(arm.is_pending for arm in arms):
            self.builder.emit("switch", fields, tuple(outs), self.place, [arm.block for arm in arms])
        for obj, contents in settled:
            restore(obj, (contents[0].ref, contents[1]) if isinstance(obj, StagedList) else contents)
        if not live:
            return Exit(frozenset({RETURN}), None) if exits else None
        return left

    def _joined(
        self, values: list[Any], name: str, count: int, arms: list[Arm], slots: list[tuple[Any, tuple[Any, ...]]]
    ) -> Any:
        """Merge one value of each live arm."""
        if not values:
            return None
        joined = values[0] if len(values) == 1 else self.join(values[0], values[1], name)
        if len(values) == 1:
            joined = self._copy(joined)
        found: list[tuple[Any, tuple[Any, ...]]] = []
        rest = iter(values)
        sides = tuple(_DEAD if arm.is_dead else next(rest) for arm in arms)
        living = tuple(side for side in sides if side is not _DEAD)
        self.leaves(joined, living, found)
        for made, of in found:
            parts = iter(of)
            slots.append((made, tuple(_DEAD if side is _DEAD else next(parts) for side in sides)))
        return joined

    def _copy(self, value: Any) -> Any:
        """A new value like this one: what one arm made, for the code behind the switch."""
        if isinstance(value, torch.Tensor):
            if not is_fake(value):
                return value
            return self.fakes.renewed(self.symbols(value))
        if isinstance(value, StagedList):
            return self.copied(self.made(value.type), value)
        if isinstance(value, StagedValue):
            return self.made(value.type)
        if isinstance(value, tuple | list):
            parts = [self._copy(part) for part in value]
            return self.copied(type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts), value)
        if type(value) is dict:
            return self.copied({key: self._copy(part) for key, part in value.items()}, value)
        if type(getattr(value, "__dict__", None)) is dict and is_plain(type(value)):
            made: Any = object.__new__(type(value))
            made.__dict__.update({key: self._copy(part) for key, part in value.__dict__.items()})
            return self.copied(made, value)
        return value

    def _changed(
        self, arms: list[Arm], live: list[Arm], slots: list[tuple[Any, tuple[Any, ...]]], names: dict[int, str]
    ) -> list[tuple[Any, Any]]:
        """Merge what the arms have changed. Return what variables and objects hold afterwards."""
        settled: list[tuple[Any, Any]] = []
        everything = {number: obj for arm in live for number, (obj, _) in arm.after.items()}
        for number, obj in everything.items():
            held = [arm.after[number][1] if number in arm.after else contents_of(obj) for arm in live]
            if isinstance(obj, CellType):
                values = [contents[0] if contents else Unbound for contents in held]
                name = self._name_of(obj)
                known = len(slots)
                joined = self._joined(values, name, len(arms), arms, slots)
                names.update({id(made): name for made, _ in slots[known:]})
                settled.append((obj, () if joined is Unbound else (joined,)))
                continue
            if isinstance(obj, StagedList):
                values = [value_of(obj, contents) for contents in held]
                joined = self._joined(values, "a list", len(arms), arms, slots)
                if isinstance(joined, Poison):
                    joined._raise()
                settled.append((obj, (joined, joined.type)))
                continue
            joined = self._joined(held, f"what a {type(obj).__name__} holds", len(arms), arms, slots)
            if isinstance(joined, Poison):
                joined._raise()
            if isinstance(joined, StagedList):
                raise self._changed_one_way(obj)
            settled.append((obj, joined))
        return settled

    def _name_of(self, cell: Place) -> str:
        return self.variables.get(id(cell), "a variable")

    def _exits(self, arms: list[Arm], live: list[Arm], slots: list[tuple[Any, tuple[Any, ...]]]) -> Exit | None:
        """Return by which exits a switch may be left, None if by none; values that differ are added to ``slots``."""
        kinds = frozenset().union(*(kinds_of(arm.left) for arm in live)) if live else frozenset()
        if kinds <= {0}:
            return None
        value: Any = None
        if RETURN in kinds:
            given = [arm for arm in live if RETURN in kinds_of(arm.left)]
            inner: list[tuple[Any, tuple[Any, ...]]] = []
            others = [_Masked(arm, arm not in given) for arm in arms]
            value = self._joined([arm.left.value for arm in given], "what is returned", len(arms), others, inner)  # type: ignore[arg-type]
            if isinstance(value, Poison):
                value._raise()
            slots += inner
        if len(kinds) == 1:
            return Exit(kinds, value)
        flag = self.made(NumberType("int"))
        sides = tuple(_DEAD if arm.is_dead else flag_of(arm.left) for arm in arms)
        slots.append((flag, sides))
        return Exit(kinds, value, flag)


class _Masked:
    """An arm of which only one value is looked at, or none."""

    def __init__(self, arm: Arm, hidden: bool) -> None:
        self.is_dead = arm.is_dead or hidden


_DEAD: Any = object()


def kinds_of(left: Any) -> frozenset[int]:
    """In which ways a part may be left that was left so."""
    return frozenset({0}) if left is None else left.kinds


def flag_of(left: Any) -> Any:
    """Return the number of the exit: known if there is one only, else the staged flag that holds it."""
    return 0 if left is None else left.only if left.flag is None else left.flag
