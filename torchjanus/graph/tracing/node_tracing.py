"""Makes one call of a program on fake tensors, and holds its results to what was watched: number, layout, aliasing.

Slots are numbers here. Knows neither the order of calls nor the use of results.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Container, Iterable, Sequence
from typing import Any

import torch
from torch._functorch.eager_transforms import enable_inplace_requires_grad
from torch.utils import _pytree as pytree

from torchjanus.core.errors import JanusError, Place, Refused, refused
from torchjanus.core.trees import leaves_of, map_leaves
from torchjanus.graph.aten.strides import laid_as
from torchjanus.graph.aten.symbolic_sizes import Symbolic, value_of_formula
from torchjanus.graph.ir.lowered import Pin
from torchjanus.graph.ir.program import Formula, Measured, Node, Program, Ref, Slot, Symbol
from torchjanus.graph.ir.tensor_versions import GET_DATA, Changes, memory_of
from torchjanus.graph.operators import data_sizes, gradient_formulas, stand_ins
from torchjanus.graph.operators.dynamic_index import DynamicSubscripts
from torchjanus.graph.operators.spectral import as_eager
from torchjanus.graph.tracing.replace_data import SET_DATA, DataReplacements
from torchjanus.graph.tracing.snapshots import Snapshots
from torchjanus.ops.calls import DROPOUTS

__all__ = ["FETCHES", "NodeTracer", "TraceFailed", "is_own", "not_strided"]

# Reads of a tensor's value by the host, which the recorded trace represents as slots, assertions or constants.
FETCHES = frozenset(
    {"item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "__repr__", "__format__", "__len__"}
)
SEEDING = frozenset({"manual_seed", "seed", "set_rng_state", "get_rng_state", "initial_seed"})


class TraceFailed(JanusError):
    """A call of the program raised on fake tensors: the numbers do not fit, or it needs real data."""

    def __init__(self, place: Place, name: str, error: Exception) -> None:
        message = str(error).partition("\n")[0]  # what follows is for the developers of torch
        super().__init__(f"{name} raised {type(error).__name__}: {message}")
        self.place = place


def is_own(func: Any) -> bool:
    """Whether it is one of our operators that are traced separately, for sizes of two or more, such as a loop."""
    homes = {str(getattr(one, "__module__", "")) for one in (func, type(func))}
    plain = {stand_ins.__name__, data_sizes.__name__, gradient_formulas.__name__}
    return any(home.startswith("torchjanus.") for home in homes - plain)


def not_strided(name: str, tensor: torch.Tensor, place: Place) -> Refused:
    """Return the error for a tensor that is not dense."""
    what = f"{name} gives a tensor with layout {tensor.layout}"
    remedy = "Make it dense, and embeddings without sparse=True."
    return refused("tensor-layout", what, "Graphs are made of dense tensors.", remedy, place)


class NodeTracer:
    """The calls of one program. ``made``: fakes of the inputs and, where a size may be 0 or 1, of all results."""

    snapshots: Snapshots

    def __init__(
        self, program: Program, numbers: Sequence[float | int], symbolic: Symbolic, held: Container[int]
    ) -> None:
        self.numbers, self.symbolic = numbers, symbolic
        self._program, self._held = program, held
        self.changes = Changes()
        self.replacing = DataReplacements(program.nodes)
        self.picks = DynamicSubscripts(numbers, held, self.changes)
        self.made: list[torch.Tensor] = []
        # Storages of ordinary tensors, and of those made in inference mode.
        self.ordinary: set[int] = set()
        self.inference: set[int] = set()
        self._keeps_all = any(dimension.few for dimension in program.dimensions)
        # For rewritten operations the layout of results was not watched.
        self._watched = not symbolic.few and not any(is_own(node.func) for node in program.nodes)

    def begin(self, tensors: Iterable[torch.Tensor], snapshots: Snapshots) -> None:
        """Begin with these inputs."""
        self.ordinary, self.snapshots = {memory_of(tensor) for tensor in tensors}, snapshots

    def make(self, node: Node, values: dict[int, torch.Tensor]) -> None:
        """Make a node's call, and add its results to ``values``. Raises Refused, and TraceFailed."""
        name = getattr(node.func, "__name__", "")
        self.picks.use(node, name, values)
        if name in FETCHES and not node.outs:
            return
        if name in SEEDING:
            what = f"{name}() inside the step"
            remedy = "Seed before the step."
            raise refused(
                "generator-seeded", what, "A graph cannot set the generator's state midway.", remedy, node.place
            )

        def leaf(value: Any) -> Any:
            if isinstance(value, Ref):
                return values[value.index]
            if isinstance(value, Symbol | Measured | Formula):
                return value_of_formula(value, self.symbolic.sizes, self.snapshots.measured)
            return self.numbers[value.index] if isinstance(value, Slot) else value

        picked = self.picks.slots(node)
        transformed = torch._C._functorch.get_dynamic_layer_stack_depth() > 0
        func = self.replacing.put if node.func == SET_DATA else stand_ins.rounding(node)
        try:
            result: Any
            if picked and not transformed:
                result = self.picks.make(values[node.args[0].index], node, picked)
            elif not transformed and self.picks.puts(node):
                self.picks.put(values[node.args[0].index], node.args[1], leaf(node.args[2]))
                result = None
            else:
                args, kwargs = map_leaves(node.args, leaf), map_leaves(node.kwargs, leaf)
                if name == "unbind":
                    self._count_rows(node, *args, **kwargs)
                # torch.func.grad() requires gradients in place, under a switch of its own; a user's call raises.
                opened = enable_inplace_requires_grad(True) if transformed else contextlib.nullcontext()
                given = _versions(kwargs.get("out"))
                with opened, as_eager(name, lambda: _tensors_in((args, kwargs))):
                    result = func(*args, **kwargs)
                if given and given == _versions(kwargs["out"]):
                    what = f"{name} does not write to what it is given as out= when it is traced"
                    remedy = "Copy its result instead."
                    raise refused("write-unsupported", what, "A graph would lose it.", remedy, node.place)
        except JanusError:
            raise
        except Exception as error:
            raise TraceFailed(node.place, name or repr(node.func), error) from error
        if not transformed:
            self.picks.put_back()
        self.symbolic.check(f"{node.place} {name}")
        made = [part for part in pytree.tree_leaves(result) if isinstance(part, torch.Tensor)]
        self._expect(node, name, len(made))
        if self._watched and not transformed and len(node.layouts) == len(made):
            # Composite operations may use another path for fake tensors, which gives other strides (max_pool1d).
            new = (ref.index not in values for ref in node.outs)
            made = [laid_as(*one) if there else one[0] for there, *one in zip(new, made, node.layouts, strict=True)]
        self._part(node, made, values)
        if self._keeps_all:
            self.made += made
        for ref, tensor in zip(node.outs, made, strict=True):
            if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
                values.setdefault(ref.index, tensor)
                continue
            if tensor.layout != torch.strided:
                raise not_strided(name or repr(node.func), tensor, node.place)
            # Views belong to the mode of their base, whatever the mode they are made in.
            if not node.modes.inference:
                if memory_of(tensor) not in self.inference:
                    self.ordinary.add(memory_of(tensor))
            elif memory_of(tensor) not in self.ordinary:
                self.inference.add(memory_of(tensor))
            known = values.setdefault(ref.index, tensor)
            if node.func == GET_DATA:
                self.changes.part(leaf(node.args[0]), tensor)
            # In inference mode a dropout that returns its argument, as in evaluation, is traced as a copy.
            if known is not tensor and not (node.modes.inference and name in DROPOUTS):
                what = f"{name or node.func!r} returned a new tensor, and an existing one when it was watched"
                raise refused("trace-differs", what, "The aliasing of its result is not stable.", place=node.place)

    @staticmethod
    def _part(node: Node, made: list[torch.Tensor], values: dict[int, torch.Tensor]) -> None:
        """Clone a tensor that a fake kernel returns twice, unlike the real one (``mkldnn_rnn_layer_backward``)."""
        first: dict[int, int] = {}
        for place, (ref, tensor) in enumerate(zip(node.outs, made, strict=True)):
            if first.setdefault(id(tensor), ref.index) != ref.index and ref.index not in values:
                made[place] = tensor.clone()

    def _count_rows(self, node: Node, tensor: torch.Tensor, dim: int = 0) -> None:
        """Check the number of rows before ``unbind`` makes them: large numbers represent dynamic sizes here."""
        rows = operator.index(tensor.shape[dim])
        self.symbolic.check(f"{node.place} unbind")
        self._expect(node, "unbind", rows)

    def _expect(self, node: Node, name: str, made: int) -> None:
        if made == len(node.outs):
            return
        what = f"{name or node.func!r} gave {made} tensors, and {len(node.outs)} when it was watched"
        if slots := self._deciding(node):
            raise Pin(dict.fromkeys(slots, what))
        raise refused("trace-differs", what, "It depends on more than its arguments.", place=node.place)

    def _deciding(self, node: Node) -> set[int]:
        """Return the slots that may decide how many tensors a call returns: its own, or else those of earlier calls,
        which may be sizes of what it is given. Slots that are held are constants already."""
        nodes = self._program.nodes
        for some in ((node,), nodes[: next(k for k, one in enumerate(nodes) if one is node)]):
            leaves = (leaf for one in some for leaf in leaves_of((one.args, one.kwargs)))
            found = {leaf.index for leaf in leaves if isinstance(leaf, Slot) and leaf.index not in self._held}
            if whole := {index for index in found if type(self.numbers[index]) is int}:
                return whole
        return set()


def _tensors_in(value: Any) -> list[torch.Tensor]:
    return [part for part in pytree.tree_leaves(value) if isinstance(part, torch.Tensor)]


def _versions(out: Any) -> list[int]:
    """Return the in-place versions of these tensors, where torch counts them."""
    return [one._version for one in _tensors_in(out) if not one.is_inference()]
