"""Knowledge distillation: a frozen teacher in eval, a student, temperature."""

# test: views=batch,slice
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(80)
teacher = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 4)).eval()
for p in teacher.parameters():
    p.requires_grad = False
student = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
optimizer = torch.optim.SGD(student.parameters(), lr=0.3)
x = torch.randn(33, 6)
loader = DataLoader(TensorDataset(x, torch.randint(0, 4, (33,))), batch_size=8, shuffle=True)
T = 3.0
for epoch in range(3):
    for a, y in loader:
        with torch.no_grad():
            soft = F.softmax(teacher(a) / T, dim=1)
        logits = student(a)
        loss = 0.3 * F.cross_entropy(logits, y) + 0.7 * T * T * F.kl_div(
            F.log_softmax(logits / T, 1), soft, reduction="batchmean"
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{epoch} {loss.item():.8f}")
