# framework: schedulefree
# program: `AdamWScheduleFree` and `SGDScheduleFree` with train and eval modes, batch norm warmed up before evaluation
import schedulefree
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x, y = torch.randn(128, 10), torch.randint(0, 3, (128,))
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x[:96], y[:96]), batch_size=24, shuffle=True)
for make in (schedulefree.AdamWScheduleFree, schedulefree.SGDScheduleFree):
    net = nn.Sequential(nn.Linear(10, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = make(net.parameters(), lr=0.02, warmup_steps=3)
    for epoch in range(2):
        net.train()
        optimizer.train()
        for data, target in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(net(data), target)
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            net.train()
            optimizer.eval()
            for data, _ in loader:
                net(data)
        net.eval()
        with torch.no_grad():
            out = net(x[96:])
            print(
                make.__name__,
                epoch,
                f"{loss.item():.5f} {F.cross_entropy(out, y[96:]).item():.5f} {(out.argmax(1) == y[96:]).sum().item()}",
            )
