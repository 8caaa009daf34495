"""PowerSGD (Vogels, Karimireddy and Jaggi, 2019): low-rank compression of the gradients sent between hosts.

A layer's matrix M, n × m, is sent as P Qᵀ, with r columns in P and Q. Each training step runs one step of the power
method from the previous Q, so that the product follows the r strongest directions over time. Each worker keeps the
residual and adds it to its next gradient (error feedback), so that every direction is applied eventually.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from paceline.comm.network.algorithms import all_reduce, broadcast
from paceline.comm.network.compression import WIDE
from paceline.comm.network.costs import Costs
from paceline.comm.network.gloo_wire import Wire

ROWS = 1 << 16  # values of a matrix that are rebuilt at a time, so that the values stay in the cache


@dataclass(frozen=True, slots=True)
class _Place:
    """The position of a matrix within a part of a bucket."""

    start: int
    rows: int
    columns: int

    def of(self, part: torch.Tensor) -> torch.Tensor:
        return part[self.start : self.start + self.rows * self.columns].view(self.rows, self.columns)


@dataclass(eq=False, slots=True)
class _Memory:
    """The state of one part of the bucket, kept between steps."""

    places: list[_Place]
    rest: list[tuple[int, int]]  # ranges that are sent uncompressed
    q: list[torch.Tensor]
    left_out: list[torch.Tensor]  # this worker's residual of each matrix; empty without error feedback


class PowerSGD:
    """The compressor of one bucket. It keeps state between steps, so each bucket needs its own.

    The total of each matrix is replaced by an approximation of rank `rank`. The difference stays in the residuals of
    the workers and is added to later steps. Vectors, and matrices whose compression ratio would be below `least`, are
    sent uncompressed and stay exact. The same holds for the first `start` steps and for a step with non-finite values,
    so that a loss scaler sees these values and the residuals stay finite. The residuals end with the process: a run
    that resumes from a checkpoint starts without them.

    All workers get the same bits: rank 0 of the wire orthogonalizes P for all workers, and the product is computed with
    multiplications and additions in a fixed order, which does not depend on the number of threads."""

    whole = True

    def __init__(
        self,
        rank: int = 4,
        shapes: Sequence[Sequence[int]] | None = None,
        *,
        start: int = 10,
        least: float = 2.0,
        feedback: bool = True,
    ) -> None:
        """`shapes`: the shapes of the parameters in the bucket, in order. Without shapes each part of the bucket is
        treated as one square matrix; its rows are unrelated, so a higher rank is needed. `feedback=False` is for
        comparison only: training may not converge."""
        self.rank, self.start, self.least, self.feedback = rank, start, least, feedback
        self._shapes = shapes
        self._steps: dict[tuple[int, int], int] = {}
        self._memories: dict[tuple[int, int], _Memory] = {}

    @property
    def notice(self) -> str:
        residual = "is added to later gradients" if self.feedback else "is lost"
        return (
            f"Gradients are sent between hosts as matrices of rank {self.rank} (PowerSGD) from step {self.start + 1} "
            f"on: each step's gradient is an approximation, and the residual {residual}. "
            "The loss will differ from that of an uncompressed run."
        )

    def all_reduce(self, part: torch.Tensor, wire: Wire, *, offset: int = 0, costs: Costs | None = None) -> None:
        if wire.world == 1 or not part.numel():
            return
        key = offset, part.numel()
        step = self._steps[key] = self._steps.get(key, 0) + 1
        if part.dtype not in WIDE or step <= self.start:
            return all_reduce(part, wire, costs=costs)
        memory = self._memories.get(key)
        if memory is None:
            memory = self._memories[key] = self._remember(part, offset)
        if not memory.places:
            return all_reduce(part, wire, costs=costs)
        with torch.no_grad():
            self._approximate(part, memory, wire, costs)

    def _approximate(self, part: torch.Tensor, memory: _Memory, wire: Wire, costs: Costs | None) -> None:
        matrices = [place.of(part) for place in memory.places]
        ps = [matrix @ q for matrix, q in zip(matrices, memory.q, strict=True)]
        for p, left_out, q in zip(ps, memory.left_out, memory.q, strict=bool(memory.left_out)):
            p.addmm_(left_out, q)
        first, ps, rest = _pack(ps, [part[start:end] for start, end in memory.rest])
        all_reduce(first, wire, costs=costs)
        # `first` has the same bits on all workers, so all take the same branch. `part` has not been changed yet.
        if not bool(torch.isfinite(first).all()):
            return all_reduce(part, wire, costs=costs)

        if wire.rank == 0:
            for p in ps:
                # QR by reflections replaces a zero or linearly dependent column by a new direction, so that the rank
                # of P never drops for good.
                p.copy_(torch.linalg.qr(p).Q)
        broadcast(first[: sum(p.numel() for p in ps)], wire)

        own = [left_out.add_(matrix) for left_out, matrix in zip(memory.left_out, matrices, strict=False)] or matrices
        second, qs, _ = _pack([matrix.T @ p for matrix, p in zip(own, ps, strict=True)], [])
        for left_out, p, q in zip(memory.left_out, ps, qs, strict=bool(memory.left_out)):
            left_out.addmm_(p, q.T, alpha=-1.0)
        all_reduce(second, wire, costs=costs)
        for matrix, p, q in zip(matrices, ps, qs, strict=True):
            _multiply(p, q, matrix)
        for (start, end), values in zip(memory.rest, rest, strict=True):
            part[start:end] = values
        memory.q = qs

    def _remember(self, part: torch.Tensor, offset: int) -> _Memory:
        places = [
            place
            for place in self._matrices(offset, offset + part.numel())
            if min(place.rows, place.columns) >= self.rank
            and place.rows * place.columns >= self.least * self.rank * (place.rows + place.columns)
        ]
        edges = [0, *(edge for p in places for edge in (p.start, p.start + p.rows * p.columns)), part.numel()]
        rest = [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if a < b]
        generator = torch.Generator().manual_seed(offset)
        q = [
            torch.randn(place.columns, self.rank, generator=generator, dtype=part.dtype, device="cpu")
            for place in places
        ]
        left_out = [torch.zeros_like(place.of(part)) for place in places] if self.feedback else []
        return _Memory(places, rest, q, left_out)

    def _matrices(self, start: int, end: int) -> Iterator[_Place]:
        """The complete rows of the bucket's matrices within this part."""
        if self._shapes is None:
            side = math.isqrt(end - start)
            if side:
                yield _Place(0, (end - start) // side, side)
            return
        at = 0
        for shape in self._shapes:
            size = math.prod(shape)
            if len(shape) > 1 and size:
                columns = size // shape[0]
                first = max(0, -(-(start - at) // columns))
                last = min(shape[0], (end - at) // columns)
                if last > first:
                    yield _Place(at + first * columns - start, last - first, columns)
            at += size


def _pack(
    matrices: Sequence[torch.Tensor], vectors: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
    """One flat message of all tensors, and views of the message in the tensors' shapes."""
    tensors = [*matrices, *vectors]
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    pieces = flat.split([tensor.numel() for tensor in tensors])
    views = [piece.view(tensor.shape) for piece, tensor in zip(pieces, tensors, strict=True)]
    return flat, views[: len(matrices)], views[len(matrices) :]


def _multiply(p: torch.Tensor, q: torch.Tensor, out: torch.Tensor) -> None:
    """`out` = p qᵀ. Not with a matrix product, whose order of additions, and so the bits, depend on threads and
    processor."""
    columns = [(p[:, k : k + 1], q[:, k].contiguous()) for k in range(p.shape[1])]
    step = max(1, ROWS // out.shape[1])
    room = torch.empty_like(out[:step])
    for start in range(0, out.shape[0], step):
        rows = out[start : start + step]
        product = room[: rows.shape[0]]
        for number, (left, right) in enumerate(columns):
            if number == 0:
                torch.mul(left[start : start + step], right, out=rows)
            else:
                rows.add_(torch.mul(left[start : start + step], right, out=product))
