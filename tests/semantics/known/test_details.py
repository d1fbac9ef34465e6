"""What of a tensor a graph holds constant."""

from __future__ import annotations

import torch

from torchjanus.semantics.known.details import tensor_detail


def test_details_tell_tensors_apart() -> None:
    base = torch.ones(2, 3)
    others = [base.T, base.double(), base[:1], base.clone().requires_grad_(), torch.nn.Parameter(base), base.to("meta")]
    details = [tensor_detail(t) for t in (base, *others)]
    assert len(set(details)) == len(details)
    assert tensor_detail(base) == tensor_detail(torch.zeros(2, 3))
