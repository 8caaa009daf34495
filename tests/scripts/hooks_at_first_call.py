"""A model that registers hooks at its first call, once, to record attention maps when it is asked for them."""
# test: workers=2,3

import torch
from torch import nn

torch.manual_seed(21)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        weights = (q @ k.transpose(1, 2) / 8**0.5).softmax(-1)
        return x + self.out(weights @ v), weights


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Attention() for _ in range(2))
        self.head = nn.Linear(8, 3)

    def record(self, module, args, output):
        if self.recorded is not None:
            self.recorded.append(output[1])

    def forward(self, x, output_attentions=False):
        if output_attentions and not getattr(self, "hooked", False):
            for layer in self.layers:
                layer.register_forward_hook(self.record)
            self.hooked = True
        self.recorded = [] if output_attentions else None
        for layer in self.layers:
            x, _ = layer(x)
        maps, self.recorded = self.recorded, None
        return (self.head(x.mean(1)), tuple(maps)) if output_attentions else self.head(x.mean(1))


model = Encoder()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data, labels = torch.randn(22, 5, 8), torch.randint(0, 3, (22,))
for step in range(5):
    rows = slice(step * 2, step * 2 + 11)
    logits = model(data[rows])
    loss = nn.functional.cross_entropy(logits, labels[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        logits, maps = model(data[rows], output_attentions=True)
    shapes = [tuple(m.shape) for m in maps]
    print(f"step {step} loss {loss.item():.6f} maps {shapes} {sum(m.std().item() for m in maps):.6f}")
print(sum(len(layer._forward_hooks) for layer in model.layers), "hooks")
