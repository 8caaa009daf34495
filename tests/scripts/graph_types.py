"""Batches of graphs with nodes of two types and edges between them, in dictionaries by type, as graph libraries make
them. Some graphs have no edges of a type, and at times a worker gets none."""
# test: workers=2,3,5

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(26)
NODES = {"author": 4, "paper": 3}
EDGES = [("author", "writes", "paper"), ("paper", "by", "author"), ("paper", "cites", "paper")]


def graph(number):
    sizes = {kind: int(torch.randint(1, 6, (1,))) for kind in NODES}
    x = {kind: torch.randn(sizes[kind], width) for kind, width in NODES.items()}
    links = {}
    for one, name, other in EDGES:
        many = 0 if name == "cites" and number % 4 == 0 else int(torch.randint(1, 8, (1,)))
        ends = torch.randint(0, sizes[one], (many,)), torch.randint(0, sizes[other], (many,))
        links[one, name, other] = torch.stack(ends)
    return x, links, (x["author"].sum() > 0).long()


def batch_of(graphs):
    x, vectors, links, starts = {}, {}, {edge: [] for edge in EDGES}, dict.fromkeys(NODES, 0)
    for kind in NODES:
        x[kind] = torch.cat([nodes[kind] for nodes, _, _ in graphs])
        counts = torch.tensor([len(nodes[kind]) for nodes, _, _ in graphs])
        vectors[kind] = torch.arange(len(graphs)).repeat_interleave(counts)
    for nodes, found, _ in graphs:
        for one, name, other in EDGES:
            start = torch.tensor([[starts[one]], [starts[other]]])
            links[one, name, other].append(found[one, name, other] + start)
        for kind in NODES:
            starts[kind] += len(nodes[kind])
    return (
        x,
        {edge: torch.cat(parts, 1) for edge, parts in links.items()},
        vectors,
        torch.stack([y for *_, y in graphs]),
    )


class Layer(nn.Module):
    def __init__(self, sizes, made):
        super().__init__()
        self.own = nn.ModuleDict({kind: nn.Linear(size, made) for kind, size in sizes.items()})
        self.sent = nn.ModuleDict({"-".join(edge): nn.Linear(sizes[edge[0]], made) for edge in EDGES})

    def forward(self, x, links):
        made = {kind: self.own[kind](x[kind]) for kind in x}
        for edge, (source, target) in links.items():
            messages = F.dropout(self.sent["-".join(edge)](x[edge[0]][source]), 0.2, self.training)
            made[edge[2]] = made[edge[2]].index_add(0, target, messages)
        return {kind: value.relu() for kind, value in made.items()}


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Layer(NODES, 8), Layer(dict.fromkeys(NODES, 8), 8)
        self.node, self.last = nn.Linear(8, 1), nn.Linear(16, 2)

    def forward(self, x, links, vectors):
        x = self.second(self.first(x, links), links)
        many = int(vectors["author"].max()) + 1
        sums = [torch.zeros(many, 8).index_add(0, vectors[kind], x[kind]) for kind in x]
        cited = x["paper"][links["paper", "cites", "paper"][1]]  # a row for each edge
        return self.last(torch.cat(sums, 1)), self.node(x["author"]), cited


graphs = [graph(number) for number in range(36)]
model = Network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for epoch in range(3):
    for begin in range(0, len(graphs), 12):
        x, links, vectors, y = batch_of(graphs[begin : begin + 12])
        out, nodes, cited = model(x, links, vectors)
        loss = F.cross_entropy(out, y) + (nodes[:, 0] - x["author"].mean(1)).pow(2).mean() + 0.1 * cited.pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{epoch} loss {loss.item():.6f} nodes {tuple(nodes.shape)} cited {tuple(cited.shape)}")
