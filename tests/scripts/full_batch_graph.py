"""A graph network on one graph: the network mixes nodes; each layer can be cut along the rows of the adjacency."""

import torch
from torch import nn

torch.manual_seed(5)
nodes, features, classes = 30, 8, 3
adjacency = (torch.rand(nodes, nodes) < 0.1).float() + torch.eye(nodes)
adjacency /= adjacency.sum(1, keepdim=True)
x, labels = torch.randn(nodes, features), torch.randint(classes, (nodes,))


class GraphLayer(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) * 0.3)

    def forward(self, x, adjacency):
        return adjacency @ (x @ self.weight)


class GraphNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = GraphLayer(features, 16), GraphLayer(16, classes)

    def forward(self, x, adjacency):
        hidden = nn.functional.dropout(self.first(x, adjacency).relu(), 0.3, self.training)
        return self.second(hidden, adjacency)


model = GraphNet()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for epoch in range(6):
    model.train()
    loss = nn.functional.cross_entropy(model(x, adjacency)[:20], labels[:20])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        right = (model(x, adjacency)[20:].argmax(1) == labels[20:]).sum()
    print(epoch, loss.item(), int(right))
