"""Two inputs of different rank and type, and *args."""

# test: views=batch,slice
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.users, self.items, self.dense = nn.Embedding(9, 5), nn.Embedding(12, 5), nn.Linear(3, 1)

    def forward(self, *inputs):
        user, item, dense = inputs
        return (self.users(user) * self.items(item)).sum(-1) + self.dense(dense).squeeze(-1)


torch.manual_seed(76)
n = 38
users, items, dense = torch.randint(0, 9, (n,)), torch.randint(0, 12, (n,)), torch.randn(n, 3)
rating = (users % 3 - items % 2).float() + dense[:, 0]
model = Wide()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for *inputs, target in DataLoader(TensorDataset(users, items, dense, rating), batch_size=8, shuffle=True):
        loss = nn.functional.mse_loss(model(*inputs), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.8f}")
