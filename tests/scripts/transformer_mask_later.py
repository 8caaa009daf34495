"""A mask [T, T] whose T is the batch size in the third batch only."""

# test: right-or-refused=an argument whose first dimension is the batch size by chance, later
import torch
from torch import nn


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.mix, self.out = nn.Embedding(13, 8), nn.Linear(8, 8), nn.Linear(8, 13)

    def forward(self, ids, mask):
        return self.out(torch.tanh(mask @ self.mix(self.embed(ids))))


torch.manual_seed(146)
T = 6
mask = torch.tril(torch.ones(T, T))
mask = mask / mask.sum(1, keepdim=True)
model = Decoder()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
for step in range(6):
    ids = torch.randint(0, 13, (T if step == 2 else 9, T + 1))
    loss = nn.functional.cross_entropy(model(ids[:, :-1], mask).flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f}")
