"""Everything passed by keyword, among it numbers, None, flags and strings."""

# test: views=batch,slice
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right, self.head = nn.Linear(4, 6), nn.Linear(3, 6), nn.Linear(6, 1)

    def forward(self, *, left, right, gate=None, scale=1.0, mode="sum", return_hidden=False):
        hidden = self.left(left) + self.right(right) if mode == "sum" else self.left(left) * self.right(right)
        if gate is not None:
            hidden = hidden * gate.unsqueeze(1)
        out = self.head(torch.relu(hidden)) * scale
        return (out, hidden) if return_hidden else out


torch.manual_seed(75)
data = TensorDataset(torch.randn(23, 4), torch.randn(23, 3), torch.rand(23), torch.randn(23, 1))
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(2):
    for i, (a, b, g, y) in enumerate(DataLoader(data, batch_size=6)):
        out, hidden = net(
            right=b,
            left=a,
            gate=g if i % 2 else None,
            scale=0.5,
            mode="sum" if epoch else "product",
            return_hidden=True,
        )
        loss = nn.functional.mse_loss(out, y) + 0.01 * hidden.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.8f}")
