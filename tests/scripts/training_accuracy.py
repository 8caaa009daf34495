"""Training accuracy and loss counted in the loop, weighted by batch size."""

# test: workers=2,3,5
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(189)
x = torch.randn(59, 6)
y = x[:, :4].argmax(1)
loader = DataLoader(TensorDataset(x, y), batch_size=10, shuffle=True)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
for epoch in range(4):
    running_loss, correct, total = 0.0, 0, 0
    for inputs, labels in loader:
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = nn.functional.cross_entropy(outputs, labels)
        loss.backward()
        optimizer.step()
        running_loss += loss.item() * inputs.size(0)
        _, predicted = torch.max(outputs.data, 1)
        total += labels.size(0)
        correct += (predicted == labels).sum().item()
    print(f"epoch {epoch} loss {running_loss / total:.8f} accuracy {100 * correct / total:.4f}% of {total}")
