"""What is known of ATen's operators, one overload at a time. Knows no graphs.

``operator_of(target)`` answers. What an operator writes, whether it gives a view and whether it draws random numbers is
read from its schema and its tags. ``_BY_HAND`` holds the rest. Closed by default: of what is not named there nothing is
assumed.
"""

from __future__ import annotations

import functools
import keyword
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["DATA_ARGUMENTS", "INDEXED", "SAMPLERS", "Operator", "in_place_form", "operator_of", "out_of_place_form"]

_aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Operator:
    """One overload; without a name where a target is none.

    From the schema: ``name`` (without ``aten::`` and the overload), ``aten`` (it is one of ATen's), ``writes`` (the
    arguments that it changes), ``view`` (its result may share memory with its first argument), ``gives_nothing``.

    From tags: ``draws`` (moves a random generator), ``pointwise``, ``any_pointwise`` (of the overloads of its name),
    ``varies_in_bits`` (equal arguments may give other bits), ``moves_view`` (changes in place where a tensor lies; not
    ``detach_``, which has the tag and changes only what autograd knows).

    By hand: see ``_BY_HAND``.
    """

    name: str = ""
    aten: bool = False
    writes: tuple[str, ...] = ()
    view: bool = False
    gives_nothing: bool = False
    draws: bool = False
    pointwise: bool = False
    any_pointwise: bool = False
    varies_in_bits: bool = False
    moves_view: bool = False
    identity: bool = False
    overwrites: bool = False
    same_elements: bool = False
    picks_elements: bool = False
    joins: bool = False
    finds: bool = False
    may_raise: bool = False
    divides: bool = False
    raises_on_integers: bool = False
    cheap: bool = False
    linear: bool = False
    rectifies: bool = False
    scales: bool = False
    same_in_place: bool = False
    total: bool = False
    rounds_number: bool = False
    rounds_complex: bool = False
    new_memory: bool = False
    product: bool = False
    writes_any_layout: bool = False
    measured_strides: bool = False
    writes_back: bool = False


# The fused kernels of optimizers, as torchjanus defines them (``graph.operators.fused_updates``).
_FUSED = " torchjanus::fused_adagrad torchjanus::fused_adam torchjanus::fused_adamw torchjanus::fused_sgd"

# Property of ``Operator`` -> names in schemas, with the overload (``max.dim``) where not all of a name have it.
_BY_HAND: dict[str, frozenset[str]] = {
    key: frozenset(names.split())
    for key, names in {
        # By its schema, and so to autograd, it is not a view; in memory it is one.
        "view": "_unsafe_view unsafe_split unsafe_split_with_sizes",
        # The result is the first argument, for a graph that knows neither autograd nor aliasing.
        "identity": "detach alias lift_fresh",
        # Gives new contents to all of the first argument, of whose contents it reads nothing.
        "overwrites": """copy.default fill.Scalar fill.Tensor zero.default _foreach_copy.default
            _foreach_zero.default""",
        # All elements of the result are elements of the first argument, with no conversion.
        "same_elements": """view _unsafe_view reshape _reshape_alias expand permute transpose t unsqueeze squeeze clone
            alias detach slice select contiguous""",
        "picks_elements": "gather index_select index flip roll take repeat masked_select",
        # All elements of the result are elements of the tensors of a list.
        "joins": "cat stack",
        # The first result holds elements, the second the positions of these.
        "finds": "sort topk max.dim min.dim kthvalue mode median.dim",
        # Raises on some contents of its tensors. Of ``linalg_`` all do but those in ``_TOTAL_LINALG``; see ``INDEXED``.
        "may_raise": """index index_put take put masked_scatter index_reduce multinomial bernoulli poisson
            normal.float_Tensor normal.Tensor_Tensor binary_cross_entropy bincount histc histogram
            _histogramdd_bin_edges _histogramdd_from_bin_cts embedding_bag _embedding_bag _embedding_bag_forward_only
            one_hot repeat_interleave max_unpool2d max_unpool3d _ctc_loss cholesky cholesky_inverse cholesky_solve geqrf
            lu_solve lu_unpack ormqr segment_reduce searchsorted _assert_async _assert_scalar multi_margin_loss
            multilabel_margin_loss_forward unfold_backward""",
        # On integers: raises where the second argument holds a zero, and compiled code ends the process.
        "divides": "floor_divide remainder fmod div",
        # On integers: raises on some numbers.
        "raises_on_integers": "floor_divide remainder fmod div true_divide divide pow bitwise_left_shift",
        # Costs little where it gives few elements. So does what is pointwise or a view.
        "cheap": """arange argmax argmin topk sort argsort cat clone full full_like max min amax amin sum mean new_full
            new_zeros new_ones ones ones_like stack zeros zeros_like empty empty_like scalar_tensor lift_fresh_copy
            _to_copy any all""",
        # A linear function of all its tensors together (of ``where``, of those it picks from).
        "linear": """add sub rsub neg where cat stack clone sum mean _to_copy view_as_real new_zeros zeros_like
            positive lift_fresh_copy""",
        # Its gradient is that of the result, or zero.
        "rectifies": "relu",
        # Linear if its second argument is a finite number, and not zero if it is a divisor.
        "scales": "mul div",
        # Its in-place form runs the same kernel: equal bits.
        "same_in_place": """abs add addcdiv addcmul clamp clamp_max clamp_min copy div exp fill lerp log mul neg
            reciprocal rsqrt sigmoid sign sqrt sub tanh zero _foreach_abs _foreach_add _foreach_addcdiv
            _foreach_addcmul _foreach_clamp_max _foreach_clamp_min _foreach_copy _foreach_div
            _foreach_exp _foreach_lerp _foreach_log _foreach_mul _foreach_neg _foreach_reciprocal
            _foreach_rsqrt _foreach_sigmoid _foreach_sign _foreach_sqrt _foreach_sub _foreach_tanh _foreach_zero
            index_put"""
        + _FUSED,
        # Not one of torch's, and raises on no contents of its tensors.
        "total": _FUSED,
        # On complex numbers its in-place form is rounded otherwise in the last elements, on the CPU.
        "rounds_complex": "div.Tensor div_.Tensor _foreach_div.List _foreach_div_.List",
        # In half precision its in-place form rounds the number first, on the CPU.
        "rounds_number": """mul.Scalar mul_.Scalar _foreach_mul.Scalar _foreach_mul.ScalarList _foreach_mul_.Scalar
            _foreach_mul_.ScalarList""",
        # Its result never shares memory with an argument. So do those that are pointwise.
        "new_memory": """mm.default addmm.default bmm.default baddbmm.default sum.dim_IntList sum.default mean.default
            mean.dim cat.default stack.default convolution.default embedding_dense_backward.default _softmax.default
            index_put.default"""
        + _FUSED,
        # A product of matrices: in another layout another routine computes it, with other rounding.
        "product": "addbmm addbmm_ addmm addmm_ addmv addmv_ addr addr_ baddbmm baddbmm_ bmm mm mv",
        # With ``out=``: was seen to fill a tensor of any layout right (``benchmarks.robustness.torch_databases ops``).
        "writes_any_layout": """alias_copy all amax amin aminmax any arange argmax argmin as_strided_copy avg_pool2d cat
            cholesky clamp clamp_max clamp_min complex cummax cummin cumprod cumsum diag diagonal_copy dot expand_copy
            frexp gather geqrf isin kthvalue linalg_cross linalg_lu linalg_lu_factor linalg_lu_factor_ex linalg_lu_solve
            linspace logspace lu_unpack max mean min mode nanquantile prod quantile slice_scatter split_with_sizes_copy
            stack sum topk triangular_solve vdot where""",
        # Its kernel was seen to give other strides than torch's formula says, for operands that are not contiguous
        # (``benchmarks.robustness.torch_databases strides`` goes through all operators).
        "measured_strides": """_batch_norm_no_update _batch_norm_with_update _batch_norm_with_update_functional
            _log_softmax_backward_data _native_batch_norm_legit _native_batch_norm_legit_functional
            _native_batch_norm_legit_no_training _softmax_backward_data batch_norm_backward channel_shuffle copysign
            div.Tensor_mode div.Scalar_mode floor_divide heaviside huber_loss_backward ldexp log_sigmoid_forward
            log_sigmoid_backward logaddexp logaddexp2 logical_and logical_not logical_or logical_xor max_pool1d
            max_unpool2d max_unpool3d mse_loss_backward native_batch_norm native_batch_norm_backward
            native_dropout_backward nll_loss2d_backward nll_loss2d_forward normal pow.Scalar reflection_pad1d_backward
            reflection_pad2d_backward reflection_pad3d reflection_pad3d_backward replication_pad1d_backward
            replication_pad2d_backward replication_pad3d replication_pad3d_backward smooth_l1_loss_backward
            special_xlog1py xlogy""",
        # Functionalisation puts it in place of a change through a view.
        "writes_back": """clone copy copy_ view slice_scatter select_scatter diagonal_scatter as_strided_scatter
            as_strided expand slice select squeeze unsqueeze transpose permute t empty_strided empty_like
            new_empty_strided alias reshape fill full_like _to_copy sym_size sym_numel sym_stride""",
    }.items()
}
_TOTAL_LINALG = frozenset({"linalg_vector_norm", "linalg_cross", "linalg_diagonal", "linalg_vecdot"})

# What looks up or puts elements along one dimension: the argument that is indexed, and the index. It raises on an index
# that is out of range.
INDEXED: dict[str, tuple[str, str]] = {
    "embedding": ("weight", "indices"),
    "nll_loss_forward": ("self", "target"),
    "nll_loss2d_forward": ("self", "target"),
    **dict.fromkeys(
        "index_select index_add index_copy index_fill gather scatter scatter_add scatter_reduce".split(),
        ("self", "index"),
    ),
}

# The arguments, by their names in the schema, that the kernel takes as data: they may be any number, 0, 1 and negative
# ones included. By another argument C++ may decide.
DATA_ARGUMENTS: dict[str, frozenset[str]] = {
    name: frozenset(arguments.split())
    for name, arguments in {
        "add": "other alpha", "sub": "other alpha", "rsub": "other alpha", "mul": "other", "div": "other",
        "addcmul": "value", "addcdiv": "value", "lerp": "weight", "full": "fill_value", "full_like": "fill_value",
        "new_full": "fill_value",
        "fill": "value", "scalar_tensor": "s", "masked_fill": "value", "where": "self other", "clamp": "min max",
        "clamp_min": "min", "clamp_max": "max", "eq": "other", "ne": "other", "lt": "other", "le": "other",
        "gt": "other", "ge": "other", "fmod": "other", "remainder": "other", "maximum": "other", "minimum": "other",
        "pow": "self exponent", "addmm": "alpha", "addmv": "alpha", "baddbmm": "alpha",
        "_foreach_add": "scalar scalars alpha", "_foreach_sub": "scalar scalars alpha",
        "_foreach_mul": "scalar scalars", "_foreach_div": "scalar scalars", "_foreach_addcmul": "value scalars",
        "_foreach_addcdiv": "value scalars", "_foreach_lerp": "weight", "_foreach_pow": "exponent",
        "_foreach_maximum": "scalar scalars", "_foreach_minimum": "scalar scalars",
        "_foreach_clamp_min": "scalar scalars", "_foreach_clamp_max": "scalar scalars",
        "native_batch_norm": "momentum", "_native_batch_norm_legit": "momentum",
        "_native_batch_norm_legit_functional": "momentum",
        "leaky_relu": "negative_slope", "leaky_relu_backward": "negative_slope",
        "constant_pad_nd": "value", "nan_to_num": "nan posinf neginf",
        "torchjanus::fused_adagrad": "lr lr_decay weight_decay eps",
        "torchjanus::fused_adam": "lr beta1 beta2 weight_decay eps",
        "torchjanus::fused_adamw": "lr beta1 beta2 weight_decay eps",
        "torchjanus::fused_sgd": "lr momentum weight_decay dampening",
    }.items()
}  # fmt: skip

# What fills a tensor with numbers drawn, and the in-place operator that a program calls for it. The functional one may
# draw into a contiguous tensor, and numbers are drawn in memory order.
SAMPLERS: dict[Any, Any] = {
    _aten.bernoulli.p: _aten.bernoulli_.float,
    _aten.bernoulli.Tensor: _aten.bernoulli_.Tensor,
    _aten.uniform.default: _aten.uniform_.default,
    _aten.normal_functional.default: _aten.normal_.default,
    _aten.exponential.default: _aten.exponential_.default,
    _aten.cauchy.default: _aten.cauchy_.default,
    _aten.log_normal.default: _aten.log_normal_.default,
    _aten.geometric.default: _aten.geometric_.default,
    _aten.random.default: _aten.random_.default,
    _aten.random.to: _aten.random_.to,
    getattr(_aten.random, "from"): getattr(_aten.random_, "from"),
}

_NONE = Operator()


def operator_of(target: Any) -> Operator:
    """Return what is known of what a node calls; all properties are unset where that is no operator of a dispatcher."""
    return _read(target) if isinstance(target, torch._ops.OpOverload) else _NONE


@functools.cache  # as many as operators are registered
def _read(target: torch._ops.OpOverload) -> Operator:
    schema, tags = target._schema, target.tags
    aten, name = target.namespace == "aten", schema.name.removeprefix("aten::")
    names = {name, f"{name}.{target._overloadname}"} if target.namespace in ("aten", "torchjanus") else {}
    by_hand = {key: not known.isdisjoint(names) for key, known in _BY_HAND.items()}
    view = by_hand.pop("view") or any(result.alias_info is not None for result in schema.returns)
    linalg = name.startswith(("linalg_", "_linalg_")) and name not in _TOTAL_LINALG
    functional = name.removesuffix("_")
    raises = functional in INDEXED or functional in _BY_HAND["may_raise"] or linalg
    may_raise = by_hand.pop("may_raise") or (aten and raises)
    packet = target._overloadpacket
    return Operator(
        name=name,
        aten=aten,
        writes=tuple(one.name for one in schema.arguments if one.alias_info is not None and one.alias_info.is_write),
        view=view,
        gives_nothing=not schema.returns,
        draws=torch.Tag.nondeterministic_seeded in tags,
        pointwise=torch.Tag.pointwise in tags,
        any_pointwise=any(torch.Tag.pointwise in getattr(packet, overload).tags for overload in packet.overloads()),
        varies_in_bits=torch.Tag.nondeterministic_bitwise in tags,
        moves_view=torch.Tag.inplace_view in tags and name != "detach_",
        may_raise=may_raise,
        **by_hand,
    )


def in_place_form(target: Any) -> Any:
    """Return the operator that writes over its first argument what this one gives; None where there is none."""
    found = _other_form(target, f"{operator_of(target).name}_")
    return found if found is not None and operator_of(found).writes == (_first(target),) else None


def out_of_place_form(target: Any) -> Any:
    """Return the operator that gives what this one writes over its first argument; None where there is none. Its
    arguments have the same names, in another order perhaps."""
    name = operator_of(target).name
    if not name.endswith("_") or name.endswith("__") or operator_of(target).writes != (_first(target),):
        return None
    found = _other_form(target, name.removesuffix("_"))
    return found if found is not None and not operator_of(found).writes else None


def _other_form(target: Any, name: str) -> Any:
    """Return the operator of that name with arguments of the same names and types, of the same overload if it has them:
    ``pow_.Scalar(Tensor, Scalar)`` has another form than ``pow.Scalar(Scalar, Tensor)``."""
    namespace = getattr(torch.ops, target.namespace)
    packet, overload = getattr(namespace, name.rpartition("::")[2], None), target._overloadname
    if packet is None or keyword.iskeyword(overload):
        return None
    wanted, overloads = _types(target), packet.overloads()
    if overload in overloads and _types(found := getattr(packet, overload)) == wanted:
        return found
    alike = [one for one in overloads if _types(getattr(packet, one)) == wanted]
    return getattr(packet, alike[0]) if len(alike) == 1 else None


def _types(target: Any) -> dict[str, str]:
    return {one.name: str(one.type) for one in target._schema.arguments}


def _first(target: Any) -> str:
    arguments = target._schema.arguments
    return str(arguments[0].name) if arguments else ""
