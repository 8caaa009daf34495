"""Same numbers on a GPU: scripts of the corpus, and three in bf16, on two workers that share one GPU."""

from __future__ import annotations

from pathlib import Path
from subprocess import CompletedProcess

import pytest
from corpus import FOLDER, difference, read, scripts
from plain import PlainPython
from typist import Typist

pytestmark = [pytest.mark.slow, pytest.mark.gpu]
# Everything that a script makes is on the GPU, and rounding is that of float32, as on a CPU.
ON_GPU = """import torch
torch.set_default_device("cuda")
torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
torch.use_deterministic_algorithms(True, warn_only=True)
"""
NAMES = (
    "dropout_slices_differ",
    "vae",
    "batch_norm_conv",
    "sharded_outputs",
    "gan_conv",
    "flattened_output",
    "activation_checkpoint",
    "print_loss_graph",
    "char_rnn",
    "small_gpt",
    "unet",
    "wgan_gp",
    "diffusion",
    "retain_output_grad",
)
NAMES_OVER_NCCL = (
    "sharded_outputs",
    "batch_norm_conv",
    "dropout_slices_differ",
    "wgan_gp",
    "small_gpt",
    "uneven_last_batch",
    "tensor_hook_inside",
)
# What is refused on CPUs, and what is refused there if it cannot be made right.
REFUSED = [script.name for script in scripts() if script.expects == "refused"]
RIGHT_OR_REFUSED = [script.name for script in scripts() if script.expects == "right-or-refused"]
BF16 = {
    "gpt": """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mix, self.out = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)
        self.drop = nn.Dropout(0.2)
    def forward(self, x):
        q, k, v = self.mix(self.norm(x)).chunk(3, -1)
        return x + self.drop(self.out((q @ k.transpose(1, 2)).tril().mul(0.1) @ v))
model = nn.Sequential(nn.Embedding(61, 32), nn.Dropout(0.1), Block(), Block(), nn.Linear(32, 61))
def batch():
    ids = torch.randint(0, 61, (12, 17))
    ids[:5, 9:] = 0
    return ids[:, :-1], ids[:, 1:]
def loss_of(out, y):
    return F.cross_entropy(out.view(-1, 61), y.reshape(-1), ignore_index=0)
""",
    "cnn": """
model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Dropout2d(0.2), nn.AdaptiveAvgPool2d(2),
                      nn.Flatten(), nn.Linear(64, 10))
def batch():
    return torch.randn(14, 3, 12, 12), torch.randint(0, 10, (14,))
def loss_of(out, y):
    return F.cross_entropy(out, y, label_smoothing=0.1)
""",
    "vae": """
class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.dec = nn.Linear(20, 8), nn.Linear(4, 20)
    def forward(self, x):
        mean, log_var = self.enc(x).chunk(2, -1)
        z = mean + torch.randn_like(mean) * (log_var / 2).exp()
        return self.dec(z), mean, log_var
model = VAE()
def batch():
    x = torch.rand(13, 20)
    return x, x
def loss_of(out, y):
    x, mean, log_var = out
    return F.mse_loss(x.float(), y) + 0.01 * (mean**2 + log_var.exp() - log_var - 1).float().mean()
""",
}
LOOP = """
import torch.nn.functional as F
from torch import nn
torch.manual_seed(4)
{model}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    x, y = batch()
    with torch.autocast("cuda", torch.bfloat16):
        loss = loss_of(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print(step, f"{{loss.item():.4f}} {{norm.item():.4f}}")
"""


# On one GPU the workers have no link of their own for NCCL.
OVER_NCCL = ("--backend", "nccl", "--env", "NCCL_SOCKET_IFNAME=lo")


class OnGpu:
    """Types scripts in plain Python and on two workers; both fork from a process that has imported torch."""

    def __init__(self, plain: PlainPython, typist: Typist, folder: Path) -> None:
        self.plain, self.typist, self.folder = plain, typist, folder

    def on_workers(self, script: str, *options: str, arguments: tuple[str, ...] = ()) -> CompletedProcess[str]:
        return self.typist.type(self.folder, "run", "-n", "2", "--quiet", *options, self.write(script).name, *arguments)

    def write(self, script: str) -> Path:
        path = self.folder / "train.py"
        path.write_text(ON_GPU + script)
        return path

    def check(self, script: str, tolerance: float, *options: str) -> None:
        expected = self.plain.printed(self.folder, self.write(script))
        found = self.on_workers(script, *options)
        assert found.returncode == 0, found.stderr
        wrong = difference(expected, found.stdout, tolerance)
        assert not wrong, f"{wrong}\n{found.stderr}"


@pytest.fixture
def gpu(plain: PlainPython, typist: Typist, tmp_path: Path) -> OnGpu:
    return OnGpu(plain, typist, tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_prints_what_plain_python_prints(name: str, gpu: OnGpu) -> None:
    script = read(FOLDER / f"{name}.py")
    gpu.check(script.path.read_text(), max(script.tolerance, 1e-3), "--gather-below", "0")


@pytest.mark.parametrize("name", NAMES_OVER_NCCL)
def test_prints_the_same_over_nccl(name: str, gpu: OnGpu) -> None:
    """The calls of a machine with a GPU for each worker: here the workers share one, and talk over sockets."""
    script = read(FOLDER / f"{name}.py")
    gpu.check(script.path.read_text(), max(script.tolerance, 1e-3), *OVER_NCCL, "--gather-below", "0")


@pytest.mark.parametrize("name", BF16)
def test_prints_what_plain_python_prints_in_bf16(name: str, gpu: OnGpu) -> None:
    gpu.check(LOOP.format(model=BF16[name]), 1e-2, "--gather-below", "0")


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_what_it_refuses_on_cpus(name: str, gpu: OnGpu) -> None:
    given = read(FOLDER / f"{name}.py")
    text = given.path.read_text()
    if gpu.plain.run(gpu.folder, gpu.write(text)).returncode:
        pytest.skip("plain Python does not run it on a GPU")
    found = gpu.on_workers(text, *given.options)
    assert found.returncode != 0, found.stdout
    assert given.reason in found.stderr
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize("name", RIGHT_OR_REFUSED)
def test_is_right_or_refused_as_on_cpus(name: str, gpu: OnGpu) -> None:
    given = read(FOLDER / f"{name}.py")
    text, alone = given.path.read_text(), gpu.folder / "alone"
    alone.mkdir()
    expected = gpu.plain.run(alone, gpu.write(text).rename(alone / "train.py"))
    if expected.returncode:
        pytest.skip("plain Python does not run it on a GPU")
    found = gpu.on_workers(text, *given.options)
    if found.returncode:
        assert any(words in found.stderr for words in ("paceline: ", "Its log: ")), found.stderr  # paceline has begun
        assert "Traceback" not in found.stderr
    else:
        wrong = difference(expected.stdout, found.stdout, max(given.tolerance, 1e-3))
        assert not wrong, f"{wrong}\n{found.stderr}"


def test_losses_that_differ_are_refused_a_backward_later(gpu: OnGpu) -> None:
    found = gpu.on_workers(
        "import os\nmodel = torch.nn.Linear(4, 1)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for step in range(4):\n"
        "    loss = (model(torch.ones(8, 4)).pow(2).mean() + 1) * (1 + (step == 1) * os.getpid() % 97)\n"
        "    loss.backward()\n    optimizer.step()\n    print(step, flush=True)\n"
    )
    assert found.returncode != 0
    assert "The losses at " in found.stderr
    assert "differ between the workers" in found.stderr
    assert found.stdout == "0\n1\n"


def test_random_functions_draw_as_one_process_except_those_inside_gpu_kernels(gpu: OnGpu) -> None:
    """Attention, and recurrent networks of several layers, draw inside their kernels: a notice says so."""
    text, loop = (FOLDER / "random_functions.py").read_text(), "for kind in KINDS:"
    assert loop in text
    inside = ("attention", "lstm", "gru", "rnn", "recurrent")
    some = f"for kind in [k for k in KINDS if not any(name in k.lower() for name in {inside})]:"
    gpu.check(text.replace(loop, some), 1e-9, "--gather-below", "0")
