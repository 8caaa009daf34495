"""Collects a script's facts in one worker: what the advisor's rules need and a trace does not show (`record.facts`).

Inspects each loader, model and optimizer once, at its first use, and keeps no reference to it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import IterableDataset, Subset, TensorDataset, default_collate

from paceline.comm.call_site import script_line
from paceline.comm.group import count_gpus
from paceline.record.facts import Facts, LoaderFacts, ModelFacts, OptimizerFacts, SaveFacts, facts_path
from paceline.record.writer import write_document
from paceline.script.recorder import Recorder
from paceline.script.seams.stage import Stage
from paceline.torch_private import is_compiled, parameters_in

MOST = 64  # most facts of each kind: a script may make a new loader in every epoch


class Gathering:
    """Subscribes to the seams of one worker. Calls no collective."""

    def __init__(self, stage: Stage, recorder: Recorder, folder: Path) -> None:
        self._stage, self._recorder = stage, recorder
        self._path = facts_path(folder, stage.group.rank)
        self._met: set[int] = set()  # optimizers, by id
        self._first: float | None = None
        self._last = 0.0
        self.facts = Facts(threads=torch.get_num_threads())
        stage.subscribe(self)
        self._time_saves()

    def on_loader(self, loader: Any) -> None:
        if len(self.facts.loaders) < MOST:
            self.facts.loaders.append(_loader(loader))

    def around_batch(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def following(iterator: Any) -> Any:
            begun, computed = time.perf_counter(), time.thread_time()
            try:
                return plain(iterator)
            finally:
                self.facts.loading += time.perf_counter() - begun
                self.facts.loading_cpu += time.thread_time() - computed

        return following

    def on_model(self, module: nn.Module) -> None:
        if len(self.facts.models) < MOST:
            self.facts.models.append(_model(module))

    def before_forward(self, module: nn.Module) -> None:
        first = next(parameters_in(module), None)
        device = "cpu" if first is None else first.device.type
        dtype = (
            str(torch.get_autocast_dtype(device)).removeprefix("torch.") if torch.is_autocast_enabled(device) else ""
        )
        if dtype not in self.facts.called_under:
            self.facts.called_under.append(dtype)

    def after_step(self, optimizer: Any) -> None:
        self.facts.steps += 1
        self._last = self._stage.watch.now()
        if self._first is None:
            self._first = self._last
        if id(optimizer) not in self._met and len(self._met) < MOST:
            self._met.add(id(optimizer))
            self.facts.optimizers.append(_optimizer(optimizer))

    def write(self) -> None:
        """Writes the facts collected so far and torch's present settings. A second call replaces the file."""
        facts = self.facts
        facts.threads = torch.get_num_threads()
        facts.backend = dist.get_backend() if dist.is_initialized() else self._stage.group.backend
        facts.gpus = count_gpus()
        facts.tf32 = torch.get_float32_matmul_precision() != "highest"
        facts.tf32_convolutions = bool(torch.backends.cudnn.allow_tf32)
        facts.cudnn_benchmark = bool(torch.backends.cudnn.benchmark)
        facts.deterministic = bool(torch.backends.cudnn.deterministic)
        facts.seconds = self._last - self._first if self._first is not None else 0.0
        write_document(self._path, facts)

    def _time_saves(self) -> None:
        plain, facts = torch.save, self.facts

        def save(*args: Any, **kwargs: Any) -> None:
            begun = time.perf_counter()
            plain(*args, **kwargs)
            if len(facts.saves) < MOST * MOST:
                told = SaveFacts(step=self._recorder.steps, seconds=time.perf_counter() - begun, line=script_line())
                facts.saves.append(told)

        torch.save = save


def _loader(loader: Any) -> LoaderFacts:
    dataset: Any = loader.dataset
    whole: Any = dataset.dataset if type(dataset) is Subset else dataset
    tensors = type(whole) is TensorDataset and loader.collate_fn is default_collate
    return LoaderFacts(
        batch=loader.batch_size,
        samples=len(dataset) if hasattr(dataset, "__len__") else None,
        processes=loader.num_workers,
        ahead=loader.prefetch_factor,
        pinned=bool(loader.pin_memory),
        indexed=not isinstance(dataset, IterableDataset) and loader.batch_sampler is not None,
        dataset=type(dataset).__name__,
        tensors=tensors,
        bytes=sum(tensor.nbytes for tensor in whole.tensors) if tensors else 0,
    )


def _model(module: nn.Module) -> ModelFacts:
    parameters = list(parameters_in(module))
    convolutions = [one for one in module.modules() if isinstance(one, nn.Conv2d | nn.ConvTranspose2d)]
    return ModelFacts(
        name=type(module).__name__,
        parameters=sum(parameter.numel() for parameter in parameters),
        bytes=sum(parameter.nbytes for parameter in parameters),
        convolutions=len(convolutions),
        channels_last=any(_lies_channels_last(one.weight) for one in convolutions),
        device=parameters[0].device.type if parameters else "cpu",
        compiled=is_compiled(module),
    )


def _lies_channels_last(weight: torch.Tensor) -> bool:
    # The weight of a 1×1 kernel is contiguous in both memory formats.
    return weight.is_contiguous(memory_format=torch.channels_last) and not weight.is_contiguous()


def _optimizer(optimizer: Any) -> OptimizerFacts:
    groups = optimizer.param_groups
    return OptimizerFacts(
        name=type(optimizer).__name__,
        tensors=sum(len(group["params"]) for group in groups),
        momentum=any(group.get("momentum", True) for group in groups),
        fused=any(group.get("fused") for group in groups),
        foreach=next((group["foreach"] for group in groups if group.get("foreach") is not None), None),
    )
