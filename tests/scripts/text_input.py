"""The model takes a list of strings: there is no tensor to cut."""

# test: right-or-refused=no tensor argument
import torch
from torch import nn


class Spam(nn.Module):
    def __init__(self):
        super().__init__()
        self.vocab = {w: i for i, w in enumerate("buy now cheap hello dear friend meeting money".split())}
        self.bag, self.out = nn.EmbeddingBag(8, 4), nn.Linear(4, 1)

    def forward(self, texts):
        ids = [torch.tensor([self.vocab[w] for w in t.split()]) for t in texts]
        offsets = torch.tensor([0] + [len(i) for i in ids[:-1]]).cumsum(0)
        return self.out(self.bag(torch.cat(ids), offsets)).squeeze(1)


torch.manual_seed(150)
texts = ["buy now", "hello dear friend", "cheap money", "meeting", "buy cheap cheap", "dear friend meeting now"]
labels = torch.tensor([1.0, 0, 1, 0, 1, 0])
model = Spam()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for step in range(8):
    loss = nn.functional.binary_cross_entropy_with_logits(model(texts), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f}")
