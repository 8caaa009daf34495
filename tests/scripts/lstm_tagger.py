"""One sentence at a time, as a vector of words, as in the tutorial: there is no batch to split."""

import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.lstm, self.out = nn.Embedding(20, 6), nn.LSTM(6, 6), nn.Linear(6, 3)

    def forward(self, sentence):
        h, _ = self.lstm(self.embed(sentence).view(len(sentence), 1, -1))
        return nn.functional.log_softmax(self.out(h.view(len(sentence), -1)), dim=1)


torch.manual_seed(513)
sentences = [torch.randint(20, (n,)) for n in (5, 4, 7, 1, 6)]
model = Tagger()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for words in sentences:
        loss = nn.functional.nll_loss(model(words), words % 3)
        model.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{epoch} {loss.item():.8f}")
