"""A cache of keys and values, empty at first, that the model fills at each call: text is generated token by token."""
# test: workers=2,3,5

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(22)


class Layer:
    def __init__(self):
        self.keys = self.values = None

    def update(self, keys, values):
        old = self.keys is not None
        self.keys = torch.cat([self.keys, keys], 1) if old else keys
        self.values = torch.cat([self.values, values], 1) if old else values
        return self.keys, self.values


class Cache:
    def __init__(self):
        self.layers, self.layer_class = [], Layer

    def layer(self, i):
        while len(self.layers) <= i:
            self.layers.append(self.layer_class())
        return self.layers[i]

    def __len__(self):
        return self.layers[0].keys.shape[1] if self.layers else 0


class Block(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.number, self.qkv, self.drop = number, nn.Linear(16, 48), nn.Dropout(0.1)

    def forward(self, x, cache):
        q, k, v = self.qkv(x).chunk(3, -1)
        if cache is not None:
            k, v = cache.layer(self.number).update(k, v)
        return x + self.drop(F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[1] > 1))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.place, self.head = nn.Embedding(30, 16), nn.Embedding(20, 16), nn.Linear(16, 30)
        self.blocks = nn.ModuleList(Block(i) for i in range(2))

    def forward(self, ids, cache=None):
        start = 0 if cache is None else len(cache)
        x = self.token(ids) + self.place(torch.arange(start, start + ids.shape[1]))
        for block in self.blocks:
            x = block(x, cache)
        return {"logits": self.head(x), "cache": cache}


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
ids = torch.randint(0, 30, (14, 9))
for step in range(4):
    model.train()
    logits = model(ids[:, :-1])["logits"]
    loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    model.eval()
    cache, text = Cache(), ids[:7, :3]
    with torch.no_grad():
        new = text
        for _ in range(5):
            out = model(new, cache=cache)
            new = out["logits"][:, -1].argmax(-1, keepdim=True)
            text = torch.cat([text, new], 1)
    keys = cache.layers[1].keys
    print(f"step {step} loss {loss.item():.6f} cache {len(cache)} {tuple(keys.shape)} {keys.mean().item():.6f}")
    print(text[:3].tolist(), out["cache"] is cache)
