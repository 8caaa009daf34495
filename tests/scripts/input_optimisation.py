"""The model is frozen; the input is what is trained, then a saliency map with autograd.grad."""

import torch
from torch import nn

torch.manual_seed(115)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).requires_grad_(False)
image = torch.randn(5, 8, requires_grad=True)
optimizer = torch.optim.SGD([image], lr=0.5)
for step in range(8):
    score = model(image)[:, 1]
    loss = -score.mean() + 0.01 * image.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f} {image.grad.norm().item():.8f}")
saliency = torch.autograd.grad(model(image)[:, 0].sum(), image)[0].abs()
print(f"{saliency.sum().item():.8f}", saliency.argmax(1).tolist())
