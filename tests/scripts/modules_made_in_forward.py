"""Parameters made by a model's first call, between its draws: lazy layers behind dropout, a head made in forward."""

import warnings

import torch
from torch import nn
from torch.nn import functional as F

warnings.filterwarnings("ignore")
torch.manual_seed(0)


class Lazy(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.dropout = nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Dropout(0.5)
        self.first, self.last = nn.LazyLinear(8), nn.LazyLinear(3)

    def forward(self, x):
        x = self.dropout(F.relu(self.norm(self.conv(x)))).flatten(1)
        return self.last(self.dropout(F.relu(self.first(x))))


class Late(nn.Module):
    def __init__(self):
        super().__init__()
        self.base, self.dropout = nn.LazyLinear(8), nn.Dropout(0.5)

    def forward(self, x):
        x = self.dropout(F.relu(self.base(x.flatten(1))))
        if not hasattr(self, "head"):
            self.head = nn.Sequential(nn.Linear(x.shape[1], 6), nn.BatchNorm1d(6), nn.Dropout(0.2), nn.Linear(6, 3))
        return self.head(x)


for make in (Lazy, Late):
    for dry in (True, False):
        model, optimizer = make(), None
        if dry:
            with torch.no_grad():
                model(torch.randn(2, 1, 6, 6))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            images, labels = torch.randn(12, 1, 6, 6), torch.randint(0, 3, (12,))
            loss = F.cross_entropy(model(images), labels)
            if optimizer is None:
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(make.__name__, step, f"{loss.item():.8f}")
        model.eval()
        with torch.no_grad():
            print(f"{model(torch.ones(8, 1, 6, 6)).sum():.8f}")
