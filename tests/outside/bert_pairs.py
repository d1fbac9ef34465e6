"""Pairs of sentences classified by a small BERT of transformers, with warm-up, accumulated gradients and clipping."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup


class Trainer:
    def __init__(self, accumulate: int = 2) -> None:
        sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
        self.model = BertForSequenceClassification(BertConfig(vocab_size=50, max_position_embeddings=32, **sizes))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.schedule = get_linear_schedule_with_warmup(self.optimizer, 4, 60)
        self.accumulate, self.right, self.seen = accumulate, 0, 0

    def step(self, batches: list[dict[str, Tensor]]) -> dict[str, float]:
        self.model.train()
        total = 0.0
        for batch in batches:
            output = self.model(**batch)
            loss = output.loss / self.accumulate
            loss.backward()
            total += loss.item()
            self.right += (output.logits.argmax(-1) == batch["labels"]).sum().item()
            self.seen += len(batch["labels"])
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()
        return {"loss": total, "norm": norm.item(), "accuracy": self.right / self.seen}


def make() -> Any:
    trainer = Trainer()

    def batch() -> dict[str, Tensor]:
        ids = torch.randint(1, 50, (4, 10))
        mask = torch.ones(4, 10, dtype=torch.long)
        mask[2, 7:] = 0
        return {"input_ids": ids, "attention_mask": mask, "labels": torch.randint(0, 2, (4,))}

    calls = [([batch(), batch()],) for _ in range(30)]
    return trainer.step, calls, lambda: (trainer.model, trainer.right, trainer.seen)
