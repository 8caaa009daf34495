# framework: torch-geometric
# program: node classification on one graph with masks (nothing to split)
import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GATConv

torch.manual_seed(0)
edge_index = torch.randint(0, 80, (2, 400))
data = Data(x=torch.randn(80, 12), edge_index=edge_index, y=torch.randint(0, 4, (80,)))
data.train_mask = torch.rand(80) < 0.6


class GAT(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = GATConv(12, 8, heads=4, dropout=0.6)
        self.conv2 = GATConv(32, 4, heads=1, concat=False, dropout=0.6)

    def forward(self, x, edge_index):
        x = F.dropout(x, p=0.6, training=self.training)
        x = F.elu(self.conv1(x, edge_index))
        x = F.dropout(x, p=0.6, training=self.training)
        return F.log_softmax(self.conv2(x, edge_index), dim=1)


model = GAT()
optimizer = torch.optim.Adam(model.parameters(), lr=0.005, weight_decay=5e-4)
for epoch in range(6):
    model.train()
    optimizer.zero_grad()
    out = model(data.x, data.edge_index)
    loss = F.nll_loss(out[data.train_mask], data.y[data.train_mask])
    loss.backward()
    optimizer.step()
    model.eval()
    pred = model(data.x, data.edge_index).argmax(dim=-1)
    acc = int((pred == data.y)[~data.train_mask].sum()) / int((~data.train_mask).sum())
    print(f"Epoch {epoch}, loss {loss.item():.6f}, acc {acc:.4f}")
