"""As model_loss_ignore_index, but the first batch has no padding: a check of the first batch alone sees nothing."""

# test: right-or-refused=a mean over a number of tokens that differs between slices, from the third batch on
import torch
from torch import nn
from torch.nn import functional as F


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(10, 8), nn.Linear(8, 4)

    def forward(self, words, tags):
        logits = self.out(self.embed(words))
        return logits, F.cross_entropy(logits.flatten(0, 1), tags.flatten(), ignore_index=-100)


torch.manual_seed(45)
model = Tagger()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for step in range(10):
    words = torch.randint(0, 10, (6, 7))
    tags = words % 4
    if step >= 2:
        for row, length in enumerate([7, 2, 6, 1, 3, 7]):
            tags[row, length:] = -100
    logits, loss = model(words, tags)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f}")
