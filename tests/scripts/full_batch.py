"""One tensor, no batches at all: full-batch gradient descent."""

import torch

torch.manual_seed(13)
x = torch.linspace(-3, 3, 101).unsqueeze(1)
y = torch.sin(x)
model = torch.nn.Sequential(torch.nn.Linear(1, 20), torch.nn.Tanh(), torch.nn.Linear(20, 1))
learning_rate = 0.05
opt = torch.optim.SGD(model.parameters(), lr=learning_rate)
for t in range(60):
    y_pred = model(x)
    loss = torch.nn.functional.mse_loss(y_pred, y)
    if t % 10 == 0:
        print(t, loss.item())
    opt.zero_grad()
    loss.backward()
    opt.step()
print("final", torch.nn.functional.mse_loss(model(x), y).item())
