"""One graph in the making: blocks, values, and which tensor or number of the staged run is which value.

It knows nothing of Python's control flow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from torchjanus.core.errors import NOWHERE, Place, Refused, refused
from torchjanus.core.kinds import isinstance
from torchjanus.semantics.staged.unknown.tensors import Fakes, is_fake, quiet, tensor_type
from torchjanus.semantics.staged.unknown.values import Poison, StagedValue, Unbound
from torchjanus.tracegraph.graph import (
    Block,
    Const,
    Dict,
    Graph,
    Input,
    Node,
    Operand,
    Path,
    Record,
    Ref,
    TensorType,
    Value,
)
from torchjanus.tracegraph.graph import Sequence as Items

__all__ = ["Builder", "bound"]


def bound(value: Any, name: str) -> Any:
    """Return the value of the variable ``name``, if the program has set it. Graphs call it."""
    if value is Unbound:
        raise UnboundLocalError(f"cannot access local variable '{name}' where it is not associated with a value")
    return value


def _captured(place: Place) -> Refused:
    return refused(
        "staged-captured", "a staged value of another function",
        "A staged function is made once for all its calls: what it takes from the function around it would be that of "
        "one call.", "Give it to the function as an argument.", place,
    )  # fmt: skip


def _sees_calls(kind: type) -> bool:
    """Whether a class of tensors has code of its own that runs with calls of torch."""
    own: Any = getattr(kind, "__torch_function__", None)
    torchs: Any = torch.Tensor.__torch_function__
    return own is not torch._C._disabled_torch_function_impl and getattr(own, "__func__", own) is not torchs.__func__


class Builder:
    """A graph that is being made: its nodes, and which tensors and numbers are which of its values."""

    def __init__(self, name: str, fakes: Fakes, where: Callable[[], Place]) -> None:
        self.graph = Graph(name, Const(None), Const(None))
        self.fakes, self.where = fakes, where
        self.blocks = [self.graph.body]
        self.number = 0
        self.writes: Counter[int] = Counter()
        self.tensors: dict[int, tuple[torch.Tensor, Value]] = {}  # by id of a fake
        self.storages: dict[int, tuple[Any, int]] = {}  # alias classes
        self.sizes: dict[int, tuple[Any, ...]] = {}  # what ``.shape`` has given where sizes are not known, by id
        self.returns = False  # whether it is the result that is made an operand
        self.unsure: dict[int, tuple[Any, str]] = {}  # values of variables that may not be set, by id
        self.checked: dict[int, Any] = {}  # those of which the graph has seen that they are

    # ---- values ----

    def value(self, type_: TensorType | str, alias: int | None = None) -> Value:
        made = Value(self.number, type_, alias)
        self.number += 1
        return made

    @quiet
    def tensor(self, fake: torch.Tensor) -> Ref:
        """Return a new value for a fake tensor."""
        storage = fake.untyped_storage()
        known = self.storages.get(storage._cdata)
        if known is None:
            known = self.storages[storage._cdata] = storage, self.graph.aliases
            self.graph.aliases += 1
        value = self.value(tensor_type(fake), known[1])
        self.tensors[id(fake)] = fake, value
        return Ref(value, self.writes[known[1]])

    def knows(self, fake: torch.Tensor) -> bool:
        return id(fake) in self.tensors

    def ref(self, fake: torch.Tensor, *, checked: bool = True) -> Ref:
        """Return the use of a tensor, fake or real, at this point."""
        if not is_fake(fake):
            if _sees_calls(type(fake)):
                raise refused(
                    "staged-effect", f"{type(fake).__name__}, a class of tensors that sees calls of torch",
                    "Its code runs with each call of torch on its tensors; a graph would not run it.",
                    "Give the function a plain tensor: as_subclass(torch.Tensor).", self.where(),
                )  # fmt: skip
            real, fake = fake, self.fakes.of(fake)
            if id(fake) not in self.tensors:
                made = self.tensor(fake)
                self.graph.inputs.append(Input(made.value, Path("const", None, Const(real))))
        if checked:
            self._check(fake)
        known = self.tensors.get(id(fake))
        if known is None:
            raise _captured(self.where())
        value = known[1]
        assert value.alias is not None
        return Ref(value, self.writes[value.alias])

    def _check(self, value: Any) -> None:
        """Where a variable that may not be set is used, the graph has to see whether it is."""
        known = self.unsure.pop(id(value), None)
        if known is None:
            return
        self.checked[id(value)] = value
        name = known[1]
        ref = self.tensors[id(value)][1] if isinstance(value, torch.Tensor) else value.ref.value
        before = Ref(ref, 0 if ref.alias is None else self.writes[ref.alias])
        if isinstance(value, torch.Tensor):
            made = self.tensor(value)
        else:
            made = Ref(self.value(ref.type))
            value.ref = made
        fields = (("func", Const(bound)), ("args", Items(tuple, (before, Const(name)))))
        self.blocks[-1].nodes.append(Node("compute", fields, (made,)))

    def rebind(self, value: Any, ref: Ref) -> None:
        """Let a value that is known be this value of the graph again."""
        if isinstance(value, torch.Tensor):
            self.tensors[id(value)] = value, ref.value
        else:
            value.ref = ref

    def operand(self, value: Any, *, checked: bool = True) -> Operand:
        """Return a value of the run as an operand. Raises Refused for what no graph can hold."""
        if isinstance(value, torch.Tensor):
            return self.ref(value, checked=checked)
        if isinstance(value, StagedValue):
            if checked:
                self._check(value)
            if value.builder is not self:
                raise _captured(self.where())
            return value.ref
        if isinstance(value, Poison):
            value._raise()
        cls = type(value)
        if cls in (tuple, list, torch.Size):
            items = tuple(self.operand(one, checked=checked) for one in value)
            if cls is torch.Size or id(value) in self.sizes:
                cls = torch.Size if self.returns else tuple
            return Items(cls, items)
        if issubclass(cls, tuple) and hasattr(cls, "_fields"):
            return Items(cls, tuple(self.operand(one, checked=checked) for one in value))
        if cls is dict:
            return Dict(tuple((Const(key), self.operand(one, checked=checked)) for key, one in value.items()))
        if cls is slice:
            parts = (("start", value.start), ("stop", value.stop), ("step", value.step))
            return Record("slice", tuple((name, self.operand(part)) for name, part in parts))
        return Const(value)

    # ---- nodes ----

    def emit(
        self, kind: str, fields: Sequence[tuple[str, Operand]], outs: tuple[Ref, ...] = (), place: Place = NOWHERE,
        blocks: Sequence[Block] = (), writes: tuple[tuple[int, int], ...] = (),
    ) -> None:  # fmt: skip
        self.blocks[-1].nodes.append(Node(kind, tuple(fields), outs, place, list(blocks), writes))

    @contextmanager
    def block(self, block: Block) -> Iterator[Block]:
        """Add the nodes that are made in this context to ``block``."""
        self.blocks.append(block)
        try:
            yield block
        finally:
            self.blocks.pop()
