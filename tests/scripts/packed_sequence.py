"""Packed sequences inside the model; only the last state leaves it."""

# test: views=batch,slice
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(15, 6)
        self.gru = nn.GRU(6, 10, batch_first=True)
        self.out = nn.Linear(10, 1)

    def forward(self, words, lengths):
        packed = pack_padded_sequence(self.embed(words), lengths, batch_first=True, enforce_sorted=False)
        _, last = self.gru(packed)
        return self.out(last[-1]).squeeze(1)


def collate(batch):
    words = [b[0] for b in batch]
    return (
        pad_sequence(words, batch_first=True),
        torch.tensor([len(w) for w in words]),
        torch.stack([b[1] for b in batch]),
    )


torch.manual_seed(19)
data = []
for i in range(23):
    words = torch.randint(0, 15, (2 + i % 6,))
    data.append((words, (words.float().mean() > 7).float()))
model = Reader()
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
for epoch in range(3):
    for words, lengths, target in DataLoader(data, batch_size=6, shuffle=True, collate_fn=collate):
        loss = nn.functional.binary_cross_entropy_with_logits(model(words, lengths), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{epoch} {loss.item():.8f}")
