"""How much of a real training step the rewriter reaches: functions met, rewritten, and left native with the reason.

    python -m benchmarks.robustness.rewriting_coverage

Takes some minutes.

Runs BERT and GPT-2 from ``transformers`` (small configurations) for a few steps with SGD and momentum, Adam and AdamW,
eagerly and under imperative semantics, compares the losses and the parameters bit by bit, and then asks the interpreter
which Python functions really ran in one rewritten step, so that nothing can be missed unnoticed.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

import torchjanus
from torchjanus.rewrite import CENSUS, is_rewritten
from torchjanus.semantics.protocols.imperative import Imperative
from torchjanus.semantics.protocols.virtualize import virtualize

MODELS = ("bert", "gpt2")
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
}
OWN = str(Path(torchjanus.__file__).parent)


@dataclass(frozen=True)
class Training:
    """One model, its optimizer and a batch, from a fixed seed."""

    model: torch.nn.Module
    step: Callable[[], float]

    def state(self) -> list[torch.Tensor]:
        return [parameter.detach().clone() for parameter in self.model.parameters()]


def training(model_name: str, optimizer_name: str) -> Training:
    torch.manual_seed(0)
    ids = torch.randint(0, 99, (4, 16))
    if model_name == "bert":
        config = BertConfig(
            vocab_size=99,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=37,
            max_position_embeddings=64,
        )
        model, labels = BertForSequenceClassification(config), torch.randint(0, 2, (4,))
    else:
        config = GPT2Config(
            vocab_size=99, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=98, eos_token_id=98
        )
        model, labels = GPT2LMHeadModel(config), ids
    model.train()
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())

    def step() -> float:
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return float(loss.item())

    return Training(model, step)


def agree(model_name: str, optimizer_name: str, steps: int = 4) -> tuple[bool, list[float]]:
    """Whether the rewritten steps give eager's losses and parameters, bit by bit; and the losses."""
    eager, rewritten = training(model_name, optimizer_name), training(model_name, optimizer_name)
    virtual = virtualize(rewritten.step, Imperative())
    torch.manual_seed(1)
    expected = [eager.step() for _ in range(steps)]
    torch.manual_seed(1)
    got = [virtual() for _ in range(steps)]
    same = all(torch.equal(a, b) for a, b in zip(eager.state(), rewritten.state(), strict=True))
    return expected == got and same, got


@dataclass
class Ran:
    """The Python functions that ran: rewritten ones, and the others with who called them."""

    rewritten: set[tuple[str, int, str]] = field(default_factory=set)
    native: dict[tuple[str, int, str], str] = field(default_factory=dict)

    def note(self, frame: FrameType, event: str, argument: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code.co_filename.startswith(OWN):
            return
        key = (code.co_filename, code.co_firstlineno, code.co_qualname)
        if is_rewritten(code):
            self.rewritten.add(key)
        elif key not in self.native:
            self.native[key] = below(frame)


def below(frame: FrameType) -> str:
    """The nearest caller that says why this function ran natively."""
    back = frame.f_back
    while back is not None and not back.f_code.co_filename.startswith(OWN):
        if is_rewritten(back.f_code):
            return f"called by native code in {back.f_code.co_qualname}"
        back = back.f_back
    return "called by a function that is left native" if frame.f_back is not back else "left native"


def watched(run: Callable[[], object]) -> Ran:
    ran = Ran()
    before = sys.getprofile()
    sys.setprofile(ran.note)
    try:
        run()
    finally:
        sys.setprofile(before)
    return ran


def main() -> None:
    torch.set_num_threads(1)
    for model_name in MODELS:
        for optimizer_name in OPTIMIZERS:
            same, losses = agree(model_name, optimizer_name)
            verdict = "bit for bit eager's" if same else "DIFFERENT from eager's"
            print(f"{model_name:5} {optimizer_name:6} losses and parameters {verdict}; last loss {losses[-1]:.6f}")
    print()
    print(CENSUS.table())
    print()
    print("| left native | why |")
    print("| --- | --- |")
    for entry in CENSUS.native:
        print(f"| {entry.function} ({Path(entry.file).name}:{entry.line}) | {entry.native} |")
    listed = {(entry.file, entry.line, entry.function): entry.native for entry in CENSUS.native}
    print()
    print("What ran in one step, as the interpreter saw it:")
    for model_name in MODELS:
        one = training(model_name, "adamw")
        virtual = virtualize(one.step, Imperative())
        virtual()
        ran = watched(virtual)
        reasons = Counter(listed.get(key, why) for key, why in ran.native.items())
        print(f"  {model_name}: {len(ran.rewritten)} functions rewritten, {len(ran.native)} native:")
        for reason, count in reasons.most_common():
            names = sorted(key[2] for key, why in ran.native.items() if listed.get(key, why) == reason)
            print(f"    {count} {reason}: {', '.join(names[:8])}{' ...' if count > 8 else ''}")


if __name__ == "__main__":
    main()
