"""SparseAdam for the embedding, SGD for the rest."""

import torch
from torch import nn

torch.manual_seed(122)
embed, out = nn.Embedding(30, 5, sparse=True), nn.Linear(5, 1)
sparse, dense = torch.optim.SparseAdam(embed.parameters(), lr=0.02), torch.optim.SGD(out.parameters(), lr=0.1)
for step in range(12):
    ids = torch.randint(0, 30, (9,))
    loss = (out(embed(ids)).squeeze(1) - ids / 30).pow(2).mean()
    sparse.zero_grad()
    dense.zero_grad()
    loss.backward()
    sparse.step()
    dense.step()
    print(f"{loss.item():.8f} {embed.weight.norm().item():.7f}")
