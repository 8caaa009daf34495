# framework: spikingjelly
# program: a spiking CNN with batch norm and dropout, step by step, then in multi-step mode
import torch
import torch.nn as nn
import torch.nn.functional as F
from spikingjelly.activation_based import neuron, functional, surrogate, layer

torch.manual_seed(0)
net = nn.Sequential(
    layer.Conv2d(1, 8, 3, padding=1, bias=False),
    layer.BatchNorm2d(8),
    neuron.LIFNode(tau=2.0, surrogate_function=surrogate.ATan()),
    layer.MaxPool2d(2),
    layer.Flatten(),
    layer.Linear(8 * 49, 32),
    neuron.IFNode(surrogate_function=surrogate.ATan()),
    layer.Dropout(0.2),
    layer.Linear(32, 5),
    neuron.LIFNode(tau=2.0, surrogate_function=surrogate.ATan()),
)
X = torch.rand(96, 1, 14, 14)
Y = torch.randint(0, 5, (96,))
opt = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
T = 4
for ep in range(2):
    net.train()
    tot = n = 0
    for i in range(0, 96, 32):
        x, y = X[i : i + 32], Y[i : i + 32]
        out = 0.0
        for t in range(T):
            out = out + net(x)
        loss = F.mse_loss(out / T, F.one_hot(y, 5).float())
        opt.zero_grad()
        loss.backward()
        opt.step()
        functional.reset_net(net)
        tot += loss.item() * len(y)
        n += (out.argmax(1) == y).sum().item()
    net.eval()
    with torch.no_grad():
        out = sum(net(X) for _ in range(T))
        functional.reset_net(net)
    print(ep, f"{tot / 96:.6f} {n} eval {(out.argmax(1) == Y).sum().item()}")
functional.set_step_mode(net, "m")
for ep in range(2):
    net.train()
    x = X[:32].unsqueeze(0).repeat(T, 1, 1, 1, 1)
    out = net(x).mean(0)
    loss = F.mse_loss(out, F.one_hot(Y[:32], 5).float())
    opt.zero_grad()
    loss.backward()
    opt.step()
    functional.reset_net(net)
    print("multi", ep, f"{loss.item():.6f}")
