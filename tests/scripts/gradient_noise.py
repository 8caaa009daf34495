"""Noise added to gradients, weights clamped after the step, step hooks of the optimizer."""

# test: workers=2
# test: views=batch,slice
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(263)
x = torch.randn(30, 4)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True).sin()), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
steps = []
optimizer.register_step_post_hook(lambda o, a, k: steps.append(len(steps)))
for epoch in range(2):
    for a, b in loader:
        loss = nn.functional.mse_loss(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        for p in model.parameters():
            p.grad.add_(0.01 * torch.randn_like(p.grad))
        optimizer.step()
        for p in model.parameters():
            p.data.clamp_(-0.5, 0.5)
        print(f"{loss.item():.8f} {len(steps)} {model[0].weight.norm().item():.8f}")
