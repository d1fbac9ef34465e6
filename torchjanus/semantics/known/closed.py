"""What is known of torch's native code, as plain data: functions that only query, or set modes that each node records.

All other functions are refused: one that is not listed may communicate, count, or keep its arguments. Knows
nothing of recordings.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Sequence
from typing import Any

import torch

from torchjanus.core.kinds import getattr, isinstance
from torchjanus.semantics.known.callers import is_search

__all__ = [
    "acts",
    "calls_functions",
    "communicates",
    "cudnn_settings",
    "has_own_compiler",
    "is_query",
    "is_refused_code",
    "is_region",
    "is_torch_script",
    "is_visible_to_modes",
    "sets_cudnn",
]

# Functions of torch._C with these prefixes only query.
_QUERYING = tuple(
    """is_ _is_ get_ _get_ has_ _has_ _len_ _can_use_ _are_ _supported_ _jit_is_ _cuda_get _cuda_is _cuda_has
    _dispatch_has_ _dispatch_is_ _dispatch_tls_is_""".split()
)
_QUERIES = frozenset(
    """can_cast promote_types result_type cudnn_is_acceptable init_num_threads _nnpack_available _infer_size
    _accelerator_getAccelerator _accelerator_getDeviceIndex _accelerator_hooks_device_count _show_config _parallel_info
    _accelerator_hooks_get_current_device _accelerator_isAllocatorInitialized _autocast_supported_devices
    _mps_is_available _mps_is_in_bad_fork _mps_is_on_macos_or_newer _mtia_isBuilt _mtia_isInBadFork _llvm_enabled
    _overlaps _dispatch_keys _dispatch_key_set _dispatch_key_name _dispatch_key_parse _dispatch_find_schema_or_throw
    _dispatch_get_all_op_names _functionalization_reapply_views_tls _parse_dispatch_key parse_schema _demangle
    _jit_get_operation _jit_get_schemas_for_operator _jit_resolve_packet _maybe_call_torch_function_for_op_packet
    _should_allow_numbers_as_tensors _valgrind_supported_platform _check_sparse_tensor_invariants
    _select_conv_backend _select_batch_norm_backend _conv_determine_backend_memory_format
    _group_tensors_by_device_and_dtype _log_api_usage_once _log_api_usage_metadata _profiler_enabled _profiler_type
    _saved_tensors_hooks_is_enabled _saved_tensors_hooks_get_disabled_error_message _top_saved_tensors_default_hooks
    _get_sequence_nr _enabled kineto_available peek_interpreter_stack _cuda_synchronize _cuda_emptyCache
    _accelerator_synchronizeDevice rank size name getRank getSize getBackendName""".split()
)
# These are allowed: they set the current device, which graphs name, or modes that are recorded with each framework call
# or checked at the end of the step. The caller checks what is pushed on a stack of modes.
_SETTING = frozenset(
    """_set_sdp_use_flash _set_sdp_use_mem_efficient _set_sdp_use_math _set_sdp_use_cudnn _set_sdp_use_overrideable
    _set_grad_enabled set_autocast_enabled set_autocast_dtype set_autocast_cache_enabled set_autocast_cpu_enabled
    set_autocast_cpu_dtype set_autocast_gpu_dtype autocast_increment_nesting autocast_decrement_nesting
    clear_autocast_cache set_anomaly_enabled _set_deterministic_algorithms _push_on_torch_function_stack
    _pop_torch_function_stack _push_on_torch_dispatch_stack _pop_torch_dispatch_stack _set_fwd_grad_enabled
    _enter_dual_level _exit_dual_level _set_multithreading_enabled _cuda_maybeExchangeDevice _cuda_exchangeDevice
    _accelerator_exchangeDevice _accelerator_maybeExchangeDevice _accelerator_setDeviceIndex
    _record_function_with_args_enter _record_function_with_args_exit _add_metadata_json _vmapmode_increment_nesting
    _vmapmode_decrement_nesting""".split()
)
# These set how cuDNN computes: nothing, where there is no GPU. The caller checks that they are put back.
_SETTING_CUDNN = frozenset(
    """_set_cudnn_enabled _set_cudnn_benchmark _set_cudnn_deterministic _set_cudnn_allow_tf32
    _set_cudnn_depthwise_kernel _cuda_set_cudnn_benchmark_limit""".split()
)
_PRECISION = "_set_fp32_precision_setter"  # of the back end that is its first argument
# Native context managers that do the same. Those that disable the watch (DisableTorchFunction) are not listed.
_REGIONS = frozenset({"_InferenceMode", "_RecordFunctionFast", "_DisableFuncTorch", "_AutoDispatchBelowAutograd"})
_SPACES = frozenset({"torch._C._nn", "torch._C._fft", "torch._C._linalg", "torch._C._special", "torch._C._nested"})
_SPACES |= {"torch._C._sparse"}

# Python code by which processes communicate. It is not entered, since it communicates in C++.
_COMMUNICATING = ("torch.distributed", "torch.nn.parallel.distributed", "torch._C._distributed")
# Functions of these modules that only query the group.
_QUERYING_GROUP = frozenset(
    """is_available is_initialized is_backend_available is_gloo_available is_mpi_available is_nccl_available
    is_ucc_available is_xccl_available is_torchelastic_launched get_rank get_world_size get_backend get_group_rank
    get_global_rank get_node_local_rank get_process_group_ranks _rank_not_in_group _get_default_group
    _group_or_default_group _get_process_group_name _get_group_tag default_pg WORLD pg_map pg_names pg_group_ranks
    pg_backend_config pg_to_tag tags_to_pg _is_barrier_after_init _warn_not_in_group
    _get_group_size _check_valid_timeout""".split()
)
# Methods of DistributedDataParallel that are entered: they set flags.
_ENTERED = frozenset({"no_sync", "train"})

# Modules left out of graphs (``trusted.IGNORED``) whose functions do more than query, except those with these prefixes.
_BEGINNINGS = {
    "torch.jit": "annotate isinstance ignore unused export get_ _get_ strict_fusion",
    "torch.profiler": "record_function",
    "torch.autograd.profiler": "record_function",
}
_HARMLESS = {module: ("is_", "_is_", *names.split()) for module, names in _BEGINNINGS.items()}
# Functions in such modules that act on the functions or modules that they are given.
_CALLING = {
    "torch.fx": frozenset({"symbolic_trace", "trace", "replace_pattern", "__init__", "run", "replay"}),
    "torch._dynamo": frozenset({"explain", "export", "optimize", "optimize_assert", "reset", "aot_compile"}),
    "torch.compiler": frozenset({"compile", "reset", "load_cache_artifacts", "save_cache_artifacts"}),
}


def acts(func: Any) -> bool:
    """Whether a function of a module that is left out of graphs does something that a graph would have to do."""
    module, name = _module_of(func), getattr(func, "__qualname__", None) or ""
    last = name.rpartition(".")[2]
    for each, harmless in _HARMLESS.items():
        if module == each or module.startswith(each + "."):
            return not name.startswith(harmless) and not last.startswith(("is_", "_is_"))
    return any(last in names for each, names in _CALLING.items() if module == each or module.startswith(each + "."))


def is_query(func: Any) -> bool:
    """Whether a function of torch's C++ only queries, or sets an ambient mode that each node records."""
    name: str = getattr(func, "__name__", "") or ""
    if name in ("__enter__", "__exit__"):
        return True  # the caller checks their owner by is_region()
    if not isinstance(func, types.BuiltinFunctionType | types.BuiltinMethodType):
        return False
    asks = name.startswith(_QUERYING) and "_distributed" not in _module_of(func)
    return asks or name in _QUERIES or name in _SETTING


def sets_cudnn(func: Any, args: Sequence[Any]) -> bool:
    """Whether a call sets how cuDNN computes, in a process that has no GPU."""
    name = getattr(func, "__name__", "")
    if name not in _SETTING_CUDNN and not (name == _PRECISION and args and args[0] == "cuda"):
        return False
    return _module_of(func) in ("", "torch._C") and not torch.cuda.is_available()


def cudnn_settings() -> tuple[Any, ...]:
    """Return what ``sets_cudnn`` calls have set, as far as this version of torch has it."""
    names = ("enabled", "benchmark", "deterministic", "allow_tf32", "depthwise_kernel")
    found = [get() for name in names if (get := getattr(torch._C, f"_get_cudnn_{name}", None)) is not None]
    precision = getattr(torch._C, "_get_fp32_precision_getter", None)
    return (*found, None if precision is None else precision("cuda", "all"))


def is_region(value: Any) -> bool:
    """Whether it is a native context manager that sets a recorded mode."""
    return type(value).__name__ in _REGIONS


def is_visible_to_modes(func: Any) -> bool:
    """Whether a mode that records framework calls sees calls of this function."""
    qualname = getattr(func, "__qualname__", None) or ""
    if qualname.startswith("_VariableFunctionsClass.") or _module_of(func).startswith("torch._ops."):
        return True
    owner = getattr(func, "__self__", None)
    return isinstance(owner, types.ModuleType) and owner.__name__ in _SPACES


def _module_of(func: Any) -> str:
    module = getattr(func, "__module__", None)
    return module if isinstance(module, str) else ""


def is_refused_code(func: Any) -> bool:
    """Whether this is Python code of torch that is refused as a whole.

    That is code in which processes communicate (beyond queries of the group), operators that call functions, optimizers
    whose losses decide how often they call their closure, and ``torch.compile``."""
    name = getattr(func, "__name__", None)
    if func is torch.compile or is_search(func):
        return True
    if isinstance(func, types.FunctionType):
        module = func.__globals__.get("__name__")
        entered = name in (_ENTERED if module == "torch.nn.parallel.distributed" else _QUERYING_GROUP)
        return _is_calling(module) or (not entered and _is_communicating(module))
    if isinstance(func, type | functools._lru_cache_wrapper):
        return name not in _QUERYING_GROUP and _is_communicating(_module_of(func))
    return False


@functools.cache
def _is_communicating(module: Any) -> bool:
    return isinstance(module, str) and any(
        module == name or module.startswith((name + ".", name + "_")) for name in _COMMUNICATING
    )


def has_own_compiler(func: types.FunctionType) -> bool:
    """Whether ``torch.compile`` has made this function with a compiler (``backend``) that is not torch's own."""
    cells = dict(zip(func.__code__.co_freevars, func.__closure__ or (), strict=True))
    if "_torchdynamo_orig_callable" not in func.__dict__ or "callback" not in cells:
        return False
    compiler = cells["callback"].cell_contents
    while (inner := getattr(compiler, "_torchdynamo_orig_backend", None)) is not None:
        compiler = inner
    compiler = getattr(compiler, "compiler_fn", compiler)
    while isinstance(compiler, functools.partial):
        compiler = compiler.func
    module = getattr(compiler, "__module__", None)
    return compiler is not None and not (isinstance(module, str) and module.partition(".")[0] == "torch")


def _is_calling(module: Any) -> bool:
    return isinstance(module, str) and module.startswith("torch._higher_order_ops.")


def is_torch_script(func: Any) -> bool:
    """Whether it is a function or method compiled by TorchScript, or an object of a TorchScript class."""
    kind: Any = type(func)
    return isinstance(func, torch._C.ScriptFunction | torch._C.ScriptMethod) or kind is torch._C.ScriptObject


def communicates(func: Any) -> bool:
    """Whether processes communicate in this function, or it is a method of an object by which they do."""
    owner, of_globals = getattr(func, "__self__", None), getattr(func, "__globals__", {}).get("__name__", "")
    modules = (of_globals or _module_of(func), getattr(type(owner), "__module__", ""), _module_of(type(func)))
    return any(map(_is_communicating, modules))


def calls_functions(func: Any) -> bool:
    """Whether it is an operator that calls functions, or torch's code around one."""
    of_globals = getattr(func, "__globals__", {}).get("__name__", "")
    return isinstance(func, torch._ops.HigherOrderOperator) or _is_calling(of_globals)
