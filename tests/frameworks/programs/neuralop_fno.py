# framework: neuraloperator
# program: `FNO` on a heat equation with `H1Loss` and `LpLoss`, evaluated at a second resolution
import torch
from neuralop.losses import H1Loss, LpLoss
from neuralop.models import FNO

torch.manual_seed(0)


def heat(n, size):
    x = torch.linspace(0, 1, size + 1)[:-1]
    gx, gy = torch.meshgrid(x, x, indexing="ij")
    c = torch.randn(n, 3, 3, generator=torch.Generator().manual_seed(n))
    start = sum(c[:, i, j, None, None] * torch.sin(6.2832 * (i * gx + j * gy)) for i in range(3) for j in range(3))
    k = torch.fft.fftfreq(size, 1 / size)
    decay = torch.exp(-0.01 * 39.478 * (k[:, None] ** 2 + k[None] ** 2))
    return start[:, None], torch.fft.ifft2(torch.fft.fft2(start) * decay).real[:, None]


model = FNO(n_modes=(6, 6), in_channels=1, out_channels=1, hidden_channels=8, n_layers=2)
optimizer = torch.optim.AdamW(model.parameters(), lr=8e-3, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=8)
h1, l2 = H1Loss(d=2), LpLoss(d=2, p=2)
a, u = heat(32, 16)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(a, u), batch_size=8, shuffle=True)
for epoch in range(2):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        loss = h1(model(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        print(epoch, f"{loss.item():.5f}")
    model.eval()
    with torch.no_grad():
        for size in (16, 24):
            x, y = heat(6, size)
            print(size, f"{l2(model(x), y).item():.5f}")
