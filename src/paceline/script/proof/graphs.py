"""A batch of graphs, all in one tensor, as graph libraries make it: cut between graphs, with the numbers made anew.

A batch has G graphs, with nodes of one type or several, and edges from one type to another. A vector (N) says the graph
of each node of a type, ascending; links (2, E) hold node numbers; features have a row for each node, edge or graph;
pointers (G + 1) say where each graph begins. A worker gets whole graphs: its rows of each, with links and vectors
counted from its own first node and graph. The numbers of rows are measures: 0 is that of graphs, then come nodes, by
type, and edges, by links (see `Split.rows_of`).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import torch

from paceline.comm.group import Group
from paceline.script import tree
from paceline.script.proof.recorder import CannotTry
from paceline.script.rows import crossings
from paceline.script.rows.crossings import Split
from paceline.script.rows.spread_tensor import make_plain

KEY = re.compile(r"\[('[^']*'|\([^()]*\))\]")  # of a dictionary by types, in an argument's path
STARTS = 64  # places of which the graphs that are tried are chosen


class What(NamedTuple):
    """What an argument is: rows of a measure, the vector or the number of them, pointers, or links from nodes of one
    measure to those of another."""

    kind: Literal["rows", "vector", "links", "pointers", "count"]
    measure: int = 0
    nodes: tuple[int, int] = (0, 0)


class GraphCuts(dict[int, int]):
    """The arguments that are cut, leaf → dimension, if the batch is one of graphs. `vectors`: the leaves that say the
    graph of each node, by type. `keys`: of the dictionaries that hold each leaf."""

    def __init__(self, vectors: tuple[int, ...], keys: list[list[str]], world: int) -> None:
        super().__init__(dict.fromkeys(vectors, 0))
        self._vectors, self._keys, self._world = vectors, keys, world
        self._first: Graphs | None = None  # what the first batch consisted of
        self._seen: tuple[Any, Graphs | None] = (None, None)  # the last arguments, and what was found in them

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GraphCuts) and self._vectors == other._vectors

    __hash__ = None

    def batch(self, leaves: list[Any]) -> int:
        """The number of graphs; 0 if this is no batch of graphs that can be cut like the first one."""
        found = self._graphs(leaves)
        return 0 if found is None or found.count < self._world else found.count

    def split(self, leaves: list[Any], group: Group) -> Split:
        """How the graphs are split among the workers, and with them nodes and edges."""
        return self.split_in(leaves, group, Split.of(group, self.batch(leaves)).sizes)

    def split_in(self, leaves: list[Any], group: Group, sizes: tuple[int, ...]) -> Split:
        """The same, with these numbers of graphs."""
        uneven = self._known(leaves).in_parts(sizes)[1:]
        return Split(group, sizes, tuple(Split(group, one) for one in uneven))

    def own(self, leaves: list[Any], split: Split) -> list[Any]:
        """This worker's graphs of each argument."""
        return self._taken(leaves, [(one.start, one.mine) for one in (split, *split.uneven)], split)

    def rows(self, leaves: list[Any], split: Split) -> dict[int, tuple[int, Split]]:
        """The dimension and the split of each argument that is cut into rows; not of those with new numbers."""
        found = self._known(leaves).arguments.items()
        return {i: (0, split.rows_of(what.measure)) for i, what in found if what.kind == "rows"}

    def some(self, leaves: list[Any], many: int, first: int) -> list[Any]:
        """So many graphs of each argument, one after another, with nodes and edges of each type. If they are cut, after
        the `first` ones, both parts have such, and their sizes tell what a tensor has rows of. CannotTry if there are
        none."""
        found = self._known(leaves)
        for start in range(min(found.count - many + 1, STARTS)):
            before, *parts = zip(
                *found.in_parts([start, first or many, *([many - first] if first else [])]), strict=True
            )
            if all(map(all, parts)) and (not first or found.tell_apart(*parts)):
                rows = [sum(one) for one in zip(*parts, strict=True)]
                return self._taken(leaves, list(zip(before, rows, strict=True)), None)
        raise CannotTry("it gets graphs that have too few nodes or edges, or as many of one as of the other")

    def is_linked(self, leaves: list[Any]) -> bool:
        """Whether there are edges at nodes of each type."""
        found = self._known(leaves).arguments.values()
        return set(range(1, len(self) + 1)) <= {measure for what in found for measure in what.nodes}

    def _taken(self, leaves: list[Any], places: list[tuple[int, int]], split: Split | None) -> list[Any]:
        found = self._known(leaves).arguments
        return [_taken(leaf, found.get(i), places, split) for i, leaf in enumerate(leaves)]

    def _known(self, leaves: list[Any]) -> Graphs:
        found = self._graphs(leaves)
        assert found is not None
        return found

    def _graphs(self, leaves: list[Any]) -> Graphs | None:
        if self._seen[0] is not leaves:
            found = Graphs.of(leaves, self._vectors, self._keys, self._first)
            self._first = self._first or found
            is_like = found is not None and self._first is not None and found.is_like(self._first)
            self._seen = (leaves, found if is_like else None)
        return self._seen[1]


class Graphs:
    """What one batch of graphs consists of: its measures, and what each argument is."""

    def __init__(self, ends: list[torch.Tensor], arguments: dict[int, What]) -> None:
        """`ends`: the rows until the end of each graph, by measure."""
        self.count, self.arguments = len(ends[0]), arguments
        self._ends = torch.stack(ends)
        rows = self._ends[:, -1]
        times = rows[:, None] // rows
        same = (self._ends[:, None] == times[..., None] * self._ends).all(-1)
        self._times = torch.where(same, times, 0)  # how often each graph has the rows of another measure

    @classmethod
    def of(
        cls, leaves: list[Any], vectors: tuple[int, ...], keys: list[list[str]], like: Graphs | None
    ) -> Graphs | None:
        """The graphs whose vectors are these arguments; None if they are no such vectors, or if edges are not in the
        order of their graphs. `like`: of a batch whose arguments these are like."""
        plain = [make_plain(leaf) for leaf in leaves]
        nodes = [plain[i] for i in vectors]
        if not all(map(_is_vector, nodes)) or len({int(vector[-1]) for vector in nodes}) > 1:
            return None
        graphs = torch.arange(int(nodes[0][-1]) + 1, device=nodes[0].device)
        ends = [graphs + 1, *(torch.searchsorted(vector, graphs, right=True) for vector in nodes)]
        holders: list[list[str]] = [[], *(keys[i] for i in vectors)]
        found: dict[int, What] = {}
        for i, leaf in enumerate(plain):
            if (chosen := _links_of(leaf, keys[i], nodes, holders)) is None:
                continue
            one, other = chosen
            of_edges = nodes[one - 1][leaf[0]]
            if not torch.equal(of_edges, nodes[other - 1][leaf[1]]) or bool((of_edges.diff() < 0).any()):
                return None
            reached = torch.searchsorted(of_edges, graphs, right=True)
            alike = (n for n, end in enumerate(ends) if n > len(nodes) and torch.equal(end, reached))
            measure = like.arguments[i].measure if like and i in like.arguments else next(alike, len(ends))
            if measure == len(ends):
                ends.append(reached)
                holders.append(keys[i])
            elif measure > len(ends) or not torch.equal(ends[measure], reached):
                return None
            found[i] = What("links", measure, chosen)
        rows = [int(end[-1]) for end in ends]
        for i, leaf in enumerate(plain):
            if i in found:
                continue
            near = [len(set(keys[i]).intersection(holder)) for holder in holders]  # keys in common
            options = [
                *(What("vector", n) for n, vector in enumerate(nodes, 1) if _are_equal(vector, leaf)),
                *([What("pointers")] if _is_pointers(leaf, len(graphs)) else []),
                *(
                    What("count" if type(leaf) is int else "rows", measure)
                    for measure in sorted([*range(1, len(rows)), 0], key=lambda n: -near[n])
                    if _size(leaf) == rows[measure]
                ),
            ]
            before = like.arguments.get(i) if like else None
            if options:
                found[i] = before if before in options else options[0]
        return cls([end.cpu() for end in ends], found)

    def is_like(self, other: Graphs) -> bool:
        """Whether the arguments are the same as in another batch, and no two measures are told apart only here."""
        same = self.arguments == other.arguments and self._times.shape == other._times.shape
        return same and bool(((self._times == other._times) | (other._times == 0)).all())

    def in_parts(self, sizes: Sequence[int]) -> list[tuple[int, ...]]:
        """By measure, the numbers of rows of the first so many graphs, of the next ones, …"""
        reached = [0, *itertools.accumulate(sizes)]
        table = torch.nn.functional.pad(self._ends, (1, 0))[:, reached].diff()
        return [tuple(row) for row in table.tolist()]

    def tell_apart(self, *parts: Sequence[int]) -> bool:
        """Whether by these numbers of rows of some graphs, by measure, none is by chance that of another measure, or a
        multiple of it."""
        for one, other in itertools.permutations(range(len(self._ends)), 2):
            times = parts[0][one] // parts[0][other]
            if all(part[one] == times * part[other] for part in parts) and not self._times[one, other]:
                return False
        return True


def graph_ways(given: Any, leaves: list[Any], world: int) -> Iterator[tuple[int, GraphCuts]]:
    """The ways to cut a batch of graphs, if there are links: by the vectors of several types of nodes, and by each
    argument that may be the vector."""
    if not any(_is_numbers(leaf) and leaf.dim() == 2 and leaf.shape[0] == 2 for leaf in leaves):
        return
    keys = [KEY.findall(path) for path in tree.paths(given)]
    types: dict[int, list[int]] = {}  # by the last graph's number
    for i, leaf in enumerate(leaves):
        if _is_numbers(leaf) and leaf.dim() == 1 and _is_vector(make_plain(leaf)):
            types.setdefault(int(leaf[-1]), []).append(i)
    for vectors in types.values():
        for chosen in [*([vectors] if len(vectors) > 1 else []), *([i] for i in vectors)]:
            cuts = GraphCuts(tuple(chosen), keys, world)
            if cuts.batch(leaves) and cuts.is_linked(leaves):
                yield chosen[0], cuts


def has_links(leaves: list[Any]) -> bool:
    """Whether the rows of an argument refer to each other by the numbers in another one: the edges of a graph."""
    nodes = {
        leaf.shape[0]
        for leaf in leaves
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.dim() > 1
    }
    return any(_is_links(make_plain(leaf), rows, rows) for leaf in leaves if _is_numbers(leaf) for rows in nodes - {2})


def _taken(leaf: Any, what: What | None, places: list[tuple[int, int]], split: Split | None) -> Any:
    if what is None:
        return crossings.share(make_plain(leaf), split.group) if split and isinstance(leaf, torch.Tensor) else leaf
    start, many = places[what.measure]
    if what.kind == "count":
        return many
    leaf = make_plain(leaf)
    if what.kind == "pointers":
        return leaf[start : start + many + 1] - leaf[start]
    if what.kind == "vector":
        return leaf.narrow(0, start, many) - places[0][0]
    if what.kind == "links":
        return leaf.narrow(1, start, many) - torch.tensor([[places[n][0]] for n in what.nodes], device=leaf.device)
    if split is not None and leaf.requires_grad and torch.is_grad_enabled():
        return crossings.cut(leaf, 0, split.rows_of(what.measure)).narrow(0, 0, many)  # graphs may have no edges
    return leaf.narrow(0, start, many)


def _size(leaf: Any) -> int:
    """The number of rows, if this is a tensor or such a number."""
    if isinstance(leaf, torch.Tensor):
        return leaf.shape[0] if leaf.dim() and leaf.layout is torch.strided else -1
    return leaf if type(leaf) is int else -1


def _are_equal(vector: torch.Tensor, leaf: Any) -> bool:
    return _is_numbers(leaf) and leaf.shape == vector.shape and torch.equal(leaf, vector)


def _is_numbers(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.dtype is torch.int64 and leaf.layout is torch.strided


def _is_vector(leaf: Any) -> bool:
    """Whether it says the graphs of nodes, of which each graph has one."""
    if not _is_numbers(leaf) or leaf.dim() != 1 or len(leaf) < 2 or leaf[0] != 0 or leaf[-1] < 1:
        return False
    steps = leaf.diff()
    return not bool(((steps < 0) | (steps > 1)).any())


def _links_of(
    leaf: Any, keys: list[str], nodes: list[torch.Tensor], holders: list[list[str]]
) -> tuple[int, int] | None:
    """The measures of nodes between which these links are: those that the key of a dictionary names, or else that the
    numbers fit to, best in the order of graphs; None if these are no links."""
    pairs = list(itertools.product(range(1, len(nodes) + 1), repeat=2))
    named = [(a, b) for a, b in pairs if _names(keys, holders[a], holders[b])]
    fits = [(a, b) for a, b in named or pairs if _is_links(leaf, len(nodes[a - 1]), len(nodes[b - 1]))]
    in_order = ((a, b) for a, b in fits if torch.equal(nodes[a - 1][leaf[0]], nodes[b - 1][leaf[1]]))
    return next(in_order, fits[0] if fits else None)


def _names(keys: list[str], one: list[str], other: list[str]) -> bool:
    """Whether a key `('author', 'writes', 'paper')` names two keys `'author'` and `'paper'`."""
    return any(key.startswith(f"({a},") and key.endswith(f", {b})") for key in keys for a in one for b in other)


def _is_links(leaf: Any, first: int, second: int) -> bool:
    if not _is_numbers(leaf) or leaf.dim() != 2 or leaf.shape[0] != 2 or not leaf.shape[1]:
        return False
    largest = leaf.amax(1)
    return bool(leaf.min() >= 0) and bool(largest[0] < first) and bool(largest[1] < second)


def _is_pointers(leaf: Any, count: int) -> bool:
    if not _is_numbers(leaf) or leaf.dim() != 1 or len(leaf) != count + 1 or leaf[0] != 0:
        return False
    return not bool((leaf.diff() < 0).any())
