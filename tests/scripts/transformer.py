"""A small causal transformer: positions, padding mask [B, T] by keyword, tied nothing."""

# test: views=batch,slice
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self, T=7):
        super().__init__()
        self.embed, self.position = nn.Embedding(12, 8), nn.Parameter(torch.randn(1, T, 8) * 0.1)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 2)

    def forward(self, ids, padding=None):
        h = self.encoder(self.embed(ids) + self.position, src_key_padding_mask=padding)
        return self.head(h[:, 0])


torch.manual_seed(147)
ids = torch.randint(1, 12, (29, 7))
lengths = torch.randint(3, 8, (29,))
padding = torch.arange(7)[None] >= lengths[:, None]
loader = DataLoader(TensorDataset(ids, padding, (ids[:, 0] % 2)), batch_size=8, shuffle=True)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for a, pad, b in loader:
        loss = nn.functional.cross_entropy(model(a, padding=pad), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.8f}")
