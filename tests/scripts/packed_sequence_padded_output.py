"""The model unpacks to the longest sequence it was given: a slice's longest may be shorter than the batch's, here from
the fourth batch on."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rnn, self.out = nn.Embedding(12, 5), nn.GRU(5, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, words, lengths):
        packed = pack_padded_sequence(self.embed(words), lengths, batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return self.out(states)


torch.manual_seed(20)
model = Tagger()
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
for step in range(8):
    lengths = [5] * 6 if step < 3 else torch.randint(2, 8, (6,)).tolist()
    words = [torch.randint(1, 12, (n,)) for n in lengths]
    tags = pad_sequence([w % 3 for w in words], batch_first=True, padding_value=-1)
    logits = model(pad_sequence(words, batch_first=True), torch.tensor([len(w) for w in words]))
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tags.flatten(), ignore_index=-1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} {tuple(logits.shape)} loss {loss.item():.8f}")
