"""A convolutional GAN on digits: two networks, two optimizers, labels of one and zero, fixed noise to look at."""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--nz", type=int, default=16)
parser.add_argument("--nf", type=int, default=16)
opt = parser.parse_args()
torch.manual_seed(0)
images = torch.tensor(load_digits().images, dtype=torch.float32).unsqueeze(1) / 8 - 1
images = F.interpolate(images, size=16, mode="bilinear")
dataloader = torch.utils.data.DataLoader(images, batch_size=opt.batch_size, shuffle=True, drop_last=True)


def weights_init(m):
    classname = m.__class__.__name__
    if classname.find("Conv") != -1:
        nn.init.normal_(m.weight, 0.0, 0.02)
    elif classname.find("BatchNorm") != -1:
        nn.init.normal_(m.weight, 1.0, 0.02)
        nn.init.zeros_(m.bias)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(opt.nz, opt.nf * 2, 4, 1, 0, bias=False),
            nn.BatchNorm2d(opt.nf * 2),
            nn.ReLU(True),
            nn.ConvTranspose2d(opt.nf * 2, opt.nf, 4, 2, 1, bias=False),
            nn.BatchNorm2d(opt.nf),
            nn.ReLU(True),
            nn.ConvTranspose2d(opt.nf, 1, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def forward(self, input):
        return self.main(input)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(1, opt.nf, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(opt.nf, opt.nf * 2, 4, 2, 1, bias=False),
            nn.BatchNorm2d(opt.nf * 2),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(opt.nf * 2, 1, 4, 1, 0, bias=False),
            nn.Sigmoid(),
        )

    def forward(self, input):
        return self.main(input).view(-1, 1).squeeze(1)


netG, netD = Generator(), Discriminator()
netG.apply(weights_init)
netD.apply(weights_init)
criterion = nn.BCELoss()
fixed_noise = torch.randn(16, opt.nz, 1, 1)
real_label, fake_label = 1, 0
optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))

for epoch in range(opt.epochs):
    for i, data in enumerate(dataloader, 0):
        # the discriminator: a batch of real images, then one of made ones
        netD.zero_grad()
        batch_size = data.size(0)
        label = torch.full((batch_size,), real_label, dtype=data.dtype)
        output = netD(data)
        errD_real = criterion(output, label)
        errD_real.backward()
        D_x = output.mean().item()
        noise = torch.randn(batch_size, opt.nz, 1, 1)
        fake = netG(noise)
        label.fill_(fake_label)
        output = netD(fake.detach())
        errD_fake = criterion(output, label)
        errD_fake.backward()
        D_G_z1 = output.mean().item()
        errD = errD_real + errD_fake
        optimizerD.step()
        # the generator
        netG.zero_grad()
        label.fill_(real_label)
        output = netD(fake)
        errG = criterion(output, label)
        errG.backward()
        D_G_z2 = output.mean().item()
        optimizerG.step()
        if i % 20 == 0:
            losses = f"Loss_D: {errD.item():.5f} Loss_G: {errG.item():.5f} D(x): {D_x:.5f}"
            print(f"[{epoch}/{opt.epochs}][{i}/{len(dataloader)}] {losses} D(G(z)): {D_G_z1:.5f} / {D_G_z2:.5f}")
    with torch.no_grad():
        print("fixed noise", netG(fixed_noise).abs().mean().item())
