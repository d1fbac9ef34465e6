"""Operations whose result size depends on contents: the host makes them, between parts of a graph.

``nonzero`` and the like return integers, through which no gradient flows. The host calls them like native code, and the
graph continues with the results, of whatever size. Selection by a mask is expressed by positions, as ATen does. Knows
nothing of how the host's calls are recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchjanus.core.errors import Place
from torchjanus.core.kinds import isinstance
from torchjanus.semantics.torch.dynamic_index import DynamicIndexWatch, picks, stores

__all__ = ["Selections", "selection", "sized_by_contents"]

# Makes a call on the host: the function and its arguments.
Host = Callable[..., torch.Tensor]
# Makes a recorded call of torch.
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
        picks: DynamicIndexWatch,
        is_given: Callable[[torch.Tensor], bool],
    ) -> None:
        """``really`` makes its first argument, a call as the program has it, and records another. ``holds`` asserts the
        present result of comparing two numbers. ``is_given``: whether a tensor is from before the call."""
        self._host = host
        self._is_given = is_given
        self._holds = holds
        self._framework = framework
        self._really = really
        self.picks = picks

    def plain(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return what the host is given: the tensor under a name of its own. By that name the graph may make the
        selection instead (see graph.generalize.selections)."""
        if not tensor.requires_grad and self._is_given(tensor):
            return tensor
        plain: torch.Tensor = self._framework(torch.Tensor.detach, tensor)
        return plain

    def _positions(self, mask: torch.Tensor) -> torch.Tensor:
        """Return the positions of nonzero elements, one row each."""
        return self._host(torch.nonzero, self.plain(mask))

    def _columns(self, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        columns: tuple[torch.Tensor, ...] = self._framework(torch.Tensor.unbind, self._positions(mask), 1)
        return columns

    def nonzero(self, tensor: torch.Tensor, *, as_tuple: bool = False) -> Any:
        """Return ``torch.nonzero``."""
        return self._columns(tensor) if as_tuple else self._positions(tensor)

    def where(self, condition: torch.Tensor) -> Any:
        """Return ``torch.where`` of one argument."""
        return self._columns(condition)

    def bincount(self, tensor: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> torch.Tensor:
        """Return ``torch.bincount``."""
        given = [self.plain(one) for one in (tensor, weights) if one is not None]
        return self._host(torch.bincount, *given, minlength=minlength)

    def unique(self, tensor: torch.Tensor, /, *args: Any, **kwargs: Any) -> Any:
        """Return ``torch.unique``, which has no gradient."""
        return self._host(torch.Tensor.unique, tensor, *args, **kwargs)

    def unique_consecutive(self, tensor: torch.Tensor, /, *args: Any, **kwargs: Any) -> Any:
        """Return ``torch.unique_consecutive``."""
        return self._host(torch.Tensor.unique_consecutive, tensor, *args, **kwargs)

    def masked_select(self, tensor: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return ``torch.masked_select``."""
        wide, wide_mask = self._framework(torch.broadcast_tensors, tensor, mask)
        selected: torch.Tensor = self._really(
            lambda: torch.masked_select(tensor, mask), torch.Tensor.__getitem__, wide, self._columns(wide_mask)
        )
        return selected

    def repeat_interleave(
        self, tensor: torch.Tensor, repeats: torch.Tensor, dim: int | None = None, *, output_size: int | None = None
    ) -> torch.Tensor:
        """Return ``torch.repeat_interleave`` with a tensor of counts."""
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
        """Return ``tensor[key]`` with masks in the key."""
        return self._really(lambda: tensor[key], torch.Tensor.__getitem__, tensor, self._key(tensor, key))

    def pick(self, tensor: torch.Tensor, key: Any) -> torch.Tensor:
        """Return ``tensor[key]`` with tensors of one integer in the key."""
        return self.picks.item(tensor, key)

    def store(self, tensor: torch.Tensor, key: Any, value: Any) -> None:
        """Do ``tensor[key] = value`` with tensors of one integer in the key, or a number from a tensor."""
        self.picks.store(tensor, key, value)

    def set_item(self, tensor: torch.Tensor, key: Any, value: torch.Tensor) -> Any:
        """Do ``tensor[key] = value`` with masks in the key and one element for each position."""

        def assign() -> None:
            tensor[key] = value

        return self._really(assign, torch.Tensor.__setitem__, tensor, self._key(tensor, key), value)

    def _key(self, tensor: torch.Tensor, key: Any) -> tuple[Any, ...]:
        for first, mask in _masks(tensor, key):
            for dim in range(mask.dim()):  # positions do not raise where the mask would
                sizes = (torch.Tensor.size, tensor, first + dim), (torch.Tensor.size, mask, dim)
                self._holds("==", *(self._framework(*size) for size in sizes))
        parts: list[Any] = []
        for part in key if type(key) is tuple else (key,):
            parts.extend(self._columns(part) if _is_mask(part) else (part,))
        return tuple(parts)


def _is_mask(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in _MASKS and value.dim() > 0


def _masks(tensor: torch.Tensor, key: Any) -> list[tuple[int, torch.Tensor]]:
    """Return the masks in a key, each with the first dimension to which it applies."""
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
    """Whether the key has masks and all of them fit. Otherwise the subscript raises."""
    masks = _masks(tensor, key)
    fit = all(tuple(mask.shape) == tuple(tensor.shape[dim : dim + mask.dim()]) for dim, mask in masks)
    return bool(masks) and fit


def sized_by_contents(short: str, args: tuple[Any, ...], kwargs: dict[str, Any], place: Place) -> bool:
    """Whether the sizes of what a call of torch's function ``short`` returns depend on contents."""
    rest = (*args[1:], *kwargs.values())
    match short:
        case "unique" | "unique_consecutive":
            return True
        case "one_hot":
            return not rest or -1 in rest
        case "tensor_split":
            return any(isinstance(one, torch.Tensor) for one in rest)
    return selection(short, args, kwargs, place) not in ("", "pick", "store")


def selection(short: str, args: tuple[Any, ...], kwargs: dict[str, Any], place: Place) -> str:
    """Return the method of Selections that makes a call of torch's function ``short`` at ``place``; "" if the size of
    its result does not depend on contents."""
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
