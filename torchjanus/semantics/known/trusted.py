"""Library internals that are trusted to stay unpatched between calls, and those that are called natively.

Reads of functions, classes, modules and texts in a trusted library's own namespaces are not guarded. Numbers, flags and
containers found there are guarded like the user's.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from torch._functorch import predispatch

from torchjanus.core.kinds import isinstance, module_of

__all__ = [
    "IGNORED",
    "SETTING_UP",
    "is_installed",
    "is_settled",
    "is_trusted_class",
    "is_trusted_module",
]

_TRUSTED_ROOTS = frozenset({"torch", "numpy", "torchjanus", "builtins", *sys.stdlib_module_names}) - {
    "__main__",
    "this",
}

# Kinds of objects that a trusted namespace does not rebind after import.
_SETTLED = (
    types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
    types.ModuleType, type, str, type(None)
)  # fmt: skip

# Modules whose functions have no effect that the user can see and return nothing that the step uses: instrumentation,
# and queries of the compiler. They are called while watching and left out of the graph.
IGNORED = (
    "torch._dynamo", "torch.compiler", "torch.autograd.profiler", "torch.profiler", "torch.overrides", "torch.jit",
    "torch._jit_internal", "torch._utils_internal", "torch.utils._foreach_utils", "torch.utils._config_module",
    "torch._logging", "torch.fx", "importlib", "inspect", "typing", "typing_extensions", "abc", "_weakrefset",
    "weakref", "warnings", "enum", "dataclasses", "functools", "packaging", "re", "copyreg"
)  # fmt: skip


# These fill internal tables of torch on their first call.
SETTING_UP = frozenset({predispatch.lazy_load_decompositions})


def is_trusted_module(name: Any) -> bool:
    """Whether the module of this name belongs to a trusted library."""
    return isinstance(name, str) and name.partition(".")[0] in _TRUSTED_ROOTS


def is_installed(filename: str) -> bool:
    """Whether a file belongs to an installed package, whose functions keep their code and defaults. Functions in the
    user's files may get new ones while the program runs (IPython's autoreload does that)."""
    return "site-packages" in filename or "dist-packages" in filename


def is_trusted_class(cls: type) -> bool:
    return is_trusted_module(module_of(cls))


def is_settled(value: Any) -> bool:
    """Whether a trusted namespace is assumed to keep this value."""
    return isinstance(value, _SETTLED) or module_of(type(value)) == "torch"
