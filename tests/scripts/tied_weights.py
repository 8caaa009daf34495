"""Weights shared between embedding and output, once inside the model and once again outside it."""

# test: workers=2,3,5
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(14, 6)
        self.mix = nn.Linear(6, 6)
        self.out = nn.Linear(6, 14, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, idx):
        h = torch.tanh(self.mix(self.embed(idx)))
        return h, self.out(h)


torch.manual_seed(73)
model = Model()
print("parameters", sum(p.numel() for p in model.parameters()))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
words = torch.randint(0, 14, (13, 5))
for step in range(10):
    h, logits = model(words[:, :-1])
    again = h.detach() @ model.embed.weight.T
    targets = words[:, 1:].reshape(-1)
    loss = nn.functional.cross_entropy(logits.reshape(-1, 14), targets) + 0.5 * nn.functional.cross_entropy(
        again.reshape(-1, 14), targets
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f} {model.embed.weight.grad.norm().item():.8f}")
