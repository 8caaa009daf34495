"""Outputs kept for an epoch, in training and evaluation; confusion matrix and AUC at its end."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def auc(scores, labels):
    order = np.argsort(scores, kind="stable")
    ranks = np.empty(len(scores))
    ranks[order] = np.arange(1, len(scores) + 1)
    positive = labels.sum()
    return (ranks[labels == 1].sum() - positive * (positive + 1) / 2) / (positive * (len(labels) - positive))


torch.manual_seed(190)
x = torch.randn(45, 5)
y = (x[:, 0] - x[:, 1] + 0.3 * torch.randn(45) > 0).long()
model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
for epoch in range(3):
    kept, labels = [], []
    for a, b in DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True):
        out = model(a)
        optimizer.zero_grad()
        nn.functional.cross_entropy(out, b).backward()
        optimizer.step()
        kept.append(out.detach())
        labels.append(b)
    out, labels = torch.cat(kept), torch.cat(labels)
    confusion = torch.zeros(2, 2, dtype=torch.long)
    for t, p in zip(labels, out.argmax(1)):
        confusion[t, p] += 1
    score = out.softmax(1)[:, 1].numpy()
    print(
        f"epoch {epoch} auc {auc(score, labels.numpy()):.6f} confusion {confusion.tolist()} mean {score.mean():.7f} spread {out.std(0).tolist()}"
    )
