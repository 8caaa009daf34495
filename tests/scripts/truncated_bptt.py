"""Truncated back-propagation: the hidden state [layers, batch, width] is passed back in."""

# test: right-or-refused=an argument whose batch is not its first dimension
import torch
from torch import nn


class CharRNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rnn, self.out = nn.Embedding(9, 5), nn.LSTM(5, 8, batch_first=True), nn.Linear(8, 9)

    def forward(self, x, hidden=None):
        y, hidden = self.rnn(self.embed(x), hidden)
        return self.out(y), hidden


torch.manual_seed(143)
text = torch.arange(6 * 41).view(6, 41) * 5 % 9
model = CharRNN()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for epoch in range(2):
    hidden = None
    for t in range(0, 40, 8):
        if hidden is not None:
            hidden = tuple(h.detach() for h in hidden)
        logits, hidden = model(text[:, t : t + 8], hidden)
        loss = nn.functional.cross_entropy(logits.reshape(-1, 9), text[:, t + 1 : t + 9].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.8f} {hidden[0].norm().item():.7f}")
