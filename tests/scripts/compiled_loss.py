"""The loss is compiled, as a function and as a module; the model is not."""

import torch
from torch import nn

torch.manual_seed(11)


@torch.compile(backend="eager")
def penalty(logits, labels):
    return nn.functional.cross_entropy(logits, labels) + 0.1 * logits.square().mean()


mse = torch.compile(nn.MSELoss(), backend="eager")
model = nn.Linear(5, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    x, y = torch.randn(9, 5), torch.randint(0, 3, (9,))
    out = model(x)
    loss = penalty(out, y) + mse(model(x), torch.zeros(9, 3))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f} {model.weight.grad.norm().item():.8f}")
