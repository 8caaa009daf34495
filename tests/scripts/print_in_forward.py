"""The model prints from its forward: once a call, not once more for a check; the shapes are its slice's."""

# test: different=inside the model there is only the slice
# test: workers=2
import torch
from torch import nn


class Chatty(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 1)

    def forward(self, x):
        print("forward of", tuple(x.shape))
        return self.fc(x)


torch.manual_seed(245)
x = torch.randn(12, 4)
model = Chatty()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.8f}")
