"""A collate function that pads, embeds and attacks a batch with modules: it runs a model, and a backward."""

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

torch.manual_seed(403)
embed = nn.Embedding(20, 6)
for p in embed.parameters():
    p.requires_grad_(False)
model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 2))
texts = [torch.randint(20, (int(n),)) for n in torch.randint(2, 9, (30,))]


def collate(samples):
    padded = pad_sequence(samples, batch_first=True)
    x = embed(padded).mean(1).requires_grad_()
    y = torch.tensor([int(s[0] > 9) for s in samples])
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    model.zero_grad()
    return x.detach(), (x + 0.1 * x.grad.sign()).detach(), y


loader = DataLoader(texts, batch_size=7, shuffle=True, collate_fn=collate)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for epoch in range(3):
    for clean, attacked, y in loader:
        loss = nn.functional.cross_entropy(model(clean), y) + nn.functional.cross_entropy(model(attacked), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{epoch} {attacked.sum().item():.8f} {loss.item():.8f}")
