"""Makes calls of torch and records them as nodes of the trace: arguments, results, ambient state, tensors by number.

``framework`` decides which calls are nodes. Knows nothing of hooks.
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
from torchjanus.core.kinds import getattr, isinstance
from torchjanus.ops.calls import NUMERIC
from torchjanus.semantics.known.framework_calls import BACKWARD, call_name, checks
from torchjanus.semantics.protocols.falling_back import CallsOut
from torchjanus.semantics.record.recording import Recording
from torchjanus.semantics.torch.arguments import Arguments, bare
from torchjanus.semantics.torch.backward_code import BackwardCode
from torchjanus.semantics.torch.dynamic_index import DynamicIndexWatch
from torchjanus.semantics.torch.gradients import Gradients, Reductions
from torchjanus.semantics.torch.packed_sequences import PackedSequences
from torchjanus.semantics.torch.pausing import PausableMode
from torchjanus.semantics.torch.selections import Selections
from torchjanus.semantics.torch.sizes import Sizes
from torchjanus.semantics.torch.tensor_copies import TensorCopies
from torchjanus.semantics.torch.torch_state import TRANSFORM, ambient_modes, generator_state, hindrance
from torchjanus.semantics.torch.user_lines import UserLines
from torchjanus.trace.actions import Op
from torchjanus.trace.layout import ResultLayout, result_layout_of
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.user_code import Mark

__all__ = ["NodeRecorder"]

# After these a tensor that required no gradient may get one.
_GIVING_GRADIENTS = frozenset({"Tensor.requires_grad_", "Tensor.requires_grad.__set__"})

# Results that do not depend on the contents of tensors.
_HARMLESS = (torch.dtype, torch.device, torch.layout, torch.Size, str)


class NodeRecorder(PausableMode):
    """Makes the calls of torch of one run and records them."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self.recording = recording
        # Make the calls whose result sizes depend on contents.
        self.selections: Selections | None = None
        self.picks: DynamicIndexWatch | None = None
        self.packs: PackedSequences | None = None
        self.reductions: Reductions | None = None
        # In a recursive call: called with each tensor that it uses and did not make.
        self.around: Callable[[torch.Tensor, AccessPath], None] | None = None
        self.out, self.lines = CallsOut(), UserLines(recording)
        recording.holders.append(self.out.forget)
        self.native_results: list[Any] = []  # of the calls in progress
        self.code = BackwardCode(recording, self)
        self.sizes = Sizes(recording)
        self.gradients = Gradients(recording)
        self.arguments = Arguments(recording, self.ref)
        self._copies = TensorCopies(recording, self.recorded_as)

    # -- making the call ------------------------------------------------------------------------------------------

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
        layouts: list[ResultLayout] = []
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                outs.append(self.known(leaf) or recording.new_tensor(leaf))
                layouts.append(result_layout_of(leaf))
            elif leaf is not None and not isinstance(leaf, _HARMLESS):
                recording.refuse(
                    "number-of-tensor",
                    f"{name} returns a {type(leaf).__name__}",
                    "it is computed from tensors and the program goes on with it in Python.",
                    "Keep it a tensor.",
                )
        opened, recording.opened = recording.opened, False
        raising = checks(name, args)
        op = Op(
            func, name, symbols, keywords, tuple(outs), modes, place, draws, raising, opened, layouts=tuple(layouts)
        )
        if before:
            recording.note_writes(before)
        self._note(op)
        if self.reductions is not None and short in BACKWARD:
            self.reductions.record_reduction()
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
            if (
                name in _GIVING_GRADIENTS
                and self.around is None
                and (access_path := self.recording.owner(tensor)) is not None
            ):
                self.gradients.meet(tensor, access_path, True)
            return known
        access_path = self.recording.owner(tensor)
        if access_path is None:
            self.recording.refuse(
                "tensor-unknown-origin",
                f"{name or 'the step'} uses a tensor of unknown origin",
                "it was reached through code that is not watched (a C extension, a cache, a default argument).",
                "Pass it as an argument or read it from an attribute.",
            )
            # Number it anyway: the run continues, and one refusal for it is enough.
            return self.recording.new_tensor(tensor)
        ref = self.recording.input_tensor(tensor, access_path)
        if self.around is not None:
            self.around(tensor, access_path)
            return ref
        self.gradients.meet(tensor, access_path, name in _GIVING_GRADIENTS)
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
