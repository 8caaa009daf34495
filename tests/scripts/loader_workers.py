"""Two loader workers, a dataset of one's own, a main() behind the usual guard."""

# test: views=batch,slice
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Waves(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        phase = torch.tensor(index / self.count * 6.28)
        return torch.sin(phase + torch.arange(8) * 0.3), torch.cos(phase)


def main():
    torch.manual_seed(7)
    loader = DataLoader(Waves(40), batch_size=9, shuffle=True, num_workers=2)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x).squeeze(1), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"epoch {epoch} loss {loss.item():.8f}")


if __name__ == "__main__":
    main()
