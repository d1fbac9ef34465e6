"""A language model on characters with a carried LSTM state: truncated backpropagation, clipping, perplexity."""

import argparse
import math
import this

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, size, hidden=64):
        super().__init__()
        self.embedding = nn.Embedding(size, 32)
        self.cell = nn.LSTMCell(32, hidden)
        self.decoder = nn.Linear(hidden, size)

    def forward(self, tokens, state):
        h, c = state
        outputs = []
        for t in range(tokens.size(0)):
            h, c = self.cell(self.embedding(tokens[t]), (h, c))
            outputs.append(h)
        return self.decoder(torch.stack(outputs)), (h, c)


def repackage(state):
    """Cut the state from its history."""
    if isinstance(state, torch.Tensor):
        return state.detach()
    return tuple(repackage(part) for part in state)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=100)
    args = parser.parse_args()
    torch.manual_seed(0)
    text = this.s * 4
    letters = sorted(set(text))
    ids = torch.tensor([letters.index(letter) for letter in text])
    batch, bptt = 8, 20
    data = ids[: len(ids) // batch * batch].view(batch, -1).t().contiguous()
    model = Model(len(letters))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for epoch in range(args.epochs):
        total, state = 0.0, (torch.zeros(batch, 64), torch.zeros(batch, 64))
        for i in range(0, data.size(0) - 1 - bptt, bptt):
            tokens, targets = data[i : i + bptt], data[i + 1 : i + 1 + bptt]
            optimizer.zero_grad()
            state = repackage(state)
            output, state = model(tokens, state)
            loss = criterion(output.view(-1, len(letters)), targets.reshape(-1))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            optimizer.step()
            total += loss.item()
        mean = total / (i // bptt + 1)
        print(f"epoch {epoch}: loss {mean:.6f} perplexity {math.exp(mean):.4f}")


if __name__ == "__main__":
    main()
