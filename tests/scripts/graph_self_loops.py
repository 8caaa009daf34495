"""Batches of graphs whose loops a layer removes and adds anew, as graph libraries do before they normalise by degrees: the
links that are left are others in number from graph to graph. The loss is a mean over nodes, also in evaluation."""
# test: workers=2,3,5

import torch
from torch import nn

torch.manual_seed(25)


def batch(sizes):
    starts = torch.tensor([0, *sizes]).cumsum(0)
    links = [torch.randint(0, n, (2, 2 * n)) + start for n, start in zip(sizes, starts)]
    x = torch.randn(sum(sizes), 3)
    graph = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    return x, torch.cat(links, 1), graph, x.sum(1) + graph


class Convolution(nn.Module):
    def __init__(self, given, made):
        super().__init__()
        self.linear = nn.Linear(given, made)

    def forward(self, x, links):
        links = links[:, links[0] != links[1]]
        loops = torch.arange(len(x)).repeat(2, 1)
        row, col = torch.cat([links, loops], dim=1)
        degree = torch.zeros(len(x)).scatter_add_(0, col, torch.ones(len(col)))
        scale = degree.pow(-0.5)
        messages = self.linear(x).index_select(-2, row) * (scale[row] * scale[col])[:, None]
        return torch.zeros(len(x), messages.shape[1]).index_add(0, col, messages)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = Convolution(3, 8), Convolution(8, 8), nn.Linear(16, 1)

    def forward(self, x, links, graph, target):
        h = self.second(self.first(x, links).relu(), links)
        count = int(graph.max()) + 1
        sums = torch.zeros(count, 8).index_add(0, graph, h)
        found = self.last(torch.cat([h, sums[graph]], 1)).squeeze(1)
        return (found - target).pow(2).mean(), found


class Direct(nn.Module):
    """The mean of a loss over nodes, which are not as many on each worker as graphs."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(3, 1)

    def forward(self, x, links, graph, target):
        h = x + torch.zeros_like(x).index_add(0, links[1], x[links[0]])
        error = (self.last(h).squeeze(1) - target).pow(2)
        return error.mean(), error


model, direct = Network(), Direct()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(6):
    # As many nodes in the first five graphs as six times their number, and then very uneven ones.
    sizes = [6, 6, 6, 6, 6, 6] if step < 2 else [30, *torch.randint(2, 7, (6,)).tolist()]
    loss, found = model(*batch(sizes))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{step} {loss.item():.6f} {found.abs().mean().item():.6f}")
    model.eval()
    with torch.no_grad():
        given = batch([3, 12, 4, 2, 9, 5, 4])
        loss, found = model(*given)
    print(f"evaluation {loss.item():.6f} {found.abs().mean().item():.6f} {direct(*given)[0].item():.6f}")
    with torch.no_grad():
        print(f"direct {direct(*given)[0].item():.6f}")
    model.train()
