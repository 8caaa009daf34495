# framework: e3nn
# program: an equivariant network with tensor products over the edges of a batch of molecules
import torch
from e3nn import o3
from e3nn.nn import FullyConnectedNet, Gate
from torch import nn

torch.manual_seed(0)


class Conv(nn.Module):
    def __init__(self, irreps_in, irreps_sh, irreps_out):
        super().__init__()
        self.tp = o3.FullyConnectedTensorProduct(irreps_in, irreps_sh, irreps_out, shared_weights=False)
        self.fc = FullyConnectedNet([4, 16, self.tp.weight_numel], torch.relu)

    def forward(self, f, src, dst, sh, emb):
        message = self.tp(f[src], sh, self.fc(emb))
        return torch.zeros(len(f), message.shape[1]).index_add_(0, dst, message) / 3**0.5


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.sh = o3.Irreps.spherical_harmonics(2)
        self.gate = Gate("8x0e", [torch.relu], "4x0e", [torch.sigmoid], "4x1o")
        self.first = Conv("1x0e", self.sh, self.gate.irreps_in)
        self.second = Conv(self.gate.irreps_out, self.sh, "1x0e")

    def forward(self, pos, batch):
        d = torch.cdist(pos, pos)
        src, dst = ((d < 2.5) & (batch[:, None] == batch[None]) & (d > 0)).nonzero().T
        edge = pos[src] - pos[dst]
        sh = o3.spherical_harmonics(self.sh, edge, normalize=True, normalization="component")
        emb = torch.exp(-((edge.norm(dim=1)[:, None] - torch.linspace(0, 2.5, 4)) ** 2))
        f = self.gate(self.first(torch.ones(len(pos), 1), src, dst, sh, emb))
        f = self.second(f, src, dst, sh, emb)
        return torch.zeros(int(batch.max()) + 1, 1).index_add_(0, batch, f)


net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for step in range(5):
    pos, batch = torch.randn(40, 3), torch.arange(8).repeat_interleave(5)
    target = pos.view(8, 5, 3).norm(dim=-1).sum(1, keepdim=True)
    loss = (net(pos, batch) - target).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, f"{loss.item():.5f}")
