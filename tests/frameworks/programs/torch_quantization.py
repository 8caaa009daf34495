# framework: torch.ao
# package: torch
# tolerance: 2e-3 (a weight may round to the next of 255 numbers)
# program: eager mode: fuse, calibrate, convert; then quantisation-aware training with frozen observers and statistics
import copy
import warnings

import torch
import torch.ao.quantization as quantization
from torch import nn

warnings.filterwarnings("ignore")
torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.quant, self.dequant = quantization.QuantStub(), quantization.DeQuantStub()
        self.conv, self.norm, self.relu = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU()
        self.fc = nn.Linear(4 * 6 * 6, 3)

    def forward(self, x):
        x = self.relu(self.norm(self.conv(self.quant(x))))
        return self.dequant(self.fc(x.reshape(x.shape[0], -1)))


images, labels = torch.randn(48, 1, 8, 8), torch.randint(0, 3, (48,))


def train(net, epochs, what):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for epoch in range(epochs):
        for i in range(0, 48, 12):
            loss = nn.functional.cross_entropy(net(images[i : i + 12]), labels[i : i + 12])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(what, epoch, f"{loss.item():.4f}")


torch.backends.quantized.engine = "qnnpack"
net = Net()
train(net, 2, "float")
static = quantization.fuse_modules(copy.deepcopy(net).eval(), [["conv", "norm", "relu"]])
static.qconfig = quantization.get_default_qconfig("qnnpack")
quantization.prepare(static, inplace=True)
with torch.no_grad():
    for i in range(0, 48, 12):
        static(images[i : i + 12])
for name, module in static.named_modules():
    if hasattr(module, "min_val"):
        print(name, f"{module.min_val.min().item():.4f} {module.max_val.max().item():.4f}")
quantization.convert(static, inplace=True)
with torch.no_grad():
    print("static", f"{nn.functional.cross_entropy(static(images), labels).item():.3f}")
aware = quantization.fuse_modules_qat(copy.deepcopy(net).train(), [["conv", "norm", "relu"]])
aware.qconfig = quantization.get_default_qat_qconfig("qnnpack")
quantization.prepare_qat(aware, inplace=True)
train(aware, 2, "aware")
aware.apply(quantization.disable_observer)
train(aware, 1, "frozen observers")
aware.apply(torch.nn.intrinsic.qat.freeze_bn_stats)
train(aware, 1, "frozen statistics")
quantization.convert(aware.eval(), inplace=True)
with torch.no_grad():
    print("converted", f"{nn.functional.cross_entropy(aware(images), labels).item():.3f}")
