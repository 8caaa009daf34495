"""A server's share of one optimizer's parameters, with the optimizer's state: in this process's own memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from paceline.strategies.server.optimizers import OptimizerSpec, build, held_groups, set_options
from paceline.strategies.server.partition import Share, TensorSpec
from paceline.strategies.server.stale.correction import NAME, Momenta

Views = list[torch.Tensor]  # one tensor for each piece, over some memory


class Shard:
    """Parameters, optimizer and version. `memory` has the bytes of the share's range of the flat memory."""

    def __init__(self, tensors: Sequence[TensorSpec], share: Share, spec: OptimizerSpec) -> None:
        self.tensors, self.share, self.spec = tuple(tensors), share, spec
        self.memory = torch.zeros(share.end - share.begin, dtype=torch.uint8, device="cpu")
        self.parameters = [torch.nn.Parameter(view) for view in self.views(self.memory)]
        numbers = [piece.tensor for piece in share.pieces]
        self.optimizer = build(spec, list(zip(numbers, self.parameters, strict=True)))
        self._groups = held_groups(spec, numbers)
        self._mean: torch.Tensor | None = None  # of several workers' gradients, or a scaled one
        self.momenta = Momenta(self.parameters)
        self.version = 0  # updates made

    def views(self, memory: torch.Tensor) -> Views:
        """The pieces in a memory of the share's size, whole tensors in their shape."""
        if memory.numel() != self.share.end - self.share.begin:
            raise ValueError(f"{memory.numel()} bytes, and the share has {self.share.end - self.share.begin}")
        found = []
        for piece in self.share.pieces:
            tensor, count = self.tensors[piece.tensor], piece.stop - piece.start
            begin = piece.offset - self.share.begin
            dtype = tensor.torch_dtype
            flat = memory[begin : begin + count * dtype.itemsize].view(dtype)
            found.append(flat.view(tensor.shape) if count == tensor.elements else flat)
        return found

    @torch.no_grad()
    def apply(
        self,
        gradients: Views,
        missing: frozenset[int],
        options: Sequence[dict[str, Any]],
        rate: float = 1.0,
        *,
        scale: float = 1.0,
        own: int | None = None,
    ) -> None:
        """One update by these gradients, multiplied by `scale`, with the learning rate multiplied by `rate`; with the
        momentum of the worker `own`, else with the optimizer's."""
        if self.optimizer is not None:
            if scale != 1.0:  # not in place: the memory is the worker's, who may push it again
                gradients, _ = self._weighted([(gradients, missing, scale)])
            for piece, parameter, gradient in zip(self.share.pieces, self.parameters, gradients, strict=True):
                parameter.grad = None if piece.tensor in missing else gradient
            set_options(self.optimizer, [options[number] for number in self._groups], rate)
            if own is None:
                self.optimizer.step()
            else:
                self.momenta.step(self.optimizer, own)
            for parameter in self.parameters:
                parameter.grad = None
        self.version += 1

    def mean(self, given: Sequence[tuple[Views, frozenset[int], float]]) -> tuple[Views, frozenset[int]]:
        """The mean of several workers' gradients, weighted; a gradient that a worker does not have counts as zero.
        Also returns the tensors of which no worker has a gradient."""
        if len(given) == 1:
            return given[0][0], given[0][1]
        total = sum(weight for _, _, weight in given)
        return self._weighted([(views, missing, weight / total) for views, missing, weight in given])

    def _weighted(self, given: Sequence[tuple[Views, frozenset[int], float]]) -> tuple[Views, frozenset[int]]:
        if self._mean is None:
            self._mean = torch.zeros_like(self.memory)
        means = self.views(self._mean)
        nowhere = frozenset.intersection(*(missing for _, missing, _ in given))
        for number, (piece, mean) in enumerate(zip(self.share.pieces, means, strict=True)):
            begun = False
            for views, missing, weight in given:
                if piece.tensor in missing:
                    continue
                if begun:
                    mean.add_(views[number], alpha=weight)
                else:
                    torch.mul(views[number], weight, out=mean)
                begun = True
        return means, nowhere

    # -- the optimizer's state, as numbers and tensors ----------------------------------------------------------------

    def state(self) -> tuple[list[dict[str, Any]], list[torch.Tensor]]:
        """The optimizer's state for each piece: numbers and None as they are, a tensor as {"tensor": its number,
        dtype, shape}; and the tensors."""
        described: list[dict[str, Any]] = []
        tensors: list[torch.Tensor] = []
        momenta = self.momenta.mean()
        for at, parameter in enumerate(self.parameters):
            entry: dict[str, Any] = {}
            held = dict(self.optimizer.state.get(parameter, {})) if self.optimizer else {}
            if at in momenta:
                held[NAME] = momenta[at]
            for name, value in held.items():
                if isinstance(value, torch.Tensor):
                    dtype = str(value.dtype).removeprefix("torch.")
                    entry[name] = {"tensor": len(tensors), "dtype": dtype, "shape": list(value.shape)}
                    tensors.append(value.detach().contiguous())
                else:
                    entry[name] = value
            described.append(entry)
        return described, tensors

    def set_state(
        self, described: Sequence[dict[str, Any]], tensors: Sequence[torch.Tensor], workers: Iterable[int]
    ) -> None:
        """Puts back what `state` gave; the momentum becomes that of each of these workers."""
        if self.optimizer is None:
            return
        for parameter, entry in zip(self.parameters, described, strict=True):
            if entry:
                self.optimizer.state[parameter] = {
                    name: tensors[value["tensor"]].clone() if isinstance(value, dict) else value
                    for name, value in entry.items()
                }
        self.momenta.load(self.optimizer, workers)
