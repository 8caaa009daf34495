"""ParameterServer: parameters and optimizer live on server processes; workers push gradients and pull parameters.

Each worker trains on whole batches of its own, at its own pace. With `staleness=K`, a worker waits when it is more than
K steps ahead of the slowest one; K = 0 is synchronous, and computes what `--batch scale` computes; `inf` never waits.
Workers other than rank 0 may die, and the others go on; a server that dies starts again from what it has written.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import nn

from paceline.errors import ScriptError, UsageError
from paceline.record.phases import COMMUNICATION
from paceline.script.recorder import EnoughSteps
from paceline.script.rng import OwnStream
from paceline.script.seams.stage import Stage
from paceline.settings import WorkerSettings, of_this_process
from paceline.strategies.base import BaseStrategy
from paceline.strategies.server.client import Client
from paceline.strategies.server.config import ServerConfig
from paceline.strategies.server.dealing import Deal, Dealing, Iteration
from paceline.strategies.server.exchange import Exchange
from paceline.strategies.server.servers import Addresses, Servers
from paceline.strategies.server.stale.correction import Kind
from paceline.wire.channel import Access, Keys
from paceline.wire.link import LinkStore, link_of_this_process

LAST = 30.0  # seconds that rank 0 waits, at its end, for the last steps of workers of other hosts
CORRECTED: dict[Kind, str] = {
    "momentum": "each worker has a momentum of its own",
    "rate": "the learning rate of an update is divided by its staleness",
    "none": "stale gradients are applied as they are",
}


class Meeting(msgspec.Struct, frozen=True):
    """What rank 0 tells the other workers: where servers are, and how to speak with them."""

    addresses: Addresses
    access: Access


class ParameterServer(BaseStrategy):
    """Parameters live on servers; each worker trains on its own batches, at its own pace.

    Take it if workers differ in speed, or come and go. Costs accuracy per step: gradients are stale, and the numbers
    are not those of one process. No worker waits for a dead one. The run ends when rank 0, whose voice is heard, fails.
    """

    name = "server"
    lockstep = False

    def __init__(
        self,
        *,
        staleness: float = 4.0,
        servers: int = 1,
        backup: int = 0,
        correction: Kind = "momentum",
        deal: Deal = "every",
        write: float = 30.0,
    ) -> None:
        """`servers`: processes that hold the parameters. `backup`: workers that a synchronous step need not wait for.
        `correction` of stale gradients, which else diverge: each worker has a momentum of its own ("momentum"), or the
        learning rate is divided by an update's staleness ("rate"). `deal`: of every N batches a worker takes one
        ("every"), or the next that no worker has taken ("free"). `write`: seconds between two writes of a server."""
        if servers < 1:
            raise UsageError("--strategy server(servers=0): a run needs at least one server.", advice="Type: servers=1")
        if deal == "free" and staleness == 0:
            raise UsageError(
                "--strategy server(staleness=0,deal=free): in a synchronous run every worker takes as many batches.",
                advice="Type: deal=every, or staleness=inf",
            )
        if backup and staleness:
            raise UsageError(
                "--strategy server(backup=…): only a synchronous run has backup workers.", advice="Type: staleness=0"
            )
        self.staleness, self.servers, self.backup = staleness, servers, backup
        self.correction, self.deal, self.write = correction, deal, write
        self.client: Client | None = None
        self._exchanges: dict[int, Exchange] = {}  # by the optimizer's id; an exchange keeps its optimizer alive
        self._samples = 0  # of training batches so far
        self._counted: dict[int, tuple[int, int]] = {}  # exchange → samples and steps at its last mark
        self._learns = True  # at the last call of a model

    def on_stage(self, stage: Stage) -> None:
        super().on_stage(stage)
        settings, link = of_this_process(), link_of_this_process()
        if stage.aside or (link is None and settings.world == 1):
            return
        if link is None:
            raise UsageError(
                "The strategy ParameterServer needs Paceline's own launcher, which starts the servers.",
                advice='Type: paceline run -n 4 --strategy "server(staleness=4)" train.py',
            )
        self.rank, self.world = settings.rank, settings.world
        self._several_hosts = settings.hosts > 1
        stage.pulse.notice(self._first_line())
        self._store = LinkStore(link).within("paceline/servers")
        met = self._meet(settings, self._store)
        self.client = Client(
            met.addresses, met.access, rank=settings.rank, notice=stage.pulse.notice, waiting=self._waiting
        )
        self._stream = OwnStream(stage.run.seed, settings.rank)
        self._dealing = Dealing(stage, self._store, rank=self.rank, world=self.world, deal=self.deal)
        self._dealing.at_end = self._skip_missing
        stage.subscribe(self)

    def _first_line(self) -> str:
        if self.staleness == 0:
            return (
                f"Parameter server, synchronous: {self.world} workers take a batch each, and the numbers are those of "
                "--batch scale."
            )
        bound = "any number of steps" if math.isinf(self.staleness) else f"{self.staleness:g} steps"
        return (
            "Parameter server, asynchronous: the same numbers as in one process cannot be promised. A worker may be "
            f"{bound} ahead of the slowest; {CORRECTED[self.correction]}; rank 0's numbers are shown."
        )

    def _meet(self, settings: WorkerSettings, store: LinkStore) -> Meeting:
        """Rank 0 starts the servers, and tells the others through the launcher, which only this run's workers reach."""
        if settings.rank:
            return msgspec.json.decode(store.get("meeting"), type=Meeting)
        keys = Keys.make()
        config = ServerConfig(
            keys=keys,
            network=settings.address if settings.hosts > 1 else "",
            folder=os.path.realpath(Path(settings.control.removeprefix("ipc://")).parent),
            record=settings.record,
            servers=self.servers,
            staleness=None if math.isinf(self.staleness) else self.staleness,
            workers=settings.world,
            backup=self.backup,
            correction=self.correction,
            write_every=self.write,
            last_write=False,
        )
        # The servers must outlive rank 0, which may end before other workers: their guardian is the workers' parent.
        met = Meeting(Servers(config, fork=True, guardian=os.getppid()).addresses(), keys.access)
        store.set("meeting", msgspec.json.encode(met))
        return met

    @contextmanager
    def _waiting(self, what: str) -> Iterator[None]:
        """The time counts as communication. It is no collective: nobody is blamed for a stall."""
        self.stage.watch.enter(COMMUNICATION)
        try:
            yield
        finally:
            self.stage.watch.leave()

    # -- seams and what the stage asks --------------------------------------------------------------------------------

    def place(self, module: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        if self.client is not None:
            for optimizer in optimizers:
                self._exchange(optimizer)

    def call(self, plain: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
        if self.client is None or self.world == 1 or not (torch.is_grad_enabled() and module.training):
            return super().call(plain, module, args, kwargs)
        with self._stream.inside():  # each worker has dropout of its own, and the script's streams stay equal
            return super().call(plain, module, args, kwargs)

    def on_batch(self, batch: Any) -> None:
        if self.stage.views.is_training():
            self._samples += self.stage.views.batch_size(batch)

    def before_forward(self, module: nn.Module) -> None:
        learns = torch.is_grad_enabled() and module.training
        if self.rank and self.deal == "free" and self.client is not None and self._store.check(["over"]):
            raise EnoughSteps  # rank 0 has ended: nobody would see what this worker still learns
        for exchange in self._exchanges.values():
            exchange.wait()
            if exchange.is_changed():  # loaded, clipped, …: rank 0's script speaks for all
                exchange.assign(send=self.rank == 0)
            elif learns != self._learns and self.staleness:
                # Evaluates what all workers have learnt, and does not train on what was new before the evaluation.
                exchange.pull()
        self._learns = learns

    def step(self, plain: Callable[..., Any], optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        if self.client is None:
            return plain(optimizer, *args, **kwargs)
        closure, loss = args[0] if args else kwargs.get("closure"), None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        exchange = self._exchange(optimizer)
        samples, steps = self._counted.get(exchange.number, (0, 0))
        exchange.step(weight=max(1, self._samples - samples))
        self._counted[exchange.number] = self._samples, steps + 1
        return loss

    def full(self, tensor: torch.Tensor) -> torch.Tensor:
        """A parameter as the script saves it: without the rest of the memory that it lies in."""
        if any(exchange.holds(tensor) for exchange in self._exchanges.values()):
            return tensor.detach().clone().requires_grad_(tensor.requires_grad)
        return tensor

    def on_end(self) -> None:
        self.on_enough()

    def on_enough(self) -> None:
        if self.client is not None:
            if self.rank == 0 and self.deal == "free":
                self._store.set("over", b"")
            if self.rank == 0 and self._several_hosts:
                self._wait_for_others()
            self.client.close()
            self.client = None
            if self.rank and self._several_hosts:
                self._store.set(f"done/{self.rank}", b"")

    def _wait_for_others(self) -> None:
        """On several hosts, the servers end with the workers of rank 0's host, so it waits until the others have made
        their last steps. A worker that is lost never does, and is given up after a while."""
        others = [f"done/{rank}" for rank in range(1, self.world)]
        with suppress(dist.DistStoreError), self._waiting("the last steps of the other workers"):
            self._store.wait(others, timeout=timedelta(seconds=LAST))

    def _exchange(self, optimizer: torch.optim.Optimizer) -> Exchange:
        """The optimizer's parameters on the servers; puts them there at the first call."""
        assert self.client is not None
        known = self._exchanges.get(id(optimizer))
        if known is not None:
            if sum(len(group["params"]) for group in optimizer.param_groups) != len(known.tensors):
                raise ScriptError(
                    f"The script gave {type(optimizer).__name__} more parameters after its first step, which servers "
                    "cannot take up.",
                    advice="Make a new optimizer, or use another strategy: --strategy mirrored",
                )
            return known
        exchange = self._exchanges[id(optimizer)] = Exchange(
            self.client, len(self._exchanges), optimizer, correction=self.correction if self.staleness else "none"
        )
        self._carry_state(optimizer, exchange)
        name = type(optimizer).__name__
        self.stage.pulse.notice(f"Parameters of {name} on {exchange.describe()}.")
        if self.staleness and self.correction == "momentum" and not exchange.has_momenta:
            self.stage.pulse.notice(f"{name} without SGD's momentum: {CORRECTED['rate']}.")
        return exchange

    def _carry_state(self, optimizer: torch.optim.Optimizer, exchange: Exchange) -> None:
        """The optimizer's state lives on the servers: `state_dict` brings it here, `load_state_dict` takes it there."""

        def bring(_: Any) -> None:
            if self.client is not None:
                for number, state in exchange.state().items():
                    if state:
                        optimizer.state[exchange.given[number]] = state

        def forget(_: Any, __: Any) -> None:
            if self.client is not None:
                optimizer.state.clear()

        def take(_: Any) -> None:
            if self.client is not None and self.rank == 0:
                exchange.load(force=True)

        optimizer.register_state_dict_pre_hook(bring)
        optimizer.register_state_dict_post_hook(forget)
        optimizer.register_load_state_dict_post_hook(take)

    def _skip_missing(self, iteration: Iteration) -> None:
        """At the end of an iteration in which other workers took one batch more: they need not wait for this one."""
        for exchange in self._exchanges.values():
            _, steps = self._counted.get(exchange.number, (0, 0))
            self._counted[exchange.number] = self._samples, 0  # what was accumulated and not stepped is left behind
            if iteration.is_short and not math.isinf(self.staleness):
                for _ in range(steps_more(iteration.taken, steps)):
                    exchange.skip()


def steps_more(batches: int, steps: int) -> int:
    """Steps that one more batch makes, at the steps per batch so far: with gradient accumulation, fewer than one."""
    if not batches:
        return 1
    if steps >= batches:
        return steps // batches
    each = round(batches / steps) if steps else batches + 2
    return (batches + 1) // each - steps
