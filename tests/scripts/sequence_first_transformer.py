"""A transformer with time first and a returned last state, batch in dimension 1 of the input and 0 of the output."""

# test: right-or-refused=batch second in the input, first in the output
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
        self.body, self.head = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.body(x).mean(0))


torch.manual_seed(64)
x = torch.randn(5, 10, 8)
y = torch.randint(0, 2, (10,))
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f}")
