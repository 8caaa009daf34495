# framework: click
# program: a `click` command with options, progress bar, `click.echo`
import click
import torch
from torch import nn


@click.command()
@click.option("--epochs", default=3, show_default=True)
@click.option("--lr", default=0.1, type=float)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu")
@click.option("--output", type=click.Path(), default="model.pt")
def train(epochs, lr, device, output):
    """Trains a small model."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 20), nn.ReLU(), nn.Linear(20, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    x, y = torch.randn(60, 5), torch.randint(0, 2, (60,))
    loader = torch.utils.data.DataLoader(list(zip(x, y)), batch_size=15, shuffle=True)
    for epoch in range(epochs):
        total = 0
        with click.progressbar(loader, label=f"epoch {epoch}", file=click.get_text_stream("stderr")) as bar:
            for bx, by in bar:
                loss = nn.functional.cross_entropy(model(bx.to(device)), by.to(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item()
        click.echo(f"epoch {epoch}: {total / len(loader):.6f}")
    torch.save(model, output)
    click.secho(
        f"saved {sum(p.sum().item() for p in torch.load(output, weights_only=False).parameters()):.6f}", fg="green"
    )


if __name__ == "__main__":
    train()
