"""SimCLR's NT-Xent over the whole batch, written outside the model."""

# test: workers=2,3,5
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(53)
anchor = torch.randn(33, 8)
encoder = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 6))
optimizer = torch.optim.SGD(encoder.parameters(), lr=0.2)


def nt_xent(a, b, temperature=0.5):
    z = F.normalize(torch.cat([a, b]), dim=1)
    similarity = z @ z.T / temperature
    similarity.fill_diagonal_(-1e9)
    n = len(a)
    positives = torch.cat([torch.arange(n) + n, torch.arange(n)])
    return F.cross_entropy(similarity, positives)


for epoch in range(3):
    for x in anchor.split(11):
        one, two = x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x)
        loss = nt_xent(encoder(one), encoder(two))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"loss {loss.item():.8f}")
