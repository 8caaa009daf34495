"""The model returns statistics of the batch beside its logits: a mean (which slices can give) and a maximum."""

# test: right-or-refused=a maximum over samples is no mean of slices' maxima
# test: workers=2
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x):
        logits = self.fc(x)
        return logits, logits.mean(), logits.amax()


torch.manual_seed(267)
x = torch.randn(16, 4)
y = x[:, :3].argmax(1)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
for step in range(5):
    logits, mean, top = model(x)
    loss = nn.functional.cross_entropy(logits, y) + 0.1 * mean.pow(2) + 0.01 * top
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f} {mean.item():.8f} {top.item():.8f}")
