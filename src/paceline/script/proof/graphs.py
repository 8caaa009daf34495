"""A batch of graphs, all in one tensor, as graph libraries make it: cut between graphs, with the numbers made anew.

A batch has G graphs, N nodes and E edges. A vector (N) says the graph of each node, ascending; links (2, E) hold node
numbers; features have a row for each node, edge or graph; pointers (G + 1) say where each graph begins. A worker gets
whole graphs: its rows of each, with links and the vector counted from its own first node and graph.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch

from paceline.comm.group import Group
from paceline.script.rows import crossings
from paceline.script.rows.crossings import Split
from paceline.script.rows.spread_tensor import make_plain

ROWS = {"graphs": 0, "nodes": 1, "edges": 2}  # the numbers of their splits: see `Split.rows_of`


class GraphCuts(dict[int, int]):
    """The arguments that are cut, leaf → dimension, if the batch is one of graphs. `vector`: the leaf that says the
    graph of each node."""

    def __init__(self, vector: int, world: int) -> None:
        super().__init__({vector: 0})
        self.vector, self._world = vector, world
        self._seen: tuple[Any, Graphs | None] = (None, None)  # the last arguments, and what was found in them

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GraphCuts) and self.vector == other.vector

    __hash__ = None

    def batch(self, leaves: list[Any]) -> int:
        """The number of graphs; 0 if this is no batch of graphs that can be cut."""
        found = self._graphs(leaves)
        return 0 if found is None or found.count < self._world else found.count

    def split(self, leaves: list[Any], group: Group) -> Split:
        """How the graphs are split among the workers, and with them nodes and edges."""
        return self.split_in(leaves, group, Split.of(group, self.batch(leaves)).sizes)

    def split_in(self, leaves: list[Any], group: Group, sizes: tuple[int, ...]) -> Split:
        """The same, with these numbers of graphs."""
        found = self._graphs(leaves)
        assert found is not None
        graphs = Split(group, sizes)
        nodes, edges = found.sizes(found.node_ends, graphs), found.sizes(found.edge_ends, graphs)
        return Split(group, graphs.sizes, (Split(group, nodes), Split(group, edges)))

    def own(self, leaves: list[Any], split: Split) -> list[Any]:
        """This worker's graphs of each argument."""
        nodes, edges = split.uneven
        places = ((split.start, split.mine), (nodes.start, nodes.mine), (edges.start, edges.mine))
        return self._taken(leaves, places, split)

    def rows(self, leaves: list[Any], split: Split) -> dict[int, tuple[int, Split]]:
        """The dimension and the split of each argument that is cut into rows; not of those with new numbers."""
        found = self._graphs(leaves)
        assert found is not None
        kinds = found.kinds(leaves).items()
        return {i: (0, split.rows_of(ROWS[kind])) for i, kind in kinds if kind in ROWS}

    def first(self, leaves: list[Any], many: int) -> list[Any]:
        """The first graphs of each argument."""
        found = self._graphs(leaves)
        assert found is not None
        places = ((0, many), (0, int(found.node_ends[many - 1])), (0, int(found.edge_ends[many - 1])))
        return self._taken(leaves, places, None)

    def _taken(self, leaves: list[Any], places: tuple[tuple[int, int], ...], split: Split | None) -> list[Any]:
        found = self._graphs(leaves)
        assert found is not None
        kinds = found.kinds(leaves)
        return [_taken(leaf, kinds.get(i), places, split) for i, leaf in enumerate(leaves)]

    def _graphs(self, leaves: list[Any]) -> Graphs | None:
        if self._seen[0] is not leaves:
            self._seen = (leaves, Graphs.of(leaves, self.vector))
        return self._seen[1]


class Graphs:
    """What one batch of graphs consists of."""

    def __init__(self, vector: torch.Tensor, links: list[torch.Tensor]) -> None:
        self.vector, self.links = vector, links
        self.nodes, self.edges = len(vector), links[0].shape[1] if links else 0
        self.count = int(vector[-1]) + 1
        graphs = torch.arange(self.count, device=vector.device)
        self.node_ends = torch.searchsorted(vector, graphs, right=True).cpu()
        of_edges = vector[links[0][0]] if links else vector[:0]
        self.edge_ends = torch.searchsorted(of_edges, graphs, right=True).cpu()

    @classmethod
    def of(cls, leaves: list[Any], at: int) -> Graphs | None:
        """The graphs whose vector is the argument number `at`; None if it is no such vector, or if edges are not in the
        order of their graphs."""
        vector = make_plain(leaves[at])
        if not _is_numbers(vector) or vector.dim() != 1 or len(vector) < 2 or vector[0] != 0 or vector[-1] < 1:
            return None
        steps = vector.diff()
        if bool(((steps < 0) | (steps > 1)).any()):  # each graph has a node
            return None
        links = [leaf for leaf in map(make_plain, leaves) if _is_links(leaf, len(vector))]
        sizes = {leaf.shape[1] for leaf in links}
        if len(sizes) > 1 or any(not _is_in_order(vector, leaf) for leaf in links):
            return None
        return cls(vector, links)

    def sizes(self, ends: torch.Tensor, split: Split) -> tuple[int, ...]:
        """The number of rows of each worker's graphs."""
        reached = [0, *(int(ends[graph - 1]) for graph in itertools.accumulate(split.sizes))]
        return tuple(after - before for before, after in itertools.pairwise(reached))

    def kinds(self, leaves: list[Any]) -> dict[int, str]:
        """What the rows of each argument are."""
        found: dict[int, str] = {}
        for i, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor) and leaf.dim() and leaf.layout is torch.strided:
                if _is_links(leaf, self.nodes) and self.edges:
                    found[i] = "links"
                elif _is_pointers(leaf, self.count):
                    found[i] = "pointers"
                elif leaf.shape[0] in (self.nodes, self.edges, self.count):
                    found[i] = {self.count: "graphs", self.edges: "edges", self.nodes: "nodes"}[leaf.shape[0]]
            elif type(leaf) is int and leaf in (self.count, self.nodes):
                found[i] = "count" if leaf == self.count else "node count"
        for i, leaf in enumerate(leaves):
            if leaf is self.vector:
                found[i] = "vector"
        return found


def graph_ways(leaves: list[Any], world: int) -> list[tuple[int, GraphCuts]]:
    """The ways to cut a batch of graphs: by each argument that may be the vector, if there are links."""
    tensors = [(i, leaf) for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    if not any(leaf.dim() == 2 and leaf.shape[0] == 2 and _is_numbers(leaf) for _, leaf in tensors):
        return []
    vectors = [i for i, leaf in tensors if leaf.dim() == 1 and _is_numbers(leaf)]
    found = ((i, Graphs.of(leaves, i)) for i in vectors)
    return [(i, GraphCuts(i, world)) for i, graphs in found if graphs and graphs.links and graphs.count >= world]


def has_links(leaves: list[Any]) -> bool:
    """Whether the rows of an argument refer to each other by the numbers in another one: the edges of a graph."""
    nodes = {
        leaf.shape[0]
        for leaf in leaves
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.dim() > 1
    }
    return any(_is_links(make_plain(leaf), rows) for leaf in leaves if _is_numbers(leaf) for rows in nodes - {2})


def _taken(leaf: Any, kind: str | None, places: Any, split: Split | None) -> Any:
    graphs, nodes, edges = places
    if kind is None:
        return crossings.share(make_plain(leaf), split.group) if split and isinstance(leaf, torch.Tensor) else leaf
    if kind in ("count", "node count"):
        return (graphs if kind == "count" else nodes)[1]
    leaf = make_plain(leaf)
    if kind == "pointers":
        return leaf[graphs[0] : graphs[0] + graphs[1] + 1] - leaf[graphs[0]]
    if kind == "vector":
        return leaf.narrow(0, *nodes) - graphs[0]
    if kind == "links":
        return leaf.narrow(1, *edges) - nodes[0]
    number = ROWS[kind]
    if split is not None and leaf.requires_grad and torch.is_grad_enabled():
        return crossings.cut(leaf, 0, split.rows_of(number))
    return leaf.narrow(0, *places[number])


def _is_numbers(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.dtype is torch.int64 and leaf.layout is torch.strided


def _is_links(leaf: Any, nodes: int) -> bool:
    if not _is_numbers(leaf) or leaf.dim() != 2 or leaf.shape[0] != 2 or not leaf.shape[1]:
        return False
    return bool(leaf.min() >= 0) and bool(leaf.max() < nodes)


def _is_in_order(vector: torch.Tensor, links: torch.Tensor) -> bool:
    """Whether each edge is inside a graph, and the edges of a graph come after those of the graphs before it."""
    one, other = vector[links]
    return torch.equal(one, other) and not bool((one.diff() < 0).any())


def _is_pointers(leaf: torch.Tensor, count: int) -> bool:
    if not _is_numbers(leaf) or leaf.dim() != 1 or len(leaf) != count + 1 or leaf[0] != 0:
        return False
    return not bool((leaf.diff() < 0).any())
