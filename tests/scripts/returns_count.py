"""The model returns loss, number of right answers and accuracy: a mean, a count and a mean without a gradient."""

# test: workers=2,3
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 3)

    def forward(self, x, y):
        logits = self.fc(x)
        right = logits.argmax(1) == y
        return nn.functional.cross_entropy(logits, y), right.sum(), right.float().mean()


torch.manual_seed(313)
x = torch.randn(40, 5)
y = x[:, :3].argmax(1)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
total = 0
for epoch in range(3):
    for rows in torch.randperm(40).split(11):
        loss, right, accuracy = model(x[rows], y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += right.item()
        print(f"{loss.item():.8f} {right.item()} {accuracy.item():.6f} {right.dtype} {total}")
