"""Which package of Python's standard library does a function come from? A child-sum TreeLSTM reads its syntax tree.

A plain PyTorch script: the network is a method that calls itself on the children of a node, one node at a time.
torchjanus comes in at one line, in ``main``; with ``--eager`` not even there.

    torchjanus run examples/syntax_trees.py
    python examples/syntax_trees.py --eager --steps 100

With Python 3.11's library, one thread: 84.5 % of the functions to be tested on after 3,000 steps; always the largest
package: 17.0 %. All steps are one graph.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import sysconfig
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from tqdm import tqdm

import torchjanus

# Packages that have more than a hundred functions and are in every Python.
PACKAGES = "asyncio xml multiprocessing encodings email unittest importlib logging urllib http".split()
SMALLEST, LARGEST = 10, 100  # nodes of a function's tree
NAMES = 1000  # identifiers known by name; others are all one
BATCH = 25
WIDTH = 64


@dataclass
class Node:
    """What is read of a node of a syntax tree: which construct it is, which identifier it holds, what is below."""

    kind: str
    name: str
    children: list[Node]
    words: tuple[int, int] = (0, 0)  # kind and name as rows of the embedding


class TreeLSTM(nn.Module):
    """Tai, Socher and Manning (2015): gates see the sum of the children's states; a forget gate for each child."""

    def __init__(self, words: int, width: int = WIDTH) -> None:
        super().__init__()
        self.width = width
        self.embedding = nn.Embedding(words, width)
        self.word = nn.Linear(width, 4 * width)
        self.below = nn.Linear(width, 3 * width, bias=False)
        self.forget = nn.Linear(width, width, bias=False)
        self.classify = nn.Linear(width, len(PACKAGES))

    def encode(self, node: Node) -> tuple[torch.Tensor, torch.Tensor]:
        children = [self.encode(child) for child in node.children]
        x = self.embedding(torch.tensor(node.words)).sum(0)
        iou, f = self.word(x).split([3 * self.width, self.width])
        if children:
            iou = iou + self.below(sum(h for h, _ in children))
        i, o, u = iou.chunk(3)
        c = torch.sigmoid(i) * torch.tanh(u)
        for child_h, child_c in children:
            c = c + torch.sigmoid(f + self.forget(child_h)) * child_c
        return torch.sigmoid(o) * torch.tanh(c), c

    def forward(self, trees: list[Node]) -> torch.Tensor:
        return self.classify(torch.stack([self.encode(tree)[0] for tree in trees]))


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, trees: list[Node], labels: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """One training step; the loss, and how many of the batch were right."""
    optimizer.zero_grad()
    scores = model(trees)
    loss = nn.functional.cross_entropy(scores, labels)
    loss.backward()
    optimizer.step()
    return loss.detach(), (scores.argmax(1) == labels).sum()


# -- the trees -------------------------------------------------------------------------------------------------------


def convert(tree: ast.AST) -> Node:
    """A syntax tree, but for what says nothing: whether a name is loaded or stored."""
    # Where a class of nodes keeps its identifier: names, attributes, arguments, definitions.
    name = next((getattr(tree, where) for where in ("id", "attr", "arg", "name") if hasattr(tree, where)), None)
    children = [convert(child) for child in ast.iter_child_nodes(tree) if not isinstance(child, ast.expr_context)]
    return Node(f"<{type(tree).__name__}>", name or "", children)


def nodes(tree: Node) -> list[Node]:
    """All nodes of a tree."""
    found = [tree]
    for node in found:  # grows as it is gone through
        found += node.children
    return found


def functions(tree: ast.AST) -> Iterator[ast.AST]:
    """The functions of a module and its classes, but none within another function."""
    if isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef):
        yield tree
    else:
        for child in ast.iter_child_nodes(tree):
            yield from functions(child)


Functions = list[tuple[Node, int]]  # each with the number of its package


def load(seed: int) -> tuple[Functions, Functions, int]:
    """Functions with their packages, four fifths to train on and the rest to test, and the number of words."""
    library = Path(sysconfig.get_paths()["stdlib"])
    found: Functions = []
    for label, package in enumerate(PACKAGES):
        for file in sorted((library / package).rglob("*.py")):
            if "test" in file.parts:  # of unittest; there up to Python 3.11
                continue
            trees = map(convert, functions(ast.parse(file.read_bytes())))
            found += [(tree, label) for tree in trees if SMALLEST <= len(nodes(tree)) <= LARGEST]
    random.Random(seed).shuffle(found)
    training, test = found[len(found) // 5 :], found[: len(found) // 5]
    seen = Counter(node.name for tree, _ in training for node in nodes(tree) if node.name)
    kinds = sorted({node.kind for tree, _ in found for node in nodes(tree)})
    words = {word: row for row, word in enumerate(["", "?", *kinds, *(name for name, _ in seen.most_common(NAMES))])}
    for tree, _ in found:
        for node in nodes(tree):
            node.words = words[node.kind], words.get(node.name, 1)
    return training, test, len(words)


def batch(functions: Functions) -> tuple[list[Node], torch.Tensor]:
    return [tree for tree, _ in functions], torch.tensor([label for _, label in functions])


@torch.no_grad()
def accuracy(model: nn.Module, functions: Functions) -> float:
    trees, labels = batch(functions)
    return (model(trees).argmax(1) == labels).float().mean().item()


def main(arguments: list[str] | None = None) -> tuple[float, float]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--eager", action="store_true", help="run without torchjanus")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--losses", type=Path, metavar="FILE", help="write the loss of every step as a JSON list")
    options = parser.parse_args(arguments)

    torch.manual_seed(options.seed)
    chance = random.Random(options.seed)
    training, test, words = load(options.seed)
    model = TreeLSTM(words)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=options.steps)
    print(f"{len(training)} functions of {len(PACKAGES)} packages to learn from, {len(test)} to be tested on")

    step = train_step if options.eager else torchjanus.speculate(train_step)

    losses: list[float] = []
    mean, right = 0.0, 0.0
    begin = time.perf_counter()
    # Without a terminal there is no bar, only the lines.
    bar = tqdm(range(1, options.steps + 1), unit="step", disable=None)
    for number in bar:
        loss, hits = step(model, optimizer, *batch(chance.sample(training, BATCH)))
        schedule.step()
        losses.append(loss.item())
        share = max(0.02, 1 / number)  # running means over the last fifty steps or so
        mean += share * (losses[-1] - mean)
        right += share * (int(hits) / BATCH - right)
        bar.set_postfix(loss=f"{mean:.3f}", accuracy=f"{right:.1%}")
        if number % 1000 == 0:
            bar.write(f"step {number:5d}  loss {mean:.3f}  training {right:.1%}  test {accuracy(model, test):.1%}")
    seconds = time.perf_counter() - begin

    final = accuracy(model, test)
    ((largest, _),) = Counter(label for _, label in training).most_common(1)
    majority = sum(label == largest for _, label in test) / len(test)
    print(f"test accuracy {final:.2%} after {len(losses)} steps in {seconds:.1f} s")
    print(f"the largest package, {PACKAGES[largest]}, always: {majority:.2%}")
    if options.losses:
        options.losses.write_text(json.dumps(losses) + "\n")
    return final, majority


if __name__ == "__main__":
    main()
