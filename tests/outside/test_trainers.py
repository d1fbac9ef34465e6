"""The step of a trainer is speculated on as its page says: docs/scripts-and-notebooks.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import torchjanus

pytestmark = pytest.mark.slow  # the imports alone take many seconds


def test_the_step_of_a_trainer_of_transformers(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")  # Trainer needs it
    transformers = pytest.importorskip("transformers")
    given = [{"input_ids": x, "labels": x.sum() % 2} for x in torch.randint(0, 100, (48, 8))]

    def trained(speculated: bool) -> tuple[Any, Any]:
        torch.manual_seed(0)
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        model = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=100, **sizes))
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path), num_train_epochs=2, per_device_train_batch_size=4, logging_steps=1,
            report_to=[], save_strategy="no", disable_tqdm=True, use_cpu=True,
        )  # fmt: skip
        trainer = transformers.Trainer(model=model, args=arguments, train_dataset=given)
        if speculated:
            trainer.training_step = torchjanus.speculate(trainer.training_step, executor="replay")
        trainer.train()
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        return trainer, (losses, [*model.parameters()])

    _, expected = trained(False)
    trainer, found = trained(True)
    assert found[0] == expected[0]
    assert all(map(torch.equal, found[1], expected[1]))
    assert trainer.training_step.statistics().speculated >= 18  # of 24
