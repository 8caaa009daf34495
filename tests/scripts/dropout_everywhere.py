"""A small GPT with dropout, recomputed in part; a recurrent network with dropout; a CNN with batch norm and dropout."""

# test: tolerance=1e-9 float64
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.set_default_dtype(torch.float64)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(width), nn.Dropout(0.1)
        self.attention = nn.MultiheadAttention(width, 2, dropout=0.1, batch_first=True)
        self.inner = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width), nn.Dropout(0.1))

    def forward(self, x):
        h = self.norm(x)
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        x = x + self.drop(self.attention(h, h, h, attn_mask=mask, need_weights=False)[0])
        return x + self.inner(x)


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.blocks = nn.Embedding(11, 8), nn.ModuleList(Block(8) for _ in range(3))
        self.drop, self.head = nn.Dropout(0.1), nn.Linear(8, 11)

    def forward(self, x):
        x = self.drop(self.words(x))
        for number, block in enumerate(self.blocks):
            x = checkpoint(block, x, use_reentrant=number == 2) if number else block(x)
        return self.head(x)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(11, 6), nn.Linear(10, 11)
        self.net = nn.LSTM(6, 5, 2, dropout=0.3, batch_first=True, bidirectional=True)

    def forward(self, x):
        return self.head(self.net(self.words(x))[0])


def pictures():
    return nn.Sequential(
        *(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout2d(0.2), nn.Conv2d(4, 4, 3)),
        *(nn.BatchNorm2d(4), nn.Flatten(), nn.Dropout(0.3), nn.Linear(16, 3), nn.BatchNorm1d(3)),
    )


torch.manual_seed(12)
text = torch.randint(11, (7, 6))
images, labels = torch.randn(7, 2, 6, 6), torch.randint(3, (7,))
for model in (GPT(), Recurrent(), pictures()):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        if isinstance(model, nn.Sequential):
            loss = F.cross_entropy(model(images), labels)
        else:
            loss = F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(f"{type(model).__name__} {step} loss {loss.item():.12f} norm {norm.item():.12f}")
    print(f"then {torch.rand(1).item():.12f}")
