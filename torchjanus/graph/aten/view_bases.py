"""Find what results are to autograd: views of others, detached from them, or independent. Knows nothing of programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from torchjanus.graph.aten.memory import Memory, base_of, counted_apart
from torchjanus.graph.ir.lowered import FromInput, GradState, Result, Source, ViewOf

__all__ = ["ViewBases"]


class ViewBases:
    """Completes the results of one trace with their bases. ``inputs`` and ``tensors`` are those of the trace,
    ``results`` the Results of the latter; ``on_host`` returns a source with its sizes as the host computes them."""

    def __init__(
        self,
        memory: Memory,
        inputs: Sequence[torch.Tensor],
        tensors: Sequence[torch.Tensor],
        results: Sequence[Result],
        on_host: Callable[[Source], Source],
    ) -> None:
        self._memory = memory
        self._inputs = inputs
        self._known = {id(tensor): result for tensor, result in zip(tensors, results, strict=True)}
        self._on_host = on_host
        self._hidden: list[torch.Tensor] = []

    def merged(self, tensor: torch.Tensor, result: Result) -> Result:
        """Return the result with the view metadata that autograd has for the tensor."""
        if not isinstance(result.source, ViewOf) or result.inference:
            return result
        base = base_of(tensor)
        if base is None:
            below = result.source.base
            alias = self._inputs[below.index] if isinstance(below, FromInput) else self._memory.values[below.index]
            return replace(result, apart=counted_apart(tensor, alias))
        source = self._memory.of_base(base)
        if source is None:
            return result
        creation = torch._C._autograd._get_creation_meta(tensor).name
        return replace(result, base=self._of_base(base, source, result.state), creation=creation)

    def _of_base(self, base: torch.Tensor, source: Source, state: GradState) -> Result:
        known = self._known.get(id(base))
        if known is None:  # only ``result._base`` shows it
            number = next((k for k, one in enumerate(self._hidden) if one is base), len(self._hidden))
            self._hidden[number : number + 1] = [base]
            state = GradState.PLAIN if isinstance(source, FromInput) else state
            known = Result(self._on_host(source), state, hidden=number)
        return self.merged(base, known)
