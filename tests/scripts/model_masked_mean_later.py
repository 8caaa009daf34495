"""The model averages over unmasked entries by hand; the first batch has no masked ones."""

# test: right-or-refused=a mean over a number of entries that differs between slices, from the second batch on
# test: workers=2
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x, mask):
        error = (self.fc(x) - x.flip(1)).pow(2)
        return (error * mask).sum() / mask.sum()


torch.manual_seed(316)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
for step in range(8):
    x, mask = torch.randn(10, 4), torch.ones(10, 4)
    if step:
        mask[5:, 1:] = 0
    loss = model(x, mask)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f}")
