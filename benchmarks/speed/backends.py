"""One training step on every kind of back end, and a TreeLSTM of width 150 by the C++ back end.

    python -m benchmarks.speed.backends [--steps 60] [--short] [--record]

Takes some minutes; half a minute with ``--short``: small models, few steps.

The step trains an MLP by SGD with momentum. Whole steps are run by replay, by Inductor, by ``aot_eager`` (a back end of
``torch.compile`` by its name) and by a function of the user's own; C++ is made of the staged loss, forward and
backward, and the optimizer is eager's then. The TreeLSTM learns 25 new trees of 10 to 30 words a step: C++ and replay
run the staged graph, one node after the other; batched invocation runs the nodes of one level together, by replay and
compiled by Inductor. All begin with the same parameters, take turns on the same batches, and are to agree with eager
within 1e-5 after the last step. One thread; times are of the thread's processor, so that other work disturbs little.
"""

from __future__ import annotations

import argparse
import copy
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

# Before torch is imported: OpenMP reads it once.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import torchjanus
from benchmarks.record import write
from torchjanus import Rep, stage, staged

__all__ = ["Row", "main", "mlp", "treelstm"]

WARM = 15  # steps that are not timed: watched runs, compilation, trials
TOLERANCE = 1e-5
WORDS, TREES, FEWEST, MOST = 200, 25, 10, 30
RATE, MOMENTUM = 1e-3, 0.9

Step = Callable[..., Tensor]
Loss = Callable[..., Tensor]


@dataclass(frozen=True)
class Row:
    """One back end. ``difference``: the largest of a loss or a parameter from eager's, relative to those above 1."""

    program: str
    backend: str
    median_ms: float
    times_eager: float
    difference: float
    served: int | None  # calls that ran as a graph of the whole step; None where there is no such graph
    steps: int


class Squared(nn.Module):
    """The squared error of three layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, 8)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        apart = self.last(torch.relu(self.second(torch.relu(self.first(x))))) - y
        return (apart * apart).sum() / 32


class Tree:
    """A word's vector, or two subtrees."""

    def __init__(self, value: Tensor, left: Tree | None = None, right: Tree | None = None) -> None:
        self.value, self.left, self.right = value, left, right


class Sample:
    """A tree, and what the model is to say of it."""

    def __init__(self, tree: Tree, target: Tensor) -> None:
        self.tree, self.target = tree, target


class TreeLSTM(nn.Module):
    """The squared error of a binary TreeLSTM over some trees."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.leaf, self.inner = nn.Linear(width, 3 * width), nn.Linear(2 * width, 5 * width)
        self.say = nn.Linear(width, 5)

    @stage
    def encode(self, tree: Tree) -> tuple[Tensor, Tensor]:
        if tree.left is None:
            i, o, u = self.leaf(tree.value).chunk(3)
            c = torch.sigmoid(i) * torch.tanh(u)
            return torch.sigmoid(o) * torch.tanh(c), c
        left_h, left_c = self.encode(tree.left)
        right_h, right_c = self.encode(tree.right)  # type: ignore[arg-type]
        i, left_f, right_f, o, u = self.inner(torch.cat([left_h, right_h])).chunk(5)
        c = torch.sigmoid(left_f) * left_c + torch.sigmoid(right_f) * right_c + torch.sigmoid(i) * torch.tanh(u)
        return torch.sigmoid(o) * torch.tanh(c), c

    def forward(self, samples: list[Sample]) -> Tensor:
        total = torch.zeros(())
        for sample in samples:
            h, _ = self.encode(sample.tree)
            apart = self.say(h) - sample.target
            total = total + (apart * apart).sum()
        return total / 25


def trees(count: int, width: int, each: int) -> list[tuple[list[Sample]]]:
    """Batches of new trees. The vectors of words are given, not learned: C++ has no embedding."""
    chance, draw = random.Random(0), torch.Generator().manual_seed(0)
    words, nothing = [torch.randn(width, generator=draw) for _ in range(WORDS)], torch.zeros(width)

    def grow(leaves: int) -> Tree:
        if leaves == 1:
            return Tree(chance.choice(words))
        left = chance.randint(1, leaves - 1)
        return Tree(nothing, grow(left), grow(leaves - left))

    def sample() -> Sample:
        return Sample(grow(chance.randint(FEWEST, MOST)), torch.randn(5, generator=draw))

    return [([sample() for _ in range(each)],) for _ in range(count)]


def make_step(model: nn.Module, loss: Loss) -> Step:
    """The training step; ``loss`` is the model, or a graph of it."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)

    def step(*batch: Any) -> Tensor:
        optimizer.zero_grad()
        value = loss(*batch)
        value.backward()
        optimizer.step()
        return value.detach()

    return step


def compared(
    program: str,
    first: nn.Module,
    batches: list[tuple[Any, ...]],
    contenders: dict[str, Callable[[nn.Module], Step]],
) -> list[Row]:
    """All contenders on models of their own, in turns."""
    models = {name: copy.deepcopy(first) for name in contenders}
    steps = {name: make(models[name]) for name, make in contenders.items()}
    times: dict[str, list[float]] = {name: [] for name in contenders}
    differences = dict.fromkeys(contenders, 0.0)
    for number, batch in enumerate(batches):
        losses = {}
        names = list(steps)
        turn = number % len(names)  # whoever runs after a heavy neighbour finds its caches cold
        for name in names[turn:] + names[:turn]:
            began = time.thread_time()
            losses[name] = steps[name](*batch)
            if number >= WARM:
                times[name].append(time.thread_time() - began)
            elif isinstance(steps[name], torchjanus.Speculated):
                steps[name].wait()  # type: ignore[attr-defined]
        for name, loss in losses.items():
            differences[name] = max(differences[name], apart(loss, losses["eager"]))
    last = models["eager"].state_dict()
    for name, model in models.items():
        differences[name] = max(
            differences[name], *(apart(mine, last[key]) for key, mine in model.state_dict().items())
        )
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    return [
        Row(
            program,
            name,
            1e3 * medians[name],
            medians["eager"] / medians[name],
            differences[name],
            step.statistics().speculated if isinstance(step, torchjanus.Speculated) else None,
            len(batches),
        )
        for name, step in steps.items()
    ]


def apart(one: Tensor, other: Tensor) -> float:
    """The largest difference; relative to ``other`` where that is larger than 1."""
    return float(((one - other).abs() / other.abs().clamp(min=1)).max())


def as_it_is(graph: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
    """A back end of the user's own: the graph's generated Python."""
    return graph.forward


def whole(**options: Any) -> Callable[[nn.Module], Step]:
    return lambda model: torchjanus.speculate(make_step(model, model), **options)


def staged_for(backend: str, *examples: Any) -> Callable[[nn.Module], Step]:
    return lambda model: make_step(model, staged(model, backend=backend)(*examples))


def mlp(steps: int, width: int) -> list[Row]:
    """The MLP's step on all back ends."""
    torch.manual_seed(0)
    batches: list[tuple[Any, ...]] = [(torch.randn(32, width), torch.randn(32, 8)) for _ in range(WARM + steps)]
    contenders = {
        "eager": lambda model: make_step(model, model),
        "replay": whole(backend="replay"),
        "inductor": whole(backend="inductor"),
        "aot_eager": whole(backend="aot_eager"),
        "a function": whole(backend=as_it_is),
        "cpp (the loss)": staged_for("cpp", *batches[0]),
    }
    return compared(f"MLP {width}", Squared(width), batches, contenders)


def treelstm(steps: int, width: int, each: int = TREES) -> list[Row]:
    """The TreeLSTM's step: staged graphs, and batched invocation."""
    torch.manual_seed(0)
    batches: list[tuple[Any, ...]] = [*trees(WARM + steps, width, each)]
    example = Rep(batches[0][0])
    contenders = {
        "eager": lambda model: make_step(model, model),
        "replay (the loss)": staged_for("replay", example),
        "cpp (the loss)": staged_for("cpp", example),
        "batched, replay": whole(executor="replay"),
        "batched, inductor": whole(executor="inductor"),
    }
    return compared(f"TreeLSTM {width}", TreeLSTM(width), batches, contenders)


def main(given: list[str] | None = None) -> int:
    """The command line: 1 if a back end does not agree with eager."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=60, help="that are timed")
    parser.add_argument("--short", action="store_true", help="small models and four steps")
    parser.add_argument("--record", action="store_true", help="keep the outcome in benchmarks/results")
    options = parser.parse_args(given)
    torch.set_num_threads(1)
    if options.short:
        rows = [*mlp(4, 16), *treelstm(4, 8, each=3)]
    else:
        rows = [*mlp(options.steps, 256), *treelstm(options.steps, 150)]
    table = Table(box=SIMPLE, title=f"a training step, medians, difference from eager's after {rows[0].steps} steps")
    for heading in ("program", "back end", "ms", "times eager", "difference", "steps served"):
        table.add_column(heading, justify="left" if heading in ("program", "back end") else "right")
    for row in rows:
        served = "-" if row.served is None else f"{row.served} of {row.steps}"
        cells = (f"{row.median_ms:.2f}", f"{row.times_eager:.2f}", f"{row.difference:.0e}", served)
        table.add_row(row.program, row.backend, *cells)
    Console().print(table)
    if options.record:
        content = {"tolerance": TOLERANCE, "rows": [asdict(row) for row in rows]}
        print(write("backends", sys.argv[1:] if given is None else given, "cpu", content))
    return 0 if all(row.difference <= TOLERANCE for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
