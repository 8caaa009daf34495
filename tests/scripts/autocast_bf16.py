"""torch.autocast in bf16 on the CPU, forward and loss inside it."""

# test: views=batch,slice
# test: tolerance=5e-4  a slice's weight gradient is rounded to 8 bits before it is added to the others'
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(105)
x = torch.randn(40, 8)
loader = DataLoader(TensorDataset(x, x[:, :3].argmax(1)), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(3):
    for a, b in loader:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(a)
            loss = nn.functional.cross_entropy(out.float(), b)
        loss.backward()
        optimizer.step()
        print(f"{out.dtype} {loss.item():.7f}")
