"""Machines for tests: the texts beside this file, and random ones."""

from __future__ import annotations

from pathlib import Path as File

from hypothesis import strategies as st

from paceline.topology.links import PCIE, usual_rate
from paceline.topology.machine import CgroupLimits, CpuCache, Gpu, Link, Nic, NumaNode, Package, Path, Topology

TEXTS = File(__file__).parent / "texts"

kinds = st.one_of(st.sampled_from(PCIE), st.integers(1, 18).map(lambda count: f"NV{count}"))
pcie = st.sampled_from(PCIE)
lists = st.sampled_from(["", "0-3", "0-19,40-59", "7", "0,2,4-6"])
words = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "Z")), max_size=12)


def text(name: str) -> str:
    return (TEXTS / name).read_text()


def machine(rates: list[list[str]], nodes: list[int | None] | None = None) -> Topology:
    """From the kinds between GPUs."""
    count = len(rates)
    return Topology(
        devices=tuple(Gpu(index=i, node=nodes[i] if nodes else None) for i in range(count)),
        links=tuple(
            Link(a=a, b=b, kind=rates[a][b], gb_per_s=usual_rate(rates[a][b]))
            for a in range(count)
            for b in range(a + 1, count)
        ),
    )


@st.composite
def drawn(draw: st.DrawFn, least: int = 1, most: int = 7) -> Topology:
    """GPUs with links of random kinds on random nodes."""
    count = draw(st.integers(least, most))
    rates = [["X"] * count for _ in range(count)]
    few = draw(st.lists(kinds, min_size=1, max_size=4))  # of few kinds, so that ties come up
    for a in range(count):
        for b in range(a):
            rates[a][b] = rates[b][a] = draw(st.sampled_from(few))
    return machine(rates, draw(st.lists(st.one_of(st.none(), st.integers(0, 2)), min_size=count, max_size=count)))


@st.composite
def matrices(draw: st.DrawFn) -> Topology:
    """What the text of a matrix can hold, and no more."""
    bare = draw(drawn())
    gpus = tuple(Gpu(index=gpu.index, node=gpu.node, cpus=draw(lists)) for gpu in bare.devices)
    count = draw(st.integers(0, 3))
    between = {(a, b): draw(pcie) for a in range(count) for b in range(a)}
    nics = []
    for number in range(count):
        paths = [Path(to=f"GPU{gpu.index}", kind=draw(pcie)) for gpu in gpus]
        paths += [
            Path(to=f"NIC{other}", kind=between[max(number, other), min(number, other)])
            for other in range(count)
            if other != number
        ]
        near = next((gpu.node for gpu, path in zip(gpus, paths, strict=False) if path.kind != "SYS"), None)
        nics.append(
            Nic(label=f"NIC{number}", name=draw(st.sampled_from(["mlx5_0", "eth1"])), paths=tuple(paths), node=near)
        )
    cpus = {gpu.node: gpu.cpus for gpu in gpus if gpu.node is not None}
    return Topology(
        source="nvidia-smi topo -m",
        devices=gpus,
        links=bare.links,
        nics=tuple(nics),
        numa=tuple(NumaNode(id=node, cpus=cpus[node]) for node in sorted(cpus)),
    )


sizes = st.one_of(st.none(), st.integers(0, 2**50))
whole = st.builds(
    lambda bare, **more: Topology(devices=bare.devices, links=bare.links, **more),
    drawn(),
    host=words,
    source=words,
    nics=st.lists(
        st.builds(
            Nic,
            label=words,
            name=words,
            kind=words,
            gbit_per_s=st.one_of(st.none(), st.floats(0, 1e4)),
            up=st.one_of(st.none(), st.booleans()),
            node=st.one_of(st.none(), st.integers(0, 9)),
            interfaces=st.lists(words, max_size=2).map(tuple),
            paths=st.lists(st.builds(Path, to=words, kind=kinds), max_size=2).map(tuple),
        ),
        max_size=3,
    ).map(tuple),
    numa=st.lists(
        st.builds(NumaNode, id=st.integers(0, 9), cpus=lists, memory=sizes, distances=st.tuples(st.integers(10, 40))),
        max_size=3,
    ).map(tuple),
    packages=st.lists(
        st.builds(Package, id=st.integers(0, 3), model=words, cores=st.integers(0, 99), cpus=lists), max_size=2
    ).map(tuple),
    caches=st.lists(
        st.builds(CpuCache, level=st.integers(1, 4), kind=words, size=st.integers(1, 2**40), cpus=st.tuples(lists)),
        max_size=3,
    ).map(tuple),
    limits=st.builds(CgroupLimits, cpus=lists, quota=st.one_of(st.none(), st.floats(0.1, 100)), memory=sizes),
)
