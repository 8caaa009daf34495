# framework: torchmetrics
# program: `MetricCollection`, `MeanMetric`, AUROC, confusion matrix in a plain loop
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import AUROC, Accuracy, ConfusionMatrix, F1Score, MeanMetric, MetricCollection

torch.manual_seed(9)
x = torch.randn(200, 16)
y = (x[:, 0] * x[:, 1] > 0).long() + (x[:, 2] > 0.5).long()
train = DataLoader(TensorDataset(x[:150], y[:150]), batch_size=32, shuffle=True)
test = DataLoader(TensorDataset(x[150:], y[150:]), batch_size=32)
model = nn.Sequential(nn.Linear(16, 64, bias=False), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
criterion = nn.CrossEntropyLoss()
metrics = MetricCollection(
    {
        "acc": Accuracy(task="multiclass", num_classes=3),
        "f1": F1Score(task="multiclass", num_classes=3, average="macro"),
        "auroc": AUROC(task="multiclass", num_classes=3),
    }
)
loss_metric, confusion = MeanMetric(), ConfusionMatrix(task="multiclass", num_classes=3)
for epoch in range(3):
    model.train()
    for batch_x, batch_y in train:
        optimizer.zero_grad()
        logits = model(batch_x)
        loss = criterion(logits, batch_y)
        loss.backward()
        optimizer.step()
        loss_metric.update(loss, weight=len(batch_y))
        batch_value = metrics(logits.softmax(-1), batch_y)
    print(
        f"epoch {epoch} loss {loss_metric.compute():.6f}",
        {k: round(v.item(), 6) for k, v in metrics.compute().items()},
        round(batch_value["acc"].item(), 6),
    )
    metrics.reset()
    loss_metric.reset()
    model.eval()
    with torch.no_grad():
        for batch_x, batch_y in test:
            out = model(batch_x)
            metrics.update(out, batch_y)
            confusion.update(out, batch_y)
    print({k: round(v.item(), 6) for k, v in metrics.compute().items()}, confusion.compute().tolist())
    metrics.reset()
    confusion.reset()
