"""Loads what Inductor has compiled, without Inductor's compiler.

As torch does it, an artifact's first load imports the whole compiler: 20 MiB that no call uses again, and seconds in
which other threads hardly run. Of all that, loading asks for two names: the class of a dict, and a hook of torch's own
tests. So the same steps are made here without them. Where the compiler is there already, or where this torch does not
know one of the steps, torch does it. Knows nothing of where artifacts come from.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch._functorch import config as functorch_config
from torch._guards import TracingContext, tracing
from torch._inductor import CompiledArtifact, codecache, config  # type: ignore[attr-defined]
from torch._inductor.utils import BoxedBool

from torchjanus.graph.shipping import without_symbols

__all__ = ["load", "ready_to_load"]

log = logging.getLogger("torchjanus")

Called = Callable[..., Any]

_COMPILER = ("torch._inductor.compile_fx", "torch._inductor.graph")
_LOADER = (
    "torch._functorch._aot_autograd.autograd_cache",
    "torch._inductor.cudagraph_utils",
    "torch.utils._appending_byte_serializer",
    "torch._inductor.async_compile",
    "torch._inductor.debug",  # which each call of an artifact asks whether calls are recorded
)
_HEADER = b"CacheCompiledArtifact"


def ready_to_load() -> None:
    """Import what loading an artifact would: that stops all threads for a while, so it is done where a call takes long
    anyway."""
    for name in _LOADER:
        importlib.import_module(name)


def load(path: Path) -> Called:
    """The function that was saved as ``path``, in Inductor's binary format."""
    if not any(name in sys.modules for name in _COMPILER):
        try:
            return _loaded(path.read_bytes())
        except Exception as error:  # another torch: its own way is slower, but right
            log.debug("an artifact is loaded with all of Inductor: %s: %s", type(error).__name__, error)
    return CompiledArtifact.load(path=str(path), format="binary")


def _loaded(saved: bytes) -> Called:
    """What torch's CacheCompiledArtifact does. Raises where that is not how this torch has saved it."""
    cache, graphs, serial, *_ = map(importlib.import_module, _LOADER)
    reader = serial.BytesReader(saved)
    if reader.read_bytes() != _HEADER or reader.read_bytes() != codecache.torch_key():
        raise ValueError("it is of another kind")
    key, parts = reader.read_str(), reader.read_bytes()
    torch.compiler.load_cache_artifacts(parts)
    with (
        _without_compiler(),
        tracing(TracingContext(without_symbols())),
        config.patch(unsafe_skip_cache_dynamic_shape_guards=True),
        functorch_config.patch(strict_autograd_cache=True),
    ):
        entry, _ = cache.AOTAutogradCache._lookup(
            key, local=True, remote=False, args=[], cache_info={}, aot_config=None
        )
        settings = {"cudagraphs": BoxedBool(False), "boxed_forward_device_index": graphs.BoxedDeviceIndex(0)}
        call: Called = entry.wrap_post_compile([], entry.sanitized_aot_config, settings)
    return lambda *inputs: call([*inputs])


@contextlib.contextmanager
def _without_compiler() -> Iterator[None]:
    """What is found in Inductor's cache is made ready without the hook of its tests, which lies in the compiler."""
    cache: Any = codecache.FxGraphCache
    usual = cache.cache_hit_post_compile

    def made_ready(graph: Any, about: Any, constants: Any) -> tuple[Any, Any]:
        bundle = graph._triton_bundle
        if _COMPILER[1] in sys.modules or (bundle and (bundle.kernel_artifacts or bundle.static_autotuners)):
            return usual(graph, about, constants)  # type: ignore[no-any-return]
        try:
            graph.after_deserialization(constants)
        except OSError:  # its file has been removed
            return None, about
        graph._set_compile_context_for_autotune_cache()
        return graph, about

    cache.cache_hit_post_compile = staticmethod(made_ready)
    try:
        yield
    finally:
        cache.cache_hit_post_compile = staticmethod(usual)
