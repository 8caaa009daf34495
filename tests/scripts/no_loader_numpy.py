"""Minibatches drawn with numpy from arrays, as before DataLoader was a habit."""

import numpy as np
import torch

np.random.seed(12)
torch.manual_seed(12)
features = np.random.normal(size=(64, 7)).astype(np.float32)
targets = (features @ np.random.normal(size=(7, 1))).astype(np.float32)
model = torch.nn.Sequential(torch.nn.Linear(7, 9), torch.nn.ELU(), torch.nn.Linear(9, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
for step in range(30):
    pick = np.random.choice(64, 13, replace=False)
    prediction = model(torch.from_numpy(features[pick]))
    loss = torch.nn.functional.smooth_l1_loss(prediction, torch.from_numpy(targets[pick]))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 5 == 4:
        error = np.abs(prediction.detach().numpy() - targets[pick]).mean()
        print("step %d loss %.8f mean error %.7f" % (step + 1, loss.item(), error))
