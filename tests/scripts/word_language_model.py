"""The classic word language model: time first, hidden state passed on, output flattened to [time × batch, words]."""

# test: options=--batch-dim 1
# test: right-or-refused=an output in which batch and time are one dimension
# test: workers=2
import torch
from torch import nn


class RNNModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.rnn, self.decoder = nn.Embedding(12, 6), nn.LSTM(6, 8, 2), nn.Linear(8, 12)

    def forward(self, input, hidden):
        output, hidden = self.rnn(self.encoder(input), hidden)
        return nn.functional.log_softmax(self.decoder(output).view(-1, 12), dim=1), hidden


torch.manual_seed(302)
text = (torch.arange(6 * 31) * 5 % 12).view(6, 31).t().contiguous()
model = RNNModel()
hidden = (torch.zeros(2, 6, 8), torch.zeros(2, 6, 8))
for i in range(0, 30, 5):
    data, targets = text[i : i + 5], text[i + 1 : i + 6].reshape(-1)
    hidden = tuple(h.detach() for h in hidden)
    model.zero_grad()
    output, hidden = model(data, hidden)
    loss = nn.functional.nll_loss(output, targets)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    for p in model.parameters():
        p.data.add_(p.grad, alpha=-2.0)
    print(f"loss {loss.item():.8f} hidden {hidden[0].norm().item():.8f}")
