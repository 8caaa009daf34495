"""An IterableDataset that shares itself out among two loader workers."""

# test: views=batch,slice
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Shards(IterableDataset):
    def __init__(self, count):
        self.count = count

    def __iter__(self):
        info = get_worker_info()
        start, step = (info.id, info.num_workers) if info else (0, 1)
        for i in range(start, self.count, step):
            g = torch.Generator().manual_seed(i)
            x = torch.rand(5, generator=g)
            yield {"x": x, "y": x.prod().log()}


if __name__ == "__main__":
    torch.manual_seed(10)
    model = nn.Sequential(nn.Linear(5, 10), nn.Sigmoid(), nn.Linear(10, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.02)
    for epoch in range(2):
        for batch in DataLoader(Shards(31), batch_size=6, num_workers=2):
            opt.zero_grad()
            loss = nn.functional.mse_loss(model(batch["x"]).view(-1), batch["y"])
            loss.backward()
            opt.step()
            print(f"loss: {loss.item():.8f}")
