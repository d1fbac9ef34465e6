"""Leaves whose gradients matter in a watched run: state that backward() adds to and the program may read.

Knows nothing of how framework calls are recorded.
"""

from __future__ import annotations

import contextlib
from typing import Protocol

import torch

from torchjanus.core.access_path import AccessPath, Step
from torchjanus.host.node_hooks import has_node_hooks
from torchjanus.semantics.record.recording import Recording

__all__ = ["Gradients", "Reductions"]


class Reductions(Protocol):
    """What reduces gradients over processes in a backward pass, and records that after it."""

    def reducing(self) -> contextlib.AbstractContextManager[None]: ...
    def record_reduction(self) -> None: ...


class Gradients:
    """The gradients of one run."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        # Leaves whose .grad the program has read, set or accumulated into, with their version then.
        self._leaves: dict[int, tuple[torch.Tensor, int]] = {}
        self._unread: dict[int, tuple[torch.Tensor, AccessPath]] = {}  # those whose gradient has not mattered so far
        self._hooked: list[AccessPath] = []  # those with hooks on the autograd node that accumulates their gradient

    @property
    def leaves(self) -> list[torch.Tensor]:
        """Leaves that may have gradients."""
        return [leaf for leaf, _ in self._leaves.values()]

    def meet(self, tensor: torch.Tensor, access_path: AccessPath, thawed: bool) -> None:
        """The run uses a tensor from before the call. ``thawed``: it required no gradient, and may get one now."""
        with torch._C.DisableTorchFunction():
            if (thawed or tensor.requires_grad) and tensor.is_leaf and id(tensor) not in self._leaves:
                # Its gradient at the start of the call is state that backward() may add to, until it is replaced.
                self._follow(tensor)
                self._unread[id(tensor)] = tensor, access_path

    def read(self, leaf: torch.Tensor) -> None:
        """The gradient that the leaf had when the call began matters."""
        if id(leaf) in self._unread:
            _, access_path = self._unread.pop(id(leaf))
            with torch._C.DisableTorchFunction():
                self.recording.found(access_path.then(Step.FIELD, "grad"), leaf.grad)

    def read_all(self) -> None:
        """Backward() adds to all gradients."""
        for leaf, _ in list(self._unread.values()):
            self.read(leaf)

    def flow(self) -> None:
        """Autograd computes gradients."""
        for access_path in self._hooked[:1]:
            self.recording.refuse(
                "hook-on-node",
                f"a hook is registered on the node of autograd that adds to the gradient of {access_path}",
                "a graph has no such nodes.",
                "Register it on the tensor (register_hook, register_post_accumulate_grad_hook).",
            )

    def replace(self, leaf: torch.Tensor) -> None:
        """The gradient is set or deleted. Whether there was one before makes no difference."""
        self._unread.pop(id(leaf), None)
        if self.recording.number(leaf) is None:
            self._follow(leaf)

    def _follow(self, leaf: torch.Tensor) -> None:
        if id(leaf) not in self._leaves and (access_path := self.recording.owner(leaf)) is not None:
            if has_node_hooks(leaf):  # checked before its node is part of this call's graph
                self._hooked.append(access_path)
        self._leaves[id(leaf)] = leaf, leaf._version

    @property
    def changed(self) -> bool:
        """Whether the run has changed a parameter."""
        return any(leaf._version != version for leaf, version in self._leaves.values())
