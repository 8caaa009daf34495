"""Truncated backpropagation through time as in the word language model: (time, batch), hidden state, flat output."""

import torch
from torch import nn


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rnn, self.out = nn.Embedding(30, 8), nn.LSTM(8, 8, 2, dropout=0.2), nn.Linear(8, 30)
        self.drop = nn.Dropout(0.2)

    def forward(self, x, hidden):
        h, hidden = self.rnn(self.drop(self.embed(x)), hidden)
        return nn.functional.log_softmax(self.out(self.drop(h)).view(-1, 30), dim=1), hidden


torch.manual_seed(508)
text = torch.randint(30, (61, 12))
model = Words()
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
hidden = (torch.zeros(2, 12, 8), torch.zeros(2, 12, 8))
start = 0
for step, length in enumerate([8, 8, 5, 12, 8, 12, 7]):
    x, y = text[start : start + length], text[start + 1 : start + 1 + length].reshape(-1)
    start += length
    hidden = tuple(h.detach() for h in hidden)
    out, hidden = model(x, hidden)
    loss = nn.functional.nll_loss(out, y)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()
    print(f"{step} {loss.item():.8f} {out.argmax(1).sum().item()} {hidden[0].sum().item():.8f}")
