# framework: torch.compile
# package: torch
# program: compiled model, compiled loss function and compiled train step around the model
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x, y = torch.randn(96, 10), torch.randint(0, 4, (96,))
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=24, shuffle=True)


def net():
    return nn.Sequential(nn.Linear(10, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4))


model = torch.compile(net(), backend="aot_eager")
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for bx, by in loader:
        loss = F.cross_entropy(model(bx), by)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(f"compiled model {loss.item():.6f}")

model = net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)


@torch.compile(backend="aot_eager")
def focal(logits, target):
    logp = F.log_softmax(logits, -1)
    pt = logp.gather(1, target[:, None]).squeeze(1)
    return (-((1 - pt.exp()) ** 2) * pt).mean()


for epoch in range(2):
    for bx, by in loader:
        loss = focal(model(bx), by)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(f"compiled loss {loss.item():.6f}")

model = net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)


@torch.compile(backend="aot_eager")
def forward_loss(bx, by):
    return F.cross_entropy(model(bx), by)


for epoch in range(2):
    for bx, by in loader:
        loss = forward_loss(bx, by)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(f"compiled step {loss.item():.6f}")
