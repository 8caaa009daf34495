# framework: torch-geometric
# program: graph classification, mini-batches of its `DataLoader`, `global_mean_pool`, batch norm, dropout
import torch
import torch.nn.functional as F
from torch.nn import BatchNorm1d, Linear
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, global_mean_pool

torch.manual_seed(12345)


def random_graph():
    n = int(torch.randint(4, 10, (1,)))
    edges = torch.randint(0, n, (2, 3 * n))
    x = torch.randn(n, 5)
    return Data(x=x, edge_index=edges, y=(x.mean() > 0).long().view(1))


dataset = [random_graph() for _ in range(60)]
train_loader = DataLoader(dataset[:48], batch_size=12, shuffle=True)
test_loader = DataLoader(dataset[48:], batch_size=12)


class GCN(torch.nn.Module):
    def __init__(self, hidden_channels):
        super().__init__()
        self.conv1 = GCNConv(5, hidden_channels, bias=False)
        self.bn = BatchNorm1d(hidden_channels)
        self.conv2 = GCNConv(hidden_channels, hidden_channels)
        self.lin = Linear(hidden_channels, 2)

    def forward(self, x, edge_index, batch):
        x = self.bn(self.conv1(x, edge_index)).relu()
        x = self.conv2(x, edge_index)
        x = global_mean_pool(x, batch)
        x = F.dropout(x, p=0.5, training=self.training)
        return self.lin(x)


model = GCN(16)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
criterion = torch.nn.CrossEntropyLoss()


def train():
    model.train()
    total = 0
    for data in train_loader:
        out = model(data.x, data.edge_index, data.batch)
        loss = criterion(out, data.y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total += loss.item() * data.num_graphs
    return total / len(train_loader.dataset)


@torch.no_grad()
def test(loader):
    model.eval()
    correct = 0
    for data in loader:
        correct += int((model(data.x, data.edge_index, data.batch).argmax(dim=1) == data.y).sum())
    return correct / len(loader.dataset)


for epoch in range(1, 5):
    loss = train()
    print(
        f"Epoch: {epoch:03d}, Loss: {loss:.6f}, Train Acc: {test(train_loader):.4f}, Test Acc: {test(test_loader):.4f}"
    )
