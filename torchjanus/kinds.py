"""What an object is, past what it says of itself. Knows nothing of torch.

Python's own ``isinstance`` asks an object for its ``__class__`` where its type does not tell, and ``in`` compares it:
that may be code of the program's, which whoever watches the program must not run.
"""

from __future__ import annotations

from collections.abc import Collection
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, MethodType, WrapperDescriptorType
from typing import TYPE_CHECKING, Any

__all__ = ["is_one_of", "isinstance"]

# Nobody's code compares or hashes these.
_FUNCTIONS = frozenset(
    {FunctionType, BuiltinFunctionType, MethodDescriptorType, MethodType, WrapperDescriptorType, type}
)

if TYPE_CHECKING:
    from builtins import isinstance as isinstance  # noqa: PLC0414
else:

    def isinstance(value: Any, kinds: Any, /) -> bool:
        """Whether the value's type derives from one of the kinds."""
        return issubclass(type(value), kinds)


def is_one_of(fn: Any, known: Collection[Any], /) -> bool:
    """Whether a callee is one of these functions and classes."""
    if type(fn) in _FUNCTIONS:
        return fn in known
    return any(one is fn for one in known)
