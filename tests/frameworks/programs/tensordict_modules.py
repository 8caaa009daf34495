# framework: tensordict
# program: a TensorDictSequential trained on batches of a TensorDict
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

torch.manual_seed(0)
body = TensorDictModule(nn.Sequential(nn.Linear(4, 16), nn.Tanh()), in_keys=["observation"], out_keys=["hidden"])
head = TensorDictModule(nn.Linear(16, 1), in_keys=["hidden"], out_keys=["value"])
model = TensorDictSequential(body, head)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
data = TensorDict({"observation": torch.randn(64, 4), "target": torch.randn(64, 1)}, batch_size=[64])
for epoch in range(3):
    for batch in data.split(16):
        found = model(batch)
        loss = (found["value"] - batch["target"]).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, f"{loss.item():.5f}", sorted(batch.keys()), tuple(found.batch_size))
