"""Forward-forward: layers are subclasses of nn.Linear that train themselves, each with its own optimizer."""

# test: right-or-refused=forward is called directly on a module with bare parameters
# test: workers=2
import torch
from torch import nn


class Layer(nn.Linear):
    def __init__(self, a, b):
        super().__init__(a, b)
        self.opt = torch.optim.SGD(self.parameters(), lr=0.3)

    def forward(self, x):
        direction = x / (x.norm(2, 1, keepdim=True) + 1e-4)
        return torch.relu(torch.mm(direction, self.weight.T) + self.bias.unsqueeze(0))

    def train_pair(self, positive, negative):
        for _ in range(3):
            g_pos = self.forward(positive).pow(2).mean(1)
            g_neg = self.forward(negative).pow(2).mean(1)
            loss = torch.log(1 + torch.exp(torch.cat([-g_pos + 0.5, g_neg - 0.5]))).mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
        return self(positive).detach(), self(negative).detach(), loss.item()


torch.manual_seed(308)
layers = [Layer(6, 10), Layer(10, 8)]
for epoch in range(3):
    positive = torch.randn(13, 6)
    negative = positive[torch.randperm(13)] * torch.tensor([1, -1, 1, -1, 1, -1.0])
    for layer in layers:
        positive, negative, loss = layer.train_pair(positive, negative)
        print(f"{epoch} {loss:.8f} {positive.mean().item():.8f}")
