"""A regression written without functions: all in the module, with a best loss, patience and a history."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=20000)
options = parser.parse_args()

torch.manual_seed(1)
inputs = torch.randn(256, 4)
wanted = inputs.sum(1, keepdim=True).sin()
net = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
history = []
best = float("inf")
for epoch in range(options.epochs):
    chosen = torch.randint(0, 256, (32,))
    loss = ((net(inputs[chosen]) - wanted[chosen]) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append(loss.item())
    if epoch % 500 == 499:
        mean = sum(history[-500:]) / 500
        best = min(best, mean)
        print(f"epoch {epoch}: mean loss {mean:.6f}, best {best:.6f}")
print(len(history), net[0].weight.norm().item())
