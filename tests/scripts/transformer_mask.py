"""A causal mask [T, T] where T is also the batch size."""

# test: right-or-refused=an argument whose first dimension is the batch size by chance
import torch
from torch import nn


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(13, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.out = nn.Linear(8, 13)

    def forward(self, ids, mask):
        return self.out(self.layer(self.embed(ids), src_mask=mask))


torch.manual_seed(145)
T = 6
mask = torch.triu(torch.full((T, T), float("-inf")), diagonal=1)
model = Decoder()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    ids = torch.randint(0, 13, (T, T + 1))
    loss = nn.functional.cross_entropy(model(ids[:, :-1], mask).flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f}")
