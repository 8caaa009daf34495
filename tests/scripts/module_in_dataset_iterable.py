"""An iterable dataset whose samples come out of a module, and a dataset that attacks the model in training."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

torch.manual_seed(404)


class Walk(IterableDataset):
    def __init__(self):
        self.cell = nn.GRUCell(3, 3)

    @torch.no_grad()
    def __iter__(self):
        h = torch.ones(1, 3)
        for _ in range(24):
            h = self.cell(torch.ones(1, 3), h)
            yield h[0] * 3


class Hard(Dataset):
    def __init__(self, model, x):
        self.model, self.x = model, x

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        x = self.x[i].clone().requires_grad_()
        (gradient,) = torch.autograd.grad(self.model(x[None]).pow(2).sum(), x)
        return (x + 0.2 * gradient).detach()


model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for loader in (DataLoader(Walk(), batch_size=5), DataLoader(Hard(model, torch.randn(21, 3)), batch_size=6)):
    for x in loader:
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{x.sum().item():.8f} {loss.item():.8f}")
