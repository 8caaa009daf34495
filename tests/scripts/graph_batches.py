"""Mini-batches of graphs in one tensor, with the graph of each node in a vector, as graph libraries make them."""
# test: workers=2,3,5

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(24)


def graph():
    nodes = int(torch.randint(2, 7, (1,)))
    links = torch.randint(0, nodes, (2, int(torch.randint(1, 12, (1,)))))
    x = torch.randn(nodes, 4)
    return x, links, torch.randn(links.shape[1], 3), (x.sum() > 0).long()


class Batch:
    """Can be called and has items, as in a well-known library."""

    def __init__(self, graphs):
        xs, links, weights, ys = zip(*graphs)
        counts = torch.tensor([len(x) for x in xs])
        starts = counts.cumsum(0) - counts
        self.x, self.weights, self.y = torch.cat(xs), torch.cat(weights), torch.stack(ys)
        self.links = torch.cat([link + start for link, start in zip(links, starts)], 1)
        self.graph = torch.arange(len(xs)).repeat_interleave(counts)
        self.pointers = F.pad(counts.cumsum(0), (1, 0))
        self.num_graphs = len(xs)

    def __getitem__(self, name):
        return getattr(self, name)

    def __call__(self):
        yield from vars(self).items()


class Convolution(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.one, self.edge = nn.Linear(size, 16), nn.Linear(3, size)

    def forward(self, x, links, weights):
        messages = x[links[0]] * self.edge(weights)
        return self.one(x + torch.zeros_like(x).index_add(0, links[1], messages))


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.norm = Convolution(4), Convolution(16), nn.BatchNorm1d(16)
        self.head, self.node_head = nn.Linear(16, 2), nn.Linear(16, 1)

    def forward(self, batch):
        x = self.norm(self.first(batch.x, batch.links, batch.weights)).relu()
        x = F.dropout(x, 0.2, self.training)  # a row for each node
        x = self.second(x, batch.links, F.dropout(batch.weights, 0.2, self.training))  # … for each edge
        sums = torch.zeros(batch.num_graphs, 16).index_add(0, batch.graph, x)
        means = sums / batch.pointers.diff()[:, None]
        return self.head(F.dropout(means, 0.5, self.training)), self.node_head(x)


graphs = [graph() for _ in range(43)]
loader = torch.utils.data.DataLoader(graphs, batch_size=11, shuffle=True, collate_fn=Batch)
model = Network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(3):
    model.train()
    for batch in loader:
        out, nodes = model(batch)
        loss = F.cross_entropy(out, batch.y) + 0.1 * (nodes.squeeze(1) - batch.x.mean(1)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"loss {loss.item():.6f} nodes {tuple(nodes.shape)}")
    model.eval()
    with torch.no_grad():
        right = sum((model(batch)[0].argmax(1) == batch.y).sum().item() for batch in loader)
    print(f"epoch {epoch} right {right}")
