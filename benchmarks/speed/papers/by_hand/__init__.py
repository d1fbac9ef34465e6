"""The papers' programs written by hand as graphs: what somebody would write who gives up the imperative program.

Python that decides (a schedule, which shapes, an early stop) stays outside and gives the graphs what it knows. Loops
over time and over an episode are written as whole tensors where they can be, and unrolled where not. The trees are
batched by hand over the nodes of all trees (``benchmarks.programs.batched_trees``) and run by eager PyTorch, since no
two batches have levels of the same sizes. YOLOv3 and FasterRCNN have none: their sizes come out of tensors in mid-step.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchmarks.programs.batched_trees import BATCHED
from benchmarks.speed.papers.base import Program
from benchmarks.speed.papers.by_hand.agents import a3c, ppo
from benchmarks.speed.papers.by_hand.pictures import an, classifier, dcgan, dropblock, lenet, pix2pix, sdpoint
from benchmarks.speed.papers.by_hand.text import bert_cls, bert_qa, gpt2, lm, lstm, music_transformer
from benchmarks.speed.papers.symbolic import Step

__all__ = ["BY_HAND"]


def trees(kind: str) -> Callable[[Program], Step]:
    def made(program: Program) -> Step:
        progress = program.state
        model = BATCHED[kind](progress.model.embedding.embedding_dim)
        model.load_state_dict(progress.model.state_dict())
        progress.model = model
        progress.optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
        step: Step = progress.step
        return step

    return made


BY_HAND: dict[str, Callable[[Program], Step]] = {
    "a3c": a3c,
    "an": an,
    "bert_cls": bert_cls,
    "bert_qa": bert_qa,
    "dcgan": dcgan,
    "dropblock": dropblock,
    "gpt2": gpt2,
    "inception": classifier,
    "lenet": lenet,
    "lm": lm,
    "lstm": lstm,
    "music_transformer": music_transformer,
    "pix2pix": pix2pix,
    "ppo": ppo,
    "resnet50": classifier,
    "sdpoint": sdpoint,
    "treelstm": trees("treelstm"),
    "treernn": trees("treernn"),
}
