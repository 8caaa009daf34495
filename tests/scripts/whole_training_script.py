"""Many habits in one script: options, augmentation, loader workers, batch norm, accumulation, clipping, EMA, checkpoints."""

# test: arguments=--epochs 3
# test: workers=2,3
import argparse
import copy
import json
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Shapes(Dataset):
    def __init__(self, count, train):
        g = torch.Generator().manual_seed(count)
        self.labels = torch.randint(0, 3, (count,), generator=g)
        self.images = torch.rand(count, 1, 8, 8, generator=g) * 0.5
        for i, label in enumerate(self.labels):
            self.images[i, 0, label * 2 : label * 2 + 2] += 1
        self.train = train

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        image = self.images[i]
        if self.train and torch.rand(()) < 0.5:
            image = image.flip(-1)
        return image, self.labels[i]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(300)
    train = DataLoader(Shapes(50, True), batch_size=8, shuffle=True, num_workers=2)
    test = DataLoader(Shapes(21, False), batch_size=8)
    model = nn.Sequential(
        nn.Conv2d(1, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(54, 3)
    )
    ema = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=args.epochs * 4)
    best, history = 0.0, []
    os.makedirs("out", exist_ok=True)
    for epoch in range(args.epochs):
        model.train()
        seen = correct = 0
        for i, (x, y) in enumerate(train):
            out = model(x)
            loss = F.cross_entropy(out, y, label_smoothing=0.05)
            (loss / 2).backward()
            seen, correct = seen + len(y), correct + (out.argmax(1) == y).sum().item()
            if i % 2 == 1 or i + 1 == len(train):
                norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                with torch.no_grad():
                    for a, b in zip(ema.state_dict().values(), model.state_dict().values()):
                        a.lerp_(b, 0.2) if a.is_floating_point() else a.copy_(b)
        model.eval()
        ema.eval()
        with torch.no_grad():
            hits = [[(m(x).argmax(1) == y).sum().item() for x, y in test] for m in (model, ema)]
        accuracy = sum(hits[0]) / 21
        print(
            f"epoch {epoch} loss {loss.item():.7f} norm {norm.item():.7f} train {correct / seen:.5f} test {accuracy:.5f} ema {sum(hits[1]) / 21:.5f}"
        )
        history.append({"epoch": epoch, "accuracy": accuracy})
        if accuracy >= best:
            best = accuracy
            torch.save({"model": model.state_dict(), "epoch": epoch}, "out/best.pt")
    with open("out/history.json", "w") as f:
        json.dump(history, f)
    model.load_state_dict(torch.load("out/best.pt")["model"])
    print(f"best {best:.5f} {sum(p.abs().sum().item() for p in model.parameters()):.7f}")


if __name__ == "__main__":
    main()
