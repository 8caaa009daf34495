"""No training at all: predictions of a fixed model, batch by batch."""

# test: workers=2
import torch
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(251)
model = nn.Sequential(nn.Conv1d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 3)).eval()
data = torch.randn(29, 2, 8)
predictions, scores = [], []
with torch.no_grad():
    for batch in DataLoader(data, batch_size=6):
        p = model(batch).softmax(1)
        predictions += p.argmax(1).tolist()
        scores.append(p.max(1).values)
print(predictions)
print(f"{torch.cat(scores).mean().item():.8f} {torch.cat(scores).min().item():.8f}")
