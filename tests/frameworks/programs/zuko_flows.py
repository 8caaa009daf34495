# framework: zuko
# program: conditional normalizing flows (neural splines, masked autoregressive), likelihoods and samples
import torch
import zuko

torch.manual_seed(0)
for make in (zuko.flows.NSF, zuko.flows.MAF):
    flow = make(2, 3, transforms=2, hidden_features=(16,))
    optimizer = torch.optim.Adam(flow.parameters(), lr=1e-2)
    for step in range(3):
        context = torch.randn(16, 3)
        x = torch.randn(16, 2) * 0.5 + context[:, :1]
        loss = -flow(context).log_prob(x).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(make.__name__, step, f"{loss.item():.5f}")
    with torch.no_grad():
        drawn = flow(context[:1]).sample((5,))
    print(tuple(drawn.shape), f"{drawn.sum().item():.4f}")
