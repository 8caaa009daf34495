"""Low-rank adapters: a frozen base, adapters added by replacing submodules, only they are saved."""

# test: views=batch,slice
# test: workers=2
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class LoRA(nn.Module):
    def __init__(self, base, rank):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, base.in_features) * 0.3)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + (x @ self.a.T) @ self.b.T


torch.manual_seed(310)
model = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 2))
for name, child in list(model.named_children()):
    if isinstance(child, nn.Linear):
        setattr(model, name, LoRA(child, 2))
trainable = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.SGD(trainable, lr=0.3)
x = torch.randn(29, 6)
for epoch in range(3):
    for a, b in DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=8, shuffle=True):
        loss = nn.functional.cross_entropy(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.8f}")
torch.save({k: v for k, v in model.state_dict().items() if k.endswith((".a", ".b"))}, "adapters.pt")
print(sorted(torch.load("adapters.pt")), sum(p.numel() for p in trainable))
