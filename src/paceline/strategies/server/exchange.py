"""One optimizer's parameters, as a worker has them: a copy in memory that it shares with the servers of its host.

A step pushes the gradients and waits for new parameters. A server of this host reads the gradients and writes the
parameters in the worker's memory, so nothing is copied twice; to other hosts, raw frames are sent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import torch

from paceline.comm.memory.region import PAGE, Region
from paceline.strategies.server import messages as say
from paceline.strategies.server.client import Client, Make, Pending, told
from paceline.strategies.server.optimizers import options_of, spec_of
from paceline.strategies.server.partition import Partition, TensorSpec, describe, split
from paceline.strategies.server.shard_file import from_raw, raw
from paceline.strategies.server.stale.correction import Kind, has_momenta


class Exchange:
    """Every worker makes one for each optimizer, in the same order. The first worker's values are the initial ones."""

    def __init__(
        self,
        client: Client,
        number: int,
        optimizer: torch.optim.Optimizer,
        names: Sequence[str] | None = None,
        *,
        correction: Kind = "none",
    ) -> None:
        """Waits until every server holds the parameters, then gives this worker's parameters their values.
        `correction`: the servers', who may need to know more about a push."""
        self.client, self.number, self.optimizer = client, number, optimizer
        self._spec, self.given = spec_of(optimizer)
        self.tensors = tuple(
            TensorSpec.of(names[at] if names else f"parameter {at}", tensor) for at, tensor in enumerate(self.given)
        )
        self.partition: Partition = split(self.tensors, client.servers, whole=self._spec.whole)
        self._gradients_at = -(-self.partition.size // PAGE) * PAGE
        self._memory = Region(2 * self._gradients_at + PAGE)
        self.parameters = self._views(0)
        self.gradients = self._views(self._gradients_at)
        self._correction = correction
        self._held = [share for share in self.partition.shares if share.pieces]
        self._mapped = client.shares_memory
        self.clock: int | None = None  # steps done
        self.sequence = say.ALL_ANSWERED
        self.versions = dict.fromkeys((share.server for share in self._held), -1)
        self.staleness = -1  # of the last push
        self._asked: dict[int, Pending] = {}
        with torch.no_grad():
            for mine, tensor in zip(self.parameters, self.given, strict=True):
                mine.copy_(tensor)
        client.openings.append(self._opening)
        self._open()
        self._adopt()
        self._seen = self._stamps()
        if optimizer.state:
            self.load(force=False)

    @property
    def has_momenta(self) -> bool:
        """Whether servers can keep a momentum for each worker."""
        return has_momenta(self._spec.path, self.optimizer.param_groups)

    def describe(self) -> str:
        """The balance of the servers, in words."""
        return describe(self.tensors, self.partition)

    @torch.no_grad()
    def push(self, *, weight: float = 1.0) -> None:
        """Sends the gradients of the optimizer's parameters; does not wait. `weight` is the number of samples, which
        counts where a synchronous server averages."""
        missing, norms = [], []
        measures = self._correction == "momentum" and self.has_momenta
        for number, (mine, tensor) in enumerate(zip(self.gradients, self.given, strict=True)):
            if tensor.grad is None:
                missing.append(number)
            elif tensor.grad.data_ptr() != mine.data_ptr():
                mine.copy_(tensor.grad.to_dense() if tensor.grad.is_sparse else tensor.grad)
            if measures and tensor.grad is not None:
                norms.append(float(torch.linalg.vector_norm(mine)))  # while the copy is in the processor's cache
        self._send_push(weight, tuple(missing), math.hypot(*norms))

    def skip(self) -> None:
        """A step without a gradient: this worker has no batch while others have. Does not wait."""
        self._send_push(0.0, tuple(range(len(self.tensors))))

    def wait(self) -> None:
        """Waits for the parameters after a push: until this worker may go on."""
        if self._asked:
            self._take(self.client.finish(self._asked, "parameters from a parameter server"))
            self._asked = {}

    def step(self, *, weight: float = 1.0) -> None:
        self.push(weight=weight)
        self.wait()

    def pull(self) -> None:
        """The newest parameters, also those of other workers' updates."""
        self.wait()
        makes: dict[int, Make] = {share.server: self._pull for share in self._held}
        self._take(self.client.ask_all(makes, "parameters from a parameter server"))

    def state(self) -> dict[int, dict[str, Any]]:
        """The optimizer's state from all servers, by parameter number: numbers, and whole tensors."""
        self.wait()
        make: Make = lambda number: (say.State(number, self.client.worker, self.number), None)  # noqa: E731
        asked = self.client.ask_all({share.server: make for share in self._held}, "the optimizer's state")
        found: dict[int, dict[str, Any]] = {}
        for share in self._held:
            described = msgspec.msgpack.decode(told(asked[share.server]), type=list[dict[str, Any]])
            numbers, offset = asked[share.server].numbers or memoryview(b""), 0
            for piece, entry in zip(share.pieces, described, strict=True):
                whole = found.setdefault(piece.tensor, {})
                for name, value in entry.items():
                    if not isinstance(value, dict):
                        whole[name] = value
                        continue
                    part = from_raw(numbers, value["dtype"], value["shape"], offset)
                    offset += part.numel() * part.element_size()
                    whole[name] = self._put(whole.get(name), part, piece.tensor, piece.start, piece.stop)
        return found

    def load(self, *, force: bool) -> None:
        """Gives the servers the state that the script has loaded into its optimizer; without `force`, only if no
        update was made yet."""
        self.wait()
        makes: dict[int, Make] = {}
        for share in self._held:
            described: list[dict[str, Any]] = []
            parts: list[bytes] = []
            for piece in share.pieces:
                entry = {}
                for name, value in self.optimizer.state.get(self.given[piece.tensor], {}).items():
                    if isinstance(value, torch.Tensor):
                        part = self._part(value.detach().cpu(), piece.tensor, piece.start, piece.stop)
                        entry[name] = {
                            "tensor": len(parts),
                            "dtype": str(part.dtype).removeprefix("torch."),
                            "shape": list(part.shape),
                        }
                        parts.append(bytes(raw(part)))
                    else:
                        entry[name] = value
                described.append(entry)
            ask = say.Load(0, self.client.worker, self.number, tuple(described), force)
            makes[share.server] = _making(ask, b"".join(parts))
        self.client.ask_all(makes, "the optimizer's state")

    def is_changed(self) -> bool:
        """Whether the script itself has changed parameters in place since the last push or pull."""
        return self._seen != self._stamps()

    def assign(self, *, send: bool) -> None:
        """Gives the servers the parameters that the script has changed; without `send`, another worker does."""
        self.wait()
        if send:
            for mine, tensor in zip(self.parameters, self.given, strict=True):
                if tensor.data_ptr() != mine.data_ptr():
                    mine.copy_(tensor.detach())
            ask = say.Assign(0, self.client.worker, self.number)
            makes = {
                share.server: _making(ask, None if self._mapped else bytes(self._bytes(share.begin, share.end)))
                for share in self._held
            }
            self.client.ask_all(makes, "parameters that the script has changed")
        self._seen = self._stamps()

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies in the shared memory."""
        return self._memory.address <= tensor.data_ptr() < self._memory.address + self._memory.size

    # -- requests -----------------------------------------------------------------------------------------------------

    def _opening(self, server: int) -> Make:
        share = next(share for share in self.partition.shares if share.server == server)
        place = (*self._memory.place, self._memory.size) if self._mapped else None

        def make(number: int) -> tuple[say.Ask, Any]:
            seen = max(self.versions.values(), default=-1)
            ask = say.Open(
                *(number, self.client.worker, self.number, self.tensors, share, self._spec, place),
                *(self._gradients_at, self.clock, seen),
            )
            return ask, None if self._mapped else bytes(self._bytes(share.begin, share.end))

        return make

    def _open(self) -> None:
        what = "the first parameters from a parameter server"
        asked = self.client.ask_all({share.server: self._opening(share.server) for share in self._held}, what)
        if self._mapped and any(
            not isinstance(a := each.answer, say.Numbers) or not a.mapped for each in asked.values()
        ):
            self._mapped = False  # a server cannot open this worker's memory
            asked = self.client.ask_all({share.server: self._opening(share.server) for share in self._held}, what)
        self._take(asked)

    def _send_push(self, weight: float, missing: tuple[int, ...], norm: float = 0.0) -> None:
        self.wait()
        self.sequence += 1
        sequence, clock, options = self.sequence, self.clock or 0, tuple(options_of(self.optimizer))

        def making(server: int, begin: int, end: int) -> Make:
            version = self.versions[server]

            def make(number: int) -> tuple[say.Ask, Any]:
                ask = say.Push(
                    *(number, self.client.worker, self.number, sequence, clock, version, weight, missing, options),
                    norm,
                )
                at = self._gradients_at
                return ask, None if self._mapped or not weight else self._bytes(at + begin, at + end)

            return make

        self._asked = self.client.begin(
            {share.server: making(share.server, share.begin, share.end) for share in self._held}
        )

    def _pull(self, number: int) -> tuple[say.Ask, Any]:
        return say.Pull(number, self.client.worker, self.number), None

    @torch.no_grad()
    def _take(self, asked: dict[int, Pending]) -> None:
        clocks = []
        for share in self._held:
            pending = asked[share.server]
            answer = pending.answer
            assert isinstance(answer, say.Numbers)
            if not answer.mapped and pending.numbers is not None:
                self._bytes(share.begin, share.end)[:] = pending.numbers
            self.versions[share.server] = answer.version
            clocks.append(answer.clock)
            self.staleness = answer.staleness
        self.clock = max(clocks, default=0)
        for mine, tensor in zip(self.parameters, self.given, strict=True):
            if tensor.data_ptr() != mine.data_ptr():
                tensor.copy_(mine)
        self._seen = self._stamps()

    # -- memory -------------------------------------------------------------------------------------------------------

    def _views(self, at: int) -> list[torch.Tensor]:
        found = []
        for offset, spec, tensor in zip(self.partition.offsets, self.tensors, self.given, strict=True):
            flat = self._memory.bytes[at + offset : at + offset + spec.bytes].view(spec.torch_dtype)
            found.append(
                flat.as_strided(tensor.shape, tensor.stride()) if self._keeps(tensor) else flat.view(spec.shape)
            )
        return found

    def _keeps(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor keeps its memory format (channels_last): an optimizer that sees only elements lets it."""
        reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        return not self._spec.whole and tensor.numel() > 0 and reach == tensor.numel() - 1

    def _bytes(self, begin: int, end: int) -> memoryview:
        return raw(self._memory.bytes)[begin:end]

    def _adopt(self) -> None:
        """Lets the script's own parameters live in the shared memory, where servers write them."""
        for mine, tensor in zip(self.parameters, self.given, strict=True):
            if tensor.device.type == "cpu":
                tensor.data = mine

    def _stamps(self) -> list[int]:
        """Torch counts the changes in place of each tensor; what servers write is not counted."""
        return [tensor._version for tensor in self.given]

    def _part(self, whole: torch.Tensor, number: int, start: int, stop: int) -> torch.Tensor:
        """The part of a state tensor that belongs to a piece; see `_put`."""
        spec, tensor = self.tensors[number], self.given[number]
        if whole.numel() != spec.elements or (not whole.dim() and tensor.dim()):
            return whole.contiguous()
        if not self._keeps(tensor):
            flat = whole.contiguous().view(-1)
        else:
            flat = (
                torch.empty_like(tensor, dtype=whole.dtype, device="cpu")
                .copy_(whole)
                .as_strided((spec.elements,), (1,))
            )
        part = flat[start:stop]
        return part.reshape(spec.shape) if stop - start == spec.elements else part

    def _put(self, whole: Any, part: torch.Tensor, number: int, start: int, stop: int) -> torch.Tensor:
        """A part of a state tensor, put at its place in the whole one."""
        spec, tensor = self.tensors[number], self.given[number]
        if part.numel() != stop - start or (part.numel() == 1 and not part.dim() and tensor.dim()):
            return part  # not one number per element: a step count
        if whole is None:
            whole = torch.empty_like(tensor, dtype=part.dtype, device="cpu")
        flat = whole.as_strided((spec.elements,), (1,)) if self._keeps(tensor) else whole.view(-1)
        flat[start:stop] = part.reshape(-1)
        return whole


def _making(ask: say.Load | say.Assign, numbers: bytes | None) -> Make:
    return lambda number: (msgspec.structs.replace(ask, request=number), numbers)
