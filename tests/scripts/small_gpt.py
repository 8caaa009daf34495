"""A small GPT in the well-known style: get_batch by hand, (logits, loss), estimate_loss, tied weights, generation."""

# test: workers=2,3
import math
from contextlib import nullcontext

import torch
import torch.nn as nn
from torch.nn import functional as F

vocab, block, width = 17, 8, 16


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, 2, C // 2).transpose(1, 2) for t in self.qkv(self.ln1(x)).split(C, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(B, T, C))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(block, width)
        self.h = nn.ModuleList([Block() for _ in range(2)])
        self.ln_f, self.lm_head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx, targets=None):
        pos = torch.arange(idx.size(1), device=idx.device)
        x = self.wte(idx) + self.wpe(pos)
        for b in self.h:
            x = b(x)
        x = self.ln_f(x)
        if targets is None:
            return self.lm_head(x[:, [-1], :]), None
        logits = self.lm_head(x)
        return logits, F.cross_entropy(logits.view(-1, vocab), targets.view(-1), ignore_index=-1)


torch.manual_seed(301)
data = torch.cumsum(torch.randint(1, 4, (600,)), 0) % vocab


def get_batch(split):
    part = data[:500] if split == "train" else data[500:]
    ix = torch.randint(len(part) - block, (7,))
    return torch.stack([part[i : i + block] for i in ix]), torch.stack([part[i + 1 : i + 1 + block] for i in ix])


@torch.no_grad()
def estimate_loss():
    model.eval()
    out = {
        split: torch.tensor([model(*get_batch(split))[1].item() for _ in range(3)]).mean() for split in ("train", "val")
    }
    model.train()
    return out


model = GPT()
decay = [p for p in model.parameters() if p.dim() >= 2]
rest = [p for p in model.parameters() if p.dim() < 2]
optimizer = torch.optim.SGD(
    [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=0.1, momentum=0.9
)
for it in range(9):
    for group in optimizer.param_groups:
        group["lr"] = 0.1 * (it + 1) / 3 if it < 3 else 0.05 * (1 + math.cos(math.pi * (it - 3) / 6))
    if it % 4 == 0:
        losses = estimate_loss()
        print(f"step {it}: train loss {losses['train']:.7f}, val loss {losses['val']:.7f}")
    for micro in range(2):
        with nullcontext():
            logits, loss = model(*get_batch("train"))
            loss = loss / 2
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(f"iter {it}: loss {loss.item() * 2:.7f}")
idx = torch.zeros((1, 1), dtype=torch.long)
with torch.no_grad():
    for _ in range(6):
        logits, _ = model(idx[:, -block:])
        idx = torch.cat((idx, torch.multinomial(F.softmax(logits[:, -1, :], dim=-1), 1)), dim=1)
print(idx.tolist())
