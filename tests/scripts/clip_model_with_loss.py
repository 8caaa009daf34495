"""A model with its loss inside, between all pairs of a batch: its encoders are split, the loss runs whole."""

# test: tolerance=1e-9 float64
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)


class Clip(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 8))
        self.text = nn.Sequential(nn.Embedding(50, 16), nn.Flatten(), nn.Linear(80, 8))
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, image, text, return_loss=True):
        a, b = F.normalize(self.image(image), dim=-1), F.normalize(self.text(text), dim=-1)
        logits = self.scale.exp() * a @ b.t()
        target = torch.arange(len(logits))
        loss = (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target)) / 2
        return {"loss": loss, "logits": logits}


model = Clip()
opt = torch.optim.SGD(model.parameters(), lr=0.5)
for step in range(6):
    out = model(torch.randn(9, 12), torch.randint(0, 50, (9, 5)))
    opt.zero_grad()
    out["loss"].backward()
    opt.step()
    print(f"{step} {out['loss'].item():.12f} {model.scale.grad.item():.12f} {out['logits'].argmax(1).tolist()}")
