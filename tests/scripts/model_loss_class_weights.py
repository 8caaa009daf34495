"""The model weighs classes in its own loss: a weighted mean, whose weights differ between slices."""

# test: right-or-refused=a mean over weights that differ between slices
# test: workers=2,3
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 3)
        self.criterion = nn.CrossEntropyLoss(weight=torch.tensor([0.1, 1.0, 5.0]), label_smoothing=0.1)

    def forward(self, x, y):
        return self.criterion(self.fc(x), y)


torch.manual_seed(314)
x = torch.randn(33, 5)
y = x[:, :3].argmax(1)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
for epoch in range(2):
    for rows in torch.randperm(33).split(8):
        loss = model(x[rows], y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.8f}")
