"""Converts checkpoints from and to plain torch files and torch.distributed.checkpoint (DCP) folders.

A torch file holds the parts of a checkpoint by name, as people save them: {"model": …, "optimizer": …, "step": …}; or
one part alone, as `torch.save(model.state_dict(), …)` does. Random-number states and positions of loaders belong to a
run, and are left out. Nothing is unpickled: see `dcp`.
"""

from __future__ import annotations

import os
import pickle
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from paceline.checkpoint import dcp, manifest
from paceline.checkpoint.safetensors_file import Reader
from paceline.checkpoint.save import Part, save_states
from paceline.checkpoint.tree import decode
from paceline.checkpoint.verify import fault_of, refuse_faults
from paceline.errors import CheckpointError, UsageError

Kind = Literal["paceline", "torch", "dcp"]
FILES = (".pt", ".pth", ".bin", ".ckpt")
RUN_ONLY = ("loader", "pipeline")  # kinds of parts that other formats have no place for


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """What was converted."""

    source: Kind
    target: Kind
    tensors: int
    bytes: int
    left_out: list[str]  # parts that the target has no place for


def kind_at(path: Path) -> Kind:
    """The format of what is there."""
    if path.is_file():
        return "torch"
    return "dcp" if dcp.is_dcp(path) else "paceline"


def convert(source: Path, target: Path, *, to: Kind | None = None, part: str | None = None) -> Converted:
    """Writes the checkpoint again, in another format. `part`: the state of this part alone, without its name."""
    kind = kind_at(source)
    if to is None:
        to = "torch" if target.suffix in FILES else "paceline"
    if kind == to == "paceline" or (kind, to) == ("dcp", "dcp"):
        raise UsageError(
            f"{source} is a {'DCP' if to == 'dcp' else 'Paceline'} checkpoint already.",
            advice="Type --to torch, --to dcp or --to paceline, or a target that ends in .pt.",
        )
    if target.exists():
        raise UsageError(f"{target} exists already.", advice="Type a new path, or remove it first.")
    state, left_out = _from_paceline(source) if kind == "paceline" else (_from_other(source, kind), [])
    if part is not None:
        if part not in state or not isinstance(state[part], dict):
            names = [name for name, value in state.items() if isinstance(value, dict)]
            raise UsageError(
                f"--part {part} is not in {source}.", advice=f"Choose from {', '.join(names) or 'nothing'}."
            )
        state, left_out = state[part], []
    if to == "paceline":
        _to_paceline(target, state)
    elif to == "torch":
        _to_torch(target, state)
    else:
        dcp.write(target, state)
    sizes = [tensor.nbytes for tensor in tensors_in(state)]
    return Converted(source=kind, target=to, tensors=len(sizes), bytes=sum(sizes), left_out=left_out)


def tensors_in(state: Any) -> list[torch.Tensor]:
    """All tensors of a nested state."""
    if isinstance(state, torch.Tensor):
        return [state]
    inside = state.values() if isinstance(state, dict) else state if isinstance(state, (list, tuple)) else ()
    return [tensor for value in inside for tensor in tensors_in(value)]


def _from_paceline(folder: Path) -> tuple[dict[str, Any], list[str]]:
    content = manifest.read(folder)
    refuse_faults(folder, {file.path: fault_of(folder, file) for file in content.files})
    reader = Reader(folder, content)
    state: dict[str, Any] = {}
    left_out = []
    for name, saved in content.parts.items():
        if saved["kind"] in RUN_ONLY:
            left_out.append(name)
        else:
            state[name] = _plain(decode(saved["state"], reader.mapped))
    if content.step is not None:
        state["step"] = content.step
    if content.extra is not None:
        state["extra"] = _plain(decode(content.extra, reader.mapped))
    return state, left_out


def _plain(value: Any) -> Any:
    """numpy's values as torch's and Python's: torch.load(weights_only=True) reads no others."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value)
    if isinstance(value, np.generic):
        return value.item()
    if type(value) is dict:
        return {_plain(key): _plain(item) for key, item in value.items()}
    return type(value)(_plain(item) for item in value) if type(value) in (list, tuple) else value


def _to_torch(target: Path, state: dict[str, Any]) -> None:
    temporary = target.with_name(f"{target.name}.{secrets.token_hex(6)}")
    try:
        with open(temporary, "xb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def _from_other(source: Path, kind: Kind) -> dict[str, Any]:
    state = dcp.read(source) if kind == "dcp" else _loaded(source)
    if not isinstance(state, Mapping) or not all(isinstance(key, str) for key in state):
        raise CheckpointError(
            f"{source} holds a {type(state).__name__}, not a state_dict.",
            advice="Save a dict by name: torch.save(model.state_dict(), path)",
        )
    return dict(state)


def _loaded(source: Path) -> Any:
    try:
        return torch.load(source, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise CheckpointError(
            f"{source} holds objects that only unpickling could make, which may run a program.",
            advice="Save state_dicts, numbers and text: torch.save(model.state_dict(), path)",
        ) from None
    except Exception as error:
        why = str(error).strip().splitlines()
        raise CheckpointError(f"{source} is not a torch file: {why[0] if why else type(error).__name__}") from None


def _to_paceline(target: Path, state: dict[str, Any]) -> None:
    if state and all(isinstance(value, torch.Tensor) for value in state.values()):
        state = {"model": state}  # a bare state_dict
    states: list[Part] = []
    extra: dict[str, Any] = {}
    step: int | None = None
    for key, value in state.items():
        name = "model" if key == "state_dict" else key.removesuffix("_state_dict")
        if isinstance(value, Mapping) and name != "extra":
            states.append(_part(name, dict(value)))
        elif name == "extra" and isinstance(value, Mapping):
            extra |= dict(value)
        elif name == "step" and isinstance(value, int):
            step = value
        else:
            extra[name] = value
    save_states(target, states, step=step, extra=extra or None)


def _part(name: str, value: dict[Any, Any]) -> Part:
    if value.keys() >= {"state", "param_groups"}:
        entries = value["state"] or {}
        if entries and all(str(key).isdigit() for key in entries):  # DCP turns the indices into text
            value = value | {"state": {int(key): entry for key, entry in entries.items()}}
        return Part(name, "optimizer", "", value)
    is_module = bool(value) and any(isinstance(item, torch.Tensor) for item in value.values())
    return Part(name, "module" if is_module else "object", "", value)
