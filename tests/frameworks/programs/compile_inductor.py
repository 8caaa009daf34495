# framework: torch.compile
# package: torch
# program: `model.compile()` and `torch.compile` with the default back end, batch norm, evaluation
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(2)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, bias=False)
        self.bn = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(F.relu(self.bn(self.conv(x))).mean((2, 3)))


x, y = torch.randn(60, 1, 8, 8), torch.randint(0, 3, (60,))
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16, shuffle=True)
raw = Net()
model = torch.compile(raw)
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
for epoch in range(2):
    model.train()
    for bx, by in loader:
        loss = F.cross_entropy(model(bx), by)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
    model.eval()
    with torch.no_grad():
        print(f"epoch {epoch} train {loss.item():.6f} eval {F.cross_entropy(model(x), y).item():.6f}")
