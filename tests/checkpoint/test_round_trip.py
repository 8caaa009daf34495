"""What was saved is loaded, bit for bit: every dtype and shape, tied weights, optimizers, plain values."""

from __future__ import annotations

import collections
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import paceline
from paceline.checkpoint import manifest
from paceline.errors import CheckpointError, UsageError

DTYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex128, torch.complex64, torch.complex32),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.bool),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
)


class Holder(nn.Module):
    """A module that holds these tensors as buffers."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        for number, tensor in enumerate(tensors):
            self.register_buffer(f"b{number}", tensor)


def raw(tensor: torch.Tensor) -> bytes:
    flat = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


@st.composite
def tensors(draw: Any) -> torch.Tensor:
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    size = math.prod(shape) * dtype.itemsize
    bits = draw(st.binary(min_size=size, max_size=size))
    if dtype is torch.bool:
        bits = bytes(byte % 2 for byte in bits)
    tensor = torch.empty(shape, dtype=dtype)
    if size:
        tensor = torch.frombuffer(bytearray(bits), dtype=torch.uint8).view(dtype).view(shape)
    if tensor.dim() > 1 and draw(st.booleans()):
        tensor = tensor.transpose(0, -1)  # not contiguous
    return tensor


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@given(st.lists(tensors(), max_size=6))
def test_every_dtype_and_shape_is_restored_bit_for_bit(tmp_path: Path, kept: list[torch.Tensor]) -> None:
    paceline.save(tmp_path / "ck", Holder(kept))
    empty = Holder([torch.zeros_like(tensor) for tensor in kept])
    paceline.load(tmp_path / "ck", empty)
    for number, tensor in enumerate(kept):
        found = getattr(empty, f"b{number}")
        assert (found.dtype, found.shape, raw(found)) == (tensor.dtype, tensor.shape, raw(tensor))


def test_files_are_safetensors_that_others_read(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).double()
    model.register_buffer("brain", torch.arange(3).bfloat16())
    load_file = pytest.importorskip("safetensors.torch").load_file
    paceline.save(tmp_path / "ck", model)
    (file,) = (tmp_path / "ck").glob("tensors-*/*.safetensors")
    found = load_file(file)
    assert found.keys() == {f"model/{name}" for name in model.state_dict()}
    assert all(torch.equal(found[f"model/{name}"], tensor) for name, tensor in model.state_dict().items())


def test_large_models_are_split_into_files(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("paceline.checkpoint.safetensors_file.FULL", 1000)
    model = nn.Sequential(*(nn.Linear(10, 10) for _ in range(10)))
    paceline.save(tmp_path / "ck", model)
    files = manifest.read(tmp_path / "ck").files
    assert len(files) == 4  # 440 bytes a layer: a file is full with the third
    other = nn.Sequential(*(nn.Linear(10, 10) for _ in range(10)))
    paceline.load(tmp_path / "ck", other)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(50, 8), nn.Linear(8, 50, bias=False)
        self.head.weight = self.embedding.weight


def test_tied_weights_are_stored_once_and_stay_tied(tmp_path: Path) -> None:
    model, other = Tied(), Tied()
    paceline.save(tmp_path / "ck", model)
    assert list(manifest.read(tmp_path / "ck").tensors) == ["model/embedding.weight"]
    paceline.load(tmp_path / "ck", other)
    assert other.head.weight is other.embedding.weight
    assert torch.equal(other.head.weight, model.head.weight)


def test_views_of_one_memory_that_are_not_equal_are_stored_apart(tmp_path: Path) -> None:
    base = torch.arange(10.0)
    kept = [base, base[:5], base[5:], base.view(2, 5)]
    paceline.save(tmp_path / "ck", Holder(kept))
    other = Holder([torch.zeros_like(tensor) for tensor in kept])
    paceline.load(tmp_path / "ck", other)
    assert all(torch.equal(getattr(other, f"b{number}"), tensor) for number, tensor in enumerate(kept))


OPTIMIZERS: dict[str, Any] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.8, 0.95)),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01), amsgrad=True, foreach=False),
    "sgd": lambda p: torch.optim.SGD([{"params": list(p), "lr": 0.1}], momentum=0.9, nesterov=True),
    "lbfgs": lambda p: torch.optim.LBFGS(p, max_iter=2),
    "lars": lambda p: paceline.LARS(p, lr=0.1, momentum=0.9),
    "lamb": lambda p: paceline.LAMB(p, lr=0.01),
}


def step(model: nn.Module, optimizer: Any, number: int) -> float:
    x = torch.linspace(-1, 1, 12, dtype=torch.float64).view(4, 3) * (number + 1)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = (model(x) ** 2).mean()
        loss.backward()
        return loss

    return float(optimizer.step(closure).detach())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_goes_on_as_if_nothing_had_happened(tmp_path: Path, name: str) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    optimizer = OPTIMIZERS[name](model.parameters())
    for number in range(3):
        step(model, optimizer, number)
    paceline.save(tmp_path / "ck", model, optimizer)
    expected = [step(model, optimizer, number) for number in range(3, 6)]
    other = nn.Linear(3, 2).double()
    resumed = OPTIMIZERS[name](other.parameters())
    paceline.load(tmp_path / "ck", other, resumed)
    assert [step(other, resumed, number) for number in range(3, 6)] == expected


def test_state_of_another_dtype_than_the_parameter_is_kept(tmp_path: Path) -> None:
    parameter = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    optimizer.state[parameter]["momentum_buffer"] = torch.full((3,), 1.0001)
    paceline.save(tmp_path / "ck", optimizer=optimizer)
    resumed = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    paceline.load(tmp_path / "ck", optimizer=resumed)
    assert torch.equal(resumed.state[parameter]["momentum_buffer"], torch.full((3,), 1.0001))


def test_several_objects_by_name_and_schedulers(tmp_path: Path) -> None:
    def make() -> Any:
        nets = {"generator": nn.Linear(2, 3), "critic": nn.Linear(3, 1)}
        optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in nets.values()]
        return nets, optimizers, torch.optim.lr_scheduler.MultiStepLR(optimizers[0], [2, 4])

    nets, optimizers, scheduler = make()
    for _ in range(3):
        optimizers[0].step()
        scheduler.step()
    paceline.save(tmp_path / "ck", nets, optimizers, scheduler=scheduler, step=3)
    others, _, again = made = make()
    assert paceline.load(tmp_path / "ck", made[0], made[1], scheduler=again).step == 3
    assert torch.equal(others["critic"].weight, nets["critic"].weight)
    assert again.state_dict() == scheduler.state_dict()
    assert made[1][0].param_groups[0]["lr"] == pytest.approx(0.01)


def test_plain_values_come_back_as_they_were(tmp_path: Path) -> None:
    values = {
        "text": "été $", "none": None, "true": True, "big": 2**200, "nan": [float("inf"), -0.0], "tuple": (1, (2.5,)),
        3: {"$tensor": "not one"}, "array": np.arange(3, dtype=np.float32), "scalar": np.float64(0.1),
        "bytes": b"\0\xff", "set": {1, 2}, "counter": collections.Counter("aab"), "complex": 1 - 2j,
        "dtype": torch.bfloat16, "size": torch.Size([2]), "tensor": torch.arange(3),
    }  # fmt: skip
    paceline.save(tmp_path / "ck", step=7, extra=values)
    loaded = paceline.load(tmp_path / "ck")
    found = loaded.extra
    assert loaded.step == 7
    assert found.keys() == values.keys()
    for special in ("array", "tensor"):
        assert (found.pop(special) == values[special]).all()
        values.pop(special)
    assert found == values
    assert {key: type(value) for key, value in found.items()} == {key: type(value) for key, value in values.items()}
    assert math.copysign(1, found["nan"][1]) == -1


def test_random_streams_continue(tmp_path: Path) -> None:
    paceline.save(tmp_path / "ck")

    def draw() -> tuple[Any, ...]:
        return torch.rand(1).item(), np.random.random(), random.random(), random.gauss(0, 1)

    expected = draw()
    paceline.load(tmp_path / "ck", random=False)
    assert draw() != expected
    paceline.load(tmp_path / "ck")
    assert draw() == expected


def test_what_a_checkpoint_cannot_hold_is_refused_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"extra/a\.1 is a builtins\.object"):
        paceline.save(tmp_path / "ck", extra={"a": [1, object()]})
    sparse = torch.eye(3).to_sparse()
    with pytest.raises(CheckpointError, match="extra/s is sparse coo"):
        paceline.save(tmp_path / "ck", extra={"s": sparse})
    with pytest.raises(UsageError, match="model is a dict"):
        paceline.save(tmp_path / "ck", {"weight": torch.zeros(3)})
    assert not (tmp_path / "ck").exists()


def test_all_mismatches_are_in_one_error_and_nothing_is_changed(tmp_path: Path) -> None:
    paceline.save(tmp_path / "ck", nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)))
    other = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 1), nn.Linear(1, 1))
    del other[1].bias
    other[1].register_parameter("bias", None)
    before = {name: tensor.clone() for name, tensor in other.state_dict().items()}
    with pytest.raises(CheckpointError) as error:
        paceline.load(tmp_path / "ck", other, torch.optim.SGD(other.parameters(), 0.1))
    for line in (
        "missing in the checkpoint: model/2.weight",
        "unexpected in the checkpoint: model/1.bias",
        "other shape: model/0.weight is [3, 2] in the checkpoint, [4, 2] in the model",
        "optimizer: not in the checkpoint, which has model",
    ):
        assert line in error.value.message
    assert all(torch.equal(tensor, before[name]) for name, tensor in other.state_dict().items())


def test_another_optimizer_is_refused(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    paceline.save(tmp_path / "ck", model, torch.optim.SGD(model.parameters(), 0.1))
    with pytest.raises(CheckpointError, match="optimizer: saved from SGD, now Adam"):
        paceline.load(tmp_path / "ck", model, torch.optim.Adam(model.parameters()))
    with pytest.raises(CheckpointError, match=r"parameters in each group: saved \[2\], now \[1\]"):
        paceline.load(tmp_path / "ck", model, torch.optim.SGD([model.weight], 0.1))


def test_a_folder_with_other_files_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(CheckpointError, match=r"other files, such as thesis\.tex"):
        paceline.save(tmp_path, nn.Linear(1, 1))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
