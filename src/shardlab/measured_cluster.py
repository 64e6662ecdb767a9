"""The file of ``shardlab measure`` as ``plan`` and ``diagnose`` use it: which number it overrides, and which not.

The models know no file: here it is read, checked, and turned into their own types.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path

from shardlab.checks import count
from shardlab.hardware import Accelerator, Link, Node
from shardlab.labs.measure_result import SCOPES, LinkNumbers, MeasuredCluster, format_flops
from shardlab.labs.result import ranks_words
from shardlab.models.diagnose_common import percent
from shardlab.models.kernels import CONSTANTS
from shardlab.models.nccl_log import NcclLog, Row, Timing
from shardlab.units import format_bandwidth, format_bit_rate, format_bytes, format_time

# Drivers show a little more or less memory than the label says.
_MEMORY_TOLERANCE = 0.15
# No product is faster than the peak, but clocks above the sheet's exist.
_PEAK_TOLERANCE = 1.05


def read(file: Path) -> MeasuredCluster:
    """A file that ``shardlab measure --json`` wrote.

    Raises:
        ValueError: it can't be read, is another program's or another version's, or a field is missing or out of range;
            names the file, the field and what is allowed.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"--measured must name a file that can be read, not {str(file)!r}: {error}"
        ) from None
    return MeasuredCluster.from_json(text, name=str(file))


# ---- for the planner ----


@dataclass(frozen=True)
class MeasuredNode:
    """A node with measured numbers in place of its preset's.

    Attributes:
        node: for the planner.
        origins: one line for each number: measured or preset, its value, and why.
        doubts: why the file may not describe such a node; empty if it does.
    """

    node: Node
    origins: tuple[str, ...]
    doubts: tuple[str, ...]


def doubts(measured: MeasuredCluster, node: Node) -> tuple[str, ...]:
    """Why a file can't be of this kind of node, in sentences; empty if it may be."""
    chip = node.accelerator.name.partition("-")[0]
    device = measured.device
    if device.kind != "cuda" or measured.backend != "nccl":
        return (
            f"it was measured with {measured.backend} on {'a CPU' if device.kind == 'cpu' else 'GPUs'} ({device.name}), "
            f"and {node.name} computes on {node.accelerator.name} and exchanges with NCCL",
        )
    found = []
    # As a word of its own: a GB200 is no B200.
    if chip.lower() not in re.split(r"[^a-z0-9]+", device.name.lower()):
        found.append(f"it was measured on {device.name}, and {node.name} has {node.accelerator.name}")
    elif abs(device.memory_bytes / node.accelerator.memory_bytes - 1) > _MEMORY_TOLERANCE:
        found.append(
            f"its GPUs have {format_bytes(device.memory_bytes, 3)}, and those of {node.name} "
            f"{format_bytes(node.accelerator.memory_bytes, 3)}"
        )
    if measured.best_matmul.flops > _PEAK_TOLERANCE * node.accelerator.peak_flops:
        found.append(
            f"its products reach {format_flops(measured.best_matmul.flops)}, more than the dense peak of "
            f"{node.accelerator.name}, {format_flops(node.accelerator.peak_flops)}"
        )
    if measured.ranks_per_node is not None and measured.ranks_per_node > node.gpus:
        found.append(f"it has {measured.ranks_per_node} ranks a node, and {node.name} has {node.gpus} GPUs")
    return tuple(found)


def node_with(measured: MeasuredCluster, node: Node) -> MeasuredNode:
    """The node with the file's matrix product rate, link inside and network; everything else stays the preset's.

    The numbers go in where the planner's formulas give back what was measured: the link as
    :func:`shardlab.models.kernels.node_collective_bandwidth` reads it, the ports as
    :func:`shardlab.models.kernels.group_bandwidth` shares them among the groups of a node.
    """
    device, rate = _device(measured, node.accelerator)
    intra, inside = _intra(measured.link("node"), node.intra)
    nic, network = _nic(measured, node, intra)
    copied = measured.copy[0].bandwidth
    kept = (
        f"preset    memory {format_bytes(node.accelerator.memory_bytes, 3)}, its bandwidth "
        f"{format_bandwidth(node.accelerator.memory_bandwidth, 3)} (copies were measured at "
        f"{format_bandwidth(copied, 3)}, {percent(copied / node.accelerator.memory_bandwidth)} of it: the planner has its own "
        f"share for kernels), peak {format_flops(node.accelerator.peak_flops)}, clocks under long load {node.accelerator.sustained:.0%}, "
        f"latency of a ring's hops in ZeRO, {node.gpus} GPUs and {node.nics} ports a node"
    )
    return MeasuredNode(
        node=replace(node, accelerator=device, intra=intra, nic=nic, source=f"{node.source}; measured"),
        origins=(rate, inside, network, kept),
        doubts=doubts(measured, node),
    )


def _device(measured: MeasuredCluster, preset: Accelerator) -> tuple[Accelerator, str]:
    best = measured.best_matmul
    words = (
        f"measured  matrix products {format_flops(best.flops)} in bf16, the slowest rank's best shape "
        f"({best.m} × {best.k} × {best.n}); preset {format_flops(preset.matmul_flops)}"
    )
    return replace(preset, matmul_flops=best.flops, source=f"{preset.source}; matmul_flops: measured"), words


def _intra(link: LinkNumbers | None, preset: Link) -> tuple[Link, str]:
    """The link inside the node, so that ``bandwidth * efficiency * N/(N + 1/2)`` is what N ranks reached."""
    before = f"{format_bandwidth(preset.achievable_bandwidth, 3)}, {format_time(preset.latency_s, 3)} a call"
    if link is None or link.bandwidth is None:
        why = (
            "the file has no two ranks in one node"
            if link is None
            else "no size shows the bandwidth: measure larger"
        )
        return preset, f"preset    link in the node {before}: {why}"
    latency, kept = _fixed(link, preset)
    bandwidth = link.bandwidth * (link.ranks + 0.5) / link.ranks
    made = _measured_link(preset, bandwidth, latency, link)
    words = (
        f"measured  link in the node {format_bandwidth(bandwidth, 3)} (so that {ranks_words(link.ranks)} reach "
        f"{format_bandwidth(link.bandwidth, 3)}), {format_time(latency, 3)} a call{kept}; preset {before}; {link.how}"
    )
    return made, words


def _measured_link(preset: Link, bandwidth: float, latency_s: float, link: LinkNumbers) -> Link:
    """A link whose bandwidth is what was reached, so that its efficiency is 1."""
    return Link(
        name=f"{preset.name}, measured",
        bandwidth=bandwidth,
        latency_s=latency_s,
        efficiency=1.0,
        source=link.how,
    )


def _fixed(link: LinkNumbers, preset: Link) -> tuple[float, str]:
    if link.fixed_s is None:
        return preset.latency_s, " (preset: even the smallest buffer is bound by bandwidth)"
    return link.fixed_s, ""


def _nic(measured: MeasuredCluster, node: Node, intra: Link) -> tuple[Link, str]:
    """One port, so that all groups of a node together get what its ranks reached across nodes."""
    preset, link = node.nic, measured.link("across")
    before = f"{node.nics} x {format_bit_rate(preset.bandwidth, 3)}"
    if link is None or link.bandwidth is None or measured.ranks_per_node is None:
        why = (
            "the file is of one node"
            if measured.nodes == 1
            else "the nodes have different numbers of ranks"
            if link is None
            else "no size shows the bandwidth: measure larger"
        )
        return preset, f"preset    network {before}: {why}"
    reached = link.bandwidth * measured.ranks_per_node
    # The planner takes this share of the ports' line rate in large collectives.
    bandwidth = reached / CONSTANTS.network_efficiency / node.nics
    latency, kept = preset.latency_s, ", latency of the preset"
    if link.fixed_s is not None and link.fixed_s > intra.latency_s:
        latency = (link.fixed_s - intra.latency_s) / (2.0 * math.sqrt(link.ranks - 1))
        kept = ""
    few = (
        f"; measured with {measured.ranks_per_node} of {node.gpus} GPUs a node, so the ports may carry more"
        if measured.ranks_per_node < node.gpus
        else ""
    )
    made = _measured_link(preset, bandwidth, latency, link)
    words = (
        f"measured  network {format_bit_rate(reached, 3)} a node in collectives, {format_time(latency, 3)} a message"
        f"{kept}; preset {before} of line rate, {format_time(preset.latency_s, 3)}; {link.how}{few}"
    )
    return made, words


# ---- for the diagnosis ----


@dataclass(frozen=True)
class RunLink:
    """What a run of some ranks should get from the link, by the file.

    Attributes:
        bandwidth: bytes/s per rank and direction.
        log: the all-reduce by size, if it was measured on just as many ranks, else None.
        n_nodes: of the run: as given, or as measured on just as many ranks; None if unknown.
        words: where the numbers are from.
    """

    bandwidth: float
    log: NcclLog | None
    n_nodes: int | None
    words: str


def link_of_run(measured: MeasuredCluster, ranks: int, nodes: int | None, name: str) -> RunLink:
    """The link for the all-reduce of a data-parallel run.

    Args:
        measured: the file.
        ranks, nodes: of the run; None if it isn't known how many nodes it uses.
        name: the file's, for the words.

    Raises:
        ValueError: the file doesn't show that link: a run on several nodes needs several nodes measured.
    """
    n_ranks = count("ranks", ranks, least=2)
    inside = measured.ranks_per_node
    fits_in_node = inside is not None and n_ranks <= inside
    within = nodes == 1 or (
        nodes is None and (fits_in_node or (measured.nodes == 1 and n_ranks == measured.ranks))
    )
    choices = ("node",) if within else ("all", "across")
    scope = next((scope for scope in choices if scope in measured.scopes), None)
    if scope is None:
        raise ValueError(_no_scope(measured, n_ranks, within, name))
    link = measured.link(scope)
    if link is None or link.bandwidth is None:
        raise ValueError(
            f"{name} does not show the bandwidth {SCOPES[scope]}: its largest all-reduce takes hardly longer than its "
            "smallest. Measure again with a larger --largest"
        )
    same = link.ranks == n_ranks
    known = nodes if nodes is not None or not same else (1 if scope == "node" else measured.nodes)
    words = (
        f"The link is {format_bandwidth(link.bandwidth, 3)} ({format_bit_rate(link.bandwidth, 3)}) per rank and direction, "
        f"measured by {name} ({measured.stamp.date}, {measured.device.name}, {measured.backend}): {link.how}. Below, "
        '"nominal" and "the link you named" mean this'
    )
    if same:
        words += ', and "benchmark" the all-reduce times of that file.'
    else:
        words += f". The run has {ranks_words(n_ranks)}: a ring of other length may get less or more."
    if measured.backend == "gloo":
        words += " gloo on CPUs was measured: compare a run on gloo and on these machines with it, no other."
    return RunLink(
        bandwidth=link.bandwidth,
        log=_log(measured, scope, known) if same else None,
        n_nodes=known,
        words=words,
    )


def _no_scope(measured: MeasuredCluster, ranks: int, within: bool, name: str) -> str:
    if not measured.timings:
        return f"{name} was measured on one rank and shows no link: measure on as many ranks as the run has"
    if within:
        return f"{name} has no two ranks in one node: a run on one node needs ranks of one node measured"
    return (
        f"{name} was measured on {ranks_words(measured.ranks)} of one node and says nothing about links between nodes: "
        f"measure across nodes, or say --nodes 1 if the run's {ranks_words(ranks)} are in one node"
    )


def _log(measured: MeasuredCluster, scope: str, nodes: int | None) -> NcclLog:
    """The all-reduces of a scope as an nccl-tests log, which the diagnoses read."""
    rows = measured.rows(scope, "all-reduce")
    return NcclLog(
        collective="all-reduce",
        n_ranks=rows[0].ranks,
        n_nodes=nodes,
        rows=[
            Row(
                n_bytes=row.n_bytes,
                dtype="float",
                out_of_place=None,
                in_place=Timing(
                    time_s=row.seconds, algbw=row.algbw, busbw=row.busbw, n_wrong=0 if row.correct else None
                ),
            )
            for row in rows
        ],
        average_busbw=None,
        warnings=[],
    )
