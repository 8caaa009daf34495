"""Integers that are drawn inside the model choose rows of tables: a diffusion model that draws its own time steps, and a
pointer net that samples a tour. Both are split as a whole."""

# test: workers=2,3
import torch
from torch import nn


class Diffusion(nn.Module):
    def __init__(self, steps=20):
        super().__init__()
        self.steps = steps
        self.register_buffer("alpha", torch.cumprod(1 - torch.linspace(1e-3, 0.1, steps), 0))
        self.time, self.net = nn.Embedding(steps, 6), nn.Sequential(nn.Linear(12, 16), nn.SiLU(), nn.Linear(16, 6))

    def forward(self, x):
        t = torch.randint(0, self.steps, (x.shape[0],))
        noise = torch.randn_like(x)
        a = self.alpha.gather(-1, t).reshape(-1, 1)
        noisy = a.sqrt() * x + (1 - a).sqrt() * noise
        loss = (self.net(torch.cat([noisy, self.time(t)], 1)) - noise).square().mean(1)
        return (loss * (1 / (1 - self.alpha))[t].clamp(max=5.0)).mean()


class Pointer(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.cell = nn.Linear(2, 8), nn.GRUCell(8, 8)
        self.ask, self.answer = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        count = torch.arange(len(x))
        h = self.encode(x)
        state = h.mean(1)
        now, seen, logs, tour = torch.zeros_like(state), torch.zeros(x.shape[:2], dtype=torch.bool), [], []
        for _ in range(x.shape[1]):
            state = self.cell(now, state)
            scores = (self.answer(h) @ self.ask(state)[..., None]).squeeze(-1).masked_fill(seen, -1e9)
            p = scores.softmax(-1)
            i = p.multinomial(1).squeeze(1)
            logs.append(p[count, i].log())
            tour.append(i)
            seen = seen.scatter(1, i[:, None], True)
            now = h[count, i]
        return torch.stack(logs, 1).sum(1), torch.stack(tour, 1)


torch.manual_seed(252)
diffusion, pointer = Diffusion(), Pointer()
optimizer = torch.optim.SGD([*diffusion.parameters(), *pointer.parameters()], lr=0.05)
for _ in range(5):
    noise_loss = diffusion(torch.randn(9, 6))
    towns = torch.rand(9, 4, 2)
    log_p, tour = pointer(towns)
    way = towns.gather(1, tour[..., None].expand(-1, -1, 2))
    length = (way - way.roll(1, 1)).norm(dim=-1).sum(1)
    loss = noise_loss + ((length - length.mean()).detach() * log_p).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{noise_loss.item():.7f} {length.mean().item():.7f} {loss.item():.7f}")
