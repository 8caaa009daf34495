"""backward(inputs=…) that names a model's output, a view of it, and parameters."""
# test: tolerance=1e-9  float64

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(34)
torch.set_default_dtype(torch.float64)
model = nn.Linear(4, 6)
head = nn.Linear(6, 6)
parameters = [*model.parameters(), *head.parameters()]
optimizer = torch.optim.SGD(parameters, lr=0.1)
x, y = torch.randn(8, 4), torch.randint(0, 6, (8,))


def norms(tensors):
    return [None if t.grad is None else t.grad.norm().item() for t in tensors]


for gathers in (False, True):
    out = model(x)
    first = out[:, :3]
    loss = F.cross_entropy(head(out), y) + first.pow(2).mean()
    if gathers:
        loss = loss + out.quantile(0.3) + first.quantile(0.6)
    loss.backward(inputs=[out], retain_graph=True)
    print(norms([out, *parameters]), out.retains_grad)
    loss.backward(inputs=out, retain_graph=True)
    print(norms([out, *parameters]))
    torch.autograd.backward(loss, inputs=[first, head.weight], retain_graph=True)
    print(norms([out, first, *parameters]))
    optimizer.zero_grad()
    loss.backward()
    print(norms([out, first, *parameters]))
    optimizer.step()
