"""Who sits where: ranks of a mesh on nodes, the group of a rank along each axis, and what a group's ring gets of the links.

A rank's number is written with one digit for each axis; the first axis of the order is the fastest, so its
neighbours have neighbouring numbers. Nodes are filled in the order of the numbers.

Source: Narayanan et al. (arXiv 2104.04473), sections 3.2 and 3.3, for tensor parallel innermost; Megatron-core's default
order is tensor, context, expert, data, pipeline (``parallel_state.initialize_model_parallel``, argument ``order``).
"""

from __future__ import annotations

from dataclasses import dataclass

from shardlab.checks import choice, count, positive


@dataclass(frozen=True)
class Mesh:
    """Ranks on axes, and axes on nodes. Build one with :func:`mesh`.

    Attributes:
        axes: names, the fastest first.
        sizes: ranks along each.
        node_gpus: ranks that share a node.
    """

    axes: tuple[str, ...]
    sizes: tuple[int, ...]
    node_gpus: int

    @property
    def ranks(self) -> int:
        """All of them."""
        product = 1
        for size in self.sizes:
            product *= size
        return product

    @property
    def nodes(self) -> int:
        """Nodes in use, the last one perhaps in part."""
        return (self.ranks + self.node_gpus - 1) // self.node_gpus

    def place(self, rank: int) -> tuple[int, ...]:
        """A rank's coordinate on each axis, in the order of :attr:`axes`.

        Raises:
            ValueError: there is no such rank.
        """
        left = count("rank", rank, least=0, most=self.ranks - 1)
        found = []
        for size in self.sizes:
            found.append(left % size)
            left //= size
        return tuple(found)

    def groups(self, along: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """The ranks split into groups that differ only along these axes, each in the order of the numbers.

        Gradients are added up along data *and* context: pass both.

        Raises:
            ValueError: there is no such axis.
        """
        for name in along:
            choice("along", name, self.axes)
        fixed = [index for index, name in enumerate(self.axes) if name not in along]
        members: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.ranks):
            place = self.place(rank)
            key = tuple([place[index] for index in fixed])
            if key not in members:
                members[key] = []
            members[key].append(rank)
        # Not in the order of the dictionary: MicroPython has another.
        return tuple(sorted([tuple(ranks) for ranks in members.values()]))

    def group(self, rank: int, along: tuple[str, ...]) -> tuple[int, ...]:
        """The group of one rank, itself included."""
        return next(ranks for ranks in self.groups(along) if rank in ranks)

    def node_of(self, rank: int) -> int:
        """The node on which a rank sits."""
        return rank // self.node_gpus

    def crosses(self, rank: int, along: tuple[str, ...]) -> bool:
        """Whether a rank's group spans more than one node."""
        ranks = self.group(rank, along)
        return self.node_of(ranks[0]) != self.node_of(ranks[-1])

    def leaving(self, along: tuple[str, ...]) -> int:
        """How many ranks of a node send to another node when every group passes data around its ring; the busiest node."""
        counts = [0] * self.nodes
        for ranks in self.groups(along):
            for index, rank in enumerate(ranks):
                following = ranks[(index + 1) % len(ranks)]
                if self.node_of(rank) != self.node_of(following):
                    counts[self.node_of(rank)] += 1
        return max(counts)

    def ring_bandwidth(
        self, along: tuple[str, ...], inside_bandwidth: float, network_bandwidth: float
    ) -> float:
        """What each ring gets when all groups along these axes communicate at once, bytes/s.

        A ring is as slow as its slowest hop. Hops that leave a node share its ports.

        Args:
            along: axes of the groups.
            inside_bandwidth: of one rank inside a node, per direction.
            network_bandwidth: of all ports of a node together, per direction.

        Raises:
            ValueError: a bandwidth is not above 0.
        """
        inside = positive("inside_bandwidth", inside_bandwidth, "bytes/s")
        network = positive("network_bandwidth", network_bandwidth, "bytes/s")
        sharing = self.leaving(along)
        return min(inside, network / sharing) if sharing else inside


def mesh(order: tuple[tuple[str, int], ...], node_gpus: int = 8) -> Mesh:
    """A mesh from (axis, size) pairs, the fastest axis first.

    Raises:
        ValueError: a size or ``node_gpus`` is not a whole number from 1, or an axis is named twice.
    """
    axes = tuple([name for name, _ in order])
    for name in axes:
        if len([other for other in axes if other == name]) > 1:
            raise ValueError(f"order must name each axis once, not {name!r} twice")
    return Mesh(
        axes=axes,
        sizes=tuple([count(name, size) for name, size in order]),
        node_gpus=count("node_gpus", node_gpus),
    )
