"""An LSTM inside a batch-first model."""

# test: views=batch,slice
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 5)
        self.lstm = nn.LSTM(5, 8, num_layers=2, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(16, 2)

    def forward(self, ids):
        _, (h, _) = self.lstm(self.embed(ids))
        return self.fc(torch.cat([h[-2], h[-1]], dim=1))


torch.manual_seed(142)
ids = torch.randint(0, 11, (26, 6))
loader = DataLoader(TensorDataset(ids, (ids[:, 0] > ids[:, -1]).long()), batch_size=7, shuffle=True)
model = Classifier()
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
for epoch in range(3):
    for a, b in loader:
        loss = nn.functional.cross_entropy(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.8f}")
