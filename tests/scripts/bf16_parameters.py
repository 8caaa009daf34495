"""A model in bfloat16, weights and all."""

# test: tolerance=2e-2  bfloat16 has 8 bits: a gradient added up in another order differs in the third digit
import torch
from torch import nn

torch.manual_seed(211)
x = torch.randn(32, 6)
y = x[:, :3].argmax(1)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)).to(torch.bfloat16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(8):
    out = model(x.bfloat16())
    loss = nn.functional.cross_entropy(out.float(), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.7f} {out.dtype} {model[0].weight.grad.dtype}")
