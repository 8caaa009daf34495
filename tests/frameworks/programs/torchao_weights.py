# framework: torchao
# tolerance: 1e-3 (a weight may round to the next of 255 numbers)
# program: `quantize_` with int8 weights after training, then quantisation-aware training by `QATConfig`
import copy

import torch
from torch import nn
from torchao.quantization import Int8WeightOnlyConfig, quantize_
from torchao.quantization.qat import IntxFakeQuantizeConfig, QATConfig

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
x, y = torch.randn(64, 16), torch.randint(0, 4, (64,))
for epoch in range(3):
    loss = nn.functional.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(epoch, f"{loss.item():.5f}")
small = copy.deepcopy(net).eval()
quantize_(small, Int8WeightOnlyConfig())
with torch.no_grad():
    print("int8 weights", f"{nn.functional.cross_entropy(small(x), y).item():.4f}")
weights = IntxFakeQuantizeConfig(torch.int8, granularity="per_channel")
activations = IntxFakeQuantizeConfig(torch.int8, "per_token", is_symmetric=False)
quantize_(net, QATConfig(activation_config=activations, weight_config=weights, step="prepare"))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(3):
    loss = nn.functional.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("aware", epoch, f"{loss.item():.4f}")
