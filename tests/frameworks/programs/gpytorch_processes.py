# framework: gpytorch
# program: an exact Gaussian process, and a variational one with learnt inducing points on batches
import math

import gpytorch
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy

torch.manual_seed(0)


class Exact(gpytorch.models.ExactGP):
    def __init__(self, x, y, likelihood):
        super().__init__(x, y, likelihood)
        self.mean_module, self.covar_module = gpytorch.means.ConstantMean(), ScaleKernel(RBFKernel())

    def forward(self, x):
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))


class Variational(gpytorch.models.ApproximateGP):
    def __init__(self, points):
        found = CholeskyVariationalDistribution(points.size(0))
        super().__init__(VariationalStrategy(self, points, found, learn_inducing_locations=True))
        self.mean_module, self.covar_module = gpytorch.means.ConstantMean(), ScaleKernel(RBFKernel())

    def forward(self, x):
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))


x = torch.linspace(0, 1, 40)
y = torch.sin(x * 2 * math.pi) + torch.randn(40) * 0.1
likelihood = gpytorch.likelihoods.GaussianLikelihood()
model = Exact(x, y, likelihood)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
for step in range(8):
    optimizer.zero_grad()
    loss = -objective(model(x), y)
    loss.backward()
    optimizer.step()
    print(step, f"{loss.item():.4f} {model.covar_module.base_kernel.lengthscale.item():.4f}")
model.eval()
likelihood.eval()
with torch.no_grad():
    print(f"{likelihood(model(torch.linspace(0, 1, 11))).mean.sum().item():.3f}")

x = torch.rand(200, 2)
y = torch.sin(x.sum(1) * 3)
likelihood = gpytorch.likelihoods.GaussianLikelihood()
model = Variational(x[:16].clone())
objective = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=200)
optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.05)
for epoch in range(2):
    for i in range(0, 200, 50):
        optimizer.zero_grad()
        loss = -objective(model(x[i : i + 50]), y[i : i + 50])
        loss.backward()
        optimizer.step()
    print("variational", epoch, f"{loss.item():.4f}")
