"""Finds code of the program that no recorded call has run, and that may do what torch's calls do not show: ask for the
exact class of an object, or for the state of the generator, or how long an object lives, or call a
``torch.autograd.Function`` of its own.

Where a program has such code, served calls are observed while they run. Knows neither paths nor graphs.
"""

from __future__ import annotations

import linecache
import sys
import types
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from torchjanus.runtime.coexecution.recording import settings
from torchjanus.runtime.coexecution.recording.observer import asks_for_class, is_foreign, is_seen_through

__all__ = ["is_exposed"]

_NAMES = frozenset(
    {"get_rng_state", "get_state", "fork_rng", "default_generator", "Function", "weakref", "getrefcount"}
)


def is_exposed(names: Iterable[str | None]) -> bool:
    """Whether these modules, or those of the program that they know, have such code. What cannot be read, and a
    library, counts as having it."""
    todo, done = list(names), set[str | None]()
    while todo:
        name = todo.pop()
        if name in done or (name or "").startswith("namedtuple_"):
            continue
        done.add(name)
        module = sys.modules.get(name or "")
        file = getattr(module, "__file__", None) or getattr(getattr(module, "__spec__", None), "origin", None)
        if file is not None and (file in ("built-in", "frozen") or is_seen_through(file)):
            continue
        if file is None and (name or "").startswith("torch."):  # torch._VF has none
            continue
        if module is None or file is None or is_foreign(file) or _asks("".join(linecache.getlines(file)), file):
            return True
        todo += (known for value in vars(module).values() if isinstance(known := _module_of(value), str))
    return False


def _module_of(value: Any) -> Any:
    """Return the name of a module, or of the module of a function or class."""
    return value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)


@lru_cache(maxsize=256)
def _asks(source: str, file: str) -> bool:
    if not source:
        return True
    module, *functions = _codes(compile(source, file, "exec", dont_inherit=True))
    return (
        any(asks_for_class(code) or not _NAMES.isdisjoint(code.co_names) for code in (module, *functions))
        or any(not settings.NAMES.isdisjoint(code.co_names) for code in functions)  # a module's own code runs once
    )


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)
