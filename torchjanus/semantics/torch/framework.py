"""Records the framework calls of a watched run at the level of the torch API (JANUS's whitelist of known operations).

``F.cross_entropy``, ``Tensor.backward`` or an in-place method is one node. The C++ below it is not entered, nor is
Python code that torch runs for it. Knows nothing of hooks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchjanus.core.default_device import named
from torchjanus.core.kinds import getattr, isinstance
from torchjanus.ops.namespaces import is_operator, operator_name, unsupported_operator
from torchjanus.semantics.known.framework_calls import (
    FETCHES,
    HOOKING,
    METADATA,
    REFUSED,
    SIZED,
    accessor,
    parts_of_name,
    scaled_update,
)
from torchjanus.semantics.protocols.falling_back import call_made_once
from torchjanus.semantics.record.recording import Recording
from torchjanus.semantics.record.replaced_data import hindrance_of
from torchjanus.semantics.torch.arguments import bare
from torchjanus.semantics.torch.fetching import Fetching
from torchjanus.semantics.torch.node_recorder import NodeRecorder
from torchjanus.semantics.torch.packed_sequences import packing
from torchjanus.semantics.torch.selections import selection, sized_by_contents
from torchjanus.trace.modes import note_attention

__all__ = ["FrameworkRecorder"]

_OTHER: Any = object()  # what a step returns for a call that is not its own


class _Call:
    """A call of torch by name (see ``Called``), with its arguments as the program gives them and as torch gets them."""

    __slots__ = ("access", "args", "bare_args", "bare_kwargs", "func", "kwargs", "name", "short")

    def __init__(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.func = accessor(func)
        self.name, self.short, self.access = parts_of_name(self.func)
        self.args, self.kwargs = args, kwargs
        self.bare_args, self.bare_kwargs = bare(args), bare(kwargs)


class FrameworkRecorder(NodeRecorder):
    """Runs every framework call for real and records it."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording)
        # Handles calls that share memory with foreign code.
        self.share_memory: Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any] | None = None
        self.seen = 0  # calls that torch has reported
        self.released = False  # whether the rest of the call is not watched
        self.bare = bare
        self.fetching = Fetching(recording, self.sizes, self.ref, self.call)

    def _check_native_use(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Native code calls torch. Refuse the trace if it uses a tensor of the step that it was not given."""
        for leaf in pytree.tree_leaves((args, kwargs)):
            if isinstance(leaf, torch.Tensor) and id(leaf) not in self._given[-1]:
                if self.recording.number(leaf) is not None:
                    self.recording.refuse(
                        "native-uses-tensor",
                        "native code works with a tensor of the step that it was not given",
                        "what it does with it is not watched.",
                        "Pass the tensor to it.",
                    )

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.seen += 1
        return self.call(func, args, kwargs or {})

    @call_made_once
    def call(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make the call for real, and record it as one node, a fetch, an assertion, or nothing (metadata)."""
        if self.released:
            return self._really(func, *bare(args), **bare(kwargs))
        if self._given:
            self._check_native_use(args, kwargs)
            return self._really(func, *args, **kwargs)
        if self._paused:
            return self._really(func, *args, **kwargs)
        if is_operator(func) and (unsuited := unsupported_operator(func)) is not None:
            self.recording.refuse("custom-operator", f"calls the operator {operator_name(func)}", *unsuited)
            return self._really(func, *bare(args), **bare(kwargs))
        made = _Call(func, args, named(func, kwargs))
        note_attention("attention" if is_operator(func) else made.name)  # an operator of a library may use it within
        leaves = pytree.tree_leaves((args, made.kwargs)) if self.picks is not None and self.picks.any else []
        if self.picks is not None and leaves:
            self.picks.look(leaves)
        if self.packs is not None and self.packs.any:
            if (known := self.packs.number(made.short, args)) is not None:
                return known
            made.args = self.packs.sized(made.short, args)
            made.bare_args = bare(made.args)
        for step in _STEPS:
            if (result := step(self, made)) is not _OTHER:
                return result
        self._prepare(made)
        return self._operate(made.func, made.name, made.args, made.kwargs, made.bare_args, made.bare_kwargs)

    # -- steps: each makes a call that is no operator of the graph, or returns _OTHER --------------------------------

    def _metadata(self, call: _Call) -> Any:
        """Read a gradient, or what a tensor is, apart from its contents."""
        if call.access == "__get__" and call.short == "grad":
            return self._grad(call.func, call.args[0])
        if call.short not in METADATA or call.access == "__set__":
            return _OTHER
        if call.access == "__get__" and self._read_property(call.args[0], call.short):
            return self._really(call.func, *call.bare_args)
        given = (*call.args, *call.kwargs.values())
        for value in given:
            self.arguments.pin_inside(value, f"argument of {call.name}")
        result = self._really(call.func, *call.bare_args, **call.bare_kwargs)
        if call.short in SIZED:
            for value in given:
                self.sizes.pin(value, f"{call.name} is asked for")
        return self.sizes.traced(call.short, call.bare_args, call.bare_kwargs, result)

    def _fetch(self, call: _Call) -> Any:
        """Give Python contents of a tensor: a number, a list, a truth value, a text, an array."""
        if call.short in FETCHES and not call.access:
            return self.fetching.number(self._made(call.func), call.args[0], FETCHES[call.short])
        if call.short == "tolist":
            return self.fetching.elements(self._made(call.func), call.args[0])
        if call.short in ("__bool__", "is_nonzero"):
            return self.fetching.truth(self._made(call.func), call.args[0])
        if call.short in ("__format__", "__repr__", "__str__"):
            return self._show(call.func, call.args, call.kwargs)
        if call.short in ("numpy", "__array__") and self.share_memory is not None:
            return self.share_memory(call.func, call.args, call.kwargs)
        return _OTHER

    def _outside_of_graph(self, call: _Call) -> Any:
        """Switch gradients, profile, or read the node that made a tensor."""
        profiles = call.name.startswith("profiler.") or "profiler" in (getattr(call.func, "__module__", "") or "")
        if call.short == "_set_grad_enabled" or profiles:
            return self._really(call.func, *call.bare_args, **call.bare_kwargs)
        if call.access == "__get__" and call.short == "grad_fn":
            function = self._really(call.func, *call.bare_args)
            if function is None:
                return None  # follows from requires_grad, which is guarded
            if self.known(call.args[0]) is not None and self.recording.owner(call.args[0]) is None:
                return self.code.node_of(call.args[0], function)
        return _OTHER

    def _sized_by_contents(self, call: _Call) -> Any:
        """Make a call whose result has a size that depends on contents."""
        if call.access:
            return _OTHER
        args, kwargs, place = call.args, call.kwargs, self.recording.place
        if self.around is not None:
            if sized_by_contents(call.short, args, kwargs, place):
                what = f"the sizes of what {call.name} returns in a recursive call depend on contents"
                why, remedy = "Calls are run many at a time.", "Select after the calls."
                self.recording.refuse("recursion-body", what, why, remedy)
        elif self.selections is not None:
            if method := selection(call.short, args, kwargs, place):
                return getattr(self.selections, method)(*args, **kwargs)
            if self.packs is not None and (method := packing(call.short, args)):
                return getattr(self.packs, method)(*args, **kwargs)
        return _OTHER

    def _hook_or_copy(self, call: _Call) -> Any:
        """Register a hook, copy a tensor by ``deepcopy``, or make a call that is refused."""
        if call.short in HOOKING:
            return self.code.register(self._made(call.func), call.bare_args[0], call.args[1], HOOKING[call.short])
        if call.short == "__deepcopy__":
            return self._copies.deepcopy(*call.args, **call.kwargs)
        if call.short in REFUSED:
            self.recording.refuse("tensor-internals", f"{call.name} inside the step", *REFUSED[call.short])
            return self._really(call.func, *call.bare_args, **call.bare_kwargs)
        return _OTHER

    def _prepare(self, call: _Call) -> None:
        """Note what an operator is about to do beside its result."""
        if given := scaled_update(call.short, call.bare_kwargs):
            why = "of the fused kernels, graphs have those that take numbers and gradients as they are."
            remedy = "Leave fused=True out: graphs fuse."
            self.recording.refuse("fused-operator", f"{call.name} is given {given}", why, remedy)
        if call.access == "__set__" and call.short == "data":
            self._replace_storage(call.bare_args[0], call.bare_args[1])
        if call.access in ("__set__", "__delete__") and call.short == "grad":
            self.gradients.replace(call.args[0])
        if call.short in ("squeeze", "squeeze_") and self.around is None:
            axes = {key: value for key, value in call.bare_kwargs.items() if key == "dim"}
            self.sizes.hold_squeeze(*call.bare_args[:2], **axes)

    def _replace_storage(self, tensor: torch.Tensor, other: torch.Tensor) -> None:
        hindrance = hindrance_of(tensor, other) if self.around is None else "it is done in a recursive call"
        if hindrance:
            what = f"'x.data = y' replaces a tensor's storage, and {hindrance}"
            self.recording.refuse("data-assignment", what, "a graph cannot hold that back.", "Use x.copy_(y).")
        else:
            self.recording.replaced.record_memory(tensor, other, self.recording.owner(tensor) is not None)

    def _show(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return a tensor's text. Refuse the trace if code that is not watched asks for it."""
        if id(args[0]) not in self._shown:
            self.recording.refuse(
                "text-unwatched",
                "a tensor is turned into text inside the step",
                "that is done by code which is not watched, so it cannot be done again when the graph has run.",
                "Print tensor.item(), or return the tensor and print it after.",
            )
        return self._really(func, *bare(args), **bare(kwargs))


_STEPS: tuple[Callable[[FrameworkRecorder, _Call], Any], ...] = (
    FrameworkRecorder._metadata,
    FrameworkRecorder._fetch,
    FrameworkRecorder._outside_of_graph,
    FrameworkRecorder._sized_by_contents,
    FrameworkRecorder._hook_or_copy,
)
