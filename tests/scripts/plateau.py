"""ReduceLROnPlateau on the test loss, measured in eval mode without gradients."""

# test: views=batch,slice
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(102)
x = torch.randn(50, 5)
y = (x[:, 0] * x[:, 1] > 0).long()
train_loader = DataLoader(TensorDataset(x[:35], y[:35]), batch_size=8, shuffle=True)
test_loader = DataLoader(TensorDataset(x[35:], y[35:]), batch_size=6)
model = nn.Sequential(nn.Linear(5, 24), nn.ReLU(), nn.Linear(24, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=0)


def test():
    model.eval()
    total, correct = 0.0, 0
    with torch.no_grad():
        for a, b in test_loader:
            out = model(a)
            total += nn.functional.cross_entropy(out, b, reduction="sum").item()
            correct += out.argmax(1).eq(b).sum().item()
    model.train()
    return total / 15, correct / 15


for epoch in range(8):
    for a, b in train_loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
    test_loss, accuracy = test()
    scheduler.step(test_loss)
    print(f"{epoch} test {test_loss:.8f} accuracy {accuracy:.4f} rate {optimizer.param_groups[0]['lr']:.8f}")
