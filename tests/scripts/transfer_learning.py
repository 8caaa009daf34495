"""The transfer-learning tutorial: phases, running corrects as tensors, deep-copied best weights, exp_lr_scheduler."""

# test: workers=2
import copy

import torch
import torch.nn as nn
import torch.optim as optim
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(309)
x = torch.randn(54, 6)
y = (x[:, 0] + x[:, 1] > 0).long()
datasets = {"train": TensorDataset(x[:36], y[:36]), "val": TensorDataset(x[36:], y[36:])}
dataloaders = {p: DataLoader(d, batch_size=8, shuffle=True) for p, d in datasets.items()}
dataset_sizes = {p: len(d) for p, d in datasets.items()}
model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 5))
for param in model.parameters():
    param.requires_grad = False
model[2] = nn.Linear(12, 2)
criterion = nn.CrossEntropyLoss()
optimizer = optim.SGD(model[2].parameters(), lr=0.1, momentum=0.9)
scheduler = lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.1)
best_weights, best_acc = copy.deepcopy(model.state_dict()), 0.0
for epoch in range(4):
    for phase in ["train", "val"]:
        model.train() if phase == "train" else model.eval()
        running_loss, running_corrects = 0.0, 0
        for inputs, labels in dataloaders[phase]:
            optimizer.zero_grad()
            with torch.set_grad_enabled(phase == "train"):
                outputs = model(inputs)
                _, preds = torch.max(outputs, 1)
                loss = criterion(outputs, labels)
                if phase == "train":
                    loss.backward()
                    optimizer.step()
            running_loss += loss.item() * inputs.size(0)
            running_corrects += torch.sum(preds == labels.data)
        if phase == "train":
            scheduler.step()
        epoch_acc = running_corrects.double() / dataset_sizes[phase]
        print(f"{phase} Loss: {running_loss / dataset_sizes[phase]:.8f} Acc: {epoch_acc:.6f}")
        if phase == "val" and epoch_acc > best_acc:
            best_acc, best_weights = epoch_acc, copy.deepcopy(model.state_dict())
model.load_state_dict(best_weights)
print(f"Best val Acc: {best_acc:6f}")
