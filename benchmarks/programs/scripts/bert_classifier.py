"""A small BERT of transformers learns which of two kinds of sequences it sees: padding, masks, warm-up, accuracy."""

import argparse
import random

import torch
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

CLS, SEP, PAD = 1, 2, 0


def make_example(rng):
    length = rng.randint(8, 30)
    tokens = [rng.randint(3, 99) for _ in range(length)]
    label = int(sum(token % 2 for token in tokens) * 2 > length)
    return [CLS, *tokens, SEP], label


def collate(examples, width=32):
    ids = torch.full((len(examples), width), PAD)
    mask = torch.zeros(len(examples), width, dtype=torch.long)
    for row, (tokens, _) in enumerate(examples):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        mask[row, : len(tokens)] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([label for _, label in examples])}


def evaluate(model, loader):
    model.eval()
    right = total = 0
    for batch in loader:
        with torch.no_grad():
            outputs = model(**batch)
        predictions = outputs.logits.argmax(dim=-1)
        right += (predictions == batch["labels"]).sum().item()
        total += len(predictions)
    return right / total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--num_epochs", type=int, default=6)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--batch_size", type=int, default=16)
    args = parser.parse_args()
    torch.manual_seed(42)
    rng = random.Random(42)
    examples = [make_example(rng) for _ in range(2200)]
    train_dataloader = DataLoader(examples[:2000], batch_size=args.batch_size, shuffle=True, collate_fn=collate)
    eval_dataloader = DataLoader(examples[2000:], batch_size=50, collate_fn=collate)
    config = BertConfig(vocab_size=100, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                        intermediate_size=128, max_position_embeddings=32)  # fmt: skip
    model = BertForSequenceClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    num_training_steps = args.num_epochs * len(train_dataloader)
    lr_scheduler = get_linear_schedule_with_warmup(optimizer, 100, num_training_steps)
    for epoch in range(args.num_epochs):
        model.train()
        losses = []
        for batch in train_dataloader:
            outputs = model(**batch)
            loss = outputs.loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        print(f"epoch {epoch}: loss {sum(losses) / len(losses):.6f} accuracy {evaluate(model, eval_dataloader):.4f}")


if __name__ == "__main__":
    main()
