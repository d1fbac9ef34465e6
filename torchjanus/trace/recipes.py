"""Recipes: how a later call makes a value that escapes from the step. Plain data; knows nothing of executors.

What is returned, stored or passed to an extern call is described by a Recipe: tensors by number, numbers by expression,
objects from before the call by their access path, and objects made in the call by their parts. ``NewObject.number``
carries sharing and cycles: the same number is the same object."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from torchjanus.core.access_path import AccessPath, token_of
from torchjanus.core.kinds import isinstance
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import Expr

__all__ = [
    "CollectedItems", "ConditionalItem", "Constant", "ExistingObject", "NewObject", "Number", "ObjectReference",
    "Recipe", "RowOf", "TensorAt", "TensorOf", "inner_recipes", "map_recipe", "parts_of",
]  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """The same object in each call."""

    value: Any

    @property
    def token(self) -> Any:
        return ("constant", token_of(self.value))


@dataclass(frozen=True, slots=True, eq=False)
class TensorOf:
    """A tensor that the call made. ``node``: the name of its autograd node in the watched run."""

    ref: TensorRef
    node: str = field(default="", repr=False)

    @property
    def token(self) -> Any:
        return ("tensor", self.ref.number)


@dataclass(frozen=True, slots=True, eq=False)
class TensorAt:
    """A copy of a tensor's contents after ``after`` framework calls, for native code to read."""

    ref: TensorRef
    after: int

    @property
    def token(self) -> Any:
        return ("tensor at", self.ref.number, self.after)


@dataclass(frozen=True, slots=True, eq=False)
class RowOf:
    """A copy of the row of ``ref`` for this iteration of a loop; ``last``: for the last iteration; ``alone``: the row
    was computed separately and has its own autograd history."""

    ref: TensorRef
    last: bool = False
    alone: bool = False

    @property
    def token(self) -> Any:
        return ("row", self.ref.number, self.last, self.alone)


@dataclass(frozen=True, slots=True, eq=False)
class Number:
    """A Python number or text, computed by its expression."""

    expr: Expr

    @property
    def token(self) -> Any:
        return ("number", self.expr.token)


@dataclass(frozen=True, slots=True, eq=False)
class ExistingObject:
    """An object that was there before the call."""

    access_path: AccessPath

    @property
    def token(self) -> Any:
        return ("found", self.access_path.token)


@dataclass(frozen=True, slots=True, eq=False)
class NewObject:
    """A new object of class ``cls``.

    ``items``: the elements of a container, or the arguments of ``make``, our function that makes the object, if given.
    ``attributes`` are set in its ``__dict__`` afterwards, ``fields`` through descriptors of its class (slots, the
    contents of a closure cell).
    """

    number: int
    cls: type
    items: tuple[Any, ...]  # recipes; for a dict pairs (key recipe, value recipe)
    attributes: tuple[tuple[str, Any], ...]
    maxlen: int | None = None  # of a deque
    make: Callable[..., Any] | None = None
    fields: tuple[tuple[Any, Any], ...] = ()

    @property
    def named(self) -> tuple[tuple[str, Any], ...]:
        """All that is set after construction, by name."""
        return (*self.attributes, *((descriptor.__name__, part) for descriptor, part in self.fields))

    @property
    def token(self) -> Any:
        items = tuple((i[0].token, i[1].token) if isinstance(i, tuple) else i.token for i in self.items)
        fields = tuple((id(descriptor), recipe.token) for descriptor, recipe in self.fields)
        attributes = tuple((n, r.token) for n, r in self.attributes)
        return ("build", self.number, id(self.cls), self.maxlen, id(self.make), items, attributes, fields)


@dataclass(frozen=True, slots=True, eq=False)
class CollectedItems:
    """Collected items of a list or tuple: one per iteration of a loop of ``count`` iterations. ``item`` may depend on
    the loop's InductionVariable."""

    item: Any
    count: Expr

    @property
    def token(self) -> Any:
        return ("repeat", self.item.token, self.count.token)


@dataclass(frozen=True, slots=True, eq=False)
class ConditionalItem:
    """A conditional item of a list: present if the number ``when`` is true."""

    item: Any
    when: Number

    @property
    def token(self) -> Any:
        return ("perhaps", self.item.token, self.when.token)


@dataclass(frozen=True, slots=True, eq=False)
class ObjectReference:
    """The object that the Build with this number makes."""

    number: int

    @property
    def token(self) -> Any:
        return ("again", self.number)


Recipe = (
    Constant
    | TensorOf
    | TensorAt
    | RowOf
    | Number
    | ExistingObject
    | NewObject
    | CollectedItems
    | ConditionalItem
    | ObjectReference
)


def inner_recipes(recipe: Recipe) -> Iterator[Recipe]:
    """Yield the immediate parts of a recipe, in the order of construction."""
    if isinstance(recipe, CollectedItems):
        yield recipe.item
    elif isinstance(recipe, ConditionalItem):
        yield from (recipe.item, recipe.when)
    elif isinstance(recipe, NewObject):
        for part in recipe.items:
            yield from part if isinstance(part, tuple) else (part,)
        for _, part in (*recipe.attributes, *recipe.fields):
            yield part


def parts_of(recipe: Recipe) -> Iterator[Recipe]:
    """Yield the recipe and all recipes in it, in the order of construction."""
    yield recipe
    for part in inner_recipes(recipe):
        yield from parts_of(part)


def map_recipe(recipe: Any, change: Callable[[Any], Any]) -> Any:
    """Return the recipe with ``change(part)`` in place of each immediate part."""
    if isinstance(recipe, CollectedItems):
        return CollectedItems(change(recipe.item), recipe.count)
    if isinstance(recipe, ConditionalItem):
        return ConditionalItem(change(recipe.item), change(recipe.when))
    if isinstance(recipe, NewObject):
        items = tuple(tuple(map(change, item)) if isinstance(item, tuple) else change(item) for item in recipe.items)
        attributes = tuple((name, change(part)) for name, part in recipe.attributes)
        fields = tuple((key, change(part)) for key, part in recipe.fields)
        return replace(recipe, items=items, attributes=attributes, fields=fields)
    return recipe
