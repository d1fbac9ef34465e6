"""Reconstructs the source of an ``__init__`` made by ``dataclasses`` from the fields.

``dataclasses`` writes the function as text and drops the text. The function calls ``__post_init__`` and default
factories, which are the user's code. The reconstruction is used only if it compiles to the same code; if a future
Python writes its text differently, the function has no source, as before.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

__all__ = ["generated_init"]

_qualname: Any = type.__dict__["__qualname__"].__get__
_namespace: Any = type.__dict__["__dict__"].__get__


def generated_init(fn: FunctionType) -> ast.FunctionDef | None:
    """Return the definition that ``fn`` may have been compiled from, if it can be a generated ``__init__``."""
    code = fn.__code__
    if code.co_name != "__init__" or code.co_filename != "<string>" or code.co_firstlineno < 2:
        return None
    cls = owner(fn)
    if cls is None:
        return None
    body = list(statements(cls, code)) or ["pass"]
    lines = [
        "if True:",
        *[""] * (code.co_firstlineno - 2),
        f" def __init__({parameters(code)}):",
        *("  " + s for s in body),
    ]
    [block] = ast.parse("\n".join(lines)).body
    assert isinstance(block, ast.If)
    [definition] = block.body
    assert isinstance(definition, ast.FunctionDef)
    return definition


def owner(fn: FunctionType) -> type | None:
    """Return the dataclass that the function belongs to, found by its name in its module, or among all classes."""
    if "<locals>" in fn.__qualname__:
        return local_owner(fn)
    found: Any = fn.__globals__
    for step, name in enumerate(fn.__qualname__.split(".")[:-1]):
        found = found.get(name) if step == 0 else vars(found).get(name)
        if not isinstance(found, type):
            return None
    return found if isinstance(found, type) and dataclasses.is_dataclass(found) else None


def local_owner(fn: FunctionType) -> type | None:
    """Return the dataclass that a function has made: only the class itself has its name."""
    name = fn.__qualname__.rpartition(".")[0]
    pending: list[type] = [object]
    seen = set[int]()  # by id, since a metaclass of the program may have no hash
    while pending:
        classes: list[type] = type.__subclasses__(pending.pop())
        for cls in classes:
            if id(cls) in seen:
                continue
            seen.add(id(cls))
            pending.append(cls)
            # Attribute access could run the code of a metaclass.
            if _qualname(cls) == name and getattr(_namespace(cls).get("__init__"), "__code__", None) is fn.__code__:
                return cls if dataclasses.is_dataclass(cls) else None
    return None


def parameters(code: CodeType) -> str:
    names = code.co_varnames
    keyword_only = names[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    return ", ".join([*names[: code.co_argcount], *(["*", *keyword_only] if keyword_only else [])])


def statements(cls: type, code: CodeType) -> Iterator[str]:
    """Yield the body: an assignment for each field, then ``__post_init__``. Names that differ by version are taken from
    the code."""
    self = code.co_varnames[0]
    cells = code.co_freevars
    frozen = "__dataclass_builtins_object__" in cells
    fields = vars(cls)["__dataclass_fields__"].values()
    late: list[str] = []  # what only __init__ and __post_init__ see
    for field in fields:
        kind = field._field_type.name  # the public fields() leaves these out
        if kind == "_FIELD_INITVAR":
            late.append(field.name)
            continue
        if kind != "_FIELD":
            continue
        default = next((n for n in (f"_dflt_{field.name}", f"__dataclass_dflt_{field.name}__") if n in cells), "")
        value = field.name if field.init else default
        if field.default_factory is not dataclasses.MISSING:
            value = f"{default}()"
            if field.init:
                marks = ("_HAS_DEFAULT_FACTORY", "__dataclass_HAS_DEFAULT_FACTORY__")
                mark = next((name for name in marks if name in cells), marks[0])
                value = f"{value} if {field.name} is {mark} else {field.name}"
        if not value:
            continue
        if frozen:
            yield f"__dataclass_builtins_object__.__setattr__({self},{field.name!r},{value})"
        else:
            yield f"{self}.{field.name}={value}"
    if hasattr(cls, "__post_init__"):
        yield f"{self}.__post_init__({','.join(late)})"
