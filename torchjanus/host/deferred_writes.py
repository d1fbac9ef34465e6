"""Deferred writes, and values rebuilt from recipes, as straight-line Python (JANUS 4.2.3's deferred state update).

While a graph runs nothing is written. A Commit generates the code that comes after validation: it makes the values of
all recipes first, then performs the writes and extern calls in program order. This module does not know graphs: the
caller supplies the names of tensors' values.
"""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Protocol

import torch

from torchjanus.core.access_path import AccessPath, native_class
from torchjanus.core.kinds import hasattr, is_one_of, isinstance
from torchjanus.host.program_lines import FromLine
from torchjanus.host.source import ITERATION, Source
from torchjanus.rewrite.hooks.lookup import asks_for_attributes, is_python_class, own_dict
from torchjanus.trace.actions import ContainerMutation, Extern, HeapWrite, HostLoop
from torchjanus.trace.operands import numbers_in
from torchjanus.trace.recipes import (
    CollectedItems,
    ConditionalItem,
    Constant,
    ExistingObject,
    NewObject,
    Number,
    ObjectReference,
    Recipe,
    RowOf,
    TensorAt,
    TensorOf,
    parts_of,
)
from torchjanus.trace.values import Fetch, Read, Traced, leaves

__all__ = [
    "Commit", "access_paths_of", "delete_item", "make_exception", "make_function", "make_parameter", "make_partial",
    "make_value", "set_item", "write_all",
]  # fmt: skip


def set_item(container: Any, key: Any, value: Any) -> None:
    """Set ``container[key]`` below any ``__setitem__`` written in Python, since the write was recorded below
    it, too."""
    native_class(type(container)).__setitem__(container, key, value)


def delete_item(container: Any, key: Any) -> None:
    """Delete ``container[key]`` below any ``__delitem__`` written in Python."""
    native_class(type(container)).__delitem__(container, key)


def write_all(writes: Iterable[tuple[HeapWrite | ContainerMutation, Any, Any]]) -> None:
    """Make the writes of recursive calls, in order: each with the object (or its attributes) and the value."""
    for event, target, value in writes:
        if isinstance(event, ContainerMutation):
            getattr(event.owner, event.method)(target, value)
        elif event.how == "field":
            setattr(target, event.key, value)
        else:
            target[event.key] = value


def make_function(code: types.CodeType, variables: dict[str, Any], name: str, defaults: Any, *cells: Any) -> Any:
    """Return a function, as ``def`` makes it."""
    return types.FunctionType(code, variables, name, defaults, cells)


def make_partial(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return a ``functools.partial``."""
    return functools.partial(func, *args, **kwargs)


def make_exception(cls: Any, base: Any, *args: Any) -> Any:
    """Return an exception that is not raised, made below any ``__new__`` and ``__init__`` written in Python."""
    made = base.__new__(cls, *args)
    base.__init__(made, *args)
    return made


def make_parameter(requires_grad: bool, data: torch.Tensor) -> torch.nn.Parameter:
    """Return a parameter that shares the memory of ``data``."""
    return torch.nn.Parameter(data.detach(), requires_grad)


def make_value(cls: Any, base: Any, value: Any) -> Any:
    """Return an instance of a subclass of ``int``, ``float``, ``str`` and the like."""
    return base.__new__(cls, value)


def access_paths_of(
    recipes: Iterable[Recipe], events: Iterable[HeapWrite | ContainerMutation | Extern | HostLoop]
) -> Iterator[AccessPath]:
    """Yield all that the commit needs of the heap as it was before the call."""
    for recipe in recipes:
        yield from (part.access_path for part in parts_of(recipe) if isinstance(part, ExistingObject))
        for expr in numbers_in(recipe):
            for leaf in leaves(expr):
                if isinstance(leaf, Read):
                    yield leaf.access_path
    for event in events:
        if isinstance(event, HostLoop):
            yield from (leaf.access_path for leaf in leaves(event.count) if isinstance(leaf, Read))
            yield from access_paths_of((), event.events)
        elif not isinstance(event, Extern):
            yield event.base


class GraphResults(Protocol):
    """Writes results of the graph into the same Source. Each method returns the name of the result."""

    def tensor(self, number: int) -> str:
        """Return a tensor, as it is when the call ends."""

    def tensor_at(self, number: int, after: int) -> str:
        """Return what a tensor held after so many operations."""

    def fetch(self, fetch: Fetch) -> str:
        """Return a number, a tensor that is shown, or a list of these for all iterations of a loop."""

    def rows(self, number: int, alone: bool) -> str:
        """Return a list of the rows of a stacked tensor, as tensors of their own. ``alone``: see RowOf."""


class Commit:
    """Writes the values of recipes, and the writes that use them, into a Source."""

    def __init__(self, source: Source, given: GraphResults, recipes: Iterable[Recipe]) -> None:
        self.source = source
        self._given = given
        self._built: dict[int, str] = {}
        # Values are not made in the order in which they were described: whichever comes first makes shared parts.
        self._shared = {part.number: part for r in recipes for part in parts_of(r) if isinstance(part, NewObject)}
        # The contents of closure cells are made last: they may be the function that has the cell.
        self._cells: list[NewObject] = []

    def value(self, recipe: Recipe) -> str:
        """Return the text of a recipe's value."""
        text = self._value(recipe)
        while self._cells:
            cell = self._cells.pop()
            for descriptor, content in cell.fields:
                made = self._value(content)
                self.source.line(f"{self.source.constant(descriptor.__set__)}({self._built[cell.number]}, {made})")
        return text

    def _value(self, recipe: Recipe) -> str:
        match recipe:
            case Constant(value=value):
                return self.source.constant(value)
            case TensorOf(ref=ref):
                return self._given.tensor(ref.number)
            case ExistingObject(access_path=access_path):
                return self.source.value(access_path)
            case Number(expr=expr):
                return self.number(expr)
            case TensorAt(ref=ref, after=after):
                return self._given.tensor_at(ref.number, after)
            case RowOf(ref=ref, last=last, alone=alone):
                return f"{self._given.rows(ref.number, alone)}[{-1 if last else ITERATION}]"
            case CollectedItems(item=item, count=count):
                return f"*{self.repeated(count, (item,), lambda values: values[0])}"
            case ConditionalItem(item=item, when=when):
                made = self._value(item)
                return f"*(({made},) if {self._value(when)} else ())"
            case ObjectReference(number=number) | NewObject(number=number):
                return self._built.get(number) or self._build(self._shared[number])

    def repeated(self, count: Any, recipes: Iterable[Recipe], element: Callable[[list[str]], str]) -> str:
        """Return the name of a list with an element for each iteration of a loop. ``element`` returns its text, given
        the texts of the recipes' values."""
        source, recipes = self.source, list(recipes)
        for recipe in recipes:  # what is loop-invariant, or covers all iterations, is made before the loop
            for part in parts_of(recipe):
                if isinstance(part, RowOf):
                    self._given.rows(part.ref.number, part.alone)
                elif isinstance(part, Number):
                    self._know(part.expr)
        times, name, built = self.number(count), source.fresh("e"), dict(self._built)
        each = source.fresh("i")  # an iterator, so that a commit can be completed from within an iteration
        source.line(f"{name} = []")
        source.line(f"{each} = iter(range({times}))")
        with source.block(f"for {ITERATION} in {each}:"):
            made = element([self.value(recipe) for recipe in recipes])
            source.line(f"{name}.extend(({made[1:]}))" if made[:1] == "*" else f"{name}.append({made})")
        self._built = built
        return name

    def _know(self, expr: Any) -> None:
        for leaf in leaves(expr):
            if isinstance(leaf, Fetch) and not self.source.knows(leaf):
                self.source.give_fetch(leaf, self._given.fetch(leaf))

    def number(self, expr: Any) -> str:
        """Return the text of an expression's value."""
        self._know(expr)
        return self.source.number(expr)

    def _build(self, recipe: NewObject) -> str:
        source = self.source
        cls = recipe.cls
        name = self._built[recipe.number] = source.fresh("b")
        if recipe.make is not None:
            parts = [self._value(part) for part in recipe.items]
            source.line(f"{name} = {source.constant(recipe.make)}({', '.join(parts)})")
        elif cls is types.CellType:
            source.line(f"{name} = {source.constant(cls)}()")
            self._cells.append(recipe)
            return name
        elif cls is slice or issubclass(cls, tuple | frozenset):
            parts = [self._value(part) for part in recipe.items]
            inside = ", ".join(parts) + ("," if len(parts) == 1 else "")
            if cls is tuple:
                source.line(f"{name} = ({inside})")
            elif cls is slice or hasattr(cls, "_fields"):
                source.line(f"{name} = {source.constant(cls)}({inside})")
            elif issubclass(cls, tuple) and is_python_class(cls):
                source.line(f"{name} = {source.constant(tuple.__new__)}({source.constant(cls)}, ({inside}))")
            else:
                source.line(f"{name} = {source.constant(cls)}(({inside}))")
        elif issubclass(cls, dict):
            self._build_dict(recipe, name)
        elif issubclass(cls, list | set | collections.deque):
            plain: Any = next(base for base in (list, set, collections.deque) if issubclass(cls, base))
            bound = "" if recipe.maxlen is None else f"(), {recipe.maxlen}"
            source.line(
                f"{name} = {source.constant(cls)}({bound})" if cls is plain else f"{name} = {self._bare(plain, cls)}"
            )
            if bound and cls is not plain:
                source.line(f"{source.constant(plain.__init__)}({name}, {bound})")
            # The object exists before its parts are made, so that it may contain itself.
            parts = [self._value(part) for part in recipe.items]
            if parts:
                fill = source.constant(set.update if plain is set else plain.extend)
                source.line(f"{fill}({name}, ({', '.join(parts)},))")
        else:
            source.line(
                f"{name} = {self._bare(types.SimpleNamespace if cls is types.SimpleNamespace else object, cls)}"
            )
        for descriptor, part in recipe.fields:
            source.line(f"{source.constant(descriptor.__set__)}({name}, {self._value(part)})")
        if recipe.attributes:
            pairs = ", ".join(f"{key!r}: {self._value(part)}" for key, part in recipe.attributes)
            own = f"{source.constant(own_dict)}({name})" if asks_for_attributes(cls) else f"{name}.__dict__"
            source.line(f"{own}.update({{{pairs}}})")
        return name

    def _bare(self, base: type, cls: type) -> str:
        return f"{self.source.constant(base.__new__)}({self.source.constant(cls)})"

    def _build_dict(self, recipe: NewObject, name: str) -> None:
        source = self.source
        kinds = (collections.OrderedDict, collections.defaultdict, dict)
        base: Any = next(kind for kind in kinds if issubclass(recipe.cls, kind))
        source.line(f"{name} = {{}}" if recipe.cls is dict else f"{name} = {self._bare(base, recipe.cls)}")
        for key, part in recipe.items:
            made = self._value(part)
            if recipe.cls is dict:
                source.line(f"{name}[{self._value(key)}] = {made}")
            else:
                source.line(f"{source.constant(base.__setitem__)}({name}, {self._value(key)}, {made})")

    def effect(
        self, event: HeapWrite | ContainerMutation | Extern, values: list[str], name: str | None = None, later: str = ""
    ) -> None:
        """Make one write or extern call. ``values``: the texts of its recipes; ``name``: the variable for an extern
        call's result; ``later``: added to the number of an extern call, for those that iterations before it make."""
        source = self.source
        if event.chosen:
            with source.block(f"if {values[-1]}:"):
                self.effect(replace(event, chosen=False), values[:-1], name, later)
            return
        match event:
            case HeapWrite(how="item", base=base, key=key):
                pinned = source.pinned(base)
                exact = pinned is not None and is_one_of(type(pinned[0]), (dict, list))
                where = source.value(base)
                at = values[1] if isinstance(key, Traced) else source.constant(key)
                if exact:
                    source.line(f"{where}[{at}] = {values[0]}")
                else:
                    source.line(f"{source.constant(set_item)}({where}, {at}, {values[0]})")
            case HeapWrite(how="field", base=base, key=key):
                source.line(f"{source.constant(setattr)}({source.value(base)}, {key!r}, {values[0]})")
            case HeapWrite(how="cell", base=base):
                source.line(f"{source.constant(base.key)}.cell_contents = {values[0]}")
            case HeapWrite(how="delete-item", base=base, key=key):
                at = values[0] if isinstance(key, Traced) else source.constant(key)
                source.line(f"{source.constant(delete_item)}({source.value(base)}, {at})")
            case HeapWrite(how="delete-cell", base=base):
                source.line(f"del {source.constant(base.key)}.cell_contents")
            case HeapWrite(base=base, key=key):
                source.line(f"{source.constant(delattr)}({source.value(base)}, {key!r})")
            case ContainerMutation(base=base, method=method, owner=owner):
                change = source.constant(getattr(owner, method))
                source.line(f"{change}({', '.join([source.value(base), *values])})")
            case Extern():
                anew = self.extern_text(event, values)
                again = self.extern_text(
                    event, values, f"journal.commit({event.number}{later}, {source.constant(event.effects)}, "
                )
                source.line(f"{'' if name is None else f'{name} = '}{anew} if journal is None else {again}")

    def extern_text(self, event: Extern, values: list[str], through: str = "") -> str:
        """Return the text of the call itself. ``values``: the texts of its arguments' recipes; ``through``: the
        beginning of a call that makes it."""
        count = len(event.args)
        named = [f"{key}={text}" for key, text in zip(event.kwargs, values[count:], strict=True)]
        given = ", ".join([*values[:count], *named])
        func = self.source.constant(event.func if event.caller is None else FromLine(event.func, event.caller))
        return f"{through}{func}, {given})" if through else f"{func}({given})"
