"""Functions of torchjanus's own that a watched run records as operations, in place of what the program called.

Each is an ordinary function. Lowering replaces some of them by operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["added_up", "placed", "taken"]


def added_up(rows: Sequence[torch.Tensor], start: Any = 0) -> torch.Tensor:
    """Return what recursive calls have added up. Of a list to which they append it is the sum of its rows."""
    return sum(rows, start)


def taken(rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Return the rows at these places, none of which is out of range or comes twice: of a padded batch, packed."""
    return rows.index_select(0, places)


def placed(rows: torch.Tensor, places: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    """``rows``, which need no gradients, with those of ``data`` at these places: of a packed batch, padded."""
    return rows.index_copy(0, places, data)
