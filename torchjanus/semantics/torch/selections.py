"""Operations that give as many elements as their operands' contents say: the host makes them, between parts of a graph.

``nonzero`` and its like return whole numbers, through which no gradient flows: the host calls them, as it does native
code, and the graph goes on with what they give, of whatever size. What selects by a mask is put in terms of positions,
which is what ATen makes of it, too. Knows nothing of how the host's calls are recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchjanus.core.errors import Place
from torchjanus.core.kinds import isinstance
from torchjanus.semantics.torch.dynamic_index import Picks, picks, stores

__all__ = ["Selections", "selection"]

# What makes a call of the host's: the function and what it is given.
Host = Callable[..., torch.Tensor]
# What makes a call of torch's that is recorded.
Framework = Callable[..., Any]

_MASKS = (torch.bool, torch.uint8)


class Selections:
    """Makes the calls of one run."""

    def __init__(
        self,
        host: Host,
        framework: Framework,
        really: Framework,
        holds: Callable[[str, Any, Any], object],
        picks: Picks,
        is_given: Callable[[torch.Tensor], bool],
    ) -> None:
        """``really``: makes a call as it stands in the program, its first argument, and records another; ``holds``:
        takes for granted what a comparison of two numbers gives now; ``is_given``: whether a tensor was there before
        the call."""
        self._host = host
        self._is_given = is_given
        self._holds = holds
        self._framework = framework
        self._really = really
        self.picks = picks

    def plain(self, tensor: torch.Tensor) -> torch.Tensor:
        """What the host is given: a tensor of the step by a name that nobody else uses. By that the graph may make the
        selection instead (see graph.selected)."""
        if not tensor.requires_grad and self._is_given(tensor):
            return tensor
        plain: torch.Tensor = self._framework(torch.Tensor.detach, tensor)
        return plain

    def _positions(self, mask: torch.Tensor) -> torch.Tensor:
        """Where it is not zero, a row for each."""
        return self._host(torch.nonzero, self.plain(mask))

    def _columns(self, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        columns: tuple[torch.Tensor, ...] = self._framework(torch.Tensor.unbind, self._positions(mask), 1)
        return columns

    def nonzero(self, tensor: torch.Tensor, *, as_tuple: bool = False) -> Any:
        """``torch.nonzero``."""
        return self._columns(tensor) if as_tuple else self._positions(tensor)

    def where(self, condition: torch.Tensor) -> Any:
        """``torch.where`` of one argument."""
        return self._columns(condition)

    def bincount(self, tensor: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> torch.Tensor:
        """``torch.bincount``."""
        given = [self.plain(one) for one in (tensor, weights) if one is not None]
        return self._host(torch.bincount, *given, minlength=minlength)

    def unique(self, tensor: torch.Tensor, /, *args: Any, **kwargs: Any) -> Any:
        """``torch.unique``, which knows no gradients."""
        return self._host(torch.Tensor.unique, tensor, *args, **kwargs)

    def unique_consecutive(self, tensor: torch.Tensor, /, *args: Any, **kwargs: Any) -> Any:
        """``torch.unique_consecutive``."""
        return self._host(torch.Tensor.unique_consecutive, tensor, *args, **kwargs)

    def masked_select(self, tensor: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """``torch.masked_select``."""
        wide, wide_mask = self._framework(torch.broadcast_tensors, tensor, mask)
        selected: torch.Tensor = self._really(
            lambda: torch.masked_select(tensor, mask), torch.Tensor.__getitem__, wide, self._columns(wide_mask)
        )
        return selected

    def repeat_interleave(
        self, tensor: torch.Tensor, repeats: torch.Tensor, dim: int | None = None, *, output_size: int | None = None
    ) -> torch.Tensor:
        """``torch.repeat_interleave`` with a tensor that says how often."""
        if dim is None:
            tensor, dim = self._framework(torch.Tensor.flatten, tensor), 0
        times = self.plain(repeats)
        if repeats.numel() == 1:
            size = self._framework(torch.Tensor.size, tensor, dim)
            times = self._framework(torch.Tensor.expand, self._framework(torch.Tensor.reshape, times, (1,)), (size,))
        found: torch.Tensor = self._framework(
            torch.Tensor.index_select, tensor, dim, self._host(torch.repeat_interleave, times)
        )
        return found

    def item(self, tensor: torch.Tensor, key: Any) -> Any:
        """``tensor[key]`` with masks in the key."""
        return self._really(lambda: tensor[key], torch.Tensor.__getitem__, tensor, self._key(tensor, key))

    def pick(self, tensor: torch.Tensor, key: Any) -> torch.Tensor:
        """``tensor[key]`` with tensors of one number in the key."""
        return self.picks.item(tensor, key)

    def store(self, tensor: torch.Tensor, key: Any, value: Any) -> None:
        """``tensor[key] = value`` with tensors of one number in the key, or a number from a tensor."""
        self.picks.store(tensor, key, value)

    def set_item(self, tensor: torch.Tensor, key: Any, value: torch.Tensor) -> Any:
        """``tensor[key] = value`` with masks in the key and an element for each place."""

        def assign() -> None:
            tensor[key] = value

        return self._really(assign, torch.Tensor.__setitem__, tensor, self._key(tensor, key), value)

    def _key(self, tensor: torch.Tensor, key: Any) -> tuple[Any, ...]:
        for first, mask in _masks(tensor, key):
            for dim in range(mask.dim()):  # subscripts by positions do not raise where the mask would
                sizes = (torch.Tensor.size, tensor, first + dim), (torch.Tensor.size, mask, dim)
                self._holds("==", *(self._framework(*size) for size in sizes))
        parts: list[Any] = []
        for part in key if type(key) is tuple else (key,):
            parts.extend(self._columns(part) if _is_mask(part) else (part,))
        return tuple(parts)


def _is_mask(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in _MASKS and value.dim() > 0


def _masks(tensor: torch.Tensor, key: Any) -> list[tuple[int, torch.Tensor]]:
    """The masks in a key, each with the first dimension that it is for."""
    parts = key if type(key) is tuple else (key,)
    taken = sum(part.dim() if _is_mask(part) else part is not None and part is not Ellipsis for part in parts)
    found, dim = [], 0
    for part in parts:
        if _is_mask(part):
            found.append((dim, part))
            dim += part.dim()
        elif part is Ellipsis:
            dim += tensor.dim() - taken
        elif part is not None:
            dim += 1
    return found


def _has_masks(tensor: torch.Tensor, key: Any) -> bool:
    """Whether there are masks in the key, and all of them fit: else the subscript raises."""
    masks = _masks(tensor, key)
    fit = all(tuple(mask.shape) == tuple(tensor.shape[dim : dim + mask.dim()]) for dim, mask in masks)
    return bool(masks) and fit


def selection(short: str, args: tuple[Any, ...], kwargs: dict[str, Any], place: Place) -> str:
    """The method of Selections that makes a call of torch's function ``short``, which stands at ``place``; "" where its
    result has a size that does not depend on contents."""
    given = len(args) + len(kwargs)
    tensor = args[0] if args else None
    if not isinstance(tensor, torch.Tensor) or "out" in kwargs:
        return ""
    match short:
        case "nonzero" | "argwhere":
            return "nonzero"
        case "where" if given == 1:
            return "where"
        case "bincount" | "masked_select":
            return short
        case "unique" | "unique_consecutive" if not tensor.requires_grad:
            return short
        case "repeat_interleave" if isinstance(args[1] if len(args) > 1 else kwargs.get("repeats"), torch.Tensor):
            return short
        case "__getitem__" if picks(tensor, args[1], place):
            return "pick"
        case "__getitem__" if _has_masks(tensor, args[1]):
            return "item"
        case "__setitem__" if stores(tensor, args[1], args[2], place):
            return "store"
        case "__setitem__" if (
            _has_masks(tensor, args[1]) and isinstance(args[2], torch.Tensor) and args[2].numel() != 1
        ):
            return "set_item"
    return ""
