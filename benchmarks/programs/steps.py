"""The training steps that are measured: ordinary imperative PyTorch, knowing nothing of torchjanus.

Each program is small, so that what surrounds the arithmetic shows: Python, dispatch, the optimizer.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from examples.digits import LeNet

__all__ = ["OPTIMIZERS", "PROGRAMS", "Job", "make"]

Batch = tuple[Tensor, ...]


class Job(NamedTuple):
    """``step(*batch)`` trains once and returns the loss; ``state()`` names every tensor that training changes."""

    step: Callable[..., Tensor]
    batches: list[Batch]
    state: Callable[[], dict[str, Tensor]]


@dataclass(frozen=True)
class Recipe:
    """How to make one program: the model, the loss of a batch, and a batch of data."""

    model: Callable[[float], nn.Module]  # takes the dropout probability
    loss: Callable[..., Tensor]  # takes the model and a batch
    batch: Callable[[torch.Generator], Batch]


OPTIMIZERS: dict[str, Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.01),
}


# --- a multi-layer perceptron


def mlp(dropout: float) -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Dropout(dropout), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )


def classify(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(model(inputs), labels)


def mlp_batch(random: torch.Generator) -> Batch:
    return torch.randn(32, 64, generator=random), torch.randint(10, (32,), generator=random)


# --- the convnet of examples/digits.py, on its pictures


def digits_batch(random: torch.Generator) -> Batch:
    data = load_digits()
    picks = torch.randint(len(data.target), (64,), generator=random)
    pictures = torch.tensor(data.images, dtype=torch.float32)[picks].unsqueeze(1) / 16.0
    return pictures, torch.tensor(data.target)[picks]


# --- an LSTM written by hand


class CharacterLSTM(nn.Module):
    """A language model over characters, one Python iteration per time step."""

    def __init__(self, dropout: float, vocabulary: int = 64, width: int = 64) -> None:
        super().__init__()
        self.width = width
        self.embedding = nn.Embedding(vocabulary, width)
        self.gates = nn.Linear(2 * width, 4 * width)
        self.dropout = nn.Dropout(dropout)
        self.decoder = nn.Linear(width, vocabulary)

    def forward(self, text: Tensor) -> Tensor:
        hidden = cell = torch.zeros(text.shape[0], self.width, device=text.device)
        outputs = []
        for position in range(text.shape[1]):
            x = torch.cat([self.embedding(text[:, position]), hidden], dim=1)
            i, f, g, o = self.gates(x).chunk(4, dim=1)
            cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
            hidden = torch.sigmoid(o) * torch.tanh(cell)
            outputs.append(self.decoder(self.dropout(hidden)))
        return torch.stack(outputs, dim=1)


def next_character(model: nn.Module, text: Tensor) -> Tensor:
    logits = model(text[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())


def lstm_batch(random: torch.Generator) -> Batch:
    return (torch.randint(64, (20, 21), generator=random),)


# --- transformers: hidden size 64, 2 layers, 4 heads, 4 sequences of 32 tokens

VOCABULARY, SEQUENCES, LENGTH = 1000, 4, 32


def bert(kind: str, dropout: float) -> nn.Module:
    """Return a model of this class of the transformers library."""
    transformers = importlib.import_module("transformers")  # takes seconds, and most programs need nothing of it
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=256,
        max_position_embeddings=64,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        num_labels=2,
    )
    model: nn.Module = getattr(transformers, kind)(config)
    return model


def gpt2(dropout: float) -> nn.Module:
    transformers = importlib.import_module("transformers")
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=64,
        n_embd=64,
        n_layer=2,
        n_head=4,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,  # as every training script sets it
    )
    model: nn.Module = transformers.GPT2LMHeadModel(config)
    return model


def tokens(random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Token numbers, and a mask under which the sequences have different lengths."""
    lengths = torch.randint(LENGTH // 2, LENGTH + 1, (SEQUENCES, 1), generator=random)
    mask = (torch.arange(LENGTH) < lengths).long()
    return torch.randint(1, VOCABULARY, (SEQUENCES, LENGTH), generator=random), mask


def answer(model: nn.Module, ids: Tensor, mask: Tensor, start: Tensor, end: Tensor) -> Tensor:
    return model(input_ids=ids, attention_mask=mask, start_positions=start, end_positions=end).loss


def answer_batch(random: torch.Generator) -> Batch:
    start = torch.randint(LENGTH // 4, (SEQUENCES,), generator=random)
    return *tokens(random), start, start + torch.randint(LENGTH // 4, (SEQUENCES,), generator=random)


def labelled(model: nn.Module, ids: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
    return model(input_ids=ids, attention_mask=mask, labels=labels).loss


def labelled_batch(random: torch.Generator) -> Batch:
    return *tokens(random), torch.randint(2, (SEQUENCES,), generator=random)


def language_batch(random: torch.Generator) -> Batch:
    ids, mask = tokens(random)
    return ids, mask, ids.masked_fill(mask == 0, -100)


PROGRAMS: dict[str, Recipe] = {
    "mlp": Recipe(mlp, classify, mlp_batch),
    "digits": Recipe(LeNet, classify, digits_batch),
    "lstm": Recipe(CharacterLSTM, next_character, lstm_batch),
    "bert-qa": Recipe(partial(bert, "BertForQuestionAnswering"), answer, answer_batch),
    "bert-cls": Recipe(partial(bert, "BertForSequenceClassification"), labelled, labelled_batch),
    "gpt2": Recipe(gpt2, labelled, language_batch),
}


def make(name: str, optimizer: str, seed: int = 0, dropout: float = 0.0, device: str = "cpu", batches: int = 50) -> Job:
    """A fresh model and optimizer, and ``batches`` batches of data: equal arguments give bitwise equal jobs.

    Leaves torch's generator at the state that ``seed`` led to, the same for equal arguments.
    """
    recipe = PROGRAMS[name]
    random = torch.Generator().manual_seed(seed)
    data = [tuple(part.to(device) for part in recipe.batch(random)) for _ in range(batches)]
    torch.manual_seed(seed)
    model = recipe.model(dropout).to(device).train()
    opt = OPTIMIZERS[optimizer](model.parameters())
    loss_of = recipe.loss

    def step(*batch: Tensor) -> Tensor:
        opt.zero_grad()
        loss = loss_of(model, *batch)
        loss.backward()
        opt.step()
        return loss.detach()

    def state() -> dict[str, Tensor]:
        named: dict[str, Tensor] = {}
        for key, parameter in model.named_parameters():
            named[f"parameter {key}"] = parameter
            if parameter.grad is not None:
                named[f"gradient {key}"] = parameter.grad
            for part, value in opt.state.get(parameter, {}).items():
                named[f"optimizer {key} {part}"] = torch.as_tensor(value)
        named.update((f"buffer {key}", buffer) for key, buffer in model.named_buffers())
        return {key: value.detach().clone() for key, value in named.items()}

    return Job(step, data, state)
