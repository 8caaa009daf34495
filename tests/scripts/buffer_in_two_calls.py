"""A model with its loss inside runs whole; its encoder is called twice before one backward, and keeps positions in a buffer."""
# test: workers=2,3

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(23)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.place = nn.Embedding(40, 12), nn.Embedding(10, 12)
        self.register_buffer("positions", torch.arange(10)[None], persistent=False)
        self.out = nn.Linear(12, 6)

    def forward(self, ids):
        x = self.token(ids) + self.place(self.positions[:, : ids.shape[1]])
        return F.normalize(self.out(x.mean(1)), dim=-1)


class Contrastive(nn.Module):
    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder

    def forward(self, pairs):
        one, other = (self.encoder(ids) for ids in pairs)
        return F.cross_entropy(one @ other.T * 20, torch.arange(len(one)))


loss_fn = Contrastive(Encoder())
optimizer = torch.optim.SGD(loss_fn.parameters(), lr=0.05)
for step in range(5):
    one = torch.randint(0, 40, (9, 6 + step % 2))
    loss = loss_fn([one, one.flip(1)[:, :5]])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f}")
