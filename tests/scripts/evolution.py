"""Evolution strategies: weights are perturbed and judged without any backward; parameters as one vector."""

# test: workers=2
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

torch.manual_seed(250)
x = torch.randn(31, 3)
y = x.sum(1, keepdim=True).sin()
model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1))
center = parameters_to_vector(model.parameters()).detach()
for generation in range(4):
    noise = torch.randn(6, len(center))
    scores = []
    for n in noise:
        vector_to_parameters(center + 0.1 * n, model.parameters())
        with torch.no_grad():
            scores.append(-nn.functional.mse_loss(model(x), y))
    scores = torch.stack(scores)
    center = center + 0.3 * (noise * ((scores - scores.mean()) / scores.std())[:, None]).mean(0) * 0.1
    print(f"{generation} best {-scores.max().item():.8f} mean {-scores.mean().item():.8f}")
