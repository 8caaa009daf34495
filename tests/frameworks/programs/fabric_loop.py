# framework: fabric
# package: lightning
# program: `Fabric.setup`, `setup_dataloaders`, `backward`, `clip_gradients`, checkpoint saved and loaded
import torch
import torch.nn.functional as F
from lightning.fabric import Fabric, seed_everything
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, 1)
        self.bn = nn.BatchNorm2d(8)
        self.dropout = nn.Dropout(0.25)
        self.fc = nn.Linear(8 * 25, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn(self.conv1(x))), 2)
        return F.log_softmax(self.fc(self.dropout(torch.flatten(x, 1))), dim=1)


def main():
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    seed_everything(1)
    with fabric.init_module():
        model = Net()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    model, optimizer = fabric.setup(model, optimizer)
    data = torch.utils.data.TensorDataset(torch.randn(90, 1, 12, 12), torch.randint(0, 10, (90,)))
    train_loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
    test_loader = torch.utils.data.DataLoader(data, batch_size=32)
    train_loader, test_loader = fabric.setup_dataloaders(train_loader, test_loader)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    for epoch in range(1, 4):
        model.train()
        for batch_idx, (data, target) in enumerate(train_loader):
            optimizer.zero_grad()
            loss = F.nll_loss(model(data), target)
            fabric.backward(loss)
            fabric.clip_gradients(model, optimizer, max_norm=2.0)
            optimizer.step()
            if batch_idx % 2 == 0:
                fabric.print(f"Train Epoch: {epoch} [{batch_idx}/{len(train_loader)}] Loss: {loss.item():.6f}")
        scheduler.step()
        model.eval()
        test_loss, correct = 0, 0
        with torch.no_grad():
            for data, target in test_loader:
                output = model(data)
                test_loss += F.nll_loss(output, target, reduction="sum").item()
                correct += (
                    output.argmax(dim=1, keepdim=True).eq(target.view_as(output.argmax(1, keepdim=True))).sum().item()
                )
        test_loss = fabric.all_gather(torch.tensor(test_loss)).sum() / len(test_loader.dataset)
        fabric.print(f"Test set: Average loss: {test_loss:.6f}, Accuracy: ({correct}/90)")
        fabric.save("fabric.ckpt", {"model": model, "optimizer": optimizer, "epoch": epoch})
    state = {"model": model, "optimizer": optimizer}
    rest = fabric.load("fabric.ckpt", state)
    print(rest, f"{model.fc.weight.norm().item():.6f}")


if __name__ == "__main__":
    main()
