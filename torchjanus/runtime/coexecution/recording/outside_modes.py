"""Makes calls of torch outside of the modes that the program has entered since: what a skeleton has put off was called
before that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from torchjanus.core.default_device import without_function_modes
from torchjanus.graph.tracing.ambient import Ambient

__all__ = ["outside_modes"]

_graph: Any = torch._C._autograd


@contextmanager
def outside_modes() -> Iterator[Ambient]:
    """Make calls within as if the program were in no mode that sees or changes operations: function and dispatch modes,
    transforms, hooks for saved tensors, inference mode, autocast. The gradient mode is what it was."""
    hooks = []
    while (top := _graph._top_saved_tensors_default_hooks(True)) is not None:
        hooks.append(top)
        _graph._pop_saved_tensors_default_hooks()
    grad = torch.is_grad_enabled()
    try:
        with ExitStack() as stack:
            stack.enter_context(without_function_modes())
            if torch._C._len_torch_dispatch_stack():
                stack.enter_context(_disable_current_modes())
            if torch._C._functorch.peek_interpreter_stack() is not None:
                stack.enter_context(torch._C._DisableFuncTorch())
            if torch.is_inference_mode_enabled():
                stack.enter_context(torch.inference_mode(False))
                torch._C._set_grad_enabled(grad)
            yield stack.enter_context(Ambient())
    finally:
        for pack, unpack in reversed(hooks):
            _graph._push_saved_tensors_default_hooks(pack, unpack)
