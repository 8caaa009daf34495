"""A collate function that pads sentences; a padding mask; a mean over words."""

# test: views=batch,slice
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader


def collate(samples):
    words, labels = zip(*samples)
    lengths = torch.tensor([len(w) for w in words])
    return pad_sequence(words, batch_first=True), lengths, torch.tensor(labels)


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 8, padding_idx=0)
        self.out = nn.Linear(8, 2)

    def forward(self, words, lengths):
        mask = torch.arange(words.size(1))[None] < lengths[:, None]
        mean = (self.embedding(words) * mask[..., None]).sum(1) / lengths[:, None]
        return self.out(mean)


torch.manual_seed(18)
sentences = [(torch.randint(1, 20, (int(torch.randint(2, 9, ())),)), i % 2) for i in range(29)]
loader = DataLoader(sentences, batch_size=7, shuffle=True, collate_fn=collate)
model = Bag()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for epoch in range(4):
    for words, lengths, labels in loader:
        loss = nn.functional.cross_entropy(model(words, lengths), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"loss {loss.item():.8f}")
