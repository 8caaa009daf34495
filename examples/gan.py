"""A GAN with two optimizers: a generator learns to make points (or pictures) that a critic cannot tell from real ones.

    python examples/gan.py
    paceline run -n 2 examples/gan.py

    python examples/gan.py --epochs 2                                         # a few seconds
    python examples/gan.py --data DIR --adam --epochs 20 --save drawn.pt      # pictures of Fashion-MNIST

By default the real points lie on a half circle. `off` is the mean distance from a generated point to the nearest real
point, and `missed` the mean distance from a real point to the nearest generated point: smaller is better. `belief` is
the critic's mean output for generated points, from 0 (generated) to 1 (real).
"""

import argparse
import math

import pictures
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def half_circle(count):
    random = torch.Generator().manual_seed(1)
    angle = math.pi * torch.rand(count, generator=random)
    return torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(count, 2, generator=random)


def make_network(inputs, hidden, outputs):
    return nn.Sequential(
        nn.Linear(inputs, hidden),
        nn.GELU(),
        nn.Linear(hidden, hidden),
        nn.GELU(),
        nn.Linear(hidden, outputs),
    )


def main():
    parser = argparse.ArgumentParser(description="Train a small GAN.")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--lr", type=float, help="learning rate; default: 0.2 with SGD, 0.0005 with Adam")
    parser.add_argument("--adam", action="store_true", help="use Adam instead of plain SGD")
    parser.add_argument("--noise", type=int, default=16, help="size of the generator's input")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--data", metavar="DIR", help="folder of the real data sets; default: points on a half circle")
    parser.add_argument("--train-size", type=int, help="number of training points or pictures")
    parser.add_argument("--save", metavar="FILE", help="save 500 generated points or pictures at the end")
    parser.add_argument("--log-every", type=int, default=20, help="steps between two printed losses")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    if args.data:
        points = pictures.load("fashion", args.data, args.train_size)[0].flatten(1)
    else:
        points = half_circle(args.train_size or 10_000)
    loader = DataLoader(TensorDataset(points), args.batch_size, shuffle=True)
    some_real = points[:500].to(args.device)

    generator = make_network(args.noise, args.hidden, points.shape[1]).to(args.device)
    critic = make_network(points.shape[1], args.hidden, 1).to(args.device)
    if args.adam:
        generator_optimizer = torch.optim.Adam(generator.parameters(), args.lr or 5e-4, betas=(0.5, 0.999))
        critic_optimizer = torch.optim.Adam(critic.parameters(), args.lr or 5e-4, betas=(0.5, 0.999))
    else:
        generator_optimizer = torch.optim.SGD(generator.parameters(), args.lr or 0.2)
        critic_optimizer = torch.optim.SGD(critic.parameters(), args.lr or 0.2)

    for epoch in range(1, args.epochs + 1):
        critic_total = generator_total = belief = seen = 0
        for step, (real,) in enumerate(loader, 1):
            real = real.to(args.device)
            ones = torch.ones(len(real), 1, device=args.device)
            zeros = torch.zeros(len(real), 1, device=args.device)

            # The critic learns to output 1 for a real point and 0 for a generated point.
            fake = generator(torch.randn(len(real), args.noise, device=args.device))
            critic_loss = F.binary_cross_entropy_with_logits(critic(real), ones)
            critic_loss = critic_loss + F.binary_cross_entropy_with_logits(critic(fake.detach()), zeros)
            critic_optimizer.zero_grad()
            critic_loss.backward()
            critic_optimizer.step()

            # The generator learns to make the critic output 1.
            opinion = critic(fake)
            generator_loss = F.binary_cross_entropy_with_logits(opinion, ones)
            generator_optimizer.zero_grad()
            generator_loss.backward()
            generator_optimizer.step()

            critic_total += critic_loss.item() * len(real)
            generator_total += generator_loss.item() * len(real)
            belief += opinion.sigmoid().sum().item()
            seen += len(real)
            if step % args.log_every == 0:
                print(
                    f"epoch {epoch} step {step} critic {critic_loss.item():.6g} generator {generator_loss.item():.6g}"
                )

        with torch.no_grad():
            drawn = generator(torch.randn(500, args.noise, device=args.device))
        distances = torch.cdist(drawn, some_real)
        off, missed = distances.amin(1).mean().item(), distances.amin(0).mean().item()
        print(
            f"epoch {epoch} critic {critic_total / seen:.6g} generator {generator_total / seen:.6g} "
            f"belief {belief / seen:.6g} off {off:.6g} missed {missed:.6g}"
        )
    if args.save:
        torch.save(drawn.cpu(), args.save)


if __name__ == "__main__":
    main()
