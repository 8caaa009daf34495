# framework: botorch
# program: Bayesian optimisation: `SingleTaskGP`, `fit_gpytorch_mll`, `LogExpectedImprovement`, `optimize_acqf`
# tolerance: 1e-3 L-BFGS of scipy
import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Standardize
from botorch.optim import optimize_acqf
from gpytorch.mlls import ExactMarginalLogLikelihood

torch.manual_seed(0)
torch.set_default_dtype(torch.double)
bounds = torch.stack([torch.zeros(2), torch.ones(2)])


def objective(x):
    return -((x - 0.3) ** 2).sum(-1, keepdim=True) + 0.1 * torch.sin(6 * x).sum(-1, keepdim=True)


x = torch.rand(6, 2)
y = objective(x)
for step in range(3):
    gp = SingleTaskGP(x, y, outcome_transform=Standardize(m=1))
    fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp))
    acq = LogExpectedImprovement(gp, best_f=y.max())
    candidate, value = optimize_acqf(acq, bounds=bounds, q=1, num_restarts=3, raw_samples=16)
    x, y = torch.cat([x, candidate]), torch.cat([y, objective(candidate)])
    print(step, [round(v, 3) for v in candidate[0].tolist()], f"best {y.max().item():.4f}")
