"""An optimizer's step as a CUDA graph.

A step can be captured if its gradients keep their addresses from step to step, as those of a `GraphedCall` do. The
graph reads the learning rate from memory, so that schedules work. If any other setting changes, the step runs without
the graph.
"""

from __future__ import annotations

import types
from operator import attrgetter
from typing import Any

import torch
from torch.optim import SGD, Adam, AdamW, Optimizer

from paceline.mods.graphs.graphed_call import capturing

KINDS = (SGD, Adam, AdamW)
WARM_UP = 3  # steps with unchanged gradient addresses before a capture
GRAD = attrgetter("grad")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
RATES = ("lr", "initial_lr", "params")


class GraphedStep:
    """The graph of one optimizer's step."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._key: Any = None
        self._state: Any = None
        self._seen = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._rates: list[torch.Tensor] = []
        self._filled: list[float] = []
        self._refused = False

    @classmethod
    def put_into(cls, optimizer: Any) -> None:
        """From now on, `optimizer.step` replays the graph when it can. Does nothing for optimizers not in `KINDS`."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        # A graph has rates of 32 bits: enough for parameters of 32 bits, to which any step rounds the rate.
        on_gpu = all(isinstance(p, torch.Tensor) and p.is_cuda and p.dtype in DTYPES for p in parameters)
        if type(optimizer) not in KINDS or optimizer.defaults.get("differentiable") or not on_gpu:
            return
        for group in optimizer.param_groups:
            group["fused"], group["foreach"] = True, False
            if "capturable" in group:
                group["capturable"] = True
        optimizer._step_supports_amp_scaling = True
        optimizer._warned_capturable_if_run_uncaptured = True  # else torch warns in the first steps
        graphed = cls(type(optimizer).step.__wrapped__)
        step = Optimizer.profile_hook_step(lambda self, closure=None: graphed.step(self, closure))
        optimizer.step = types.MethodType(step, optimizer)

    def step(self, optimizer: Any, closure: Any) -> Any:
        rates = [group["lr"] for group in optimizer.param_groups]
        scaled = getattr(optimizer, "grad_scale", None) is not None or getattr(optimizer, "found_inf", None) is not None
        if self._refused or closure is not None or scaled or any(isinstance(rate, torch.Tensor) for rate in rates):
            return self._raw(optimizer, closure)
        key = _key(optimizer)
        if key != self._key or optimizer.state is not self._state:
            self._key, self._state, self._seen, self._graph = key, optimizer.state, 0, None
        self._seen += 1
        if self._graph is None and (self._seen <= WARM_UP or not self._capture(optimizer, rates)):
            return self._raw(optimizer, closure)
        assert self._graph is not None
        if rates != self._filled:
            for tensor, rate in zip(self._rates, rates, strict=True):
                tensor.fill_(rate)
            self._filled = rates
        self._graph.replay()
        return None

    def _capture(self, optimizer: Any, rates: list[float]) -> bool:
        device = optimizer.param_groups[0]["params"][0].device
        self._rates = [torch.tensor(rate, dtype=torch.float32, device=device) for rate in rates]
        self._filled = list(rates)
        graph = torch.cuda.CUDAGraph()
        try:
            for group, rate in zip(optimizer.param_groups, self._rates, strict=True):
                group["lr"] = rate
            with capturing(graph):
                self._raw(optimizer)
        except Exception:
            self._refused = True
            return False
        finally:
            for group, given in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = given
        self._graph = graph
        return True


def _key(optimizer: Any) -> Any:
    """What a captured step relies on: the addresses of gradients and weights, and every setting but the rate."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    grads = [0 if grad is None else grad.data_ptr() for grad in map(GRAD, parameters)]
    settings = [[(k, v) for k, v in group.items() if k not in RATES] for group in optimizer.param_groups]
    return list(map(torch.Tensor.data_ptr, parameters)), grads, settings
