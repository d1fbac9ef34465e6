"""Loads artifacts of Inductor without importing Inductor's compiler.

In torch, the first load of an artifact imports the whole compiler: 20 MiB that no call uses again, and seconds in which
other threads hardly run. Loading needs only two names of it: the class of a dict, and a hook of torch's own tests. So
the same steps are made here without them. If the compiler is imported already, or this torch does not support one of
the steps, torch loads the artifact. This module does not know where artifacts come from.
"""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._functorch import config as functorch_config
from torch._guards import TracingContext, tracing

from torchjanus.core.lazy import deferred
from torchjanus.core.logs import logger
from torchjanus.graph.lowering.prepared_bytes import without_symbols

__all__ = ["Loaded", "entry_of", "graph_of", "load", "ready_to_load"]

inductor = deferred("torch._inductor")

log = logger("store")

Called = Callable[..., Any]

_COMPILER = "torch._inductor.compile_fx"
_LOADER = (
    "torch._functorch._aot_autograd.autograd_cache",
    "torch._inductor.cudagraph_utils",
    "torch.utils._appending_byte_serializer",
    "torch._inductor.async_compile",
    "torch._inductor.debug",  # each call of an artifact asks it whether calls are recorded
)
_HEADER = b"CacheCompiledArtifact"


def ready_to_load() -> None:
    """Import what loading an artifact imports. That stops all threads for a while, so it is done in a call that is slow
    anyway."""
    for name in _LOADER:
        importlib.import_module(name)


def load(path: Path) -> Called:
    """Return the function that was saved at ``path``, in Inductor's binary format."""
    if _COMPILER not in sys.modules:
        try:
            return _loaded(path.read_bytes())
        except Exception as error:  # another version of torch: its own loading is slower, but right
            log.debug("an artifact is loaded with all of Inductor: %s: %s", type(error).__name__, error)
    found: Called = inductor.CompiledArtifact.load(path=str(path), format="binary")
    return found


class Loaded:
    """Replaces torch's CacheCompiledArtifact."""

    def __init__(self, compiled_fn: Callable[[list[Any]], Any]) -> None:
        self._compiled_fn = compiled_fn

    def __call__(self, *inputs: Any) -> Any:
        return self._compiled_fn([*inputs])


def entry_of(saved: bytes) -> Any:
    """Return AOTAutograd's entry of what was saved: the compiled graph and what its wrappers have to do. Raises where
    this torch has saved it in another way."""
    cache, _, serial, *_ = map(importlib.import_module, _LOADER)
    reader = serial.BytesReader(saved)
    if reader.read_bytes() != _HEADER or reader.read_bytes() != inductor.codecache.torch_key():
        raise ValueError("it is of another kind")
    key, parts = reader.read_str(), reader.read_bytes()
    torch.compiler.load_cache_artifacts(parts)
    with (
        inductor.config.patch(unsafe_skip_cache_dynamic_shape_guards=True),
        functorch_config.patch(strict_autograd_cache=True),
    ):
        entry, _ = cache.AOTAutogradCache._lookup(
            key, local=True, remote=False, args=[], cache_info={}, aot_config=None
        )
    return entry


def graph_of(entry: Any) -> Any:
    """Return the compiled graph of an entry, not ready to be called; None where it is not kept."""
    key, _ = entry.compiled_fw.fx_graph_cache_info
    with inductor.config.patch(unsafe_skip_cache_dynamic_shape_guards=True):
        graph, *_ = inductor.codecache.FxGraphCache.find_guarded_entry(key, True, None, lambda *_: True, [])
    return graph


def _loaded(saved: bytes) -> Loaded:
    """Load as torch's CacheCompiledArtifact does. Raises where this torch has saved it in another way."""
    with tracing(TracingContext(without_symbols())):
        entry = entry_of(saved)
        entry.compiled_fw = _without_compiler(entry)
        graphs = importlib.import_module("torch._inductor.cudagraph_utils")
        settings = {
            "cudagraphs": inductor.utils.BoxedBool(False),
            "boxed_forward_device_index": graphs.BoxedDeviceIndex(0),
        }
        with inductor.config.patch(unsafe_skip_cache_dynamic_shape_guards=True):
            return Loaded(entry.wrap_post_compile([], entry.sanitized_aot_config, settings))


def _without_compiler(entry: Any) -> Any:
    """Return the entry's compiled forward made ready without a hook of Inductor's own tests, which is in the compiler.
    Where more has to be done than for a CPU, torch does it."""
    forward = entry.compiled_fw

    class Ready(type(forward)):  # type: ignore[misc]
        def load(self, example_inputs: Any) -> Any:
            graph = graph_of(entry)
            if graph is None or _has_kernels(graph._triton_bundle) or getattr(graph, "extern_libs_key", None):
                return super().load(example_inputs)
            constants = inductor.output_code.CompiledFxGraphConstants()
            graph.after_deserialization(constants)
            graph._set_compile_context_for_autotune_cache()
            self.example_inputs, self.constants = example_inputs, constants
            return graph

    made = copy.copy(forward)
    made.__class__ = Ready
    return made


def _has_kernels(bundle: Any) -> bool:
    """Whether there are Triton kernels beside the code."""
    return bundle is not None and bool(bundle.kernel_artifacts or bundle.static_autotuners)
