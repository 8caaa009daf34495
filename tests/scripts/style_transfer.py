"""Neural style transfer: one image is optimised by LBFGS; loss layers inside the model leave their losses in attributes."""

# test: right-or-refused=losses leave the model as attributes of its layers
# test: workers=2
import torch
import torch.nn.functional as F
from torch import nn


def gram(x):
    a, b, c, d = x.size()
    features = x.view(a * b, c * d)
    return features @ features.t() / (a * b * c * d)


class ContentLoss(nn.Module):
    def __init__(self, target):
        super().__init__()
        self.target = target.detach()

    def forward(self, input):
        self.loss = F.mse_loss(input, self.target)
        return input


class StyleLoss(nn.Module):
    def __init__(self, target):
        super().__init__()
        self.target = gram(target).detach()

    def forward(self, input):
        self.loss = F.mse_loss(gram(input), self.target)
        return input


torch.manual_seed(306)
conv1, conv2 = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
content, style = torch.rand(1, 1, 6, 6), torch.rand(1, 1, 6, 6)
style_loss, content_loss = StyleLoss(conv1(style)), ContentLoss(conv2(torch.relu(conv1(content))))
model = nn.Sequential(conv1, style_loss, nn.ReLU(), conv2, content_loss).requires_grad_(False)
image = content.clone().requires_grad_(True)
optimizer = torch.optim.LBFGS([image], max_iter=3)
for step in range(4):

    def closure():
        with torch.no_grad():
            image.clamp_(0, 1)
        optimizer.zero_grad()
        model(image)
        loss = 100 * style_loss.loss + content_loss.loss
        loss.backward()
        return loss

    loss = optimizer.step(closure)
    print(
        f"{loss.item() * 1e3:.8f} style {style_loss.loss.item() * 1e6:.7f} content {content_loss.loss.item() * 1e4:.7f}"
    )
