"""As many layers as a slice has rows: the state's first dimension looks like a batch and isn't."""

# test: right-or-refused=outputs whose batch is not their first dimension
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.GRU(3, 5, num_layers=2, batch_first=True), nn.Linear(5, 1)

    def forward(self, x):
        out, h = self.rnn(x)
        return self.head(out[:, -1]), h


torch.manual_seed(141)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.2)
for step in range(6):
    x = torch.randn(4 if step % 2 == 0 else 6, 4, 3)
    out, h = net(x)
    loss = nn.functional.mse_loss(out, x.sum((1, 2))[:, None]) + 0.1 * h[0].pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.7f} {tuple(h.shape)}")
