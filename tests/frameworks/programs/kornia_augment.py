# framework: kornia
# program: a CNN on batches that `AugmentationSequential` makes in the loop, with labels of mix-up
import kornia.augmentation as K
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x, y = torch.rand(64, 3, 16, 16), torch.randint(0, 4, (64,))
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16, shuffle=True)
augment = K.AugmentationSequential(
    K.RandomHorizontalFlip(p=0.5),
    K.ColorJitter(0.2, 0.2, 0.2, 0.1, p=0.8),
    K.RandomAffine(degrees=15.0, p=0.5),
    K.RandomErasing(p=0.3),
    data_keys=["input"],
)
normalize = K.Normalize(torch.tensor([0.5] * 3), torch.tensor([0.25] * 3))
net = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1),
    nn.BatchNorm2d(8),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Dropout(0.2),
    nn.Linear(512, 4),
)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True)
for epoch in range(2):
    net.train()
    for images, labels in loader:
        images = normalize(augment(images))
        loss = F.cross_entropy(net(images), labels, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(epoch, f"{loss.item():.5f} {images.mean().item():.5f}")
