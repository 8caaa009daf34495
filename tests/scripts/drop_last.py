"""drop_last, and the number of batches printed."""

# test: views=batch,slice
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(4)
train = TensorDataset(torch.randn(50, 8), torch.randint(0, 4, (50,)))
loader = DataLoader(train, batch_size=12, shuffle=True, drop_last=True)
print("batches", len(loader), "of", len(loader.dataset))
model = nn.Linear(8, 4)
opt = optim.SGD(model.parameters(), lr=0.5)
for epoch in range(5):
    losses = []
    for x, y in loader:
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        losses.append(loss.item())
    print(f"epoch {epoch}: {sum(losses) / len(losses):.8f} over {len(losses)} steps")
