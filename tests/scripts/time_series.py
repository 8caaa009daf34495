"""Sine waves predicted by LSTM cells in double precision, trained by LBFGS; the model goes on into the future."""

# test: workers=2,3
import numpy as np
import torch
from torch import nn


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm1, self.lstm2, self.linear = nn.LSTMCell(1, 7), nn.LSTMCell(7, 7), nn.Linear(7, 1)

    def forward(self, input, future=0):
        outputs = []
        h_t, c_t, h_t2, c_t2 = (torch.zeros(input.size(0), 7, dtype=torch.double) for _ in range(4))
        for input_t in input.split(1, dim=1):
            h_t, c_t = self.lstm1(input_t, (h_t, c_t))
            h_t2, c_t2 = self.lstm2(h_t, (h_t2, c_t2))
            output = self.linear(h_t2)
            outputs.append(output)
        for _ in range(future):
            h_t, c_t = self.lstm1(output, (h_t, c_t))
            h_t2, c_t2 = self.lstm2(h_t, (h_t2, c_t2))
            output = self.linear(h_t2)
            outputs.append(output)
        return torch.cat(outputs, dim=1)


np.random.seed(2)
torch.manual_seed(307)
waves = np.sin((np.arange(12) + np.random.randint(-8, 8, (7, 1))) / 3.0)
input, target = torch.from_numpy(waves[2:, :-1]), torch.from_numpy(waves[2:, 1:])
test_input, test_target = torch.from_numpy(waves[:2, :-1]), torch.from_numpy(waves[:2, 1:])
seq = Sequence().double()
criterion = nn.MSELoss()
optimizer = torch.optim.LBFGS(seq.parameters(), lr=0.8, max_iter=4)
for i in range(2):

    def closure():
        optimizer.zero_grad()
        loss = criterion(seq(input), target)
        print("loss:", loss.item())
        loss.backward()
        return loss

    optimizer.step(closure)
    with torch.no_grad():
        pred = seq(test_input, future=4)
        print("test loss:", criterion(pred[:, :-4], test_target).item(), pred.shape)
