"""A graph network: node features and an adjacency [nodes, nodes] are both 'batch' sized; nodes mix."""

# test: right-or-refused=samples are mixed inside the model
import torch
from torch import nn


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, x, adjacency):
        return adjacency @ self.b(torch.relu(adjacency @ self.a(x)))


torch.manual_seed(171)
nodes = 18
adjacency = ((torch.rand(nodes, nodes) < 0.2) | torch.eye(nodes, dtype=torch.bool)).float()
adjacency = adjacency / adjacency.sum(1, keepdim=True)
x, y = torch.randn(nodes, 5), torch.randint(0, 3, (nodes,))
model = GCN()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for epoch in range(6):
    loss = nn.functional.cross_entropy(model(x, adjacency)[:12], y[:12])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f}")
