"""CTC loss: log-probabilities permuted to time first outside the model; lengths from the collate function."""

# test: workers=2
import torch
from torch import nn

torch.manual_seed(311)
model = nn.Sequential(nn.Conv1d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv1d(8, 5, 1))
ctc = nn.CTCLoss(zero_infinity=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    x = torch.randn(7, 3, 10)
    targets = torch.randint(1, 5, (7, 4))
    log_probs = model(x).permute(2, 0, 1).log_softmax(2)
    loss = ctc(log_probs, targets, torch.full((7,), 10), torch.randint(1, 5, (7,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f} {tuple(log_probs.shape)}")
