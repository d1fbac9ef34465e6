"""Python modules that are never entered, each with the reason, as plain data. Knows nothing of hooks.

A semantics with more knowledge (of torch's internals, say) adds its own list in its ``leave_native``.
"""

from __future__ import annotations

from collections.abc import Mapping

from torchjanus.core.kinds import isinstance

__all__ = ["NATIVE_MODULES", "REPLACING", "module_reason"]

NATIVE_MODULES: Mapping[str, str] = {
    "torchjanus": "torchjanus itself",
    "importlib": "the import system",
    "_frozen_importlib": "the import system",
    "_frozen_importlib_external": "the import system",
    "zipimport": "the import system",
    "threading": "locks and threads",
    "_thread": "locks and threads",
    "queue": "locks and threads",
    "concurrent": "locks and threads",
    "multiprocessing": "locks and threads",
    "asyncio": "an event loop: runs on its own stack of frames",
    "selectors": "an event loop: runs on its own stack of frames",
    "contextvars": "contexts",
    "weakref": "called back by the garbage collector",
    "_weakrefset": "called back by the garbage collector",
    "warnings": "looks at its caller's frame",
    "logging": "looks at its caller's frame",
    "inspect": "looks at its caller's frame",
    "traceback": "looks at its caller's frame",
    "linecache": "used to find source",
    "tokenize": "used to find source",
    "ast": "used to find source",
    "dis": "used to find source",
    "pdb": "a debugger",
    "bdb": "a debugger",
    "typing": "looks at its caller's frame",
    "enum": "looks at its caller's frame",
    "dataclasses": "looks at its caller's frame and makes code",
    "abc": "class machinery",
    "_py_abc": "class machinery",
    "pickle": "takes functions apart",
    "copyreg": "takes functions apart",
    "unittest": "a test framework",
    "pytest": "a test framework",
    "_pytest": "a test framework",
}

# Libraries that replace attributes of other modules and classes for a while, where no hook sees it.
REPLACING: Mapping[str, str] = dict.fromkeys(("unittest", "pytest", "_pytest", "mock"), "a test framework")

# Part of torchjanus, but run in place of library functions, or around the program's, and watched like the program.
_STAND_INS = ("stand_ins", "reducing", "heaps", "inspecting")
_ENTERED = frozenset(
    {*(f"torchjanus.semantics.protocols.{name}" for name in _STAND_INS), "torchjanus.semantics.staged.marking"}
)


def module_reason(module: object, listed: Mapping[str, str]) -> str | None:
    """Return why this module's functions are left native, by the longest listed prefix of its name; or None."""
    if not isinstance(module, str) or module in _ENTERED:
        return None
    name = module
    while name:
        reason = listed.get(name)
        if reason is not None:
            return f"{reason} ({name})"
        name = name.rpartition(".")[0]
    return None
