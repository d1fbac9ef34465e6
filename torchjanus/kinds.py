"""``isinstance`` by what an object is, past what it says of itself. Knows nothing of torch.

Python's own asks an object for its ``__class__`` where its type does not tell: that may be code of the program's, which
whoever watches the program must not run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["isinstance"]

if TYPE_CHECKING:
    from builtins import isinstance as isinstance  # noqa: PLC0414
else:

    def isinstance(value: Any, kinds: Any, /) -> bool:
        """Whether the value's type derives from one of the kinds."""
        return issubclass(type(value), kinds)
