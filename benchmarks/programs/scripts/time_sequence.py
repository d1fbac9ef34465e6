"""Sine waves by LSTM cells and LBFGS with a closure, then predictions past the end."""

import argparse

import torch
from torch import nn, optim


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm1 = nn.LSTMCell(1, 16)
        self.lstm2 = nn.LSTMCell(16, 16)
        self.linear = nn.Linear(16, 1)

    def forward(self, input, future=0):
        outputs = []
        h1 = torch.zeros(input.size(0), 16, dtype=torch.double)
        c1, h2, c2 = h1, h1, h1
        for step in input.split(1, dim=1):
            h1, c1 = self.lstm1(step, (h1, c1))
            h2, c2 = self.lstm2(h1, (h2, c2))
            output = self.linear(h2)
            outputs += [output]
        for _ in range(future):
            h1, c1 = self.lstm1(output, (h1, c1))
            h2, c2 = self.lstm2(h1, (h2, c2))
            output = self.linear(h2)
            outputs += [output]
        return torch.cat(outputs, dim=1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    opt = parser.parse_args()
    torch.manual_seed(0)
    shift = torch.randint(-40, 40, (20, 1))
    data = torch.sin((torch.arange(41)[None] + shift).double() / 5)
    input, target = data[3:, :-1], data[3:, 1:]
    test_input, test_target = data[:3, :-1], data[:3, 1:]
    seq = Sequence().double()
    criterion = nn.MSELoss()
    optimizer = optim.LBFGS(seq.parameters(), lr=0.5, max_iter=8)
    for i in range(opt.steps):

        def closure():
            optimizer.zero_grad()
            out = seq(input)
            loss = criterion(out, target)
            loss.backward()
            return loss

        loss = optimizer.step(closure)
        print(f"step {i}: loss {loss.item():.9f}")
        with torch.no_grad():
            pred = seq(test_input, future=10)
            print(f"test loss {criterion(pred[:, :-10], test_target).item():.9f}")
