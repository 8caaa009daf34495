# framework: ignite
# package: pytorch-ignite
# program: `create_supervised_trainer` and evaluator, metrics, handlers, `Checkpoint`
import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.handlers import Checkpoint, DiskSaver, EarlyStopping, global_step_from_engine
from ignite.metrics import Accuracy, Loss, RunningAverage
from ignite.utils import manual_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

manual_seed(5)
x = torch.randn(140, 1, 10, 10)
y = (x.mean((1, 2, 3)) > 0).long()
train_loader = DataLoader(TensorDataset(x[:100], y[:100]), batch_size=20, shuffle=True)
val_loader = DataLoader(TensorDataset(x[100:], y[100:]), batch_size=15)
model = nn.Sequential(
    nn.Conv2d(1, 6, 3),
    nn.BatchNorm2d(6),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(2),
    nn.Flatten(),
    nn.Dropout(0.2),
    nn.Linear(24, 2),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.8)
criterion = nn.CrossEntropyLoss()
trainer = create_supervised_trainer(model, optimizer, criterion)
metrics = {"accuracy": Accuracy(), "loss": Loss(criterion)}
evaluator = create_supervised_evaluator(model, metrics=metrics)
RunningAverage(output_transform=lambda loss: loss).attach(trainer, "running")


@trainer.on(Events.ITERATION_COMPLETED(every=3))
def log_iteration(engine):
    print(
        f"iteration {engine.state.iteration} loss {engine.state.output:.6f} running {engine.state.metrics['running']:.6f}"
    )


@trainer.on(Events.EPOCH_COMPLETED)
def validate(engine):
    evaluator.run(val_loader)
    m = evaluator.state.metrics
    print(f"epoch {engine.state.epoch} accuracy {m['accuracy']:.6f} loss {m['loss']:.6f}")


def score(engine):
    return engine.state.metrics["accuracy"]


evaluator.add_event_handler(Events.COMPLETED, EarlyStopping(3, score, trainer))
to_save = {"model": model, "optimizer": optimizer, "trainer": trainer}
saver = Checkpoint(
    to_save,
    DiskSaver("models", create_dir=True),
    n_saved=2,
    score_function=score,
    score_name="acc",
    global_step_transform=global_step_from_engine(trainer),
)
evaluator.add_event_handler(Events.COMPLETED, saver)
trainer.run(train_loader, max_epochs=3)
Checkpoint.load_objects(to_load={"model": model}, checkpoint=torch.load(saver.last_checkpoint))
print(f"weights {sum(p.abs().sum().item() for p in model.parameters()):.5f}")
