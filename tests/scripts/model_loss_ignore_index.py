"""The model averages its loss over the tokens that aren't padding: slices have different numbers of them."""

# test: right-or-refused=a mean over a number of tokens that differs between slices
import torch
from torch import nn
from torch.nn import functional as F


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(10, 8), nn.Linear(8, 4)

    def forward(self, words, tags):
        logits = self.out(self.embed(words))
        return F.cross_entropy(logits.transpose(1, 2), tags, ignore_index=-100)


torch.manual_seed(44)
model = Tagger()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for step in range(10):
    words = torch.randint(0, 10, (6, 7))
    tags = words % 4
    for row, length in enumerate([7, 2, 6, 1, 3, 7]):
        tags[row, length:] = -100
    loss = model(words, tags)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f}")
