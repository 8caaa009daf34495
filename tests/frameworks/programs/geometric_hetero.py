# framework: torch-geometric
# program: `HeteroData` batches: a lazy `to_hetero` model on nodes, and a `HeteroConv` with pooling on graphs
import torch
import torch.nn.functional as F
from torch_geometric.data import HeteroData
from torch_geometric.loader import DataLoader
from torch_geometric.nn import HeteroConv, Linear, SAGEConv, global_mean_pool, to_hetero

torch.manual_seed(0)
EDGES = [("author", "writes", "paper"), ("paper", "by", "author"), ("paper", "cites", "paper")]


def random_graph(number):
    sizes = {"author": 3 + number % 3, "paper": 4 + number % 2}
    graph = HeteroData()
    graph["author"].x, graph["paper"].x = torch.randn(sizes["author"], 6), torch.randn(sizes["paper"], 5)
    graph["paper"].y = torch.randint(0, 3, (sizes["paper"],))
    for one, name, other in EDGES:
        ends = [torch.randint(0, sizes[one], (8,)), torch.randint(0, sizes[other], (8,))]
        graph[one, name, other].edge_index = torch.stack(ends)
    return graph


class Nodes(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = SAGEConv((-1, -1), 8), SAGEConv((-1, -1), 3)

    def forward(self, x, edge_index):
        return self.last(F.dropout(self.first(x, edge_index).relu(), 0.2, self.training), edge_index)


class Graphs(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = HeteroConv({edge: SAGEConv((-1, -1), 8) for edge in EDGES}, aggr="mean")
        self.last = Linear(-1, 2)

    def forward(self, x, edges, batch):
        found = self.conv(x, edges)
        return self.last(torch.cat([global_mean_pool(found[kind].relu(), batch[kind]) for kind in found], 1))


graphs = [random_graph(number) for number in range(16)]
loader = DataLoader(graphs, batch_size=4, shuffle=True)
nodes = to_hetero(Nodes(), graphs[0].metadata(), aggr="sum")
with torch.no_grad():
    nodes(graphs[0].x_dict, graphs[0].edge_index_dict)
optimizer = torch.optim.SGD(nodes.parameters(), lr=0.1)
for batch in loader:
    out = nodes(batch.x_dict, batch.edge_index_dict)
    loss = F.cross_entropy(out["paper"], batch["paper"].y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("nodes", f"{loss.item():.5f}")
whole, optimizer = Graphs(), None
for batch in loader:
    out = whole(batch.x_dict, batch.edge_index_dict, batch.batch_dict)
    if optimizer is None:
        optimizer = torch.optim.SGD(whole.parameters(), lr=0.1)
    loss = F.cross_entropy(out, torch.arange(4) % 2)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("graphs", f"{loss.item():.5f}")
