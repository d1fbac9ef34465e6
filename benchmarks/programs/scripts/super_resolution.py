"""Super-resolution by sub-pixel convolution on digits: peak signal-to-noise ratio on a test set after each epoch."""

import argparse
from math import log10

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.nn import init
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self, upscale_factor):
        super().__init__()
        self.relu = nn.ReLU()
        self.conv1 = nn.Conv2d(1, 32, (5, 5), (1, 1), (2, 2))
        self.conv2 = nn.Conv2d(32, 32, (3, 3), (1, 1), (1, 1))
        self.conv3 = nn.Conv2d(32, 16, (3, 3), (1, 1), (1, 1))
        self.conv4 = nn.Conv2d(16, upscale_factor**2, (3, 3), (1, 1), (1, 1))
        self.pixel_shuffle = nn.PixelShuffle(upscale_factor)
        self._initialize_weights()

    def forward(self, x):
        x = self.relu(self.conv1(x))
        x = self.relu(self.conv2(x))
        x = self.relu(self.conv3(x))
        return self.pixel_shuffle(self.conv4(x))

    def _initialize_weights(self):
        init.orthogonal_(self.conv1.weight, init.calculate_gain("relu"))
        init.orthogonal_(self.conv2.weight, init.calculate_gain("relu"))
        init.orthogonal_(self.conv3.weight, init.calculate_gain("relu"))
        init.orthogonal_(self.conv4.weight)


parser = argparse.ArgumentParser()
parser.add_argument("--upscale_factor", type=int, default=2)
parser.add_argument("--batchSize", type=int, default=16)
parser.add_argument("--nEpochs", type=int, default=20)
parser.add_argument("--lr", type=float, default=0.001)
opt = parser.parse_args()
torch.manual_seed(123)
target = torch.tensor(load_digits().images, dtype=torch.float32).unsqueeze(1) / 16
target = F.interpolate(target, size=16, mode="bicubic").clamp(0, 1)
small = F.avg_pool2d(target, opt.upscale_factor)
training = DataLoader(TensorDataset(small[:1600], target[:1600]), batch_size=opt.batchSize, shuffle=True)
testing = DataLoader(TensorDataset(small[1600:], target[1600:]), batch_size=50)
model = Net(upscale_factor=opt.upscale_factor)
criterion = nn.MSELoss()
optimizer = optim.Adam(model.parameters(), lr=opt.lr)


def train(epoch):
    epoch_loss = 0
    for iteration, batch in enumerate(training, 1):
        input, target = batch[0], batch[1]
        optimizer.zero_grad()
        loss = criterion(model(input), target)
        epoch_loss += loss.item()
        loss.backward()
        optimizer.step()
        if iteration % 25 == 0:
            print(f"===> Epoch[{epoch}]({iteration}/{len(training)}): Loss: {loss.item():.6f}")
    print(f"===> Epoch {epoch} Complete: Avg. Loss: {epoch_loss / len(training):.6f}")


def test():
    avg_psnr = 0
    with torch.no_grad():
        for batch in testing:
            input, target = batch[0], batch[1]
            mse = criterion(model(input), target)
            avg_psnr += 10 * log10(1 / mse.item())
    print(f"===> Avg. PSNR: {avg_psnr / len(testing):.4f} dB")


for epoch in range(1, opt.nEpochs + 1):
    train(epoch)
    test()
