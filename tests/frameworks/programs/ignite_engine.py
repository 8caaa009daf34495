# framework: ignite
# package: pytorch-ignite
# program: a hand-written `Engine` for a GAN step, parameter scheduler, `ProgressBar`, `TerminateOnNan`, metrics of a confusion matrix
import torch
from ignite.contrib.handlers import ProgressBar
from ignite.engine import Engine, Events
from ignite.handlers import CosineAnnealingScheduler, EMAHandler, TerminateOnNan
from ignite.metrics import ConfusionMatrix, Precision, mIoU
from torch import nn

torch.manual_seed(6)
data = torch.utils.data.TensorDataset(torch.randn(64, 1, 8, 8), torch.randint(0, 3, (64, 8, 8)))
loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
net = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1), nn.InstanceNorm2d(8), nn.ReLU(), nn.Dropout2d(0.1), nn.Conv2d(8, 3, 1)
)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def update(engine, batch):
    net.train()
    x, y = batch
    loss = nn.functional.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return {"loss": loss.item()}


def check(engine, batch):
    net.eval()
    with torch.no_grad():
        return net(batch[0]), batch[1]


trainer, evaluator = Engine(update), Engine(check)
ema = EMAHandler(net, momentum=0.1)
ema.attach(trainer, name="ema", event=Events.ITERATION_COMPLETED)
trainer.add_event_handler(Events.ITERATION_STARTED, CosineAnnealingScheduler(optimizer, "lr", 0.1, 0.01, 8))
trainer.add_event_handler(Events.ITERATION_COMPLETED, TerminateOnNan(output_transform=lambda o: o["loss"]))
cm = ConfusionMatrix(num_classes=3)
mIoU(cm).attach(evaluator, "miou")
Precision(average=False).attach(evaluator, "precision")
ProgressBar(persist=False).attach(trainer, output_transform=lambda o: o)


@trainer.on(Events.EPOCH_COMPLETED)
def report(engine):
    evaluator.run(loader)
    m = evaluator.state.metrics
    print(
        f"{engine.state.epoch} {engine.state.output['loss']:.6f} {m['miou']:.6f} {[round(p, 5) for p in m['precision'].tolist()]}"
    )


trainer.run(loader, max_epochs=3)
print(f"ema {sum(p.abs().sum().item() for p in ema.ema_model.parameters()):.5f}")
