"""The model adds two masked losses, each averaged over its own number of tokens."""

# test: right-or-refused=means over numbers of tokens that differ between slices
# test: workers=2,3
import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.tag, self.next = nn.Embedding(9, 6), nn.Linear(6, 3), nn.Linear(6, 9)

    def forward(self, words, tags, following):
        h = self.embed(words)
        return F.cross_entropy(self.tag(h).flatten(0, 1), tags.flatten()) + 0.5 * F.cross_entropy(
            self.next(h).flatten(0, 1), following.flatten()
        )


torch.manual_seed(315)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for step in range(6):
    words = torch.randint(0, 9, (7, 5))
    tags, following = words % 3, words.roll(-1, 1)
    if step:
        for row in range(7):
            tags[row, 1 + row % 4 :] = -100
            following[row, 4 - row % 4 :] = -100
    loss = model(words, tags, following)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f}")
