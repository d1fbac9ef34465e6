"""No operator, and no function of torch.distributed, gets into a graph unless it is known what it does."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from torchjanus.ops.namespaces import NAMESPACES, operator_name, unsupported_operator
from torchjanus.semantics.known.closed import acts, communicates, is_query, is_refused_code, is_visible_to_modes
from torchjanus.semantics.known.natives import torch_query

# Of torch.distributed: what only asks who there is, or whether something is there; and plain data.
ASKING = frozenset(
    """get_backend get_backend_config get_default_backend_for_device get_global_rank get_group_rank get_node_local_rank
    get_pg_count get_process_group_ranks get_rank get_world_size is_available is_backend_available is_gloo_available
    is_initialized is_mpi_available is_nccl_available is_torchelastic_launched is_ucc_available is_xccl_available
    get_debug_level supports_complex""".split()
)
# Which only TorchScript's interpreter knows.
_OF_TORCH_SCRIPT = frozenset(
    {"prim", "rpc", "backend", "static", "horizontally_fused", "cuda", "qlinear_unpack", "onnx"}
)


def every_operator() -> Iterator[Any]:
    """All that are registered now, as ``torch.ops`` has them."""
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        packet = getattr(getattr(torch.ops, namespace), rest.partition(".")[0], None)
        if packet is not None:
            yield getattr(packet, rest.partition(".")[2] or "default")


def test_operators_of_unknown_namespaces_are_unsuited() -> None:
    operators = list(every_operator())
    assert len(operators) > 2000
    fit = {operator_name(one).partition("::")[0] for one in operators if unsupported_operator(one) is None}
    assert fit <= NAMESPACES
    reported = {schema.name.partition("::")[0] for schema in torch._C._jit_get_all_schemas()}
    assert {operator_name(one).partition("::")[0] for one in operators} >= reported - _OF_TORCH_SCRIPT


@pytest.mark.parametrize("name", ["c10d", "_c10d_functional", "symm_mem", "rpc", "fbgemm", "mine"])
def test_whatever_is_registered_there_is_unsuited(name: str) -> None:
    known = [one for one in every_operator() if operator_name(one).startswith(f"{name}::")]
    assert all(unsupported_operator(one) is not None for one in known)
    assert name not in NAMESPACES


def test_operators_in_graphs_change_only_what_their_schema_says() -> None:
    """Those of torch's own that return nothing and change nothing have an effect that no schema tells, or check
    something (which tracing keeps)."""
    checks = ("_assert", "sym_constrain", "_functional_assert", "_linalg_check_errors", "_validate", "_test", "_has_")
    for operator in every_operator():
        schema = operator._schema
        silent = not schema.returns and not schema.is_mutable and schema.name.startswith("aten::")
        if silent and not schema.name.removeprefix("aten::").startswith(checks):
            assert unsupported_operator(operator) is not None, schema


def test_operators_that_call_functions_are_unsuited() -> None:
    assert unsupported_operator(torch.ops.higher_order.cond) is not None


def functions_of(module: types.ModuleType) -> Iterator[tuple[str, Any]]:
    """The public functions and classes that torch.distributed offers here."""
    for name, value in vars(module).items():
        if not name.startswith("_") and callable(value):
            yield name, value


def modules() -> list[types.ModuleType]:
    import torch.distributed._functional_collectives as functional
    import torch.distributed.nn.functional as differentiable

    found = [torch.distributed, functional, differentiable]
    if torch.distributed.rpc.is_available():
        found.append(torch.distributed.rpc)
    return found


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch has no torch.distributed")
def test_functions_by_which_processes_communicate_are_never_dropped() -> None:
    looked_at = 0
    for module in modules():
        for name, value in functions_of(module):
            function = inspect.unwrap(value) if isinstance(value, types.FunctionType) else value
            of_it = (getattr(function, "__module__", None) or "").startswith(
                ("torch.distributed", "torch._C._distributed")
            )
            if not of_it or name in ASKING:
                continue
            looked_at += 1
            if isinstance(function, types.FunctionType | type):
                assert is_refused_code(function) and not acts(function), name
            elif isinstance(function, types.BuiltinFunctionType):
                assert not torch_query(function) or name.startswith(("get_", "is_")), name
                assert communicates(function), name
    assert looked_at > 100


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch has no torch.distributed")
def test_methods_of_groups_and_handles_are_never_dropped() -> None:
    asking = {"rank", "size", "name", "getRank", "getSize", "getBackendName", "get_debug_level"}
    extension = torch._C._distributed_c10d
    kinds = [kind for kind in vars(extension).values() if isinstance(kind, type)]
    methods = [f for kind in kinds for f in vars(kind).values() if isinstance(getattr(f, "__func__", f), _BUILTIN)]
    methods += [f for f in vars(extension).values() if isinstance(f, _BUILTIN)]
    checked = [getattr(f, "__func__", f) for f in methods]
    checked = [f for f in checked if not f.__name__.startswith("__") and f.__name__ not in asking]
    assert len(checked) > 200
    assert [f.__qualname__ for f in checked if is_query(f) or is_visible_to_modes(f) or not communicates(f)] == []


_BUILTIN = types.BuiltinFunctionType


def test_functions_of_torchs_native_module_are_known_by_name() -> None:
    """What sets, sends or waits is not taken for a question."""
    dropped = [name for name, value in vars(torch._C).items() if isinstance(value, _BUILTIN) and torch_query(value)]
    doing = ("set_", "_set_", "fork", "wait", "_jit_pass", "_jit_set", "_dispatch_call", "import_", "_rpc", "_replace")
    acting = {name for name in dropped if name.startswith(doing)}
    assert acting <= {
        "_set_deterministic_algorithms",
        "_set_fwd_grad_enabled",
        "_set_grad_enabled",
        "_set_multithreading_enabled",
        "_set_sdp_use_cudnn",
        "_set_sdp_use_flash",
        "_set_sdp_use_math",
        "_set_sdp_use_mem_efficient",
        "_set_sdp_use_overrideable",
        "set_anomaly_enabled",
        "set_autocast_cache_enabled",
        "set_autocast_cpu_dtype",
        "set_autocast_cpu_enabled",
        "set_autocast_dtype",
        "set_autocast_enabled",
        "set_autocast_gpu_dtype",
    }
