"""Evaluation of attention layers with padding: torch takes one fused operation for each, which is split, too."""

# test: workers=2,3
import torch
from torch import nn

torch.manual_seed(251)


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8, padding_idx=0)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.out = nn.Linear(8, 3)

    def forward(self, tokens):
        pad = tokens == 0
        x = self.embed(tokens)
        x = x + self.attention(x, x, x, key_padding_mask=pad, need_weights=False)[0]
        x = self.layer(x, src_key_padding_mask=pad)
        return self.out(x.masked_fill(pad[..., None], 0).sum(1))


net = Reader()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(4):
    tokens = torch.randint(1, 20, (14, 6))
    tokens[::2, 4:] = 0
    labels = tokens[:, 0] % 3
    net.train()
    loss = nn.functional.cross_entropy(net(tokens), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    net.eval()
    with torch.no_grad():
        scores = net(tokens)
    print(f"{loss.item():.8f} {scores.square().mean().item():.8f} {(scores.argmax(1) == labels).sum().item()}")
