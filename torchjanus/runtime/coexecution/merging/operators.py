"""The operators of a step's calls, merged: what was observed of one holds for all its occurrences.

Two calls of torch are the same operator if function, constants, and the metadata of the tensors are equal. (Terra,
section 4.2; the location is left out, since no result depends on it.) An operator is observed at its first occurrence.
From then on a skeleton need not wait for it. Knows neither runs nor graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from torchjanus.core.trees import map_leaves
from torchjanus.runtime.coexecution.recording.events import ARITHMETIC, Meta, exact, meta_of
from torchjanus.runtime.coexecution.recording.kinds import called
from torchjanus.runtime.coexecution.recording.lines import watched_from_line
from torchjanus.runtime.coexecution.recording.placeholders import Placeholder
from torchjanus.semantics.torch.torch_state import generator_state

__all__ = ["ANSWERED", "Call", "Operator", "Operators", "may_change"]

# Operators whose success and whose results' metadata depend only on constants and metadata. Not among them: what may
# raise because of contents (``embedding``, ``cross_entropy``, a subscript by tensors), and attention, whose kernel a
# program may select. A number argument may be a tensor's; so tensors are allowed only where their contents are data: as
# the first argument of these, ...
_OF_ONE = frozenset(
    """abs absolute adaptive_avg_pool1d adaptive_avg_pool2d all alpha_dropout any argmax argmin avg_pool1d avg_pool2d
    broadcast_to ceil chunk clone contiguous cos cosh cumsum detach double dropout dropout1d dropout2d elu
    empty_like erf exp expand expm1 flatten flip float floor full_like gelu glu half hardsigmoid hardswish hardtanh
    int interpolate isfinite isinf isnan leaky_relu log log1p log_softmax logical_not logsigmoid logsumexp long
    max_pool1d max_pool2d mean mish movedim narrow neg new_full new_ones new_zeros norm normalize ones_like pad
    permute pixel_shuffle prod rand_like randn_like reciprocal relu relu6 repeat reshape roll round rsqrt select
    selu sigmoid sign silu sin sinh softmax softmin softplus softsign split sqrt square squeeze std sum swapaxes t
    tan tanh tile transpose tril triu unbind unflatten unfold unsqueeze upsample var view zeros_like __abs__
    __getitem__ __invert__ __neg__ T mT H""".split()
)
# ... or anywhere, ...
_OF_SEVERAL = frozenset(
    """add addcmul addmm amax amin atan2 baddbmm batch_norm binary_cross_entropy_with_logits bmm broadcast_tensors
    cat clamp clamp_max clamp_min concat conv1d conv2d conv3d conv_transpose1d conv_transpose2d div einsum eq expand_as
    ge group_norm gt huber_loss instance_norm l1_loss layer_norm le lerp linear logaddexp logical_and logical_or
    logical_xor lt masked_fill matmul max maximum meshgrid min minimum mm mse_loss mul ne outer pow reshape_as
    rms_norm rsub smooth_l1_loss stack sub subtract to true_divide type_as view_as
    __add__ __and__ __eq__ __ge__ __gt__ __le__ __lt__ __matmul__ __mul__ __ne__ __or__ __pow__ __radd__ __rmatmul__
    __rmul__ __rpow__ __rsub__ __rtruediv__ __sub__ __truediv__ __xor__""".split()
)
# ... or nowhere.
_OF_NONE = frozenset("""arange eye full linspace ones rand randn zeros""".split())
# They change their first argument.
_IN_PLACE = frozenset("""add_ copy_ div_ fill_ mul_ sub_ zero_""".split())
# Queries that a placeholder answers by itself.
ANSWERED = frozenset(
    """shape size dim ndim ndimension dtype device layout requires_grad stride numel nelement element_size itemsize
    nbytes is_contiguous is_floating_point is_complex is_signed is_sparse is_cuda is_cpu __len__""".split()
)
# How many tensors may be among the arguments.
_TENSORS = {
    **dict.fromkeys(_OF_ONE, 1), **dict.fromkeys(_OF_NONE, 0),
    **dict.fromkeys((*_OF_SEVERAL, *_IN_PLACE, "where"), 1 << 16),
}  # fmt: skip
_SPECIAL = frozenset({"out", "rounding_mode", "generator"})  # arguments with which an operator is made at once
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_MOST = 4096  # operators of one step that are known


@dataclass(frozen=True, slots=True)
class Operator:
    """``results``: for each result the number of the argument that it is, or the metadata of a new tensor; None for
    None. ``kind``: the class of the result, ``torch.Tensor`` for one that is alone. ``mutated``: the numbers of
    arguments that it changes; ``draws``: whether it draws random numbers."""

    results: tuple[int | Meta | None, ...]
    kind: type
    mutated: tuple[int, ...]
    draws: bool


@dataclass(slots=True)
class Call:
    """One call of torch: its key among the operators, and its distinct tensors in order of their first occurrence.
    ``shared``: of these, the ones whose memory may belong to an array as well."""

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    key: tuple[Any, ...]
    tensors: list[torch.Tensor]
    shared: list[torch.Tensor]


class _Native(Exception):
    """An argument that no deferred operator may have."""


class Operators:
    """The operators that the calls of one step make. For an operator that has to be made at once there is a None."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], Operator | None] = {}

    def __len__(self) -> int:
        return len(self._known)

    def call(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        """Return a call of an operator that may be deferred; None where it has to be made at once."""
        short = called(func).short
        most = _TENSORS.get(short)
        if most is None or (kwargs and not _SPECIAL.isdisjoint(kwargs)) or (short == "where" and len(args) != 3):
            return None
        tensors: list[torch.Tensor] = []
        with torch._C.DisableTorchFunctionSubclass():
            try:
                given = tuple([_form(part, tensors, short in ARITHMETIC) for part in args])
                named = tuple([(name, _form(part, tensors, False)) for name, part in kwargs.items()])
            except _Native:
                return None
            first = args[0] if args else kwargs.get("input")
            if len(tensors) > most or (most == 1 and tensors and tensors[0] is not first):
                return None
            key = (func, torch.is_grad_enabled(), torch.get_default_dtype(), given, named)
        if any(map(_has_list, (*args, *kwargs.values()))):  # it may change before the call is made
            args, kwargs = map_leaves((args, kwargs), _itself)
        real = (tensor for tensor in tensors if type(tensor) is not Placeholder)
        shared = [tensor for tensor in real if not tensor.untyped_storage().resizable()]
        return Call(func, args, kwargs, key, tensors, shared)

    def get(self, call: Call) -> tuple[bool, Operator | None]:
        """Return whether the call's operator has been observed, and what is known of it."""
        found = self._known.get(call.key, self)
        return (False, None) if found is self else (True, found)  # type: ignore[return-value]

    def observe(self, call: Call) -> Any:
        """Make the call, whose arguments hold contents, and learn what it does. Returns its result."""
        before = generator_state()
        metas, versions = [*map(meta_of, call.tensors)], [tensor._version for tensor in call.tensors]
        result, warns = watched_from_line(call.func, call.args, call.kwargs)
        draws = generator_state() != before
        changed = tuple(k for k, tensor in enumerate(call.tensors) if tensor._version != versions[k])
        if len(self._known) < _MOST:
            same = not warns and metas == [*map(meta_of, call.tensors)]
            self._known[call.key] = _operator(call, result, changed, draws) if same else None
        return result


def _has_list(tree: Any) -> bool:
    kind = type(tree)
    return kind is list or (kind is tuple and any(map(_has_list, tree)))


def _itself(leaf: Any) -> Any:
    return leaf


def _operator(call: Call, result: Any, changed: tuple[int, ...], draws: bool) -> Operator | None:
    """Return what is known of an operator after one call; None if it cannot be deferred."""
    alone = isinstance(result, torch.Tensor)
    kind = torch.Tensor if alone else type(result)
    if not (alone or kind in (tuple, list) or kind.__module__ == "torch.return_types"):
        return None
    if any(not may_change(call.tensors[k]) for k in changed):
        return None
    results: list[int | Meta | None] = []
    made: list[torch.Tensor] = []
    for one in (result,) if alone else result:
        if one is None:
            results.append(None)
            continue
        number = next((k for k, tensor in enumerate(call.tensors) if tensor is one), None)
        if number is not None:
            results.append(number)
        elif type(one) is not torch.Tensor or _is_odd(one) or any(one is other for other in made):
            return None
        else:
            made.append(one)
            results.append(meta_of(one))
    return Operator(tuple(results), kind, changed, draws)


def may_change(tensor: torch.Tensor) -> bool:
    """Whether an operator that changes the tensor can be deferred: autograd has nothing to check."""
    plain = type(tensor) is torch.Tensor and not (tensor.requires_grad or tensor._is_view())
    return plain and tensor.untyped_storage().resizable()


def _form(tree: Any, tensors: list[torch.Tensor], arithmetic: bool) -> Any:
    """Return a hashable form of arguments. Tensors are added to ``tensors``. Raises _Native."""
    kind = type(tree)
    if kind is Placeholder or kind in _PLAIN:
        for k, tensor in enumerate(tensors):
            if tensor is tree:
                return k
        if kind is not Placeholder and _is_odd(tree):
            raise _Native
        tensors.append(tree)
        return kind is torch.nn.Parameter, tree.size(), tree.stride(), tree.dtype, tree.requires_grad
    if kind in (tuple, list, torch.Size):
        return (kind, *(_form(part, tensors, arithmetic) for part in tree))
    if kind is slice:
        return (slice, *(_form(part, tensors, False) for part in (tree.start, tree.stop, tree.step)))
    if arithmetic and (kind is float or (kind is int and -(1 << 63) <= tree < 1 << 63)):  # others raise
        return kind
    if kind in _CONSTANTS:
        return exact(tree)
    raise _Native


_CONSTANTS = (
    bool, int, float, complex, str, type(None), type(Ellipsis), torch.dtype, torch.device, torch.layout,
    torch.memory_format,
)  # fmt: skip


def _is_odd(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout != torch.strided
        or tensor.device.type != "cpu"
        or tensor.is_inference()
        or tensor.is_conj()
        or tensor.is_neg()
    )
