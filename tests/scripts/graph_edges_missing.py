"""Batches of graphs of which the first ones have no edges, in a model that takes a mean over the edges of all graphs."""

import torch
from torch import nn

torch.manual_seed(27)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.edge, self.node, self.last = nn.Linear(3, 8), nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x, links, weights, graph):
        found = self.edge(weights)
        messages = self.node(x)[links[0]] * (found - found.mean(0))
        return self.last(torch.zeros(len(x), 8).index_add(0, links[1], messages).relu())


def batch(graphs, empty):
    sizes = torch.randint(3, 6, (graphs,))
    starts = sizes.cumsum(0) - sizes
    edges = [0 if number < empty else int(torch.randint(4, 9, (1,))) for number in range(graphs)]
    links = [torch.randint(0, int(n), (2, many)) + start for n, many, start in zip(sizes, edges, starts)]
    x, weights = torch.randn(int(sizes.sum()), 4), torch.randn(sum(edges), 3)
    return x, torch.cat(links, 1), weights, torch.arange(graphs).repeat_interleave(sizes)


model = Network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    loss = (model(*batch(12, 5)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, f"{loss.item():.6f}")
