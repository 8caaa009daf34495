"""Each random function of torch inside a model, in float64 under plain SGD."""

# test: tolerance=1e-9 float64
import torch
import torch.distributions as D
import torch.nn.functional as F
from torch import nn

torch.set_default_dtype(torch.float64)
KINDS = {
    "dropout": lambda x: F.dropout(x, 0.3),
    "dropout in place": lambda x: F.dropout(x * 1, 0.3, inplace=True),
    "dropout1d": lambda x: F.dropout1d(x.view(-1, 4, 2), 0.3).flatten(1),
    "dropout2d": lambda x: F.dropout2d(x.view(-1, 2, 2, 2), 0.3).flatten(1),
    "alpha": lambda x: F.alpha_dropout(x, 0.2, True),
    "feature alpha": lambda x: F.feature_alpha_dropout(x.view(-1, 4, 2), 0.2, True).flatten(1),
    "rand_like": lambda x: x * torch.rand_like(x),
    "randn_like": lambda x: x + torch.randn_like(x),
    "randint_like": lambda x: x + torch.randint_like(x, 3),
    "bernoulli": lambda x: x * torch.bernoulli(torch.sigmoid(x.detach())),
    "bernoulli_": lambda x: x * torch.empty_like(x).bernoulli_(0.5),
    "normal_": lambda x: x + torch.empty_like(x).normal_(0, 0.1),
    "uniform_": lambda x: x * x.new_empty(len(x), 1).uniform_(0.5, 1.5),
    "exponential_": lambda x: x + torch.empty_like(x).exponential_(),
    "geometric_": lambda x: x + torch.empty_like(x).geometric_(0.5),
    "cauchy_": lambda x: x + torch.empty_like(x).cauchy_().clamp(-1, 1),
    "log_normal_": lambda x: x * torch.empty_like(x).log_normal_(0, 0.1),
    "random_": lambda x: x + torch.empty_like(x).random_(3),
    "normal": lambda x: torch.normal(torch.zeros_like(x), 0.1) + x,
    "poisson": lambda x: x + torch.poisson(x.detach().exp()),
    "multinomial": lambda x: x + torch.multinomial(x.detach().softmax(1), 1),
    "rand": lambda x: x * torch.rand(x.shape[0], 8),
    "randn": lambda x: x + torch.randn(len(x), 1),
    "randint": lambda x: x + torch.randint(3, (len(x), 8)),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "gumbel": lambda x: F.gumbel_softmax(x),
    "rsample": lambda x: D.Normal(x, 0.5).rsample(),
    "gamma": lambda x: D.Gamma(F.softplus(x) + 1, 2.0).rsample(),
    "stochastic depth": lambda x: x + torch.tanh(x) * torch.empty(len(x), 1).bernoulli_(0.7),
    "attention": lambda x: F.scaled_dot_product_attention(*[x.view(-1, 2, 2, 2)] * 3, dropout_p=0.2).flatten(1),
    "weights": lambda x: x @ F.dropout(torch.ones(8, 8), 0.5) / 4,
    "layer drop": lambda x: x if torch.rand(1).item() < 0.5 else F.dropout(x, 0.3),
}


class Model(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.first, self.kind, self.last = nn.Linear(5, 8), KINDS[kind], nn.Linear(8, 1)

    def forward(self, x):
        return self.last(self.kind(self.first(x)))


torch.manual_seed(11)
x, y = torch.randn(7, 5), torch.randn(7, 1)
for kind in KINDS:
    model = Model(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(3):
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(
        f"{kind}: loss {loss.item():.12f} weight {model.first.weight.sum().item():.12f} then {torch.rand(1).item():.12f}"
    )
