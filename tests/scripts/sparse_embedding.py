"""nn.Embedding(sparse=True) and EmbeddingBag, under SGD."""

# test: views=batch,slice
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 6, sparse=True)
        self.bags = nn.EmbeddingBag(50, 6, sparse=True)
        self.out = nn.Linear(12, 1)

    def forward(self, ids):
        return self.out(torch.cat([self.words(ids[:, 0]), self.bags(ids)], 1)).squeeze(1)


torch.manual_seed(121)
ids = torch.randint(0, 50, (34, 4))
target = (ids % 5).float().mean(1)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
for epoch in range(3):
    for a, b in DataLoader(TensorDataset(ids, target), batch_size=8, shuffle=True):
        loss = nn.functional.mse_loss(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(
            f"{loss.item():.8f} {model.words.weight.grad.is_sparse} {model.words.weight.grad.coalesce().values().norm().item():.8f}"
        )
