"""What is known of torch's functions and methods by the names under which programs call them.

A trace names a call before anything decides which of ATen's operators it is. Where the operator decides, see ``aten``.
"""

from __future__ import annotations

__all__ = [
    "ARITHMETIC", "DIVISIONS", "DROPOUTS", "FOREACH", "FRESH", "IN_PLACE_ARITHMETIC", "NUMBERS_ALIKE", "NUMERIC",
    "SHAPING", "TOTAL", "VIEWS",
]  # fmt: skip

# In these a one-element tensor in place of a number gives bitwise the same result.
ARITHMETIC = frozenset(
    """add sub mul div true_divide __add__ __sub__ __mul__ __truediv__ __radd__ __rsub__ __rmul__
    eq ne lt le gt ge __eq__ __ne__ __lt__ __le__ __gt__ __ge__""".split()
)
# Likewise; they change the tensor in place.
IN_PLACE_ARITHMETIC = frozenset("add_ sub_ mul_ div_ true_divide_ __iadd__ __isub__ __imul__ __itruediv__".split())
# Functions that treat numbers and one-element tensors alike. Without the underscores.
NUMBERS_ALIKE = frozenset(
    "add radd iadd sub rsub isub mul rmul imul div truediv eq ne lt le gt ge tensor full full_like where".split()
)
# Functions whose Python integers are data, and no sizes or indices. Without the underscores.
NUMERIC = frozenset(
    """add radd iadd sub rsub isub mul rmul imul div truediv rtruediv itruediv true_divide divide multiply subtract pow
    rpow ipow mod rmod imod remainder fmod floordiv rfloordiv ifloordiv floor_divide lt le gt ge eq ne fill clamp
    clamp_min clamp_max maximum minimum tensor as_tensor scalar_tensor masked_fill""".split()
)
DIVISIONS = frozenset({"div", "truediv", "true_divide"})
# Functions that take sizes, positions or widths. Their other numbers (the fill value of ``full``) may be symbolic, too.
SHAPING = frozenset(
    """view reshape expand broadcast_to repeat tile unflatten zeros ones empty full rand randn randint randperm arange
    linspace eye new_zeros new_ones new_full new_empty narrow narrow_copy split_with_sizes unfold roll tril triu pad
    interpolate one_hot topk""".split()
)
# Functions whose result may share memory with an argument.
VIEWS = frozenset(
    """__getitem__ __get__ __iter__ adjoint as_strided atleast_1d atleast_2d atleast_3d broadcast_tensors broadcast_to
    chunk contiguous cpu detach diagonal double dsplit expand expand_as flatten float half hsplit imag moveaxis movedim
    narrow permute positive ravel real reshape reshape_as select split split_with_sizes squeeze swapaxes swapdims t
    tensor_split to transpose type type_as unbind unflatten unfold unsqueeze view view_as view_as_complex view_as_real
    vsplit""".split()
)
# Functions whose results share no memory with their arguments.
FRESH = frozenset({"stack", "cat", "clone", "written"})
# Functions that return their argument in evaluation mode.
DROPOUTS = frozenset("dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout".split())
# Functions that raise on no contents of their arguments. Without the underscores.
TOTAL = frozenset(
    """abs add addcmul addmm amax amin bmm cat chunk clamp clone contiguous cos dot einsum elu embedding eq expand
    expand_as flatten float gelu ge get getitem glu gt hardtanh hstack inner layer_norm le leaky_relu lerp linear
    log_softmax logsigmoid lt matmul max maximum mean min minimum mish mm mul mv narrow ne neg new_ones new_zeros ones
    ones_like outer permute positive prelu radd relu relu6 reshape rmul rsub select selu sigmoid silu sin softmax
    softplus softsign split square squeeze stack sub sum T t tanh tensor transpose tril triu unbind unsqueeze view
    view_as vstack where zeros zeros_like""".split()
)
# Functions that ``torch._foreach_...`` applies to each of a list of tensors.
FOREACH = frozenset(
    """add add_ sub sub_ mul mul_ div div_ addcmul addcmul_ addcdiv addcdiv_ lerp lerp_ neg neg_ sqrt sqrt_
    reciprocal reciprocal_""".split()
)
