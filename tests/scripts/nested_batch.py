"""Nested batches: a tuple with a dict of a list of tensors; nested outputs too."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Scenes(Dataset):
    def __len__(self):
        return 22

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        views = [torch.randn(3, generator=g) for _ in range(2)]
        return {"views": views, "meta": {"weight": torch.rand(1, generator=g)}}, (sum(views).sum(), i % 2)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared, self.value, self.kind = nn.Linear(3, 6), nn.Linear(6, 1), nn.Linear(6, 2)

    def forward(self, scene):
        features = [torch.tanh(self.shared(v)) for v in scene["views"]]
        merged = sum(features) * scene["meta"]["weight"]
        return {"heads": (self.value(merged).squeeze(-1), self.kind(merged)), "features": features}


torch.manual_seed(15)
model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    right = 0
    for scene, (value, kind) in DataLoader(Scenes(), batch_size=6, shuffle=True):
        out = model(scene)
        guess, logits = out["heads"]
        spread = (out["features"][0] - out["features"][1]).pow(2).mean()
        loss = nn.functional.mse_loss(guess, value) + nn.functional.cross_entropy(logits, kind) + 0.1 * spread
        opt.zero_grad()
        loss.backward()
        opt.step()
        right += (logits.argmax(1) == kind).sum().item()
        print(f"loss {loss.item():.7f} spread {spread.item():.7f}")
    print(f"epoch {epoch}: {right}/22 right")
