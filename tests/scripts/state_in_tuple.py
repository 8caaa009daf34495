"""Recurrent states carried from batch to batch in attributes: an LSTM's in a tuple, each cell's in a list."""

import torch
from torch import nn


class Carrying(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.lstm = nn.Embedding(12, 6), nn.LSTM(6, 8, 2, batch_first=True)
        self.cells = nn.ModuleList([nn.GRUCell(8, 8), nn.GRUCell(8, 8)])
        self.out = nn.Linear(8, 12)
        self.reset()

    def reset(self):
        self.state, self.states = (), [None, None]

    def forward(self, tokens):
        x, state = self.lstm(self.embed(tokens), self.state or None)
        self.state = tuple(s.detach() for s in state)
        outs = []
        for h in x.unbind(1):
            for i, cell in enumerate(self.cells):
                h = self.states[i] = cell(h, self.states[i])
            outs.append(h)
        self.states = [s.detach() for s in self.states]
        return self.out(torch.stack(outs, 1))


torch.set_default_dtype(torch.float64)
torch.manual_seed(4)
model = Carrying()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
text = torch.randint(0, 12, (7, 25))
for epoch in range(2):
    for i in range(0, 24, 6):
        if i < 12:  # the first batches have no state
            model.reset()
        logits = model(text[:, i : i + 6])
        loss = nn.functional.cross_entropy(logits.transpose(1, 2), text[:, i + 1 : i + 7])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.9f} {[tuple(s.shape) for s in model.state]} {model.states[1].norm().item():.9f}")
    with torch.no_grad():
        model.reset()
        token, said = text[:1, :1], []
        for _ in range(6):
            token = model(token)[:, -1].argmax(-1, keepdim=True)
            said.append(token.item())
        print(epoch, said)
