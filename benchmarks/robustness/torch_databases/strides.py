"""Which of ATen's operators give results other strides than fake tensors have, over the samples of OpInfo."""

from __future__ import annotations

import collections
import warnings
from collections.abc import Sequence
from itertools import islice
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.record import write
from benchmarks.robustness.torch_databases.loading import operators
from benchmarks.robustness.torch_databases.ops import LAYOUTS, contiguous, laid, name_of
from benchmarks.robustness.torch_databases.playing import SEED
from torchjanus.graph.aten.strides import MeasuredStrides

__all__ = ["main"]

SAMPLES = 5
KINDS = (FakeTensorMode, MeasuredStrides)

Counts = collections.Counter[str]


class Compared(TorchDispatchMode):
    """Carries each operation out, and on fake tensors of each kind, too. ``found``: how often an operator's strides
    differed, for each kind. ``seen``: the operators that were looked at."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: dict[type[FakeTensorMode], Counts] = {kind: collections.Counter() for kind in KINDS}
        self.looked_at: set[Any] = set()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if not func._schema.is_mutable and not any(result.alias_info for result in func._schema.returns):
            self._compare(func, args, kwargs or {}, made)
        return made

    def _compare(self, func: Any, args: Any, kwargs: Any, made: Any) -> None:
        leaves = pytree.tree_leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if any(one.layout != torch.strided or one.is_nested or one.is_quantized for one in tensors):
            return
        lies = tuple((one.shape, one.stride(), one.dtype) for one in tensors)
        key = func, lies, repr([leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)])
        if key in self.looked_at:
            return
        self.looked_at.add(key)
        self.seen.add(str(func))
        for kind in KINDS:
            self._compare_kind(kind, func, args, kwargs, made)

    def _compare_kind(self, kind: type[FakeTensorMode], func: Any, args: Any, kwargs: Any, made: Any) -> None:
        mode = kind(allow_non_fake_inputs=True)
        try:
            given = pytree.tree_map_only(torch.Tensor, lambda one: mode.from_tensor(one.detach()), (args, kwargs))
            with mode:
                fakes = func(*given[0], **given[1])
        except Exception:  # what it gives depends on contents
            return
        for real, fake in zip(pytree.tree_leaves(made), pytree.tree_leaves(fakes), strict=True):
            if isinstance(real, torch.Tensor) and real.layout == torch.strided and real.numel():
                reported = zip(real.shape, real.stride(), fake.stride(), strict=True)
                if real.shape != fake.shape or any(size > 1 and one != other for size, one, other in reported):
                    self.found[kind][str(func)] += 1
                    return


def compared(op: Any, found: Compared, samples: int = SAMPLES) -> None:
    """Look at the operators under one entry, forward and backward."""
    supported = op.supported_dtypes("cpu")
    dtype = torch.float32 if torch.float32 in supported else next(iter(supported), None)
    graded = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    if dtype is None or op.name.startswith("empty"):
        return
    torch.manual_seed(SEED)
    for sample in islice(op.sample_inputs("cpu", dtype, requires_grad=graded), samples):
        for layout in (contiguous, *LAYOUTS.values()):
            try:
                args, kwargs = laid(((sample.input, *sample.args), sample.kwargs), layout)
                with found:
                    made = [part for part in pytree.tree_leaves(op.op(*args, **kwargs)) if torch.is_tensor(part)]
                    ends = [part for part in made if part.requires_grad]
                    inputs = [part for part in pytree.tree_leaves((args, kwargs)) if torch.is_tensor(part)]
                    inputs = [part for part in inputs if part.requires_grad]
                    if ends and inputs:
                        torch.autograd.grad(ends, inputs, [torch.ones_like(one) for one in ends], allow_unused=True)
            except Exception:  # eager does not take tensors that layout so
                continue


def main(only: Sequence[str] | None = None, samples: int | None = None, record: Sequence[str] | None = None) -> int:
    """Print both tables: with torch's formulas, and with what is measured. Status 1 where the second is not empty.

    ``record``: the arguments to write down beside them in ``benchmarks/results/torch_strides.json``.
    """
    found = Compared()
    names = []
    with warnings.catch_warnings(action="ignore"):
        for op in operators():
            if only is None or name_of(op) in only:
                names.append(name_of(op))
                before = set(found.found[MeasuredStrides])
                compared(op, found, samples or SAMPLES)
                for name in sorted(set(found.found[MeasuredStrides]) - before):
                    print(f"{name_of(op)}: {name} differs", flush=True)
    reported: dict[str, Any] = {
        "entries": len(names),
        "operators looked at": len(found.seen),
        "samples": samples or SAMPLES,
    }
    for kind, counts in found.found.items():
        print(f"{kind.__name__}: {len(counts)} of {len(found.seen)} operators differ")
        for name, count in sorted(counts.items()):
            print(f"  {count:4d} {name}")
        reported[kind.__name__] = dict(sorted(counts.items()))
    if record is not None:
        print(write("torch_strides", list(record), "cpu", reported))
    return int(bool(found.found[MeasuredStrides]))
