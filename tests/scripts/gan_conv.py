"""A DCGAN-like loop: convolutions, netG/netD, D trained on real and fake in two backwards, labels in place."""

import torch
import torch.nn as nn
import torch.optim as optim

torch.manual_seed(50)
netG = nn.Sequential(nn.ConvTranspose2d(6, 8, 4), nn.ReLU(True), nn.ConvTranspose2d(8, 1, 4, 2, 1), nn.Tanh())
netD = nn.Sequential(
    nn.Conv2d(1, 8, 4, 2, 1), nn.LeakyReLU(0.2, inplace=True), nn.Conv2d(8, 1, 4), nn.Sigmoid(), nn.Flatten(0)
)
for net in (netG, netD):
    for m in net.modules():
        if isinstance(m, (nn.Conv2d, nn.ConvTranspose2d)):
            nn.init.normal_(m.weight, 0.0, 0.1)
criterion = nn.BCELoss()
optimizerD = optim.SGD(netD.parameters(), lr=0.1)
optimizerG = optim.SGD(netG.parameters(), lr=0.1)
fixed = torch.randn(3, 6, 1, 1)
for i in range(6):
    netD.zero_grad()
    real = torch.rand(7, 1, 8, 8)
    label = torch.full((7,), 1.0)
    errD_real = criterion(netD(real), label)
    errD_real.backward()
    fake = netG(torch.randn(7, 6, 1, 1))
    label.fill_(0.0)
    output = netD(fake.detach())
    errD_fake = criterion(output, label)
    errD_fake.backward()
    D_G_z1 = output.mean().item()
    optimizerD.step()
    netG.zero_grad()
    label.fill_(1.0)
    output = netD(fake)
    errG = criterion(output, label)
    errG.backward()
    optimizerG.step()
    print(
        "[%d] Loss_D: %.8f Loss_G: %.8f D(G(z)): %.8f / %.8f"
        % (i, errD_real.item() + errD_fake.item(), errG.item(), D_G_z1, output.mean().item())
    )
print(f"{netG(fixed).abs().mean().item():.8f}")
