"""Every strategy on a GPU: two workers that share one print what plain Python prints, and save what all can load."""

from __future__ import annotations

import pytest
from corpus import difference
from test_same_numbers_gpu import BF16, LOOP, OVER_NCCL, OnGpu, gpu

__all__ = ["gpu"]  # a fixture

pytestmark = [pytest.mark.slow, pytest.mark.gpu]
# What goes over torch's own groups needs NCCL.
STRATEGIES = {
    "mirrored": (),
    "zero1": (),
    "sharded": OVER_NCCL,
    "mesh(data=1,model=2)": OVER_NCCL,
    "mesh(data=2,model=1)": (),
    "pipeline(stages=2)": (),
}
MODELS = {
    "layers": """
model = nn.Sequential(nn.Linear(16, 48), nn.LayerNorm(48), nn.GELU(), nn.Linear(48, 32), nn.Tanh(), nn.Dropout(0.1),
                      nn.Linear(32, 10)).cuda()
def batch():
    return torch.randn(12, 16), torch.randint(0, 10, (12,))
""",
    "images": """
model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 3), nn.BatchNorm2d(8),
                      nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)).cuda()
def batch():
    return torch.randn(12, 3, 12, 12), torch.randint(0, 10, (12,))
""",
    "words": """
class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(60, 32)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
                                    for _ in range(2))
        self.head = nn.Linear(32, 60)
    def forward(self, x):
        x = self.words(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x).mean(1)
model = Words().cuda()
def batch():
    return torch.randint(0, 60, (12, 9)), torch.randint(0, 60, (12,))
""",
}
TRAIN = """
import sys, os, paceline
import torch.nn.functional as F
from torch import nn
torch.manual_seed(4)
{model}
make = {{"sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9), "adam": lambda p: torch.optim.AdamW(p, lr=1e-3)}}
optimizer = make["{optimizer}"](model.parameters())
saved = sys.argv[1] if len(sys.argv) > 1 else ""
first = paceline.load(saved, model, optimizer).step if saved and os.path.exists(saved) else 0
for step in range(first, 8):  # the state of the random generators is loaded, too
    x, y = batch()
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print(step, f"{{loss.item():.5f}} {{norm.item():.4f}}")
    if saved and not first and step == 3:
        paceline.save(saved, model, optimizer, step=4)
        break
"""


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_prints_what_plain_python_prints(strategy: str, model: str, gpu: OnGpu) -> None:
    gpu.check(TRAIN.format(model=MODELS[model], optimizer="sgd"), 1e-3, *typed(strategy))


@pytest.mark.parametrize("strategy", ["zero1", "pipeline(stages=2)"])
def test_prints_the_same_over_nccl(strategy: str, gpu: OnGpu) -> None:
    gpu.check(TRAIN.format(model=MODELS["words"], optimizer="sgd"), 1e-3, *typed(strategy), *OVER_NCCL)


@pytest.mark.parametrize("strategy", ["sharded", "mesh(data=1,model=2)"])
def test_what_needs_a_gpu_for_each_worker_says_so(strategy: str, gpu: OnGpu) -> None:
    found = gpu.on_workers(TRAIN.format(model=MODELS["words"], optimizer="sgd"), "--strategy", strategy)
    assert found.returncode != 0
    assert "needs a GPU for each worker" in found.stderr
    assert "--backend nccl" in found.stderr


@pytest.mark.parametrize("strategy", ["zero1", "sharded", "mesh(data=1,model=2)", "pipeline(stages=2)"])
def test_prints_the_same_in_bf16(strategy: str, gpu: OnGpu) -> None:
    """Rounding of bf16 products differs with their shapes: two digits of the losses agree."""
    text = LOOP.format(model=BF16["gpt"].replace("nn.Dropout(0.2)", "nn.Identity()"))
    gpu.check(text, 2e-2, *typed(strategy))


def test_one_worker_of_a_server_prints_what_plain_python_prints(gpu: OnGpu) -> None:
    text = TRAIN.format(model=MODELS["words"], optimizer="sgd")
    text = text.replace("torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "torch.zeros(())")
    gpu.check(text, 1e-3, "-n", "1", "--strategy", "server(staleness=0)")


@pytest.mark.parametrize("loaded", STRATEGIES)
@pytest.mark.parametrize("saved", ["sharded", "pipeline(stages=2)", "mesh(data=1,model=2)"])
def test_what_one_strategy_saved_every_other_loads(saved: str, loaded: str, gpu: OnGpu) -> None:
    script = TRAIN.format(model=MODELS["words"], optimizer="adam")
    whole = gpu.on_workers(script)
    assert whole.returncode == 0, whole.stderr
    printed = ""
    for strategy in (saved, loaded):
        found = gpu.on_workers(script, *typed(strategy), arguments=("checkpoint",))
        assert found.returncode == 0, found.stderr
        printed += found.stdout
    assert not difference(whole.stdout, printed, 1e-3)


def typed(strategy: str) -> tuple[str, ...]:
    return ("--strategy", strategy, *STRATEGIES[strategy])
