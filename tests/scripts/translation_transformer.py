"""nn.Transformer as in the translation tutorial: time first, square masks, padding masks with the batch first."""

# test: options=--batch-dim 1
# test: right-or-refused=the batch is dimension 1 of some arguments and 0 of others
# test: workers=2
import torch
from torch import nn


class Seq2Seq(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.transformer = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0)
        self.generator = nn.Linear(8, 11)

    def forward(self, src, trg, src_mask, tgt_mask, src_padding, tgt_padding, memory_padding):
        out = self.transformer(
            self.embed(src), self.embed(trg), src_mask, tgt_mask, None, src_padding, tgt_padding, memory_padding
        )
        return self.generator(out)


torch.manual_seed(303)
model = Seq2Seq()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    src, tgt = torch.randint(1, 11, (6, 9)), torch.randint(1, 11, (5, 9))
    src[4:, ::2] = 0
    tgt[4:, ::3] = 0
    entry = tgt[:-1]
    tgt_mask = torch.triu(torch.ones(4, 4, dtype=torch.bool), 1)
    src_mask = torch.zeros(6, 6, dtype=torch.bool)
    src_padding, tgt_padding = (src == 0).t(), (entry == 0).t()
    logits = model(src, entry, src_mask, tgt_mask, src_padding, tgt_padding, src_padding)
    loss = nn.functional.cross_entropy(logits.reshape(-1, 11), tgt[1:].reshape(-1), ignore_index=0)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f}")
