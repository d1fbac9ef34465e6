"""Replays the user's code that autograd calls: its recorded nodes run when autograd, on fake tensors, calls it.

The user's own functions are not called here; their effects in Python are applied at commit.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import torch

from torchjanus.core.errors import NOWHERE, InternalFault, Refusal, Refused, refused
from torchjanus.graph.ir.program import Node, Ref
from torchjanus.trace.user_code import ACCUMULATED, BEFORE, GRADIENT, Begin, End, Hook, Unhook

__all__ = ["UserCodeReplay"]


class UserCodeReplay:
    """The code sections of one run. ``execute(first, last)`` runs the nodes between and the snapshots at ``last``."""

    def __init__(
        self, nodes: tuple[Node, ...], values: dict[int, torch.Tensor], execute: Callable[[int, int], None]
    ) -> None:
        self._nodes = nodes
        self._values = values
        self._execute = execute
        self._waiting: dict[int, collections.deque[int]] = collections.defaultdict(collections.deque)
        self._handles: dict[int, Any] = {}
        self.probing = False  # during a trial backward, see ``autograd_probe``

    def take(self, position: int) -> int:
        """Apply the mark at this position; return the position to continue from."""
        node = self._nodes[position]
        mark = node.func
        if isinstance(mark, Hook):
            self._handles[mark.number] = self._hook(mark, self._values[node.args[0].index])
            return position + 1
        if isinstance(mark, Unhook):
            self._handles[mark.number].remove()
            return position + 1
        if not isinstance(mark, Begin):
            raise InternalFault(f"{mark} without a beginning")
        end = self._end(position)
        if mark.called == "forward":
            self._apply(position, end)
        else:
            self._waiting[mark.number].append(position)
        return end + 1

    def finish(self) -> None:
        """Check that autograd has called all sections. Raises Refused."""
        left = next((waiting[0] for waiting in self._waiting.values() if waiting), None)
        if left is not None:
            raise Refused(_other_order(self._nodes[left]))

    def _end(self, position: int) -> int:
        depth = 0
        for number in range(position, len(self._nodes)):
            mark = self._nodes[number].func
            depth += isinstance(mark, Begin) - isinstance(mark, End)
            if depth == 0:
                return number
        raise InternalFault("code that autograd calls does not end")

    def _called(self, number: int, grads: tuple[torch.Tensor | None, ...], saved: Any = ()) -> list[Any]:
        """Run the nodes of the section with this number, which autograd calls; return its results. Raises Refused."""
        if self.probing:
            return [None]
        if not self._waiting[number]:
            raise Refused(_other_order(None))
        position = self._waiting[number].popleft()
        begin, end = self._nodes[position], self._end(position)
        mark = begin.func
        assert isinstance(mark, Begin)
        if tuple(grad is not None for grad in grads) != mark.given:
            raise Refused(_other_order(begin))
        given = [*(grad for grad in grads if grad is not None), *(saved[index] for index in mark.unpacked)]
        self._name(begin.outs, given, begin)
        self._execute(position + 1, end)
        (returned,) = self._nodes[end].args
        return [None if part is None else self._values[part.index] for part in returned]

    def _hook(self, mark: Hook, tensor: torch.Tensor) -> Any:
        number = mark.number
        if mark.called == ACCUMULATED:
            return tensor.register_post_accumulate_grad_hook(lambda leaf: self._accumulated(number))
        if mark.called == GRADIENT:
            return tensor.register_hook(lambda grad: self._called(number, (grad,))[0])
        function: Any = tensor.grad_fn
        if mark.called == BEFORE:
            return function.register_prehook(lambda grads: self._around(number, grads))
        return function.register_hook(lambda returned, given: self._around(number, (*returned, *given)))

    def _accumulated(self, number: int) -> None:
        self._called(number, ())

    def _around(self, number: int, grads: tuple[torch.Tensor | None, ...]) -> tuple[Any, ...] | None:
        """Run a section before or after a function of autograd."""
        return None if self.probing else tuple(self._called(number, grads)) or None

    def _apply(self, position: int, end: int) -> None:
        """Replay ``Function.apply`` by an autograd.Function that runs the user's recorded nodes."""
        begin, closing = self._nodes[position], self._nodes[end]
        mark, final = begin.func, closing.func
        assert isinstance(mark, Begin)
        assert isinstance(final, End)
        calling, number = self, mark.number
        returned, saved, dirty, undifferentiable = closing.args
        tensors = [self._values[ref.index] for ref in begin.args]

        class Replayed(torch.autograd.Function):
            @staticmethod
            def forward(state: Any, *_: torch.Tensor) -> tuple[torch.Tensor, ...]:
                calling._execute(position + 1, end)
                state.save_for_backward(*(None if ref is None else calling._values[ref.index] for ref in saved))
                state.mark_dirty(*(calling._values[ref.index] for ref in dirty))
                state.mark_non_differentiable(*(calling._values[ref.index] for ref in undifferentiable))
                state.set_materialize_grads(final.materialise)
                return tuple(calling._values[ref.index] for ref in returned)

            @staticmethod
            def backward(state: Any, *grads: torch.Tensor | None) -> Any:
                unpacked = state.saved_tensors  # raises where the graph has been freed
                if calling.probing:
                    return tuple(torch.zeros_like(tensor) for tensor in tensors)
                return tuple(calling._called(number, grads, unpacked))

        replayed: Any = Replayed
        self._name(closing.outs, list(replayed.apply(*tensors)), closing)

    def _name(self, refs: tuple[Ref, ...], tensors: list[Any], node: Node) -> None:
        for ref, tensor in zip(refs, tensors, strict=True):
            if self._values.setdefault(ref.index, tensor) is not tensor:
                what = "code that autograd calls was given a new tensor, and an existing one when it was watched"
                raise refused("trace-differs", what, "The aliasing is not stable.", place=node.place)


def _other_order(node: Node | None) -> Refusal:
    place = NOWHERE if node is None else node.place
    return Refusal(
        "trace-differs", "autograd calls the step's code in another order", "Than when it was watched.", place=place
    )
