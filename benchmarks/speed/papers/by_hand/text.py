"""The programs on words and notes written by hand as graphs: transformers, and loops over time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from sklearn.metrics import f1_score
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.speed.papers.base import Program
from benchmarks.speed.papers.symbolic import Graphs, Kept, Net, Part, Step, clip, float_of

__all__ = ["bert_cls", "bert_qa", "gpt2", "lm", "lstm", "music_transformer"]


def bert_cls(program: Program) -> Step:
    model, optimizer, scores = program.state
    graphs = Graphs([Net(model, optimizer)])

    def train(parts: list[Part], kept: Kept, ids: Tensor, mask: Tensor, labels: Tensor) -> list[Tensor]:
        logits = parts[0](ids, mask).scores[:, 0]
        loss = F.cross_entropy(logits, labels)
        parts[0].update(parts[0].gradients(loss))
        return [loss, logits.argmax(1)]

    def step(ids: Tensor, mask: Tensor, labels: Tensor) -> float:
        loss, predicted = graphs.run(train, ids, mask, labels)
        scores.append(float(f1_score(labels.numpy(), predicted.numpy(), zero_division=0.0)))
        return loss.item()

    return step


def bert_qa(program: Program) -> Step:
    model, optimizer, warm_up, progress = program.state
    graphs = Graphs([Net(model, optimizer)], [torch.zeros_like(p) for p in model.parameters()])

    def train(
        parts: list[Part], kept: Kept, ids: Tensor, mask: Tensor | None, start: Tensor, end: Tensor, rate: Tensor | None
    ) -> list[Tensor]:
        (net,) = parts
        first, last = net(ids, mask).scores.unbind(-1)
        loss = (F.cross_entropy(first, start) + F.cross_entropy(last, end)) / 2
        gradients = net.gradients(loss / 2)
        if rate is None:  # the first of two calls
            for sum_, gradient in zip(kept, gradients, strict=True):
                assert gradient is not None
                sum_.copy_(gradient)
        else:
            sums = [sum_ + gradient for sum_, gradient in zip(kept, gradients, strict=True) if gradient is not None]
            net.update(clip(sums, 1.0), rate)
        return [loss]

    def step(ids: Tensor, mask: Tensor | None, start: Tensor, end: Tensor) -> float:
        progress["calls"] += 1
        rate = torch.tensor(warm_up.step()) if progress["calls"] % 2 == 0 else None
        return float_of(graphs.run(train, ids, mask, start, end, rate))

    return step


def gpt2(program: Program) -> Step:
    model, optimizer, losses = program.state
    graphs = Graphs([Net(model, optimizer)])

    def train(parts: list[Part], kept: Kept, ids: Tensor) -> list[Tensor]:
        (net,) = parts
        loss = F.cross_entropy(net(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        net.update(net.gradients(loss))
        return [loss]

    def step(ids: Tensor) -> float:
        losses.append(float_of(graphs.run(train, ids, opened={0: 1})))
        if len(losses) % 10 == 0:
            print(f"step {len(losses)}: loss {losses[-1]:.4f}, perplexity {math.exp(losses[-1]):.2f}")
        return losses[-1]

    return step


class Music(nn.Module):
    """The network with its masks and its waves as inputs, and its weights as results."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, notes: Tensor, hide: Tensor, waves: Tensor) -> tuple[Tensor, list[Tensor]]:
        model = self.model
        x = model.dropout(model.words(notes) * math.sqrt(model.width) + waves[: notes.shape[1]])
        weights = []
        for block in model.blocks:
            block.attention.keep_weights = True
            x = block(x, hide)
            weights.append(block.attention.weights)
        return model.head(x), weights


def music_transformer(program: Program) -> Step:
    model, optimizer, history = program.state
    graphs = Graphs([Net(Music(model), optimizer)])
    length = model.waves.shape[0]
    ahead = torch.from_numpy(np.triu(np.ones((length, length), dtype=bool), k=1))

    def train(parts: list[Part], kept: Kept, notes: Tensor, ahead: Tensor, waves: Tensor, rate: Tensor) -> list[Tensor]:
        (net,) = parts
        before, wanted = notes[:, :-1], notes[:, 1:]
        scores, weights = net(before, ahead | (before == model.pad)[:, None, None, :], waves)
        loss = F.cross_entropy(scores.flatten(0, 1), wanted.flatten(), ignore_index=model.pad, label_smoothing=0.1)
        net.update(net.gradients(loss), rate)
        there = wanted != model.pad
        right = ((scores.argmax(-1) == wanted) & there).sum() / there.sum()
        return [loss, right, torch.stack([weight.amax(-1).mean() for weight in weights]).mean()]

    def step(notes: Tensor) -> float:
        model.step_count += 1
        count = model.step_count
        rate = torch.tensor(model.width**-0.5 * min(count**-0.5, count * 4000**-1.5))
        results = [result.item() for result in graphs.run(train, notes, ahead, model.waves, rate)]
        for name, result in zip(history, results, strict=True):
            history[name].append(result)
        return results[0]

    return step


# -- loops over time ---------------------------------------------------------------------------------------------------


class Unrolled(nn.Module):
    """LSTM: the words of all places looked up at once, and the states as inputs and results."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, words: Tensor, *states: Tensor) -> tuple[Tensor, list[Tensor]]:
        states_of = list(zip(states[::2], states[1::2], strict=True))
        outputs = []
        for x in self.model.embedding(words).unbind(1):
            for layer, cell in enumerate(self.model.cells):
                states_of[layer] = cell(x, states_of[layer])
                x = states_of[layer][0]
            outputs.append(x)
        return self.model.decoder(torch.stack(outputs, 1)), [part for state in states_of for part in state]


def lstm(program: Program) -> Step:
    model, optimizer, perplexities = program.state
    graphs: list[Graphs] = []

    def train(parts: list[Part], kept: Kept, words: Tensor, begins: bool) -> list[Tensor]:
        (net,) = parts
        before = [torch.zeros_like(state) for state in kept] if begins else [state.clone() for state in kept]
        scores, after = net(words[:, :-1], *before)
        loss = F.cross_entropy(scores.flatten(0, 1), words[:, 1:].flatten())
        for state, new in zip(kept, after, strict=True):
            state.copy_(new.detach())
        net.update(clip(net.gradients(loss), 5.0))
        return [loss]

    def step(words: Tensor, begins: bool) -> float:
        if not graphs:
            kept = [torch.zeros(len(words), cell.width) for cell in model.cells for _ in range(2)]
            graphs.append(Graphs([Net(Unrolled(model), optimizer)], kept))
        loss = float_of(graphs[0].run(train, words, begins))
        perplexities.append(math.exp(min(loss, 20.0)))
        return loss

    return step


class Sampled(nn.Module):
    """LM: with its sampled words and its states as inputs."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, words: Tensor, rivals: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        model = self.model
        outputs = []
        for x in model.embedding(words[:, :-1]).unbind(1):
            h, c = model.cell(model.dropout(x), (h, c))
            outputs.append(model.dropout(h))
        found, targets = torch.cat(outputs), words[:, 1:].t().flatten()
        right = (found * model.weight[targets]).sum(1) + model.bias[targets] - model.log_chance(targets)
        wrong = found @ model.weight[rivals].t() + model.bias[rivals] - model.log_chance(rivals)
        wrong = wrong.masked_fill(rivals[None, :] == targets[:, None], -1e9)
        return (torch.logsumexp(torch.cat([right[:, None], wrong], 1), 1) - right).mean(), h, c


def lm(program: Program) -> Step:
    model, optimizer = program.state
    net = Net(Sampled(model), optimizer)
    clipped = [name.startswith("model.cell.") for name in net.parameters]
    graphs: list[Graphs] = []

    def train(parts: list[Part], kept: Kept, words: Tensor, rivals: Tensor) -> list[Tensor]:
        (part,) = parts
        loss, *after = part(words, rivals, *(state.clone() for state in kept))
        for state, new in zip(kept, after, strict=True):
            state.copy_(new.detach())
        gradients = part.gradients(loss)
        of_cell = iter(clip([g for g, there in zip(gradients, clipped, strict=True) if there], 1.0))
        part.update([next(of_cell) if there else g for g, there in zip(gradients, clipped, strict=True)])
        return [loss]

    def step(words: Tensor) -> float:
        if not graphs:
            kept = [torch.zeros(len(words), width) for width in (model.cell.out, model.cell.width)]
            graphs.append(Graphs([net], kept))
        drawn = np.random.random(model.samples)
        rivals = torch.from_numpy((np.exp(drawn * np.log(model.vocabulary)) - 1).astype(np.int64))
        return float_of(graphs[0].run(train, words, rivals))

    return step
