# framework: snntorch
# program: leaky neurons with a learnt decay on spike trains, losses of rates and membranes
import torch
import torch.nn as nn
import snntorch as snn
from snntorch import surrogate, functional as SF, spikegen

torch.manual_seed(0)
X = torch.rand(200, 1, 12, 12)
Y = (X.mean((1, 2, 3)) * 40).long() % 4
grad = surrogate.fast_sigmoid(slope=25)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.lif1 = snn.Leaky(beta=0.9, spike_grad=grad)
        self.fc = nn.Linear(4 * 25, 4)
        self.lif2 = snn.Leaky(beta=0.9, spike_grad=grad, learn_beta=True)

    def forward(self, x):
        m1, m2 = self.lif1.init_leaky(), self.lif2.init_leaky()
        s, mem = [], []
        for step in range(x.size(0)):
            c = nn.functional.max_pool2d(self.conv(x[step]), 2)
            sp1, m1 = self.lif1(c, m1)
            sp2, m2 = self.lif2(self.fc(sp1.flatten(1)), m2)
            s.append(sp2)
            mem.append(m2)
        return torch.stack(s), torch.stack(mem)


net = Net()
opt = torch.optim.SGD(net.parameters(), 0.1)
loss_fn = SF.ce_rate_loss()
for ep in range(2):
    for i in range(0, 200, 40):
        data = spikegen.rate(X[i : i + 40], num_steps=8)
        spk, mem = net(data)
        loss = loss_fn(spk, Y[i : i + 40]) + 0.1 * sum(nn.functional.cross_entropy(m, Y[i : i + 40]) for m in mem) / 8
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(ep, f"{loss.item():.5f} acc {SF.accuracy_rate(spk, Y[i : i + 40]):.3f} spikes {spk.sum().item():.0f}")
