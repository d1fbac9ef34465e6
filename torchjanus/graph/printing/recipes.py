"""Recipes as text: what leaves the call, as an expression of numbered tensors and access paths.

In: the recipe of a result or of a written value. Out: a line such as ``(%4, self.scale * 2)``, for the dumps of passes.
"""

from __future__ import annotations

from typing import Any

from torchjanus.graph.printing.terms import value_text
from torchjanus.trace import recipes

__all__ = ["recipe_text"]


def recipe_text(recipe: Any) -> str:
    """``(%7, {'loss': %5.item()})``."""
    match recipe:
        case recipes.Constant(value=value):
            return value_text(value)
        case recipes.TensorOf(ref=ref):
            return str(ref)
        case recipes.TensorAt(ref=ref, after=after):
            return f"{ref} as after {after} operations"
        case recipes.RowOf(ref=ref):
            return f"{ref}[{'last iteration' if recipe.last else 'iteration'}]"
        case recipes.Number(expr=expr):
            return str(expr)
        case recipes.ExistingObject(access_path=access_path):
            return str(access_path)
        case recipes.CollectedItems(item=item, count=count):
            return f"*({recipe_text(item)} for each of {count} iterations)"
        case recipes.ConditionalItem(item=item, when=when):
            return f"*({recipe_text(item)} if {recipe_text(when)})"
        case recipes.ObjectReference(number=number):
            return f"object #{number}"
        case recipes.NewObject():
            return _build(recipe)
    return "None" if recipe is None else str(recipe)


def _build(recipe: recipes.NewObject) -> str:
    if recipe.cls is dict and recipe.make is None:
        return "{" + ", ".join(f"{recipe_text(key)}: {recipe_text(part)}" for key, part in recipe.items) + "}"
    items = [
        f"{recipe_text(item[0])}: {recipe_text(item[1])}" if isinstance(item, tuple) else recipe_text(item)
        for item in recipe.items
    ]
    if recipe.cls is list and recipe.make is None:
        return f"[{', '.join(items)}]"
    if recipe.cls is tuple and recipe.make is None:
        return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
    named = (f"{name}={recipe_text(part)}" for name, part in recipe.named)
    return f"{recipe.cls.__qualname__}({', '.join([*items, *named])})"
