"""The text classification tutorial: EmbeddingBag with offsets."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.e, self.o = nn.EmbeddingBag(20, 6), nn.Linear(6, 2)

    def forward(self, text, offsets):
        return self.o(self.e(text, offsets))


torch.manual_seed(0)
data = [torch.randint(1, 20, (int(n),)) for n in torch.randint(2, 9, (40,))]
data = [(t, int(t.float().mean() > 10)) for t in data]


def collate(b):
    return (
        torch.tensor([y for _, y in b]),
        torch.cat([t for t, _ in b]),
        torch.tensor([0] + [len(t) for t, _ in b][:-1]).cumsum(0),
    )


m = Net()
o = torch.optim.SGD(m.parameters(), lr=0.3)
for e in range(2):
    for y, t, off in DataLoader(data, batch_size=10, shuffle=True, collate_fn=collate):
        loss = F.cross_entropy(m(t, off), y)
        o.zero_grad()
        loss.backward()
        o.step()
        print(f"{loss.item():.6f}")
