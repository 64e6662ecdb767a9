"""Benchmarks of collectives: is this bus bandwidth what the link should give?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardlab.checks import choice, count
from shardlab.models.collectives import COLLECTIVES, algbw, busbw, busbw_factor
from shardlab.models.diagnose_common import (
    BOX_CHECKS,
    SMALL_BUFFER,
    WELL_USED,
    Nominal,
    Verdict,
    checks,
    nearest_port,
    nominal_link,
    percent,
    plural,
    rate,
    report,
    seconds,
    size_bytes,
    times,
)
from shardlab.models.fit import LinkFit, fit_link
from shardlab.models.nccl_log import NcclLog, parse
from shardlab.units import GB, MIB, format_bandwidth, format_bytes, format_time

_TRANSPORT = (
    "NCCL_DEBUG=INFO: 'NET/Socket' where 'NET/IB' (or EFA) should stand means it fell back to TCP",
    "NCCL_SOCKET_IFNAME, NCCL_IB_HCA: the fast interfaces, all of them? GPUDirect RDMA in use?",
    "The same benchmark inside one node: if that is slow too, look at PCIe, NVLink and P2P instead",
)
_CPU = (
    "CPU use of a rank while it runs: a core at 100 % is the limit; give each rank more cores, or use NCCL",
    "iperf3 with one stream and with eight: what TCP reaches on these cores",
)


@dataclass(frozen=True)
class CollectiveDiagnosis:
    """One benchmark. Bandwidths in bytes/s, times in seconds.

    Attributes:
        collective, n_ranks, n_bytes, time_s: what was measured.
        algbw: size over time.
        busbw: that times nccl-tests' factor, comparable with a link.
        nominal_bandwidth, fraction_of_nominal: the link as named and busbw over it, or None.
        fit: latency and bandwidth from several sizes, or None.
        verdict, notes: in words.
    """

    collective: str
    n_ranks: int
    n_bytes: float
    time_s: float
    algbw: float
    busbw: float
    nominal_bandwidth: float | None
    fraction_of_nominal: float | None
    fit: LinkFit | None
    verdict: Verdict
    notes: tuple[str, ...]

    def text(self) -> str:
        """The diagnosis for people."""
        rows = [
            ("buffer", f"{format_bytes(self.n_bytes, 3)} (of one rank: {_meaning(self.collective)})"),
            ("time", format_time(self.time_s)),
            ("algbw", rate(self.algbw)),
            ("busbw", f"{rate(self.busbw)}, algbw times {busbw_factor(self.collective, self.n_ranks):.4g}"),
        ]
        if self.nominal_bandwidth is not None and self.fraction_of_nominal is not None:
            share = percent(self.fraction_of_nominal)
            rows.append(("nominal link", f"{rate(self.nominal_bandwidth)}; busbw is {share} of it"))
        if self.fit is not None:
            rows.append(("latency", f"{format_time(self.fit.latency_s, 3)} per message, if it is a ring"))
        title = f"{self.collective}, {plural(self.n_ranks, 'rank')}"
        return report(title, rows, self.verdict, self.notes)


def _meaning(collective: str) -> str:
    if collective == "all-gather":
        return "the whole output"
    return "the whole input" if collective in ("reduce-scatter", "all-to-all") else "the whole buffer"


def collective(
    n_bytes: float | str,
    time_s: float | str,
    n_ranks: int,
    name: str = "all-reduce",
    nominal_bandwidth: float | str | None = None,
    n_nodes: int | None = None,
    backend: str = "nccl",
    cores_per_rank: int | None = None,
) -> CollectiveDiagnosis:
    """Judge one timing of a collective.

    Args:
        n_bytes: the buffer as nccl-tests defines it: the whole output of an all-gather, the whole input of a
            reduce-scatter.
        time_s: seconds. Both may be text with a unit.
        n_ranks: ranks.
        name: the collective.
        nominal_bandwidth: the slowest link crossed: all NICs of a node together, or one GPU's link in a box.
        n_nodes: nodes.
        backend: ``"nccl"``, ``"gloo"`` or ``"mpi"``.
        cores_per_rank: CPU cores each process may use.

    Raises:
        ValueError: an argument is out of range.
    """
    kind = choice("name", name, COLLECTIVES)
    ranks = count("n_ranks", n_ranks, least=2)
    size = size_bytes("n_bytes", n_bytes)
    time = seconds("time_s", time_s)
    nodes = None if n_nodes is None else count("n_nodes", n_nodes, most=ranks)
    cores = None if cores_per_rank is None else count("cores_per_rank", cores_per_rank)
    transport = choice("backend", backend, ("nccl", "gloo", "mpi"))
    nominal = None if nominal_bandwidth is None else nominal_link("nominal_bandwidth", nominal_bandwidth)
    bus = busbw(kind, size, time, ranks)
    reached = None if nominal is None else bus / nominal.bytes_per_s
    notes: list[str] = []
    if transport == "gloo":
        notes.append("gloo's figures say nothing about NCCL: it copies and adds on the CPU.")
    return CollectiveDiagnosis(
        collective=kind,
        n_ranks=ranks,
        n_bytes=size,
        time_s=time,
        algbw=algbw(size, time),
        busbw=bus,
        nominal_bandwidth=None if nominal is None else nominal.bytes_per_s,
        fraction_of_nominal=reached,
        fit=None,
        verdict=_judge(bus, size, time, nominal, nodes, transport, cores),
        notes=tuple(notes),
    )


def _judge(
    bus: float,
    n_bytes: float,
    time_s: float,
    nominal: Nominal | None,
    n_nodes: int | None,
    backend: str,
    cores_per_rank: int | None,
) -> Verdict:
    if nominal is None:
        text = f"The bus bandwidth is {rate(bus)}. Name the link (nominal_bandwidth) to learn whether it should be more."
        return Verdict(code="no-link-named", text=text, checks=())
    reached = bus / nominal.bytes_per_s
    if reached > 1.02:
        return _above_link(bus, nominal, n_nodes)
    if reached >= WELL_USED:
        text = f"{rate(bus)} is {percent(reached)} of the {nominal} link: a transport that works."
        return Verdict(code="near-nominal", text=text, checks=())
    if n_bytes < MIB and n_bytes / nominal.bytes_per_s < WELL_USED * time_s:
        text = (
            f"{format_bytes(n_bytes, 3)} are too few to see the link: {format_time(time_s, 3)} is latency. Measure "
            "buffers of 64 MB and more for the bandwidth."
        )
        return Verdict(code="latency-bound", text=text, checks=())
    if backend == "gloo":
        on_cores = "" if cores_per_rank is None else f" on {plural(cores_per_rank, 'core')} per process"
        text = (
            f"{rate(bus)} is {percent(reached)} of the {nominal} link: bound by the CPU and TCP{on_cores}, which copy and "
            "add every byte, and not by the link. It cannot be carried over to NCCL."
        )
        return Verdict(code="cpu-bound", text=text, checks=_CPU)
    port = nearest_port(bus, bus) if n_nodes != 1 else None
    like = ""
    if port is not None and port * GB / 8 < 0.7 * nominal.bytes_per_s:
        like = f" It looks like a {port} Gb/s path."
    small = ""
    if n_bytes < SMALL_BUFFER:
        small = f" {format_bytes(n_bytes, 3)} is a small buffer: measure 1 GiB before you blame the link."
    text = f"{rate(bus)} is {percent(reached)} of the {nominal} link: the transport is far below it.{like}{small}"
    return Verdict(code="below-nominal", text=text, checks=BOX_CHECKS if n_nodes == 1 else _TRANSPORT)


# A tree between two nodes, and reduction in the network, halve the bytes; measurement adds its own error.
_MOST_OF_LINK = 2.2


def _above_link(bus: float, nominal: Nominal, n_nodes: int | None) -> Verdict:
    if bus > _MOST_OF_LINK * nominal.bytes_per_s:
        why = (
            "No algorithm sends less than half of what the bus bandwidth assumes. Check the units of size, time and "
            "link, and that the clock stops only when the collective has ended: its call returns before."
        )
    elif n_nodes == 2:
        why = (
            "Between two nodes that is no error: a tree reduces inside each node first and sends about half of what the "
            "bus bandwidth assumes. Judge the wire from three nodes on, or force NCCL_ALGO=Ring."
        )
    elif n_nodes == 1:
        why = "Reduction inside the switch (NVLS) does that: fewer bytes cross the link than the bus bandwidth assumes."
    else:
        why = (
            "A tree, a hierarchical all-reduce or reduction in the network sends fewer bytes than the bus bandwidth "
            "assumes; or the link is named too low (one NIC instead of all of a node?)."
        )
    return Verdict(
        code="above-link",
        text=f"{rate(bus)} is {times(bus / nominal.bytes_per_s)} the {nominal} link. {why}",
        checks=(),
    )


def benchmark(log: NcclLog | str, nominal_bandwidth: float | str | None = None) -> CollectiveDiagnosis:
    """Judge an nccl-tests log by its best row, and fit latency and bandwidth to all rows.

    Args:
        log: the output, or parsed by :func:`shardlab.models.nccl_log.parse`.
        nominal_bandwidth: as in :func:`collective`.

    Raises:
        ValueError: the log cannot be read, or is of a single rank.
    """
    table = parse(log) if isinstance(log, str) else log
    if table.n_ranks < 2:
        warned = " ".join(table.warnings)
        raise ValueError(
            f"log must be of at least 2 ranks, not {table.n_ranks}: nothing crossed a link. {warned}"
        )
    best = table.rows[0]
    for row in table.rows:
        if row.best.busbw > best.best.busbw:
            best = row
    nominal = None if nominal_bandwidth is None else nominal_link("nominal_bandwidth", nominal_bandwidth)
    notes = list(table.warnings)
    if table.average_busbw is not None and len(table.rows) > 1:
        notes.append(
            f"The average bus bandwidth in the last line, {format_bandwidth(table.average_busbw, 3)}, mixes "
            "latency-bound sizes with bandwidth-bound ones: quote the large sizes instead."
        )
    fitted = _fit(table)
    if fitted is not None:
        notes += fitted.warnings
    bus = best.best.busbw
    return CollectiveDiagnosis(
        collective=table.collective,
        n_ranks=table.n_ranks,
        n_bytes=best.n_bytes,
        time_s=best.best.time_s,
        algbw=best.best.algbw,
        busbw=bus,
        nominal_bandwidth=None if nominal is None else nominal.bytes_per_s,
        fraction_of_nominal=None if nominal is None else bus / nominal.bytes_per_s,
        fit=fitted,
        verdict=_judge(bus, best.n_bytes, best.best.time_s, nominal, table.n_nodes, "nccl", None),
        notes=tuple(notes),
    )


def _fit(table: NcclLog) -> LinkFit | None:
    """Latency and bandwidth of the rows as a ring, or None where they do not give both."""
    if table.collective not in ("all-reduce", "reduce-scatter", "all-gather"):
        return None
    try:
        return fit_link(table.samples())
    except ValueError:
        return None


@dataclass(frozen=True)
class NodeSweepDiagnosis:
    """Bus bandwidth by number of nodes.

    Attributes:
        n_nodes, busbw: the points, by nodes.
        fractions: busbw over the nominal link of a node, or None.
        drop: the last busbw over that of the first point of three or more nodes: 1 is flat.
        volume_growth: by how much the ring's bytes per rank grow between those two points, the only slowing that
            more nodes excuse.
        verdict: in words.
    """

    n_nodes: tuple[int, ...]
    busbw: tuple[float, ...]
    fractions: tuple[float, ...] | None
    drop: float | None
    volume_growth: float | None
    verdict: Verdict

    def text(self) -> str:
        """The diagnosis for people."""
        rows = []
        for place in range(len(self.n_nodes)):
            share = "" if self.fractions is None else f", {percent(self.fractions[place])} of nominal"
            rows.append(
                (
                    plural(self.n_nodes[place], "node"),
                    f"busbw {format_bandwidth(self.busbw[place], 3)}{share}",
                )
            )
        return report("Bus bandwidth by nodes", rows, self.verdict)


def collective_by_nodes(
    points: Any, nominal_bandwidth: float | str | None = None, ranks_per_node: int = 8
) -> NodeSweepDiagnosis:
    """Judge how the bus bandwidth of large all-reduces changes with the nodes.

    The bus bandwidth is already corrected for the number of ranks, so a ring that is bound by the links keeps it;
    what falls is congestion, oversubscribed switches, or latency of buffers cut ever smaller.

    Args:
        points: pairs ``(nodes, busbw)``, one size; busbw in bytes/s, or text with a unit. Two nodes are set apart:
            NCCL's tree gains there.
        nominal_bandwidth: all NICs of a node together.
        ranks_per_node: for the ring's volume.

    Raises:
        ValueError: no points, equal numbers of nodes, or values out of range.
    """
    pairs = sorted(
        [
            (count("nodes in points", nodes), nominal_link("busbw in points", speed).bytes_per_s)
            for nodes, speed in points
        ]
    )
    if not pairs:
        raise ValueError("points must hold at least one pair (nodes, busbw)")
    for place in range(1, len(pairs)):
        if pairs[place][0] == pairs[place - 1][0]:
            raise ValueError(f"points must hold different numbers of nodes, not {pairs[place][0]} twice")
    speeds = tuple([speed for _, speed in pairs])
    nodes = tuple([number for number, _ in pairs])
    link = None if nominal_bandwidth is None else nominal_link("nominal_bandwidth", nominal_bandwidth)
    each = count("ranks_per_node", ranks_per_node)
    many = [place for place in range(len(nodes)) if nodes[place] >= 3]
    drop = growth = None
    if len(many) > 1:
        first, last = many[0], many[-1]
        drop = speeds[last] / speeds[first]
        growth = busbw_factor("all-reduce", nodes[last] * each) / busbw_factor(
            "all-reduce", nodes[first] * each
        )
    return NodeSweepDiagnosis(
        n_nodes=nodes,
        busbw=speeds,
        fractions=None if link is None else tuple([speed / link.bytes_per_s for speed in speeds]),
        drop=drop,
        volume_growth=growth,
        verdict=_sweep_verdict(nodes, speeds, link, drop, growth),
    )


def _sweep_verdict(
    nodes: tuple[int, ...],
    speeds: tuple[float, ...],
    link: Nominal | None,
    drop: float | None,
    growth: float | None,
) -> Verdict:
    two = ""
    if 2 in nodes:
        two = " The value for two nodes does not compare with the others: NCCL's tree sends about half between two nodes."
    reached = ""
    if link is not None:
        reached = f" With {plural(nodes[-1], 'node')} it is {percent(speeds[-1] / link.bytes_per_s)} of the {link} link."
    if drop is None or growth is None:
        text = f"There are too few points of three or more nodes to see a trend.{reached}{two}"
        return Verdict(
            code="too-few-points", text=text, checks=("Measure 3, 4 and more nodes with the same buffer",)
        )
    if drop < 0.85:
        text = (
            f"The bus bandwidth falls to {percent(drop)} from {nodes[-len([n for n in nodes if n >= 3])]} to {nodes[-1]} "
            f"nodes. A ring is no reason: its bytes per rank grow by {percent(growth - 1)} only, and the bus bandwidth "
            f"already counts that. Look for congestion, oversubscribed switches, or latency.{reached}{two}"
        )
        return Verdict(
            code="falls-with-nodes",
            text=text,
            checks=checks(
                "Larger buffers: if the fall goes away, it was latency",
                "Pairs of nodes one by one: a slow cable, port or node holds up every ring that crosses it",
                "The switches between: oversubscription, adaptive routing, rails on one leaf; NCCL_ALGO=Ring against Tree",
            ),
        )
    if link is not None and speeds[-1] < WELL_USED * link.bytes_per_s:
        text = f"Flat from three nodes on, as it should be, but low.{reached}{two}"
        return Verdict(code="flat-but-low", text=text, checks=_TRANSPORT)
    return Verdict(code="flat", text=f"Flat from three nodes on, as it should be.{reached}{two}", checks=())
