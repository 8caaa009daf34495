"""A small GPT that returns its loss, with dropout in attention and elsewhere, compiled; some targets are ignored."""

# test: workers=2
# test: slow=compiles C++
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(3)
mode = sys.argv[1] if len(sys.argv) > 1 else "model"
dtype = getattr(torch, sys.argv[2]) if len(sys.argv) > 2 else torch.float32
device = "cuda" if torch.cuda.is_available() else "cpu"
layers = 2 if len(sys.argv) > 1 else 1


class Block(nn.Module):
    def __init__(self, width=32, heads=4, p=0.2):
        super().__init__()
        self.heads, self.p = heads, p
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(p))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.heads, -1).transpose(1, 2) for t in self.qkv(self.ln1(x)).split(C, 2))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.p if self.training else 0.0, is_causal=True)
        x = x + F.dropout(self.out(y.transpose(1, 2).reshape(B, T, C)), self.p, self.training)
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(61, 32), nn.Embedding(24, 32)
        self.drop = nn.Dropout(0.1)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.ln, self.head = nn.LayerNorm(32), nn.Linear(32, 61)

    def forward(self, ids, targets=None):
        x = self.drop(self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device)))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if "checkpoint" in mode and self.training else block(x)
        logits = self.head(self.ln(x))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.view(-1, 61), targets.view(-1), ignore_index=-1)


raw = model = GPT().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if mode in ("model", "checkpoint"):
    model = torch.compile(model)
elif mode == "dynamic":
    model = torch.compile(model, dynamic=True)
elif mode == "in_place":
    model.compile()
elif mode == "blocks":
    for i, block in enumerate(model.blocks):
        model.blocks[i] = torch.compile(block)
elif mode == "function":
    model = torch.compile(lambda *given: raw(*given))
elif mode not in ("eager", "eager_checkpoint"):
    model = torch.compile(model, mode=mode)

for it in range(6):
    n = 12 if it != 4 else 7
    ids = torch.randint(0, 61, (n, 17), device=device)
    y = ids[:, 1:].clone()
    y[: n // 3, 9:] = -1
    with torch.autocast(ids.device.type, dtype, enabled=dtype is not torch.float32):
        loss = model(ids[:, :-1], y)[1]
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(raw.parameters(), 1.0)
    optimizer.step()
    print(it, f"{loss.item():.6f} {norm.item():.6f}")
raw.eval()
with torch.no_grad():
    print(f"{model(ids[:, :-1])[0].square().mean().item():.5f}")
