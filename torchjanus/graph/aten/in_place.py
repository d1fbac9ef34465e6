"""Rewrite in-place ATen operations that functionalisation does not support as operations that return new contents.

``x.polygamma_(1)`` has no kernel for functionalisation. ``x.random_(0, 10)`` has one, but its overload is called
``from``, a keyword of Python, so generated code cannot name it. Knows nothing of programs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx._lazy_graph_module import _LazyGraphModule, _use_lazy_graph_module
from torch.fx.experimental.proxy_tensor import extract_val, make_fx
from torch.utils import _pytree as pytree

from torchjanus.ops.aten import operator_of, out_of_place_form

__all__ = ["evaluated", "traced", "write_code", "write_out_of_place"]

aten = torch.ops.aten


def traced(function: Callable[..., Any], *fakes: Any) -> torch.fx.GraphModule:
    """Return what a function does with fake tensors as a graph, without code: generating it may not be possible yet."""
    with _use_lazy_graph_module(True):
        made: torch.fx.GraphModule = make_fx(function, tracing_mode="fake")(*fakes)
    return made


def write_code(graph: torch.fx.GraphModule) -> None:
    """Generate the code of a changed graph, so that ``graph.forward`` runs it."""
    graph.recompile()
    _LazyGraphModule.force_recompile(graph)


def evaluated(target: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Return what an operator gives for these arguments, of which nodes stand for their fakes: fakes of which autograd
    knows nothing, as nodes have them."""
    args, kwargs = torch.fx.map_arg((args, kwargs), lambda one: one.meta["val"])
    fake = next(one for one in pytree.tree_leaves((args, kwargs)) if isinstance(one, FakeTensor))
    with fake.fake_mode, torch.no_grad():
        return extract_val(target(*args, **kwargs))


@torch.library.custom_op("torchjanus::random_between", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,))
def _random_between(like: torch.Tensor, low: int, high: int | None = None) -> torch.Tensor:
    return torch.empty_strided(like.size(), like.stride(), dtype=like.dtype, device=like.device).random_(low, high)


@_random_between.register_fake
def _(like: torch.Tensor, low: int, high: int | None = None) -> torch.Tensor:
    return torch.empty_strided(like.size(), like.stride(), dtype=like.dtype, device=like.device)


# Overloads that Python cannot name.
_UNNAMED: dict[Any, Any] = {getattr(aten.random_, "from"): torch.ops.torchjanus.random_between.default}


def write_out_of_place(graph: torch.fx.Graph) -> None:
    """Replace such an operation by its functional form and a ``copy_``."""
    for node in list(graph.nodes):
        target = node.target
        if not operator_of(target).writes:
            continue
        other = _UNNAMED.get(target, None if _is_functionalised(target) else out_of_place_form(target))
        if other is None or node.kwargs.get("generator") is not None:
            continue
        given = dict(zip((one.name for one in target._schema.arguments), node.args, strict=False)) | node.kwargs
        values = [given[one.name] for one in target._schema.arguments if one.name in given and not one.kwarg_only]
        if other not in _UNNAMED.values():
            values = [given[one.name] for one in other._schema.arguments if one.name in given and not one.kwarg_only]
        with graph.inserting_before(node):
            made = graph.call_function(other, tuple(values))
            made.meta.update(node.meta)
            copied = graph.call_function(aten.copy_.default, (node.args[0], made))
        copied.meta.update(node.meta)
        node.replace_all_uses_with(copied)
        graph.erase_node(node)


def _is_functionalised(target: torch._ops.OpOverload) -> bool:
    """Whether functionalisation has a kernel for the operator, or does not handle it at all."""
    name = target._schema.name + (f".{target._overloadname}" if target._overloadname != "default" else "")
    return target.namespace != "aten" or torch._C._dispatch_has_kernel_for_dispatch_key(name, "Functionalize")
