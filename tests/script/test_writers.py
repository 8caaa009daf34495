"""Libraries that write in native code: a rank above 0 sees its own files, and the real ones stay as they are.

`make test` has torch, safetensors and HDF5, `make test-all` polars, too, `make test-frameworks` the other libraries.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pool import Pool
from silent import check, in_silence

from paceline.script.output import writers

SCENARIOS: dict[Callable[[], Any], str] = {}


def using(library: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    def note(scenario: Callable[[], Any]) -> Callable[[], Any]:
        SCENARIOS[scenario] = library
        return scenario

    return note


def module(name: str) -> Any:
    return importlib.import_module(name)


@using("torch")
def torch_save_and_load() -> Any:
    torch.save({"a": torch.arange(3)}, "model.pt")
    torch.save([torch.ones(2)], Path("model2.pt"))
    loaded = torch.load("model.pt"), torch.load("model2.pt", mmap=True)
    return loaded[0]["a"].tolist(), loaded[1][0].tolist(), sorted(os.listdir())


@using("torch")
def torch_script() -> Any:
    scripted = torch.jit.script(torch.nn.Linear(2, 2))
    torch.jit.save(scripted, "a.pt")
    scripted.save("b.pt")
    same = [torch.equal(torch.jit.load(name).weight, scripted.weight) for name in ("a.pt", "b.pt")]
    return same, sorted(os.listdir())


@using("safetensors")
def safetensors_in_a_new_folder() -> Any:
    library = module("safetensors.torch")
    os.makedirs("checkpoint")
    library.save_file({"a": torch.arange(3)}, "checkpoint/model.safetensors", {"step": "1"})
    library.save_model(torch.nn.Linear(1, 1), os.path.join("checkpoint", "whole.safetensors"))
    os.rename("checkpoint/whole.safetensors", "whole.safetensors")
    with module("safetensors").safe_open("checkpoint/model.safetensors", framework="pt") as file:
        step = file.metadata()["step"]
    loaded = library.load_file("checkpoint/model.safetensors")["a"].tolist()
    return loaded, step, sorted(os.listdir("checkpoint")), os.path.getsize("whole.safetensors")


@using("h5py")
def hdf5() -> Any:
    library = module("h5py")
    with library.File("data.h5", "w") as file:
        file["x"] = [1, 2, 3]
    with library.File("data.h5", "a") as file:
        file["y"] = [4]
    with library.File(Path("data.h5"), mode="r+") as file:
        file["x"][0] = 9
    with library.File("data.h5") as file:
        seen = file["x"][:].tolist(), sorted(file)
    with pytest.raises(FileNotFoundError):
        library.File("missing.h5", "r")
    with pytest.raises(OSError, match="exist"):
        library.File("old.txt", "w-")
    return seen, os.path.exists("data.h5")


def polars() -> Any:
    library = module("polars")
    frame = library.DataFrame({"a": [1, 2]})
    frame.write_csv("a.csv")
    frame.write_parquet(Path("a.parquet"))
    frame.lazy().sink_parquet("b.parquet")
    read = library.read_csv("a.csv"), library.read_parquet("a.parquet"), library.scan_parquet("b.parquet").collect()
    return [table["a"].to_list() for table in read], open("a.csv").read()


@using("pyarrow")
def parquet() -> Any:
    library, arrow = module("pyarrow.parquet"), module("pyarrow")
    table = arrow.table({"a": [1, 2]})
    library.write_table(table, "a.parquet")
    library.write_to_dataset(table, "set")
    module("pyarrow.feather").write_feather(table, "a.feather")
    read = library.read_table("a.parquet"), library.ParquetFile("a.parquet").read(), library.read_table("set")
    return [t["a"].to_pylist() for t in read], module("pyarrow.feather").read_table("a.feather")["a"].to_pylist()


@using("pandas")
def pandas() -> Any:
    library = module("pandas")
    frame = library.DataFrame({"a": [1, 2]})
    frame.to_parquet("a.parquet")
    frame.to_csv("a.csv")
    return library.read_parquet("a.parquet")["a"].tolist(), library.read_csv("a.csv")["a"].tolist()


@using("lmdb")
def lmdb() -> Any:
    library = module("lmdb")
    with library.open("base", map_size=1 << 20) as base, base.begin(write=True) as write:
        write.put(b"k", b"v")
    with library.open("base", readonly=True) as base, base.begin() as read:
        return read.get(b"k"), sorted(os.listdir("base"))


@using("tokenizers")
def tokenizers() -> Any:
    library = module("tokenizers")
    words = library.Tokenizer(library.models.WordLevel({"a": 0, "b": 1}, "a"))
    words.save("words.json")
    os.makedirs("model")
    words.model.save("model", "x")
    return library.Tokenizer.from_file("words.json").encode("b").ids, os.listdir("model")


@using("cv2")
def pictures() -> Any:
    library = module("cv2")
    library.imwrite("a.png", torch.zeros(4, 4, 3, dtype=torch.uint8).numpy())
    return library.imread("a.png").shape, os.path.exists("a.png")


@using("soundfile")
def sound() -> Any:
    library = module("soundfile")
    library.write("a.wav", torch.zeros(100).numpy(), 8000)
    return library.read("a.wav")[0].shape, os.path.exists("a.wav")


@using("transformers")
def save_pretrained() -> Any:
    library = module("transformers")
    model = library.BertModel(
        library.BertConfig(vocab_size=9, hidden_size=4, num_hidden_layers=1, num_attention_heads=1)
    )
    model.save_pretrained("model")
    again = library.BertModel.from_pretrained("model")
    same = all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    return same, sorted(os.listdir("model"))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_native_writers(silent: tuple[Pool, Path], tmp_path: Path, scenario: Callable[[], Any]) -> None:
    pytest.importorskip(SCENARIOS[scenario], reason=f"needs {SCENARIOS[scenario]}: make test-frameworks")
    check(silent, tmp_path, scenario)


AFRESH = """
import sys
from pathlib import Path

import test_writers
from pool import alone
from silent import check, install

scratch, folder = map(Path, sys.argv[1:])
with alone(1) as pool:
    pool.run(install, scratch)
    check((pool, scratch), folder, test_writers.polars)
"""


@pytest.mark.slow
def test_polars(tmp_path_factory: pytest.TempPathFactory) -> None:
    """In processes of their own: if a test before this one used polars, a fork of this process could not, because its
    threads are not forked."""
    home = Path(__file__).parent
    subprocess.run(
        [sys.executable, "-c", AFRESH, str(tmp_path_factory.mktemp("scratch")), str(tmp_path_factory.mktemp("folder"))],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(home), str(home.parent), *filter(None, sys.path)])},
        check=True,
        timeout=100,
    )


def begin_a_run() -> Any:
    wandb = module("wandb")
    run = wandb.init(project="p", config={"lr": 0.1}, mode="offline")
    seen = wandb.config.lr, os.path.exists("wandb")
    run.log({"loss": 1.0})
    run.finish()
    return seen


def test_wandb_has_one_run(silent: tuple[Pool, Path], tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="needs wandb: make test-frameworks")
    assert in_silence(silent, begin_a_run, tmp_path) == (0.1, False)
    assert not list(tmp_path.iterdir())


def test_the_table_names_functions_that_exist() -> None:
    """In the versions installed here; a library that lacks one of them has another version."""
    for name, entrances in writers.ENTRANCES.items():
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            continue
        for entrance in entrances:
            owner, _, function = entrance.function.rpartition(".")
            found = getattr(module(name), owner) if owner else module(name)
            assert hasattr(found, function), f"{name}: {entrance.function}"
