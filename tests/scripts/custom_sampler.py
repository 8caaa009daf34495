"""A sampler of one's own: easy samples first, reshuffled by its own generator."""

# test: views=batch,slice
import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset


class Curriculum(Sampler):
    def __init__(self, difficulty):
        self.difficulty = difficulty
        self.generator = torch.Generator().manual_seed(11)

    def __iter__(self):
        noisy = self.difficulty + 0.1 * torch.randn(len(self.difficulty), generator=self.generator)
        return iter(noisy.argsort().tolist())

    def __len__(self):
        return len(self.difficulty)


torch.manual_seed(5)
x = torch.randn(45, 6)
y = torch.sin(x.sum(1, keepdim=True))
loader = DataLoader(TensorDataset(x, y), batch_size=10, sampler=Curriculum(x.norm(dim=1)))
model = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for a, b in loader:
        loss = nn.functional.mse_loss(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{epoch} {loss.item():.8f}")
