"""A small GPT that learns to predict the next word.

python examples/gpt.py
paceline run -n 2 examples/gpt.py

python examples/gpt.py --layers 2 --width 64 --heads 2 --tokens 32 --words 600 --batch-size 32   # seconds on a CPU
python examples/gpt.py --data DIR --epochs 10                                                    # WikiText-2
"""

import argparse
import math

import torch
import torch.nn.functional as F
import words
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        x = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(x.transpose(1, 2).reshape(batch, tokens, width))


class Block(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.mlp(self.norm2(x)))


class GPT(nn.Module):
    def __init__(self, words, tokens, layers, width, heads, dropout):
        super().__init__()
        self.word = nn.Embedding(words, width)
        self.position = nn.Embedding(tokens, width)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.word.weight  # input and output embeddings share their weights
        self.apply(self.start_small)

    @staticmethod
    def start_small(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, ids):
        places = torch.arange(ids.shape[1], device=ids.device)
        return self.head(self.norm(self.blocks(self.word(ids) + self.position(places))))


@torch.no_grad()
def validate(model, loader, device):
    model.eval()
    total_loss = seen = 0
    for inputs, targets in loader:
        inputs, targets = inputs.to(device), targets.to(device)
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), reduction="sum")
        total_loss += loss.item()
        seen += targets.numel()
    return total_loss / seen


def main():
    parser = argparse.ArgumentParser(description="Train a small GPT.")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=80, help="tokens of a sequence")
    parser.add_argument("--words", type=int, default=30_000, help="size of the vocabulary")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--data", metavar="DIR", help="folder of the real data sets; default: generated text")
    parser.add_argument("--train-size", type=int, help="number of training sequences")
    parser.add_argument("--test-size", type=int, help="number of validation sequences")
    parser.add_argument("--log-every", type=int, default=10, help="steps between two printed losses")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    train, valid = words.load(args.words, args.tokens, args.data, args.train_size, args.test_size)
    train_loader = DataLoader(TensorDataset(*train), args.batch_size, shuffle=True)
    valid_loader = DataLoader(TensorDataset(*valid), args.batch_size)

    model = GPT(args.words, args.tokens, args.layers, args.width, args.heads, args.dropout).to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    print(f"{sum(p.numel() for p in model.parameters())} parameters, {len(train[0])} training sequences")

    for epoch in range(1, args.epochs + 1):
        model.train()
        total_loss = correct = seen = 0
        for step, (inputs, targets) in enumerate(train_loader, 1):
            inputs, targets = inputs.to(args.device), targets.to(args.device)
            logits = model(inputs)
            loss = F.cross_entropy(logits.view(-1, args.words), targets.view(-1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

            total_loss += loss.item() * targets.numel()
            correct += (logits.argmax(-1) == targets).sum().item()
            seen += targets.numel()
            if step % args.log_every == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.6g}")
        valid_loss = validate(model, valid_loader, args.device)
        print(
            f"epoch {epoch} loss {total_loss / seen:.6g} accuracy {correct / seen:.6g} "
            f"validation loss {valid_loss:.6g} perplexity {math.exp(valid_loss):.6g}"
        )


if __name__ == "__main__":
    main()
