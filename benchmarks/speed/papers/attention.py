"""BERT-QA, BERT-CLS, GPT-2 and MusicTransformer (Terra): transformers written by hand, with one block for all four.

What is dynamic: dataclasses and dictionaries of results, schedules kept as objects (BERT-QA); a metric of a third-party
library and NumPy on the predictions (BERT-CLS); sequences of ever other lengths (GPT-2); attention weights and metrics
kept on objects, masks made by NumPy, a generator that yields layers (MusicTransformer).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.metrics import f1_score
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.speed.papers.base import Batch, Program, program, text

__all__: list[str] = []


class Attention(nn.Module):
    """Multi-head attention; with ``relative``, each distance between places has a vector of its own."""

    def __init__(self, width: int, heads: int, dropout: float, relative: int = 0) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)
        self.distances = nn.Parameter(torch.randn(relative, width // heads) * 0.02) if relative else None
        self.keep_weights = False
        self.weights: Tensor | None = None

    def skew(self, q: Tensor) -> Tensor:
        """What each place says to each distance, shifted to what it says to each place (Huang et al., 2018)."""
        assert self.distances is not None
        length = q.shape[2]
        scores = q @ self.distances[-length:].t()
        padded = F.pad(scores, [1, 0])
        shape = padded.shape
        return padded.reshape(shape[0], shape[1], shape[3], shape[2])[:, :, 1:, :]

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        scores = q @ k.transpose(2, 3)
        if self.distances is not None:
            scores = scores + self.skew(q)
        scores = scores / math.sqrt(width // self.heads)
        if mask is not None:
            scores = scores.masked_fill(mask, -1e9)
        weights = torch.softmax(scores, -1)
        if self.keep_weights:
            self.weights = weights.detach()
        mixed = self.dropout(weights) @ v
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return out


class Block(nn.Module):
    """Attention and two layers, normalised before (GPT-2) or after."""

    def __init__(self, width: int, heads: int, dropout: float, before: bool = False, relative: int = 0) -> None:
        super().__init__()
        self.before = before
        self.attention = Attention(width, heads, dropout, relative)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inner, self.outer = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def feed(self, x: Tensor) -> Tensor:
        return self.dropout(self.outer(F.gelu(self.inner(x))))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        if self.before:
            x = x + self.dropout(self.attention(self.norm1(x), mask))
            return x + self.feed(self.norm2(x))
        x = self.norm1(x + self.dropout(self.attention(x, mask)))
        y: Tensor = self.norm2(x + self.feed(x))
        return y


@dataclass
class Output:
    """What a BERT gives."""

    scores: Tensor
    hidden: tuple[Tensor, ...]
    loss: Tensor | None = None


class Bert(nn.Module):
    def __init__(self, vocabulary: int, width: int, layers: int, heads: int, longest: int, outputs: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(longest, width)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(0.1)
        self.blocks = nn.ModuleList(Block(width, heads, 0.1) for _ in range(layers))
        self.head = nn.Linear(width, outputs)

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Output:
        places = torch.arange(ids.shape[1])
        x = self.dropout(self.norm(self.words(ids) + self.places(places)))
        hidden = [x]
        hide = None if mask is None else (mask == 0)[:, None, None, :]
        for block in self.blocks:
            x = block(x, hide)
            hidden.append(x)
        return Output(self.head(x), tuple(hidden))


def sentences(random: np.random.Generator, rows: int, length: int, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Words, and which of them are there; none of the rows has to be full."""
    ids = torch.from_numpy(text(random, rows * length, vocabulary)).view(rows, length)
    lengths = torch.from_numpy(random.integers(length // 2, length + 1, (rows, 1)))
    return ids, (torch.arange(length) < lengths).long()


class WarmUp:
    """A learning rate that rises from 0 and then falls; written into the optimizer at each step."""

    def __init__(self, optimizer: torch.optim.Optimizer, peak: float, rising: int, total: int) -> None:
        self.optimizer, self.peak, self.rising, self.total = optimizer, peak, rising, total
        self.count = 0

    def step(self) -> float:
        self.count += 1
        if self.count < self.rising:
            rate = self.peak * self.count / self.rising
        else:
            rate = self.peak * max(0.0, (self.total - self.count) / (self.total - self.rising))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        return rate


@program(
    "bert_qa",
    paper="Terra",
    dynamic="results as dataclasses, a mask or None, a schedule as an object, gradients accumulated over two calls",
    size="4 layers of 256, 4 heads, vocabulary 8,000, batches of 6 x 128 words",
    period=8,
)
def bert_qa(seed: int, small: bool = False) -> Program:
    vocabulary, width, layers, rows, length = (50, 8, 1, 2, 8) if small else (8000, 256, 4, 6, 128)
    random = np.random.default_rng(seed)
    model = Bert(vocabulary, width, layers, 2 if small else 4, length, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
    warm_up = WarmUp(optimizer, 5e-4, 10, 10000)
    progress = {"calls": 0, "updates": 0}

    def answer(ids: Tensor, mask: Tensor | None, start: Tensor, end: Tensor) -> Output:
        output = model(ids, mask)
        first, last = output.scores.unbind(-1)
        output.loss = (F.cross_entropy(first, start) + F.cross_entropy(last, end)) / 2
        return output

    def step(ids: Tensor, mask: Tensor | None, start: Tensor, end: Tensor) -> dict[str, float]:
        output = answer(ids, mask, start, end)
        assert output.loss is not None
        (output.loss / 2).backward()
        progress["calls"] += 1
        rate = 0.0
        if progress["calls"] % 2 == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            rate = warm_up.step()
            optimizer.step()
            optimizer.zero_grad()
            progress["updates"] += 1
        return {"loss": output.loss.item(), "rate": rate}

    def batches() -> Iterator[Batch]:
        while True:
            for turn in range(8):
                ids, mask = sentences(random, rows, length, vocabulary)
                start = torch.from_numpy(random.integers(length // 4, size=rows))
                # The last batches of a repetition are of full length: no mask is made for them.
                yield ids, None if turn >= 6 else mask, start, start + length // 4

    return Program(step, batches(), (model, optimizer, warm_up, progress))


@program(
    "bert_cls",
    paper="Terra",
    dynamic="third-party calls in the middle of the step: a metric of scikit-learn on NumPy arrays",
    size="4 layers of 256, 4 heads, vocabulary 8,000, batches of 16 x 64 words",
)
def bert_cls(seed: int, small: bool = False) -> Program:
    vocabulary, width, layers, rows, length = (50, 8, 1, 4, 8) if small else (8000, 256, 4, 16, 64)
    random = np.random.default_rng(seed)
    model = Bert(vocabulary, width, layers, 2 if small else 4, length, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scores: list[float] = []

    def step(ids: Tensor, mask: Tensor, labels: Tensor) -> float:
        logits = model(ids, mask).scores[:, 0]
        loss = F.cross_entropy(logits, labels)
        predicted = np.argmax(logits.detach().numpy(), axis=1)
        scores.append(float(f1_score(labels.numpy(), predicted, zero_division=0.0)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    def batches() -> Iterator[Batch]:
        while True:
            ids, mask = sentences(random, rows, length, vocabulary)
            yield ids, mask, (ids[:, 0] % 2).long()

    return Program(step, batches(), (model, optimizer, scores))


# -- GPT-2 -------------------------------------------------------------------------------------------------------------


class GPT2(nn.Module):
    def __init__(self, vocabulary: int, width: int, layers: int, heads: int, longest: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(longest, width)
        self.dropout = nn.Dropout(0.1)
        self.blocks = nn.ModuleList(Block(width, heads, 0.1, before=True) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for table in (self.words, self.places):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        length = ids.shape[1]
        x = self.dropout(self.words(ids) + self.places(torch.arange(length)))
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        for block in self.blocks:
            x = block(x, later)
        return self.norm(x) @ self.words.weight.t()


@program(
    "gpt2",
    paper="Terra",
    dynamic="sequences of another length at each call",
    size="4 layers of 256, 4 heads, vocabulary 8,000, batches of 4 x 32 to 128 words",
    period=10,
)
def gpt2(seed: int, small: bool = False) -> Program:
    vocabulary, width, layers, rows, longest = (50, 8, 1, 2, 16) if small else (8000, 256, 4, 4, 128)
    random = np.random.default_rng(seed)
    model = GPT2(vocabulary, width, layers, 2 if small else 4, longest)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    losses: list[float] = []

    def step(ids: Tensor) -> float:
        scores = model(ids[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if len(losses) % 10 == 0:
            print(f"step {len(losses)}: loss {losses[-1]:.4f}, perplexity {math.exp(losses[-1]):.2f}")
        return losses[-1]

    def batches() -> Iterator[Batch]:
        while True:
            length = int(random.integers(longest // 4, longest + 1))
            yield (torch.from_numpy(text(random, rows * length, vocabulary)).view(rows, length),)

    return Program(step, batches(), (model, optimizer, losses))


# -- MusicTransformer --------------------------------------------------------------------------------------------------


class MusicTransformer(nn.Module):
    """Decoder with relative attention (Huang et al., 2018). Sets its mask, its metrics and its weights on itself."""

    def __init__(self, vocabulary: int, width: int, layers: int, heads: int, longest: int) -> None:
        super().__init__()
        self.pad = vocabulary - 1
        self.width = width
        self.words = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads, 0.2, relative=longest) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary)
        self.dropout = nn.Dropout(0.2)
        self.step_count = 0
        self.accuracy = 0.0
        self.look_ahead: Tensor | None = None
        place = np.arange(longest)[:, None]
        angle = place / 10000 ** (2 * (np.arange(width)[None] // 2) / width)
        self.waves = torch.tensor(np.where(np.arange(width) % 2, np.cos(angle), np.sin(angle)), dtype=torch.float32)

    def layers(self) -> Iterator[tuple[int, Block]]:
        for number, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            yield number, block

    def forward(self, notes: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        length = notes.shape[1]
        ahead = np.triu(np.ones((length, length), dtype=bool), k=1)
        self.look_ahead = torch.from_numpy(ahead) | (notes == self.pad)[:, None, None, :]
        x = self.dropout(self.words(notes) * math.sqrt(self.width) + self.waves[:length])
        kept = {}
        for number, block in self.layers():
            block.attention.keep_weights = True
            x = block(x, self.look_ahead)
            assert block.attention.weights is not None
            kept[f"layer {number}"] = block.attention.weights
        return self.head(x), kept


@program(
    "music_transformer",
    paper="Terra",
    dynamic="Python object mutation: masks, attention weights and metrics set on the model; NumPy masks; a generator",
    size="4 layers of 256, 4 heads, 390 kinds of notes, batches of 2 x 256 notes (the original: 2,048 notes)",
)
def music_transformer(seed: int, small: bool = False) -> Program:
    vocabulary, width, layers, rows, length = (20, 8, 2, 2, 8) if small else (390, 256, 4, 2, 256)
    random = np.random.default_rng(seed)
    model = MusicTransformer(vocabulary, width, layers, 2 if small else 4, length)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0, betas=(0.9, 0.98), eps=1e-9)
    history: dict[str, list[float]] = {"loss": [], "accuracy": [], "sharpness": []}

    def rate(count: int) -> float:
        return model.width**-0.5 * min(count**-0.5, count * 4000**-1.5)

    def step(notes: Tensor) -> float:
        scores, weights = model(notes[:, :-1])
        wanted = notes[:, 1:]
        loss = F.cross_entropy(scores.flatten(0, 1), wanted.flatten(), ignore_index=model.pad, label_smoothing=0.1)
        model.step_count += 1
        for group in optimizer.param_groups:
            group["lr"] = rate(model.step_count)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        there = wanted != model.pad
        right = ((scores.argmax(-1) == wanted) & there).sum() / there.sum()
        model.accuracy = right.item()
        history["loss"].append(loss.item())
        history["accuracy"].append(model.accuracy)
        history["sharpness"].append(sum(weight.amax(-1).mean().item() for weight in weights.values()) / len(weights))
        return loss.item()

    def batches() -> Iterator[Batch]:
        while True:
            notes = torch.from_numpy(text(random, rows * (length + 1), vocabulary - 1)).view(rows, -1)
            notes[0, -int(random.integers(1, length // 2)) :] = vocabulary - 1
            yield (notes,)

    return Program(step, batches(), (model, optimizer, history))
