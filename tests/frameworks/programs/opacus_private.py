# framework: opacus
# program: differentially private SGD: `ModuleValidator.fix`, `PrivacyEngine.make_private`, gradients of each sample, epsilon
import torch
from opacus import PrivacyEngine
from opacus.validators import ModuleValidator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
net = ModuleValidator.fix(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(48, 1, 8, 8), torch.randint(0, 3, (48,))), batch_size=12)
engine = PrivacyEngine()
net, optimizer, loader = engine.make_private(
    module=net, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
)
for images, labels in loader:
    loss = nn.functional.cross_entropy(net(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(len(images), f"{loss.item():.5f}")
print(f"epsilon {engine.get_epsilon(1e-5):.3f}")
