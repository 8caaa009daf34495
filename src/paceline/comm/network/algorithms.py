"""Sums over a `Wire`: five ways to the same total, for different sizes and numbers of workers.

    doubling          log₂ n messages of everything: nothing is sooner for a small tensor
    halving_doubling  Rabenseifner's: 2 log₂ n messages, and as few bytes as can be, if n is a power of two
    ring              as few bytes as can be for every n, but 2 (n - 1) messages one after the other
    tree              two binary trees, each for one half of the tensor: 2 log₂ n messages for every n
    direct            each part goes straight to the worker that adds it up (direct.py): for half types, whose sums are
                      made in float32 and rounded once

`all_reduce` chooses. Every worker of the wire calls the same function with a flat tensor of the same length and dtype,
on the host; it is changed in place, and all workers end with the same bits. The order of additions depends on the
number of workers and on the algorithm, never on time. When a peer is gone, the wire's error is raised and the tensor
holds a part of the work. All but `direct` add in the tensor's own dtype.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import torch

from paceline.comm.network.costs import CHUNK, Costs, choose
from paceline.comm.network.direct import Cast, direct
from paceline.comm.network.messages import Transfer, Wire
from paceline.comm.network.parts import chunks, cut

AHEAD = 8  # messages that may arrive before they are added up
HALVES = (torch.float16, torch.bfloat16)


def all_reduce(flat: torch.Tensor, wire: Wire, *, algorithm: str | None = None, costs: Costs | None = None) -> None:
    """Sums `flat` over the workers of the wire, in place, by the named algorithm or by the one that should be soonest.
    `costs` must be the same on all workers."""
    if flat.dim() != 1 or not flat.is_contiguous() or flat.device.type != "cpu":
        raise ValueError(f"A flat tensor of the host is needed, not {tuple(flat.shape)} on {flat.device}.")
    if wire.world == 1 or not flat.numel():
        return
    name = algorithm or ("direct" if flat.dtype in HALVES else choose(flat.nbytes, wire.world, costs))
    with torch.no_grad():
        ALGORITHMS[name](flat, wire)


def doubling(flat: torch.Tensor, wire: Wire) -> None:
    """In each round everybody swaps all it has with one other worker, twice as far away as before."""
    pieces = chunks(flat, CHUNK)
    core = _fold(pieces, wire)
    distance = 1
    while wire.rank < core and distance < core:
        peer = wire.rank ^ distance
        sent = [wire.send(piece, peer) for piece in pieces]
        for piece, arrived in incoming(wire, [(piece, peer) for piece in pieces]):
            sent.pop(0).wait()  # before the sum overwrites it
            # The lower worker's numbers come first on both sides: even a NaN's bits agree.
            torch.add(*((arrived, piece) if peer < wire.rank else (piece, arrived)), out=piece)
        distance *= 2
    _unfold(pieces, wire, core)


def halving_doubling(flat: torch.Tensor, wire: Wire) -> None:
    """Half of what is left goes to a peer and its other half comes back, until each has the sum of one piece; then the
    same way back with the sums."""
    everything = chunks(flat, CHUNK)
    core = _fold(everything, wire)
    sent: list[Transfer] = []
    if wire.rank < core:
        own, given = flat, list[tuple[int, torch.Tensor]]()
        distance = core // 2
        while distance:
            peer = wire.rank ^ distance
            halves = [own[start:end] for start, end in cut(own.numel(), 2)]
            own, other = halves if wire.rank < peer else reversed(halves)
            sent += [wire.send(piece, peer) for piece in chunks(other, CHUNK)]
            _add(wire, [(piece, peer) for piece in chunks(own, CHUNK)])
            given.append((peer, other))
            distance //= 2
        for peer, other in reversed(given):
            sent += [wire.send(piece, peer) for piece in chunks(own, CHUNK)]
            _finish([wire.receive(piece, peer) for piece in chunks(other, CHUNK)])
            start = min(own.storage_offset(), other.storage_offset()) - flat.storage_offset()
            own = flat[start : start + own.numel() + other.numel()]
    _finish(sent)
    _unfold(everything, wire, core)


def ring(flat: torch.Tensor, wire: Wire) -> None:
    """Each part travels around once while it is added up, and once more as the sum. A chunk leaves as soon as it has
    been added, while the next ones arrive."""
    rank, world = wire.rank, wire.world
    left, right = (rank - 1) % world, (rank + 1) % world
    parts = [chunks(flat[start:end], CHUNK) for start, end in cut(flat.numel(), world)]
    sent = [wire.send(chunk, right) for chunk in parts[rank]]
    coming = [(chunk, left) for step in range(1, world) for chunk in parts[(rank - step) % world]]
    for chunk, arrived in incoming(wire, coming):
        chunk.add_(arrived)
        sent.append(wire.send(chunk, right))  # in the last step: the sum itself
    # A part's sum can only come when what we gave to it has left our memory: it may be written there at once.
    sums = [(chunk, step) for step in range(world - 1) for chunk in parts[(rank - step) % world]]
    for (chunk, step), transfer in zip(sums, [wire.receive(chunk, left) for chunk, _ in sums], strict=True):
        transfer.wait()
        if step < world - 2:
            sent.append(wire.send(chunk, right))
    _finish(sent)


def tree(flat: torch.Tensor, wire: Wire) -> None:
    """Up to a root and down again, in two trees at once: who only gives in one has others below it in the other, so
    that every worker's link is used alike (Sanders, Speck and Träff's two-tree idea)."""
    rank, world = wire.rank, wire.world
    halves = [chunks(flat[start:end], CHUNK) for start, end in cut(flat.numel(), 2)]
    kin = [_kin(rank, world, mirrored) for mirrored in range(2)]
    lines = [
        (half[number], *kin[mirrored])
        for number in range(max(map(len, halves)))
        for mirrored, half in enumerate(halves)
        if number < len(half)
    ]  # the same order on all workers: nobody waits for one who waits for it
    sent = list[Transfer]()
    arriving = incoming(wire, [(chunk, child) for chunk, _, children in lines for child in children])
    for chunk, parent, children in lines:
        for _ in children:
            chunk.add_(next(arriving)[1])
        if parent is not None:
            sent.append(wire.send(chunk, parent))
    coming = [None if parent is None else wire.receive(chunk, parent) for chunk, parent, _ in lines]
    for (chunk, _, children), transfer in zip(lines, coming, strict=True):
        if transfer is not None:
            transfer.wait()
        sent += [wire.send(chunk, child) for child in children]
    _finish(sent)


def broadcast(flat: torch.Tensor, wire: Wire) -> None:
    """Gives every worker rank 0's values, in place. Who has them passes them on, to one twice as near each time."""
    pieces = chunks(flat, CHUNK)
    nearest = wire.rank & -wire.rank  # rank 0: none
    distance = (nearest or 1 << wire.world.bit_length()) >> 1
    sent = list[Transfer]()
    arriving = [wire.receive(piece, wire.rank - nearest) for piece in pieces] if nearest else []
    targets = [wire.rank + (distance >> step) for step in range(distance.bit_length())]
    for number, piece in enumerate(pieces):
        if arriving:
            arriving[number].wait()
        sent += [wire.send(piece, target) for target in targets if target < wire.world]
    _finish(sent)


def _straight(flat: torch.Tensor, wire: Wire) -> None:
    direct(flat, wire, Cast(flat.dtype))


ALGORITHMS: dict[str, Callable[[torch.Tensor, Wire], None]] = {
    "doubling": doubling,
    "halving_doubling": halving_doubling,
    "ring": ring,
    "tree": tree,
    "direct": _straight,
}


# -- what they share ---------------------------------------------------------------------------------------------------


def incoming(wire: Wire, wanted: Sequence[tuple[torch.Tensor, int]]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """For each (tensor, source) in turn: the tensor, and what the source sent for it. What was given may be overwritten
    when the next one is asked for."""
    longest = max((tensor.numel() for tensor, _ in wanted), default=0)
    spare = [wanted[0][0].new_empty(longest) for _ in range(min(AHEAD, len(wanted)))]
    under_way: deque[tuple[torch.Tensor, torch.Tensor, Transfer]] = deque()
    for tensor, source in wanted:
        if not spare:
            first, buffer, transfer = under_way.popleft()
            transfer.wait()
            yield first, buffer[: first.numel()]
            spare.append(buffer)
        buffer = spare.pop()
        under_way.append((tensor, buffer, wire.receive(buffer[: tensor.numel()], source)))
    for first, buffer, transfer in under_way:
        transfer.wait()
        yield first, buffer[: first.numel()]


def _add(wire: Wire, wanted: Sequence[tuple[torch.Tensor, int]]) -> None:
    for tensor, arrived in incoming(wire, wanted):
        tensor.add_(arrived)


def _finish(transfers: Sequence[Transfer]) -> None:
    for transfer in transfers:
        transfer.wait()


def _fold(pieces: Sequence[torch.Tensor], wire: Wire) -> int:
    """Brings the workers down to a power of two: those above it give all they have to one below, and wait. Gives the
    number of those who go on."""
    core = 1 << (wire.world.bit_length() - 1)
    if wire.rank >= core:
        _finish([wire.send(piece, wire.rank - core) for piece in pieces])
    elif wire.rank + core < wire.world:
        _add(wire, [(piece, wire.rank + core) for piece in pieces])
    return core


def _unfold(pieces: Sequence[torch.Tensor], wire: Wire, core: int) -> None:
    """Gives the sums to those who waited."""
    if wire.rank >= core:
        _finish([wire.receive(piece, wire.rank - core) for piece in pieces])
    elif wire.rank + core < wire.world:
        _finish([wire.send(piece, wire.rank + core) for piece in pieces])


def _kin(rank: int, world: int, mirrored: int) -> tuple[int | None, list[int]]:
    """A worker's parent and children in a binary tree over all workers. The first and the mirrored tree have no worker
    that is above others in both."""
    if not mirrored:
        place, worker_at = rank + 1, lambda place: place - 1
    elif world % 2 == 0:
        place, worker_at = world - rank, lambda place: world - place
    else:
        place, worker_at = (rank + 1) % world + 1, lambda place: (place - 2) % world
    above = _above(place, world)
    children = [worker_at(other) for other in range(1, world + 1) if _above(other, world) == place]
    return None if above is None else worker_at(above), children


def _above(place: int, last: int) -> int | None:
    """The parent of a place 1 … last. Read as binary, a place hangs as many levels up as it has zeros at its end; a
    parent that does not exist is skipped. Odd places have nobody below them."""
    while True:
        lowest = place & -place
        if lowest << 1 > last and place <= last:
            return None
        place = place - lowest if place & (lowest << 1) else place + lowest
        if place <= last:
            return place
