# framework: torch-geometric
# program: GAT with dropout on its attention, `SAGEConv`, `TopKPooling`, PyG's `BatchNorm` and `GraphNorm`
import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import BatchNorm, GATConv, GraphNorm, SAGEConv, TopKPooling, global_max_pool, global_mean_pool

torch.manual_seed(7)


def make():
    n = int(torch.randint(5, 12, (1,)))
    e = torch.randint(0, n, (2, 4 * n))
    x = torch.randn(n, 6)
    return Data(x=x, edge_index=torch.cat([e, e.flip(0)], 1), y=(x[:, 0].mean() > 0).long())


loader = DataLoader([make() for _ in range(40)], batch_size=10, shuffle=True)


class A(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.norm1 = SAGEConv(6, 16), BatchNorm(16)
        self.pool, self.norm2 = TopKPooling(16, ratio=0.8), GraphNorm(16)
        self.conv2, self.lin = SAGEConv(16, 16), torch.nn.Linear(32, 2)

    def forward(self, data):
        x, edge_index, batch = data.x, data.edge_index, data.batch
        x = F.relu(self.norm1(self.conv1(x, edge_index)))
        x, edge_index, _, batch, _, _ = self.pool(x, edge_index, None, batch)
        x = F.relu(self.norm2(self.conv2(x, edge_index), batch))
        return self.lin(torch.cat([global_mean_pool(x, batch), global_max_pool(x, batch)], 1))


class B(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.lin = GATConv(6, 8, heads=2, dropout=0.3), torch.nn.Linear(16, 2)

    def forward(self, data):
        return self.lin(global_mean_pool(F.elu(self.conv(data.x, data.edge_index)), data.batch, size=data.num_graphs))


for name, model in (("pool", A()), ("gat", B())):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(2):
        for data in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(data), data.y)
            loss.backward()
            optimizer.step()
        print(f"{name} {epoch} {loss.item():.6f}")
