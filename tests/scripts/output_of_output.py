"""One output of a model is computed from another: its gradient flows inside the model (StyleGAN's path lengths)."""

# test: workers=2,3,5
import torch
from torch import nn


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.style, self.paint = nn.Linear(3, 4), nn.Linear(4, 5)

    def forward(self, z):
        style = self.style(z).tanh()
        return self.paint(style).tanh(), style


torch.manual_seed(61)
torch.set_default_dtype(torch.float64)
model = Generator()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
mean, norms = 0.0, []
for step in range(6):
    z = torch.randn(7 if step else 2, 3)
    picture, style = model(z)
    (grad,) = torch.autograd.grad((picture * torch.randn_like(picture)).sum(), style, create_graph=True)
    lengths = grad.pow(2).sum(1).sqrt()
    mean = mean + 0.1 * (lengths.mean() - mean)
    loss = (lengths - mean).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    mean = mean.detach()
    print(f"{step} {loss.item():.9f} {mean.item():.9f} {model.style.weight.sum().item():.9f}")

    picture, style = model(z)
    print(f"{style[0, 0].item():.9f}")
    style.retain_grad()
    style.register_hook(lambda g: norms.append(g.norm().item()))
    picture.register_hook(lambda g: 2 * g)
    optimizer.zero_grad()
    (picture.pow(2).mean() + style.abs().mean()).backward()
    optimizer.step()
    print(f"{norms[-1]:.9f} {style.grad.abs().sum().item():.9f} {model.style.weight.sum().item():.9f}")

    seen = model.style(z)
    loss = seen.pow(2).sum()
    print(f"{seen[0, 0].item():.9f}")  # it was used before it is looked at
    seen.register_hook(lambda g: norms.append(g.norm().item()))
    (grad,) = torch.autograd.grad(loss, seen, retain_graph=True)
    loss.backward()
    print(f"{norms[-1]:.9f} {grad.sum().item():.9f}")
