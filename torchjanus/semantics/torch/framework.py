"""Records the framework calls of a watched run at the level of the torch API (JANUS's whitelist of known operations).

``F.cross_entropy``, ``Tensor.backward`` or an in-place method is one node. The C++ below it is not entered, nor is
Python code that torch runs for it. Knows nothing of hooks.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchjanus.core.access_path import AccessPath, Step
from torchjanus.core.autograd_thread import one_thread
from torchjanus.core.default_device import named
from torchjanus.core.kinds import getattr, isinstance
from torchjanus.ops.calls import NUMERIC
from torchjanus.ops.namespaces import is_operator, operator_name, unsupported_operator
from torchjanus.semantics.known.framework_calls import (
    BACKWARD,
    FETCHES,
    HOOKING,
    METADATA,
    REFUSED,
    SIZED,
    accessor,
    call_name,
    checks,
    scaled_update,
)
from torchjanus.semantics.protocols.falling_back import CallsOut, call_made_once
from torchjanus.semantics.record.recording import Recording
from torchjanus.semantics.record.replaced_data import hindrance_of
from torchjanus.semantics.torch.arguments import Arguments, bare
from torchjanus.semantics.torch.backward_code import BackwardCode
from torchjanus.semantics.torch.dynamic_index import DynamicIndexWatch
from torchjanus.semantics.torch.fetching import Fetching
from torchjanus.semantics.torch.gradients import Gradients, Reductions
from torchjanus.semantics.torch.packed_sequences import PackedSequences, packing
from torchjanus.semantics.torch.pausing import PausableMode
from torchjanus.semantics.torch.selections import Selections, selection, sized_by_contents
from torchjanus.semantics.torch.sizes import Sizes
from torchjanus.semantics.torch.tensor_copies import TensorCopies
from torchjanus.semantics.torch.torch_state import TRANSFORM, ambient_modes, generator_state, hindrance
from torchjanus.semantics.torch.user_lines import UserLines
from torchjanus.trace.actions import Op
from torchjanus.trace.layout import Lying, lying_of
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.user_code import Mark

__all__ = ["FrameworkRecorder"]

# After these a tensor that required no gradient may get one.
_THAWING = frozenset({"Tensor.requires_grad_", "Tensor.requires_grad.__set__"})

# Results that do not depend on the contents of tensors.
_HARMLESS = (torch.dtype, torch.device, torch.layout, torch.Size, str)


class FrameworkRecorder(PausableMode):
    """Runs every framework call for real and records it."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self.recording = recording
        # Handles calls that share memory with foreign code.
        self.share_memory: Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any] | None = None
        # Make the calls whose result sizes depend on contents.
        self.selections: Selections | None = None
        self.picks: DynamicIndexWatch | None = None
        self.packs: PackedSequences | None = None
        self.reductions: Reductions | None = None
        # In a recursive call: called with each tensor that it uses and did not make.
        self.around: Callable[[torch.Tensor, AccessPath], None] | None = None
        self.seen = 0  # calls that torch has reported
        self.released = False  # whether the rest of the call is not watched
        self.out, self.lines = CallsOut(), UserLines(recording)
        recording.holders.append(self.out.forget)
        self.native_results: list[Any] = []  # of the calls in progress
        self.bare = bare
        self.code = BackwardCode(recording, self)
        self.sizes = Sizes(recording)
        self.gradients = Gradients(recording)
        self.arguments = Arguments(recording, self.ref)
        self.fetching = Fetching(recording, self.sizes, self.ref, self.call)
        self._copies = TensorCopies(recording, self.recorded_as)

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
        kwargs = named(func, kwargs)
        func = accessor(func)
        name = call_name(func)
        last = name.rpartition(".")[2]
        access = last if last in ("__get__", "__set__", "__delete__") else ""
        short = name.split(".")[-2] if access else last
        bare_args, bare_kwargs = bare(args), bare(kwargs)
        if self.picks is not None and self.picks.any:
            self.picks.look(pytree.tree_leaves((args, kwargs)))
        if self.packs is not None and self.packs.any:
            if (known := self.packs.number(short, args)) is not None:
                return known
            args = self.packs.sized(short, args)
            bare_args = bare(args)
        if access == "__get__" and short == "grad":
            return self._grad(func, args[0])
        if short in METADATA and access == "__get__" and self._read_property(args[0], short):
            return self._really(func, *bare_args)
        if short in METADATA and access != "__set__":
            for value in (*args, *kwargs.values()):
                self.arguments.pin_inside(value, f"argument of {name}")
            result = self._really(func, *bare_args, **bare_kwargs)
            if short in SIZED:
                for value in (*args, *kwargs.values()):
                    self.sizes.pin(value, f"{name} is asked for")
            return self.sizes.traced(short, bare_args, bare_kwargs, result)
        if short in FETCHES and not access:
            return self.fetching.number(self._made(func), args[0], FETCHES[short])
        if short == "tolist":
            return self.fetching.elements(self._made(func), args[0])
        if short in ("__bool__", "is_nonzero"):
            return self.fetching.truth(self._made(func), args[0])
        if short in ("__format__", "__repr__", "__str__"):
            return self._show(func, args, kwargs)
        if (
            short == "_set_grad_enabled"
            or name.startswith("profiler.")
            or "profiler" in (getattr(func, "__module__", "") or "")
        ):
            return self._really(func, *bare_args, **bare_kwargs)
        if access == "__get__" and short == "grad_fn":
            function = self._really(func, *bare_args)
            if function is None:
                return None  # follows from requires_grad, which is guarded
            if self.known(args[0]) is not None and self.recording.owner(args[0]) is None:
                return self.code.node_of(args[0], function)
        if given := scaled_update(short, bare_kwargs):
            why = "of the fused kernels, graphs have those that take numbers and gradients as they are."
            remedy = "Leave fused=True out: graphs fuse."
            self.recording.refuse("fused-operator", f"{name} is given {given}", why, remedy)
        if short in ("numpy", "__array__") and self.share_memory is not None:
            return self.share_memory(func, args, kwargs)
        if self.around is not None and not access and sized_by_contents(short, args, kwargs, self.recording.place):
            what = f"the sizes of what {name} returns in a recursive call depend on contents"
            self.recording.refuse("recursion-body", what, "Calls are run many at a time.", "Select after the calls.")
        elif self.selections is not None and self.around is None and not access:
            if method := selection(short, args, kwargs, self.recording.place):
                return getattr(self.selections, method)(*args, **kwargs)
            if self.packs is not None and (method := packing(short, args)):
                return getattr(self.packs, method)(*args, **kwargs)
        if short in HOOKING:
            return self.code.register(self._made(func), bare_args[0], args[1], HOOKING[short])
        if short == "__deepcopy__":
            return self._copies.deepcopy(*args, **kwargs)
        if short in REFUSED:
            why, remedy = REFUSED[short]
            self.recording.refuse("tensor-internals", f"{name} inside the step", why, remedy)
            return self._really(func, *bare_args, **bare_kwargs)
        if access == "__set__" and short == "data":
            self._replace_storage(bare_args[0], bare_args[1])
        if access in ("__set__", "__delete__") and short == "grad":
            self.gradients.replace(args[0])
        if short in ("squeeze", "squeeze_") and self.around is None:
            self.sizes.hold_squeeze(*bare_args[:2], **{key: v for key, v in bare_kwargs.items() if key == "dim"})
        return self._operate(func, name, args, kwargs, bare_args, bare_kwargs)

    def _really(self, func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Make the call in progress."""
        made = self.lines.call(self.out, self.recording.place, func, args, kwargs)
        if self.native_results:
            self.native_results[-1] = made
        return made

    def _made(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that makes the call in progress."""
        return functools.partial(self._really, func)

    def recorded_as(self, really: Callable[[], Any], func: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Make the call ``really``, and record another one with the same results."""
        return self._operate(func, call_name(func), args, {}, bare(args), {}, really)

    def new_parameter(self, data: torch.Tensor, requires_grad: bool = False) -> Any:
        """Return ``nn.Parameter(data)``, recorded."""
        return self._copies.parameter(data, requires_grad)

    def _replace_storage(self, tensor: torch.Tensor, other: torch.Tensor) -> None:
        hindrance = hindrance_of(tensor, other) if self.around is None else "it is done in a recursive call"
        if hindrance:
            what = f"'x.data = y' replaces a tensor's storage, and {hindrance}"
            self.recording.refuse("data-assignment", what, "a graph cannot hold that back.", "Use x.copy_(y).")
        else:
            self.recording.replaced.about_to(tensor, other, self.recording.owner(tensor) is not None)

    # -- one node -------------------------------------------------------------------------------------------------

    def _operate(
        self,
        func: Callable[..., Any],
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        bare_args: tuple[Any, ...],
        bare_kwargs: dict[str, Any],
        really: Callable[[], Any] | None = None,
    ) -> Any:
        recording, short = self.recording, name.rpartition(".")[2]
        if really is None and len(args) == 2 and not kwargs and self.arguments.is_asked(args[1]):
            made = self._really(func, *bare_args)
            if made is NotImplemented:  # Python tries the other operand
                return made

            def really() -> Any:
                return made

        fixed, symbol = self.arguments.fixed, self.arguments.symbol
        if short.strip("_") not in NUMERIC:
            args = tuple(fixed(a, name) for a in args)
            kwargs = {k: fixed(v, name) for k, v in kwargs.items()}
        symbols = tuple(symbol(a, name) for a in args)
        keywords = {k: symbol(v, name) for k, v in kwargs.items()}
        modes = ambient_modes()
        place = recording.place
        # __get__ and __set__ of a data descriptor are called through their slot, as Python does.
        state = generator_state()
        before = self._versions(name, bare_args, bare_kwargs) if recording.trace.outline is not None else []
        if short in BACKWARD:
            hindered = hindrance()
            if hindered and hindered != TRANSFORM:  # transforms within the step are recorded
                recording.refuse(
                    "torch-mode", f"backward() under {hindered}", "a graph does not obey it.", "Switch it off."
                )
            self.gradients.flow()
            if short == "backward":
                self.gradients.read_all()
            reducing = contextlib.nullcontext() if self.reductions is None else self.reductions.reducing()
            with self.code.around_backward(self.gradients.leaves), one_thread(), reducing:
                result = self._really(func, *bare_args, **bare_kwargs)
        elif really is None:
            result = self._really(func, *bare_args, **bare_kwargs)
        else:
            result = self._really(really)
        draws = generator_state() != state
        outs: list[TensorRef] = []
        lying: list[Lying] = []
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                outs.append(self.known(leaf) or recording.new_tensor(leaf))
                lying.append(lying_of(leaf))
            elif leaf is not None and not isinstance(leaf, _HARMLESS):
                recording.refuse(
                    "number-of-tensor",
                    f"{name} returns a {type(leaf).__name__}",
                    "it is computed from tensors and the program goes on with it in Python.",
                    "Keep it a tensor.",
                )
        opened, recording.opened = recording.opened, False
        raising = checks(name, args)
        op = Op(func, name, symbols, keywords, tuple(outs), modes, place, draws, raising, opened, lying=tuple(lying))
        if before:
            recording.note_writes(before)
        self._note(op)
        if self.reductions is not None and short in BACKWARD:
            self.reductions.reduced()
        if self.picks is not None and self.picks.any:
            self.picks.made(short, pytree.tree_leaves((args, kwargs)), pytree.tree_leaves(result))
        if short == "unbind":
            self.sizes.note_unbind(result, *bare_args, **bare_kwargs)
        return result

    def _versions(self, name: str, *given: Any) -> list[tuple[torch.Tensor, int]]:
        """See ``RunRecord.versions``. A backward may write any gradient."""
        every = self.recording.trace.tensors if name.rpartition(".")[2] in BACKWARD else ()
        return self.recording.versions([*pytree.tree_leaves(given), *every])

    def _note(self, op: Op) -> None:
        self.recording.note(op)
        self.recording.ops += 1

    def mark(self, mark: Mark, args: tuple[Any, ...], outs: tuple[TensorRef, ...]) -> None:
        """Record where code that autograd calls begins or ends."""
        self._note(Op(mark, repr(mark), args, {}, outs, ambient_modes(), self.recording.place))

    def _read_property(self, tensor: torch.Tensor, name: str) -> bool:
        """Record a read of a tensor's property. If the graph does not use the tensor, only this property is guarded."""
        access_path = self.recording.owner(tensor)
        if access_path is None or self.known(tensor) is not None:
            return False
        with torch._C.DisableTorchFunction():
            value = getattr(tensor, name)
        if not isinstance(value, bool | torch.dtype | torch.device):
            return False
        self.recording.found(access_path.then(Step.FIELD, name), value)
        return True

    def known(self, tensor: torch.Tensor) -> TensorRef | None:
        number = self.recording.number(tensor)
        return None if number is None else TensorRef(number)

    def ref(self, tensor: torch.Tensor, name: str = "") -> TensorRef | None:
        """Return the tensor's number. One from the heap becomes a graph input. Refuse if its access path is unknown."""
        if self.around is None and self.recording.accumulators:
            self.recording.accumulators.meet(self.recording, tensor)
        known = self.known(tensor)
        if known is not None:
            if name in _THAWING and self.around is None and (access_path := self.recording.owner(tensor)) is not None:
                self.gradients.meet(tensor, access_path, True)
            return known
        access_path = self.recording.owner(tensor)
        if access_path is None:
            self.recording.refuse(
                "tensor-unknown-origin",
                f"{name or 'the step'} uses a tensor of unknown access path",
                "it was reached through code that is not watched (a C extension, a cache, a default argument).",
                "Pass it as an argument or read it from an attribute.",
            )
            # Number it anyway: the run continues, and one refusal for it is enough.
            return self.recording.new_tensor(tensor)
        ref = self.recording.input_tensor(tensor, access_path)
        if self.around is not None:
            self.around(tensor, access_path)
            return ref
        self.gradients.meet(tensor, access_path, name in _THAWING)
        return ref

    # -- other nodes ----------------------------------------------------------------------------------------------

    def _grad(self, func: Callable[..., Any], tensor: torch.Tensor) -> Any:
        self.ref(tensor, "Tensor.grad")
        self.gradients.read(tensor)
        value = self._really(func, tensor)
        if value is None or self.known(value) is not None or self.recording.owner(value) is not None:
            return value
        out = self.recording.new_tensor(value)
        self._note(
            Op(func, "Tensor.grad.__get__", (self.ref(tensor),), {}, (out,), ambient_modes(), self.recording.place)
        )
        return value

    def transform(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call torch.func's machinery: enter, leave, wrap or unwrap. Pure queries are not recorded."""
        result = func(*bare(args), **bare(kwargs))
        made = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        name = f"torch.func.{func.__name__}"
        if made or name.endswith("_nesting"):
            fixed, symbol = self.arguments.fixed, self.arguments.symbol
            args, kwargs = fixed(args, name), {k: fixed(v, name) for k, v in kwargs.items()}
            symbols, keywords = symbol(args, name), symbol(kwargs, name)
            outs = tuple(self.known(leaf) or self.recording.new_tensor(leaf) for leaf in made)
            self._note(Op(func, name, symbols, keywords, outs, ambient_modes(), self.recording.place))
        return result

    def forget_casts(self) -> None:
        """The outermost autocast region ends: parameters are cast again afterwards."""
        torch.clear_autocast_cache()
        modes, place = ambient_modes(), self.recording.place
        self._note(Op(torch.clear_autocast_cache, "torch.clear_autocast_cache", (), {}, (), modes, place))

    # -- texts ----------------------------------------------------------------------------------------------------

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
