"""Batches and outputs that are dicts; one entry is a list of strings."""

# test: views=batch,slice
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class People(Dataset):
    def __init__(self):
        g = torch.Generator().manual_seed(0)
        self.age, self.tags = torch.rand(35, 1, generator=g), torch.randint(0, 9, (35, 3), generator=g)

    def __len__(self):
        return 35

    def __getitem__(self, i):
        return {
            "name": f"p{i}",
            "age": self.age[i],
            "tags": self.tags[i],
            "target": self.age[i] * self.tags[i].sum() / 20,
        }


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.tags, self.out = nn.Embedding(9, 6), nn.Linear(7, 1)

    def forward(self, batch):
        hidden = torch.cat([self.tags(batch["tags"]).mean(1), batch["age"]], dim=1)
        return {"hidden": hidden, "prediction": self.out(torch.relu(hidden))}


torch.manual_seed(14)
model = Net()
sgd = torch.optim.SGD(model.parameters(), lr=0.2)
for epoch in range(4):
    for batch in DataLoader(People(), batch_size=8, shuffle=True):
        out = model(batch)
        loss = nn.functional.mse_loss(out["prediction"], batch["target"])
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        print(f"{loss.item():.8f}")
