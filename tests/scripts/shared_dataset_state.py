"""A data set that counts and caches what it loaded, read by the script afterwards."""
# test: right-or-refused=each sample is loaded by one worker, so the data set's own state may differ

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Caching(Dataset):
    def __init__(self):
        self.cache, self.loads, self.scale = {}, 0, 1.0

    def __len__(self):
        return 18

    def __getitem__(self, i):
        self.loads += 1
        if i not in self.cache:
            self.cache[i] = torch.full((4,), float(i)) / 18
        return self.cache[i] * self.scale, torch.tensor([i / 9 - 1])


torch.manual_seed(33)
data = Caching()
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
for epoch in range(3):
    data.scale = 1.0 + 0.5 * epoch
    for x, y in DataLoader(data, batch_size=5, shuffle=True):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(
        f"epoch {epoch} loss {loss.item():.8f} loads {data.loads} cached {len(data.cache)} mean {torch.stack(list(data.cache.values())).mean().item():.7f}"
    )
