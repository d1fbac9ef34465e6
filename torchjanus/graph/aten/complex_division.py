"""Complex division in place, as an operator without side effects: it rounds otherwise than ``aten.div``.

On the CPU a loop divides the elements that vector instructions leave over. Its compiler made two versions of it; which
one runs depends on whether the result lies in the dividend's memory. So the bits of ``z / w`` and ``z.div_(w)`` differ
for some sizes.
"""

from __future__ import annotations

import torch

__all__ = ["DIVIDE_IN_PLACE"]


@torch.library.custom_op("torchjanus::divide_in_place", mutates_args=())
def _divide_in_place(dividend: torch.Tensor, divisor: torch.Tensor) -> torch.Tensor:
    """Return a new tensor with the contents that ``dividend.div_(divisor)`` would have."""
    return dividend.clone().div_(divisor)


_divide_in_place.register_fake(lambda dividend, divisor: dividend.clone())

DIVIDE_IN_PLACE = torch.ops.torchjanus.divide_in_place.default
