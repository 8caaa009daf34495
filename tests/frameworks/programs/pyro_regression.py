# framework: pyro
# package: pyro-ppl
# program: Bayesian linear regression by SVI: `PyroModule`, `PyroSample`, `AutoDiagonalNormal`, `Predictive`
import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, Predictive, Trace_ELBO
from pyro.infer.autoguide import AutoDiagonalNormal
from pyro.nn import PyroModule, PyroSample
from torch import nn

pyro.set_rng_seed(0)


class Regression(PyroModule):
    def __init__(self):
        super().__init__()
        self.linear = PyroModule[nn.Linear](3, 1)
        self.linear.weight = PyroSample(dist.Normal(0.0, 1.0).expand([1, 3]).to_event(2))

    def forward(self, x, y=None):
        mean = self.linear(x).squeeze(-1)
        sigma = pyro.sample("sigma", dist.Uniform(0.0, 10.0))
        with pyro.plate("data", x.shape[0]):
            pyro.sample("obs", dist.Normal(mean, sigma), obs=y)
        return mean


x = torch.randn(50, 3)
y = x.sum(1) + 0.1 * torch.randn(50)
model = Regression()
guide = AutoDiagonalNormal(model)
svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.03}), Trace_ELBO())
for step in range(20):
    loss = svi.step(x, y)
    if step % 5 == 0:
        print(step, f"{loss / 50:.4f}")
predictive = Predictive(model, guide=guide, num_samples=20, return_sites=("linear.weight", "obs"))
found = predictive(x)
print(f"{found['obs'].mean().item():.4f} {found['linear.weight'].std(0).mean().item():.4f}")
