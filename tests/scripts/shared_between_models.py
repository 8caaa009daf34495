"""Two models share an encoder; each has its own optimizer over its own and the shared parameters."""

# test: workers=2,3
import torch
from torch import nn

torch.manual_seed(252)
encoder = nn.Sequential(nn.Linear(5, 8), nn.Tanh())
classify, regress = nn.Sequential(encoder, nn.Linear(8, 2)), nn.Sequential(encoder, nn.Linear(8, 1))
first, second = torch.optim.SGD(classify.parameters(), lr=0.2), torch.optim.SGD(regress.parameters(), lr=0.05)
x = torch.randn(23, 5)
label, value = (x[:, 0] > 0).long(), x.norm(dim=1, keepdim=True)
for step in range(6):
    a = nn.functional.cross_entropy(classify(x), label)
    first.zero_grad()
    a.backward()
    first.step()
    b = nn.functional.mse_loss(regress(x), value) + 0.1 * nn.functional.cross_entropy(classify(x), label)
    second.zero_grad()
    b.backward()
    second.step()
    print(f"{a.item():.8f} {b.item():.8f} {encoder[0].weight.norm().item():.8f}")
