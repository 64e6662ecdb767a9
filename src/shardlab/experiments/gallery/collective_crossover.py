"""Which algorithm runs a collective fastest? Time against size on one or two levels of links, and where the winner changes."""

from __future__ import annotations

import math
from typing import Any

from shardlab.experiments import chart, words
from shardlab.experiments.controls import Experiment, Preset, choice, decades, slider, toggle
from shardlab.measured import NCCL_TUNING
from shardlab.models.collective_schedules import log2_ceil
from shardlab.models.collectives import (
    COLLECTIVES,
    Algorithm,
    algorithms,
    busbw_factor,
    hierarchical_allreduce,
    lower_edge,
)

LEAST_BYTES, MOST_BYTES = 1e2, 1e10
_SIZES = decades(LEAST_BYTES, MOST_BYTES)
_CURVE_SIZES = decades(LEAST_BYTES, MOST_BYTES, (1, 1.6, 2.5, 4, 6.3))
_RATES = decades(1e9, 1e12, (1, 1.25, 2.5, 5))
# A hop inside a node against one over the network: NCCL's own constants, Simple protocol, 3.4 and 9.6 µs.
INNER_HOP = NCCL_TUNING.ring_latency_us["NVLink"][2] / NCCL_TUNING.ring_latency_us["network"][2]
_NAMES = {"rabenseifner": "Rabenseifner", "bruck": "Bruck", "switch multicast": "switch"}
# Beside a curve there is little room on a phone.
_SHORT = {
    "recursive doubling": "doubling",
    "recursive halving": "halving",
    "binomial tree": "binomial",
    "scatter all-gather": "scatter + gather",
}
# These follow the nodes: only neighbours at a node's edge talk over the network, and every port has a ring of its own.
_NEIGHBOURLY = ("ring", "chain")
# Times closer than this are a tie for the eye.
_TIE = 1.02


class Way:
    """One algorithm on this cluster: ``start_s`` for an empty buffer, and ``s_per_byte`` for each byte of it."""

    def __init__(self, name: str, start_s: float, s_per_byte: float) -> None:
        self.name = name
        self.start_s = start_s
        self.s_per_byte = s_per_byte

    def time_s(self, n_bytes: float) -> float:
        """Seconds for a buffer of this size."""
        return self.start_s + self.s_per_byte * n_bytes


class Links:
    """The cluster: k nodes of g ranks, what a rank sends over the network and inside its node, and a hop's latency."""

    def __init__(self, per_node: int, nodes: int, network: float, inner: float, latency_s: float) -> None:
        self.per_node = per_node
        self.nodes = nodes
        self.network = network
        self.inner = inner
        self.latency_s = latency_s

    @property
    def ranks(self) -> int:
        """N."""
        return self.per_node * self.nodes

    @property
    def inner_latency_s(self) -> float:
        """Seconds of a hop inside a node."""
        return self.latency_s * INNER_HOP

    @property
    def node_network(self) -> float:
        """Bytes/s of all ports of a node together, or of a rank's inner link where that is less."""
        return min(self.inner, self.per_node * self.network) if self.per_node > 1 else self.network


def ways(collective: str, links: Links, in_network: bool) -> list[Way]:
    """All algorithms of the collective that this cluster can run."""
    found = []
    for entry in algorithms(collective):
        if not entry.runs_on(links.ranks, in_network):
            continue
        # Inside one node the switch is NVLink's, between nodes the network's.
        if entry.in_network and (entry.name == "switch multicast") != (links.nodes == 1):
            continue
        found.append(_way(entry, links))
    if collective == "all-reduce" and links.nodes > 1 and links.per_node > 1:
        found.append(_hierarchical(links, in_network))
    return found


def _way(entry: Algorithm, links: Links) -> Way:
    cost = entry.cost(1.0, links.ranks)
    name = _NAMES.get(entry.name, entry.name)
    if links.nodes == 1:
        return Way(name, cost.rounds * links.inner_latency_s, cost.wire_bytes / links.inner)
    if entry.name in _NEIGHBOURLY:
        across = cost.rounds * (links.nodes - 1) / (links.ranks - 1)
        start = across * links.latency_s + (cost.rounds - across) * links.inner_latency_s
        return Way(name, start, cost.wire_bytes / links.node_network)
    if entry.name == "double tree":
        depth = log2_ceil(links.nodes) * links.latency_s + log2_ceil(links.per_node) * links.inner_latency_s
        return Way(name, 2 * depth, cost.wire_bytes / links.node_network)
    return Way(name, cost.rounds * links.latency_s, cost.wire_bytes / links.network)


def _hierarchical(links: Links, in_network: bool) -> Way:
    """Reduce-scatter inside, all-reduce across, all-gather inside, one after the other."""
    across = "switch" if in_network else "rabenseifner"
    parts = []
    for size, inner_latency_s, latency_s in (
        (0.0, links.inner_latency_s, links.latency_s),
        (1.0, 0.0, 0.0),
    ):
        plan = hierarchical_allreduce(
            size,
            links.per_node,
            links.nodes,
            links.inner,
            links.network,
            links.per_node,
            inner_latency_s,
            latency_s,
            across,
        )
        parts.append(plan.time_bracket_s[1])
    return Way("hierarchical", parts[0], parts[1])


def winners(candidates: list[Way]) -> list[tuple[float, Way]]:
    """From which size on which way is the fastest: the lower edge of straight lines, solved and not scanned."""
    lines = [(way.start_s, way.s_per_byte, way) for way in candidates]
    return [(size, way) for size, (_, _, way) in lower_edge(lines)]


def _fastest_first(candidates: list[Way], n_bytes: float) -> list[Way]:
    """Insertion keeps the order of equals: MicroPython's sort is not stable."""
    ordered: list[Way] = []
    for way in candidates:
        place = len(ordered)
        while place and ordered[place - 1].time_s(n_bytes) > way.time_s(n_bytes):
            place -= 1
        ordered.insert(place, way)
    return ordered


def picture(
    collective: str,
    n_bytes: float,
    per_node: int,
    nodes: int,
    bandwidth: float,
    inner_bandwidth: float,
    latency_s: float,
    in_network: bool,
) -> dict[str, Any]:
    """Time over size for every algorithm, the winner, and what the chosen size costs in each."""
    links = Links(per_node, nodes, bandwidth, inner_bandwidth, latency_s)
    candidates = ways(collective, links, in_network) if links.ranks > 1 else [Way("alone", 0.0, 0.0)]
    ordered = _fastest_first(candidates, n_bytes)
    # A change beyond the largest buffer drawn is no news for the reader.
    edges = [item for item in winners(candidates) if item[0] < MOST_BYTES]
    return chart.chart(
        panels=[
            _time_panel(collective, links, candidates, ordered[0], edges, n_bytes),
            _parts_panel(collective, ordered, n_bytes),
        ],
        words=_sentences(collective, links, ordered, edges, n_bytes),
        readouts=_readouts(collective, links, ordered, edges, n_bytes),
        bounds={
            "bandwidth": {"enabled": nodes > 1},
            "inner_bandwidth": {"enabled": per_node > 1},
            "in_network": {"enabled": collective == "all-reduce"},
        },
    )


def _curve(way: Way) -> list[tuple[float, float]]:
    # No time at all, one rank's, has no place on a log axis: it lies below the panel.
    return [(size, max(way.time_s(size), 1e-12)) for size in _CURVE_SIZES]


def _decade(seconds: float, up: bool) -> float:
    exponent = math.log10(seconds)
    # A hair off whole powers, which logarithms may miss by a bit.
    return float(f"1e{math.ceil(exponent - 1e-9) if up else math.floor(exponent + 1e-9)}")


def _time_panel(
    collective: str,
    links: Links,
    candidates: list[Way],
    best: Way,
    edges: list[tuple[float, Way]],
    n_bytes: float,
) -> dict[str, Any]:
    alone = links.ranks == 1
    low = 1e-6 if alone else min([way.time_s(LEAST_BYTES) for way in candidates])
    high = 1.0 if alone else max([way.time_s(MOST_BYTES) for way in candidates])
    domain = (_decade(low, up=False), _decade(high, up=True))
    changes = [item for item in edges[1:] if item[0] > LEAST_BYTES]
    marks = [chart.mark(size, way.time_s(size), "the winner changes", shape="ring") for size, way in changes]
    if not alone:
        spot = best.time_s(n_bytes)
        marks.append(chart.mark(n_bytes, spot, words.seconds(spot), "communication"))
    return chart.lines(
        title=f"Time of one {collective}, {words.plural(links.ranks, 'rank')}",
        x=chart.axis(
            "buffer",
            (LEAST_BYTES, MOST_BYTES),
            [(1e3, "1 kB"), (1e6, "1 MB"), (1e9, "1 GB")],
            scale="log",
            control="n_bytes",
        ),
        y=chart.axis(
            "ms",
            domain,
            [(value, words.plain_number(1e3 * value)) for value, _ in chart.log_ticks(domain[0], domain[1])],
            scale="log",
        ),
        curves=[
            chart.series(
                _SHORT.get(way.name, way.name),
                "communication" if way is best else "muted",
                _curve(way),
                "strong" if way is best else "thin",
            )
            for way in candidates
        ],
        marks=marks,
        alt=f"Time of one {collective} over the size of the buffer, both on log scales, for "
        + ", ".join([way.name for way in candidates])
        + f". At {words.n_bytes(n_bytes)} {best.name} is the fastest with {words.seconds(best.time_s(n_bytes))}.",
    )


def _parts_panel(collective: str, ordered: list[Way], n_bytes: float) -> dict[str, Any]:
    times = [way.time_s(n_bytes) for way in ordered]
    most = 1.5 * max(times) or 1e-6
    return chart.bars(
        title=f"{words.n_bytes(n_bytes)}: latency and bytes",
        categories=[_SHORT.get(way.name, way.name) for way in ordered],
        value=chart.time_axis("time", most),
        stacks=[
            chart.stack("latency", "idle", [way.start_s for way in ordered], texture="hatch"),
            chart.stack("bytes", "communication", [way.s_per_byte * n_bytes for way in ordered]),
        ],
        texts=[words.seconds(time) for time in times],
        alt=f"Bars of the time of one {collective} of {words.n_bytes(n_bytes)}, split into latency and bytes: "
        + "; ".join(
            [
                f"{way.name} {words.seconds(way.start_s)} and {words.seconds(way.s_per_byte * n_bytes)}"
                for way in ordered
            ]
        )
        + ".",
    )


def _share(way: Way, n_bytes: float) -> float:
    total = way.time_s(n_bytes)
    return way.start_s / total if total > 0 else 0.0


def _readouts(
    collective: str, links: Links, ordered: list[Way], edges: list[tuple[float, Way]], n_bytes: float
) -> list[dict[str, Any]]:
    best = ordered[0]
    time = best.time_s(n_bytes)
    bus = busbw_factor(collective, links.ranks) * n_bytes / time if time > 0 else 0.0
    above = [size for size, _ in edges if size > n_bytes]
    return [
        chart.readout("fastest", best.name, f"of {len(ordered)}", "communication-text"),
        chart.readout("time", words.seconds(time), words.n_bytes(n_bytes), "communication-text"),
        chart.readout("latency's share", words.percent(_share(best, n_bytes)), "of that time"),
        chart.readout("bus bandwidth", words.bandwidth(bus), "size over time, times the factor"),
        chart.readout("next change at", words.n_bytes(above[0]) if above else "none", "a larger buffer"),
    ]


def _sentences(
    collective: str, links: Links, ordered: list[Way], edges: list[tuple[float, Way]], n_bytes: float
) -> list[str]:
    if links.ranks == 1:
        return ["One rank has nobody to agree with: nothing is sent and nothing takes time."]
    return [_verdict(ordered, n_bytes), _map(edges), _limits(collective, links)]


def _verdict(ordered: list[Way], n_bytes: float) -> str:
    best, last = ordered[0], ordered[-1]
    time = best.time_s(n_bytes)
    reason = f"{words.percent(_share(best, n_bytes))} of that is latency, " + _remedy(_share(best, n_bytes))
    opening = f"{words.n_bytes(n_bytes)}: {best.name} is the fastest with {words.seconds(time)}"
    if len(ordered) == 1:
        return f"{opening}. {reason}"
    ties = [way.name for way in ordered[1:] if way.time_s(n_bytes) < _TIE * time]
    if ties:
        opening += f", {' and '.join(ties)} within 2\u00a0%"
    slowest = last.time_s(n_bytes) / time
    if slowest >= _TIE:
        opening += f"; {last.name} takes {words.ratio(slowest)} as long"
    return f"{opening}. {reason}"


def _remedy(latency_share: float) -> str:
    if latency_share > 0.8:
        return "so fewer rounds help and more bandwidth hardly does."
    if latency_share < 0.2:
        return "so fewer bytes or more bandwidth help and fewer rounds hardly do."
    return "so fewer rounds and more bandwidth both help."


def _map(edges: list[tuple[float, Way]]) -> str:
    if len(edges) == 1:
        return f"At every size the winner is {edges[0][1].name}."
    parts = [f"The smallest buffers go to {edges[0][1].name}"]
    parts += [f"from {words.n_bytes(size)} on {way.name} wins" for size, way in edges[1:]]
    return "; ".join(parts) + "."


def _limits(collective: str, links: Links) -> str:
    text = "Adding is free here, links are shared with nobody, and "
    if collective in ("all-reduce", "broadcast", "reduce"):
        piecewise = "the double tree" if collective == "all-reduce" else "the chain"
        text += f"{piecewise} works in pieces that cost no latency of their own; "
    if links.nodes == 1:
        return text + "all links are alike, as behind one switch."
    if links.per_node == 1:
        return text + "all links are alike: a real network makes far partners slower than neighbours."
    return (
        text + f"rings, chains and the double tree use all {words.plural(links.per_node, 'port')} of a node, "
        "and every message of the others is taken to cross the network, as if no partner shared the node."
    )


def _on(per_node: int, nodes: int, n_bytes: float, **others: Any) -> dict[str, Any]:
    values: dict[str, Any] = {"per_node": per_node, "nodes": nodes, "n_bytes": n_bytes}
    values.update(others)
    return values


EXPERIMENT = Experiment(
    name="collective-crossover",
    title="Which algorithm wins?",
    question="Few rounds or few bytes: from which buffer size on does the winner change?",
    controls=(
        choice("collective", "Collective", tuple([(name, name) for name in COLLECTIVES]), "all-reduce"),
        slider("n_bytes", "Buffer P", _SIZES, 1e8, "bytes"),
        slider("per_node", "Ranks per node g", (1, 2, 4, 8, 16, 72), 8, whole=True),
        slider("nodes", "Nodes k", (1, 2, 3, 4, 6, 8, 16, 32, 64, 128, 256, 512), 64, whole=True),
        slider("bandwidth", "Network, per rank", _RATES, 50e9, "bytes/s"),
        slider(
            "inner_bandwidth",
            "Inside a node, per rank",
            decades(1e10, 1e12, (1, 3, 4.5, 9)),
            450e9,
            "bytes/s",
        ),
        slider("latency_s", "Latency of a network hop", decades(1e-7, 1e-3), 10e-6, "seconds"),
        toggle("in_network", "Switches that reduce", False),
    ),
    presets=(
        Preset(
            name="equal-64",
            label="64 ranks, equal links",
            values=_on(1, 64, 1e6, bandwidth=25e9, latency_s=10e-6),
            source="One rank a node on InfiniBand HDR, 200 Gb/s; the latency is NCCL's network hop, 9.6 µs, rounded.",
        ),
        Preset(
            name="source",
            label="The source's cluster",
            values=_on(1, 8, 1e9, bandwidth=10e9, latency_s=10e-6),
            source="The source text's toy: 8 ranks, 1 GB, 10 GB/s, 10 µs a hop.",
        ),
        Preset(
            name="a100-node",
            label="8×A100, one node",
            values=_on(8, 1, 1e6, inner_bandwidth=300e9, latency_s=9.6e-6),
            source="NVLink 3: 300 GB/s a direction (NVIDIA's sheet, halved). A hop inside takes 3.4 µs, as in NCCL, tuning.cc.",
        ),
        Preset(
            name="h100-64-nodes",
            label="64 nodes of 8×H100",
            values=_on(8, 64, 1e8, bandwidth=50e9, inner_bandwidth=450e9, latency_s=9.6e-6),
            source="DGX H100: eight ports of 400 Gb/s, NVLink 4 with 450 GB/s a direction. Latencies from NCCL, tuning.cc.",
        ),
        Preset(
            name="nvl72",
            label="GB200 NVL72",
            values=_on(72, 1, 1e8, inner_bandwidth=900e9, latency_s=9.6e-6, in_network=True),
            source="72 GPUs in one NVLink domain, 900 GB/s a direction; the switch adds (NVLink SHARP). Latency as above.",
        ),
    ),
    picture=picture,
)
