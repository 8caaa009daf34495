# framework: torch.nn.DataParallel
# package: torch
# program: a model wrapped in `DataParallel`, batch norm and dropout, checkpoint of `model.module`
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
net = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1),
    nn.BatchNorm2d(8),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Dropout(0.5),
    nn.Linear(8 * 16, 10),
)
model = nn.DataParallel(net).to(device)
x, y = torch.randn(100, 3, 8, 8), torch.randint(0, 10, (100,))
trainloader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True, num_workers=2)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=3)
for epoch in range(3):
    model.train()
    train_loss, correct, total = 0, 0, 0
    for batch_idx, (inputs, targets) in enumerate(trainloader):
        inputs, targets = inputs.to(device), targets.to(device)
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = criterion(outputs, targets)
        loss.backward()
        optimizer.step()
        train_loss += loss.item()
        _, predicted = outputs.max(1)
        total += targets.size(0)
        correct += predicted.eq(targets).sum().item()
    print(
        "Epoch %d Loss: %.6f | Acc: %.3f%% (%d/%d)"
        % (epoch, train_loss / (batch_idx + 1), 100.0 * correct / total, correct, total)
    )
    scheduler.step()
torch.save({"net": model.module.state_dict(), "epoch": epoch}, "ckpt.pth")
net.load_state_dict(torch.load("ckpt.pth")["net"])
model.eval()
with torch.no_grad():
    print("eval %.6f" % criterion(model(x), y).item())
