# framework: torch-geometric
# program: the model takes the `Batch` object; GIN with edge features, `global_add_pool`, regression
import torch
from torch.nn import Linear, ReLU, Sequential
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINEConv, global_add_pool

torch.manual_seed(3)
graphs = []
for _ in range(50):
    n = int(torch.randint(3, 8, (1,)))
    e = torch.randint(0, n, (2, 2 * n))
    x = torch.randn(n, 4)
    graphs.append(Data(x=x, edge_index=e, edge_attr=torch.randn(2 * n, 4), y=x.sum().view(1, 1)))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = GINEConv(Sequential(Linear(4, 16), ReLU(), Linear(16, 4)))
        self.conv2 = GINEConv(Sequential(Linear(4, 16), ReLU(), Linear(16, 4)))
        self.out = Linear(4, 1)

    def forward(self, data):
        x = self.conv1(data.x, data.edge_index, data.edge_attr).relu()
        x = self.conv2(x, data.edge_index, data.edge_attr)
        return self.out(global_add_pool(x, data.batch))


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
loader = DataLoader(graphs, batch_size=10, shuffle=True)
for epoch in range(4):
    total = 0.0
    for data in loader:
        optimizer.zero_grad()
        loss = (model(data) - data.y).pow(2).mean()
        loss.backward()
        optimizer.step()
        total += float(loss) * data.num_graphs
    print(f"{epoch} {total / len(graphs):.6f}")
