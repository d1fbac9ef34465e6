"""A trainer with callbacks: a progress bar, checkpoints in memory, a learning rate that falls on a plateau, early
stopping with the best weights put back."""

from __future__ import annotations

import copy
import io
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm


class Callback:
    def on_batch_end(self, trainer: Trainer, logs: dict[str, float]) -> None: ...

    def on_epoch_end(self, trainer: Trainer, logs: dict[str, float]) -> None: ...


class Bar(Callback):
    def __init__(self, total: int) -> None:
        self.bar = tqdm(total=total, file=io.StringIO(), mininterval=1e9)

    def on_batch_end(self, trainer: Trainer, logs: dict[str, float]) -> None:
        self.bar.set_postfix({name: f"{value:.3f}" for name, value in logs.items()}, refresh=False)
        self.bar.update(1)


class Checkpoint(Callback):
    def __init__(self) -> None:
        self.saved: list[bytes] = []

    def on_epoch_end(self, trainer: Trainer, logs: dict[str, float]) -> None:
        target = io.BytesIO()
        torch.save({"model": trainer.model.state_dict(), "epoch": trainer.epoch, **logs}, target)
        self.saved = [*self.saved[-1:], target.getvalue()]


class EarlyStopping(Callback):
    def __init__(self, patience: int) -> None:
        self.patience, self.waited, self.best = patience, 0, float("inf")
        self.weights: dict[str, Tensor] | None = None

    def on_epoch_end(self, trainer: Trainer, logs: dict[str, float]) -> None:
        if logs["val"] < self.best - 1e-4:
            self.best, self.waited = logs["val"], 0
            self.weights = copy.deepcopy(trainer.model.state_dict())
        else:
            self.waited += 1
            if self.waited > self.patience and self.weights is not None:
                trainer.model.load_state_dict(self.weights)
                trainer.stopped = True


class Trainer:
    def __init__(self, model: nn.Module, callbacks: list[Callback]) -> None:
        self.model, self.callbacks = model, callbacks
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
        self.plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(self.optimizer, patience=1, factor=0.5)
        self.history: defaultdict[str, list[float]] = defaultdict(list)
        self.epoch, self.stopped = 0, False

    def fire(self, event: str, logs: dict[str, float]) -> None:
        for callback in self.callbacks:
            getattr(callback, event)(self, logs)

    def run_epoch(self, batches: list[tuple[Tensor, Tensor]], held_out: tuple[Tensor, Tensor]) -> dict[str, float]:
        if self.stopped:
            return {"val": -1.0}
        self.model.train()
        total = correct = seen = 0.0
        for x, y in batches:
            logits = self.model(x)
            loss = F.cross_entropy(logits, y, label_smoothing=0.1)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total += loss.item() * len(x)
            correct += (logits.argmax(1) == y).sum().item()
            seen += len(x)
            self.fire("on_batch_end", {"loss": loss.item(), "acc": correct / seen})
        self.model.eval()
        with torch.inference_mode():
            value = F.cross_entropy(self.model(held_out[0]), held_out[1]).item()
        self.plateau.step(value)
        logs = {"train": total / seen, "acc": correct / seen, "val": value, "lr": self.optimizer.param_groups[0]["lr"]}
        for name, one in logs.items():
            self.history[name].append(one)
        self.fire("on_epoch_end", logs)
        self.epoch += 1
        return logs


def make() -> Any:
    model = nn.Sequential(nn.Linear(8, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, 3))
    checkpoint, stopping = Checkpoint(), EarlyStopping(6)
    trainer = Trainer(model, [Bar(200), checkpoint, stopping])
    centres = 2 * torch.randn(3, 8)

    def drawn(count: int) -> tuple[Tensor, Tensor]:
        y = torch.randint(0, 3, (count,))
        return centres[y] + 1.5 * torch.randn(count, 8), y

    batches, held_out = [drawn(16) for _ in range(4)], drawn(64)

    def state() -> Any:
        restored = [torch.load(io.BytesIO(one)) for one in checkpoint.saved]
        return trainer.model, dict(trainer.history), stopping.best, stopping.waited, restored

    return trainer.run_epoch, [(batches, held_out)] * 30, state
