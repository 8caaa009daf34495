"""All-reduce over a `Wire`: five algorithms for different message sizes and numbers of workers n.

    doubling          recursive doubling: log₂ n messages of the full tensor; the fastest for a small tensor
    halving_doubling  Rabenseifner's algorithm: 2 log₂ n messages, and the fewest bytes if n is a power of two
    ring              the fewest bytes for every n, but 2 (n - 1) messages in sequence
    tree              two binary trees, each for one half of the tensor: 2 log₂ n messages for every n
    direct            each part goes directly to the worker that sums this part (direct.py): for float16 and bfloat16,
                      which are summed in float32 and rounded once

`all_reduce` chooses the algorithm. Every worker of the wire calls the same function with a flat host tensor of the same
length and dtype. The tensor is changed in place, and all workers get the same bits. The order of additions depends only
on the number of workers and on the algorithm, never on timing. If a peer is gone, the wire's error is raised and the
content of the tensor is undefined. All algorithms except `direct` add in the tensor's own dtype.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import torch

from paceline.comm.network.costs import CHUNK, Costs, choose
from paceline.comm.network.direct import Cast, direct
from paceline.comm.network.gloo_wire import Transfer, Wire
from paceline.comm.network.parts import chunks, cut

AHEAD = 8  # messages received before the first of them must be added
HALVES = (torch.float16, torch.bfloat16)


def all_reduce(flat: torch.Tensor, wire: Wire, *, algorithm: str | None = None, costs: Costs | None = None) -> None:
    """Sums `flat` over the workers of the wire, in place, with the named algorithm; without a name, with the one of the
    lowest estimated time. `costs` must be the same on all workers."""
    if flat.dim() != 1 or not flat.is_contiguous() or flat.device.type != "cpu":
        raise ValueError(
            f"`flat` must be a 1-dimensional contiguous CPU tensor, found shape {tuple(flat.shape)} on {flat.device}."
        )
    if wire.world == 1 or not flat.numel():
        return
    name = algorithm or ("direct" if flat.dtype in HALVES else choose(flat.nbytes, wire.world, costs))
    with torch.no_grad():
        ALGORITHMS[name](flat, wire)


def doubling(flat: torch.Tensor, wire: Wire) -> None:
    """In each round every worker exchanges its full sum with one peer; the distance to the peer doubles each round."""
    pieces = chunks(flat, CHUNK)
    core = _fold(pieces, wire)
    distance = 1
    while wire.rank < core and distance < core:
        peer = wire.rank ^ distance
        sent = [wire.send(piece, peer) for piece in pieces]
        for piece, arrived in incoming(wire, [(piece, peer) for piece in pieces]):
            sent.pop(0).wait()  # before the sum overwrites the piece
            # The lower rank's values are the first operand on both sides, so that even the bits of a NaN agree.
            torch.add(*((arrived, piece) if peer < wire.rank else (piece, arrived)), out=piece)
        distance *= 2
    _unfold(pieces, wire, core)


def halving_doubling(flat: torch.Tensor, wire: Wire) -> None:
    """Recursive halving: in each round a worker sends one half of its range to a peer and adds the peer's other half,
    until each worker has the sum of one piece. Recursive doubling then returns the sums."""
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
    """Each part travels around the ring once while the workers add to it, and once more as the sum. A worker forwards a
    chunk as soon as the chunk has been added, while the next chunks arrive."""
    rank, world = wire.rank, wire.world
    left, right = (rank - 1) % world, (rank + 1) % world
    parts = [chunks(flat[start:end], CHUNK) for start, end in cut(flat.numel(), world)]
    sent = [wire.send(chunk, right) for chunk in parts[rank]]
    coming = [(chunk, left) for step in range(1, world) for chunk in parts[(rank - step) % world]]
    for chunk, arrived in incoming(wire, coming):
        chunk.add_(arrived)
        sent.append(wire.send(chunk, right))  # in the last step: the finished sum
    # The sum of a part arrives only after this worker's contribution has left its memory: receive into it directly.
    sums = [(chunk, step) for step in range(world - 1) for chunk in parts[(rank - step) % world]]
    for (chunk, step), transfer in zip(sums, [wire.receive(chunk, left) for chunk, _ in sums], strict=True):
        transfer.wait()
        if step < world - 2:
            sent.append(wire.send(chunk, right))
    _finish(sent)


def tree(flat: torch.Tensor, wire: Wire) -> None:
    """Reduce to a root and broadcast from it, in two trees at once. A leaf of one tree is an inner node of the other,
    so that all links carry the same load (the two-tree algorithm of Sanders, Speck and Träff)."""
    rank, world = wire.rank, wire.world
    halves = [chunks(flat[start:end], CHUNK) for start, end in cut(flat.numel(), 2)]
    relatives = [_relatives(rank, world, mirrored) for mirrored in range(2)]
    lines = [
        (half[number], *relatives[mirrored])
        for number in range(max(map(len, halves)))
        for mirrored, half in enumerate(halves)
        if number < len(half)
    ]  # the same order on all workers prevents a deadlock
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
    """Copies rank 0's values to every worker, in place, along a binomial tree: the distance to the target halves each
    time."""
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


def _direct(flat: torch.Tensor, wire: Wire) -> None:
    direct(flat, wire, Cast(flat.dtype))


ALGORITHMS: dict[str, Callable[[torch.Tensor, Wire], None]] = {
    "doubling": doubling,
    "halving_doubling": halving_doubling,
    "ring": ring,
    "tree": tree,
    "direct": _direct,
}


# -- shared by the algorithms ------------------------------------------------------------------------------------------


def incoming(wire: Wire, wanted: Sequence[tuple[torch.Tensor, int]]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """For each (tensor, source) in turn: the tensor, and the values that the source sent for it. The values are valid
    only until the next iteration."""
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
    """Reduces the number of active workers to a power of two and returns that number. Each other worker sends its
    full tensor to an active worker, and then waits for `_unfold`."""
    core = 1 << (wire.world.bit_length() - 1)
    if wire.rank >= core:
        _finish([wire.send(piece, wire.rank - core) for piece in pieces])
    elif wire.rank + core < wire.world:
        _add(wire, [(piece, wire.rank + core) for piece in pieces])
    return core


def _unfold(pieces: Sequence[torch.Tensor], wire: Wire, core: int) -> None:
    """Sends the sums to the inactive workers."""
    if wire.rank >= core:
        _finish([wire.receive(piece, wire.rank - core) for piece in pieces])
    elif wire.rank + core < wire.world:
        _finish([wire.send(piece, wire.rank + core) for piece in pieces])


def _relatives(rank: int, world: int, mirrored: int) -> tuple[int | None, list[int]]:
    """A worker's parent and children in a binary tree over all workers. No worker has children in both the first and
    the mirrored tree."""
    if not mirrored:
        place, worker_at = rank + 1, lambda place: place - 1
    elif world % 2 == 0:
        place, worker_at = world - rank, lambda place: world - place
    else:
        place, worker_at = (rank + 1) % world + 1, lambda place: (place - 2) % world
    parent = _parent(place, world)
    children = [worker_at(other) for other in range(1, world + 1) if _parent(other, world) == place]
    return None if parent is None else worker_at(parent), children


def _parent(place: int, last: int) -> int | None:
    """The parent of a node 1 … last. The level of a node is the number of its trailing zero bits. If a parent number
    exceeds `last`, the search goes on from that number. Odd nodes are leaves."""
    while True:
        lowest = place & -place
        if lowest << 1 > last and place <= last:
            return None
        place = place - lowest if place & (lowest << 1) else place + lowest
        if place <= last:
            return place
