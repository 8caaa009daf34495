"""The CLIP-like model again, left whole by an option."""

# test: options=--whole Clip
import torch
import torch.nn as nn
import torch.nn.functional as F


class Clip(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text = nn.Linear(8, 5), nn.Linear(6, 5)
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, image, text):
        a, b = F.normalize(self.image(image), dim=1), F.normalize(self.text(text), dim=1)
        return self.scale.exp() * a @ b.T


torch.manual_seed(54)
model = Clip()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
images = torch.randn(12, 8)
texts = images[:, :6] + 0.1 * torch.randn(12, 6)
for step in range(6):
    logits = model(images, texts)
    target = torch.arange(len(logits))
    loss = (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f}")
