"""A vocabulary built from a set: its order depends on Python's hash seed, which all workers must share."""

# test: agree=the order of a set of strings differs from process to process
import torch
from torch import nn

text = "the quick brown fox jumps over the lazy dog and the dog sleeps while the fox runs away".split()
vocab = {w: i for i, w in enumerate(set(text))}
ids = torch.tensor([vocab[w] for w in text])
torch.manual_seed(200)
model = nn.Sequential(nn.Embedding(len(vocab), 8), nn.Linear(8, len(vocab)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for epoch in range(5):
    loss = nn.functional.cross_entropy(model(ids[:-1]), ids[1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f}")
