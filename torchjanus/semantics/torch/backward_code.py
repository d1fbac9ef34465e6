"""Watches the user's code that autograd calls: custom Functions, hooks on tensors and parameters.

On the CPU, autograd calls it in the thread that called ``backward()``, during that call. Its reads, writes and
framework calls are recorded where they happen, between marks. Lowering has autograd call the same nodes again (see
graph.tracing.user_code_calls). Backward code in another thread is not watched and is refused.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch.utils.hooks import RemovableHandle

from torchjanus.core.access_path import Step
from torchjanus.core.kinds import MISSING, getattr, isinstance, on_type
from torchjanus.semantics.containers.registered import found_hooks
from torchjanus.semantics.protocols.falling_back import attempt
from torchjanus.semantics.record.recording import Recording
from torchjanus.semantics.torch.function_context import Context
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.user_code import ACCUMULATED, AFTER, BEFORE, GRADIENT, Begin, End, Hook, Mark, Unhook

__all__ = ["LEAF_HOOKS", "BackwardCode", "is_autograd_node"]

LEAF_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
# Methods of autograd nodes that register hooks.
_AROUND = {"register_prehook": BEFORE, "register_hook": AFTER}
_NOT_THERE = "the autograd graph is not there when a compiled graph runs."


class Recorder(Protocol):
    """The methods of the recorder of framework calls that are used here."""

    def ref(self, tensor: torch.Tensor, name: str = "") -> TensorRef | None: ...
    def known(self, tensor: torch.Tensor) -> TensorRef | None: ...
    def mark(self, mark: Mark, args: tuple[Any, ...], outs: tuple[TensorRef, ...]) -> None: ...
    def paused(self) -> contextlib.AbstractContextManager[None]: ...
    def resumed(self) -> contextlib.AbstractContextManager[None]: ...


class Watcher(Protocol):
    """The methods of the watching semantics that call functions and read attributes as the program does."""

    def call(self, at: Any, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...
    def load_attr(self, at: Any, obj: Any, name: str) -> Any: ...


class BackwardCode:
    """Watches the code that autograd calls in one run."""

    def __init__(self, recording: Recording, framework: Recorder) -> None:
        self.recording = recording
        self.framework = framework
        self.watch: Watcher  # set by the watching semantics
        self._count = 0
        self._thread = threading.get_ident()
        self._attached: dict[tuple[int, str, int], int] = {}
        self._handles: dict[int, tuple[RemovableHandle, int]] = {}
        # Autograd nodes that the program has read from tensors, each with such a tensor.
        self._functions: dict[int, tuple[Any, torch.Tensor]] = {}
        self.hooked: list[torch.Tensor] = []  # leaves made in this call that have a hook
        # What autograd's graph refers to, which may outlive the run.
        self._kept: list[Any] = []
        self.over = False
        self.inner: list[BackwardCode] = []  # those of recursive calls

    def _number(self) -> int:
        self._count += 1
        return self._count

    def keep(self, *parts: Any) -> None:
        """Note the step's code and its arguments to which autograd's graph refers."""
        self._kept.extend(parts)

    def leave(self, bare: Callable[[Any], Any]) -> None:
        """End of the run: from now on autograd calls the program's own code on plain values."""
        for part in self._kept:
            if isinstance(part, Context):
                part.leave(bare)
            else:
                bare(part)
        self._kept.clear()
        self.over = True
        for code in self.inner:
            code.leave(bare)

    def call(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
        """Call the user's code under watch."""
        if self.over:
            return fn(*args, **(kwargs or {}))
        return self.watch.call(None, fn, args, kwargs or {})

    def read(self, obj: Any, name: str) -> Any:
        """Read an attribute under watch."""
        return getattr(obj, name) if self.over else self.watch.load_attr(None, obj, name)

    # -- Functions ------------------------------------------------------------------------------------------------

    def apply(self, cls: Any, args: tuple[Any, ...]) -> Any:
        """Return ``cls.apply(*args)``, where ``cls`` is a Function."""
        framework, number = self.framework, self._number()
        made: list[Context] = []
        tensors = [position for position, arg in enumerate(args) if isinstance(arg, torch.Tensor)]
        stand_in = self._stand_in(cls, number, made, tensors)
        given = tuple(framework.ref(arg, "apply") for arg in args if isinstance(arg, torch.Tensor))
        framework.mark(Begin(number, "forward"), given, ())
        try:
            with framework.paused():  # torch makes views of returned arguments, for example
                result = stand_in.apply(*args)
        except BaseException:
            self._raised()
            raise
        self._noted(self._applied, number, made[0], result)
        return result

    def _applied(self, number: int, context: Context, result: Any) -> None:
        framework = self.framework
        results = _tensors(result)
        refs = [framework.known(part) for part in context.returned]
        if None in refs:
            self.recording.refuse(
                "function-result", "a Function returns a tensor of unknown origin", "it cannot be made again.", ""
            )
        marked = (context.to_save, context.dirty, context.undifferentiable)
        parts = (tuple(refs), *(tuple(self._ref(tensor) for tensor in tensors) for tensors in marked))
        outs = tuple(framework.known(part) or self.recording.new_tensor(part) for part in results)
        framework.mark(End(number, context.materialize_grads), parts, outs)

    def _ref(self, tensor: Any) -> TensorRef | None:
        return None if tensor is None else self.framework.ref(tensor, "save_for_backward")

    def _stand_in(self, cls: Any, number: int, made: list[Context], tensors: list[int]) -> Any:
        """Return a Function that runs the user's under watch and has its name (``grad_fn=<SwishBackward>``)."""
        code = self

        def forward(state: Any, *args: Any) -> Any:
            context = Context(state, code.recording)
            made.append(context)
            code.keep(context)
            own = {*vars(context)}
            with code.framework.resumed():
                body = code.read(cls, "forward")
                if torch.autograd.function._is_setup_context_defined(cls.setup_context):
                    result = code.call(body, args)
                    code.call(code.read(cls, "setup_context"), (context, args, result))
                else:
                    result = code.call(body, (context, *args))
            state.save_for_backward(*context.to_save)
            state.mark_dirty(*context.dirty)
            state.mark_non_differentiable(*context.undifferentiable)
            state.set_materialize_grads(context.materialize_grads)
            for name in vars(context).keys() - own:  # the program may read them from result.grad_fn
                setattr(state, name, code.recording.bare(vars(context)[name]))
            context.returned = _tensors(result)
            return result

        def backward(state: Any, *grads: Any) -> Any:
            (context,) = made
            saved = state.saved_tensors
            context.saved_tensors = saved

            def run() -> Any:
                return code.call(code.read(cls, name), (context, *grads))

            return code._body(number, grads, saved, run, tensors)

        # Torch's other name for backward(). A class that defines both gets torch's own error when backward() is called.
        own = torch.autograd.Function
        name = "vjp" if cls.vjp is not own.vjp else "backward"
        body: dict[str, Any] = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
        if cls.vjp is not own.vjp and cls.backward is not own.backward:
            body["vjp"] = body["backward"]
        meta: Any = type(torch.autograd.Function)
        return meta(cls.__name__, (torch.autograd.Function,), body)

    def _body(
        self,
        number: int,
        grads: tuple[Any, ...],
        saved: tuple[Any, ...],
        run: Callable[[], Any],
        wanted: list[int] | None = None,
        instead: bool = False,
    ) -> Any:
        """Run code during a backward pass, between marks.

        ``wanted``: the positions of those results that are gradients of tensors. ``instead``: the code may return None
        to change nothing.
        """
        if self.over:
            return run()
        if threading.get_ident() != self._thread:
            self.recording.refuse(
                "backward-thread", "autograd calls the step's code in a thread of its own", "it is not watched.", ""
            )
            return run()
        place = self.recording.place
        with self.framework.resumed():
            self._noted(self._begin, number, grads, saved)
            try:
                result = run()
            except BaseException:
                self._raised()
                raise
            self._noted(self._end, number, result, wanted, instead)
        self.recording.place = place
        return result

    def _noted(self, note: Callable[..., None], *args: Any) -> None:
        """Call a function that records. If it fails, autograd and the program's code continue."""
        attempt(self.recording, "in code that autograd calls", note, *args)

    def _begin(self, number: int, grads: tuple[Any, ...], saved: tuple[Any, ...]) -> None:
        framework, recording = self.framework, self.recording
        given = [grad for grad in grads if grad is not None]
        unpacked = [i for i, part in enumerate(saved) if part is not None and framework.known(part) is None]
        new = [*given, *(saved[i] for i in unpacked)]
        outs = tuple(framework.known(part) or recording.new_tensor(part) for part in new)
        mark = Begin(number, "backward", tuple(grad is not None for grad in grads), tuple(unpacked))
        framework.mark(mark, (), outs)

    def _end(self, number: int, result: Any, wanted: list[int] | None, instead: bool) -> None:
        parts = result if isinstance(result, tuple) else () if instead and result is None else (result,)
        if wanted is not None:
            parts = tuple(parts[index] if index < len(parts) else None for index in wanted)
        tensors = tuple(None if part is None else self.framework.ref(part, "backward") for part in parts)
        self.framework.mark(End(number), (tensors,), ())

    def _raised(self) -> None:
        self.recording.refuse(
            "backward-raises",
            "code that autograd calls raises an exception",
            "how far autograd has come by then is not known.",
            "",
        )

    # -- hooks ----------------------------------------------------------------------------------------------------

    def register(self, register: Callable[..., Any], tensor: torch.Tensor, hook: Any, called: str) -> Any:
        """Call ``tensor.register_hook(hook)`` or the like. ``called``: when the hook runs (see ``Hook``)."""
        if self.recording.owner(tensor) is not None:
            self.recording.refuse(
                "hook-outside",
                "a hook is registered on a tensor that was there before the call",
                "it would stay there after it.",
                "Register it before the step.",
            )
        if tensor.is_leaf:
            self.hooked.append(tensor)
        number = self._number()
        ref = self.framework.ref(tensor, "register_hook")
        self.framework.mark(Hook(number, called), (ref,), ())
        self.keep(hook)
        handle = register(tensor, lambda given: self._hook(number, hook, given, called))
        self._handles[id(handle)] = (handle, number)
        return handle

    def node_of(self, tensor: torch.Tensor, function: Any) -> Any:
        """Return ``tensor.grad_fn`` of a tensor that the step has made."""
        self._functions.setdefault(id(function), (function, tensor))
        return function

    def read_node(self, function: Any, name: str) -> None:
        """Refuse reads of an autograd node's data. Its identity and ``next_functions`` follow from the recorded
        operations; other attributes hold their arguments."""
        if name != "next_functions" and not callable(getattr(type(function), name, None)):
            what = f"reads the attribute '{name}' of autograd's {type(function).__name__}"
            self.recording.refuse("autograd-node", what, _NOT_THERE, "Keep it beside the tensor.")

    def call_node_method(self, function: Any, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method of an autograd node."""
        call = getattr(function, method)
        if method in ("name", "__eq__", "__ne__"):
            return call(*args, **kwargs)
        tensor = self._functions.get(id(function), (None, None))[1]
        with torch._C.DisableTorchFunction():
            current = tensor is not None and tensor.grad_fn is function  # false if the tensor has been changed in place
        if tensor is None or not current or method not in _AROUND or len(args) != 1 or kwargs:
            what = f"calls {method}() of autograd's {type(function).__name__}"
            self.recording.refuse(
                "autograd-node", what, _NOT_THERE, "Use hooks on tensors, on modules, or on tensor.grad_fn itself."
            )
            return call(*args, **kwargs)
        number, (hook,) = self._number(), args
        self.keep(hook)
        self.framework.mark(Hook(number, _AROUND[method]), (self.framework.ref(tensor, method),), ())

        def watched(*given: tuple[Any, ...]) -> Any:
            """Run the hook. A prehook gets the inputs of the node; a hook gets its results and its inputs."""
            return self._body(number, sum(given, ()), (), lambda: self.call(hook, given), instead=True)

        handle = call(watched)
        self._handles[id(handle)] = (handle, number)
        return handle

    def unregister(self, handle: RemovableHandle) -> bool:
        """Call ``handle.remove()`` if the hook was registered in this run. Return whether it was."""
        known = self._handles.get(id(handle))
        if known is not None:
            handle.remove()
            self.framework.mark(Unhook(known[1]), (), ())
        return known is not None

    def _hook(self, number: int, hook: Any, given: torch.Tensor, called: str) -> Any:
        if called == ACCUMULATED:  # the hook gets the leaf itself and must return None
            returned: list[Any] = []

            def body() -> tuple[()]:
                returned.append(self.call(hook, (given,)))
                return ()

            self._body(number, (), (), body)
            return returned[0]
        return self._body(number, (given,), (), lambda: self.call(hook, (given,)))

    def finish(self) -> None:
        """End of the run, after what leaves it has been described."""
        if self.recording.ending:
            return
        leaving = self.recording.trace.leaving()
        if any(self.recording.number(tensor) in leaving for tensor in self.hooked):
            self.recording.refuse(
                "hook-leaves",
                "a tensor leaves the step with a hook on it",
                "a graph's tensors have none.",
                "Return tensor.detach().",
            )
        trace = self.recording.trace
        if any(_has_gradient(trace.tensors[number]) for number in leaving if number not in trace.access_paths):
            self.recording.refuse(
                "gradient-leaves",
                "a new tensor leaves the step with its gradient",
                "a graph gives tensors, and no gradients along with them.",
                "Return tensor.detach(), and its gradient beside it.",
            )

    @contextlib.contextmanager
    def around_backward(self, leaves: list[torch.Tensor]) -> Iterator[None]:
        """During a backward pass, run under watch the hooks that these leaves had before the call."""
        replaced: list[tuple[Any, Any, Any]] = []
        try:
            for leaf in leaves:
                for kind in LEAF_HOOKS:
                    with torch._C.DisableTorchFunction():  # the leaf's class must not see the query
                        hooks = getattr(leaf, kind, None)
                        if hooks and self.recording.owner(leaf) is not None:
                            replaced.extend(self._watch_hooks(leaf, kind, hooks))
            yield
        finally:
            for hooks, key, hook in replaced:
                if key in hooks:
                    hooks[key] = hook

    def _watch_hooks(self, leaf: torch.Tensor, kind: str, hooks: Any) -> Iterator[tuple[Any, Any, Any]]:
        recording, called = self.recording, ACCUMULATED if kind == LEAF_HOOKS[1] else GRADIENT
        access_path = recording.owner(leaf)
        assert access_path is not None
        for each in LEAF_HOOKS:
            recording.found(access_path.then(Step.FIELD, each), getattr(leaf, each, None))
        found_hooks(recording, hooks, access_path.then(Step.FIELD, kind))
        for key, hook in list(hooks.items()):
            number = self._attached.get((id(leaf), kind, key))
            if number is None:
                number = self._attached[id(leaf), kind, key] = self._number()
                self.framework.mark(Hook(number, called), (self.framework.ref(leaf),), ())

            def watched(given: torch.Tensor, number: int = number, hook: Any = hook) -> Any:
                return self._hook(number, hook, given, called)

            hooks[key] = watched
            yield hooks, key, hook


def is_autograd_node(value: Any) -> bool:
    """Whether this is a node of autograd's graph, such as ``tensor.grad_fn``."""
    kind = type(value)
    return on_type(kind, "register_prehook") is not MISSING and on_type(kind, "next_functions") is not MISSING


def _tensors(result: Any) -> list[torch.Tensor]:
    return [part for part in (result if isinstance(result, tuple) else (result,)) if isinstance(part, torch.Tensor)]


def _has_gradient(tensor: torch.Tensor) -> bool:
    with torch._C.DisableTorchFunction():
        return (tensor.is_leaf or tensor.retains_grad) and tensor.grad is not None
