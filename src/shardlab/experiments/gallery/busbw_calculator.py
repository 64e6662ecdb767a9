"""From a measured time to algorithm bandwidth, bus bandwidth, and a verdict against the link."""

from __future__ import annotations

from typing import Any

from shardlab.experiments import chart, words
from shardlab.experiments.controls import Experiment, Preset, choice, decades, slider
from shardlab.measured import ALL_REDUCE
from shardlab.models.collectives import COLLECTIVES, busbw_factor
from shardlab.models.diagnose_collective import CollectiveDiagnosis
from shardlab.models.diagnose_collective import collective as diagnose

MOST_RANKS = 4096
_POWERS = tuple([2**exponent for exponent in range(1, 13)])
_MEANING = {
    "all-reduce": "the buffer of one rank",
    "reduce-scatter": "the whole input of one rank",
    "all-gather": "the whole output",
    "all-to-all": "the whole input of one rank",
    "broadcast": "the buffer",
    "reduce": "the buffer of one rank",
}
_BACKENDS = (("nccl", "NCCL"), ("gloo", "gloo"), ("mpi", "MPI"))
# Where a rank holds 1/N before or after, tools disagree on which of the two is "the size".
SPLIT = ("reduce-scatter", "all-gather", "all-to-all")
# Rates are drawn in GB/s: one unit for a rack of NVLink and for a 1 Gb/s port.
_GB = 1e9


def picture(
    collective: str,
    n_bytes: float,
    size_is: str,
    time_s: float,
    ranks: int,
    nodes: int,
    link: float,
    backend: str,
) -> dict[str, Any]:
    """The two bandwidths beside the link, what a perfect link would print for any N, and the verdict."""
    size = n_bytes * ranks if size_is == "part" and collective in SPLIT else n_bytes
    boxes = min(nodes, ranks)
    answer = diagnose(size, time_s, ranks, collective, link, boxes, backend)
    where = f"{dict(_BACKENDS)[backend]}, {words.plural(ranks, 'rank')} on {words.plural(boxes, 'node')}"
    return chart.chart(
        panels=[_rates_panel(answer, where), _ranks_panel(answer, link)],
        words=_sentences(answer, link, where),
        readouts=_readouts(answer, link),
        bounds={"nodes": {"most": ranks}, "size_is": {"enabled": collective in SPLIT}},
    )


def _rates_panel(answer: CollectiveDiagnosis, where: str) -> dict[str, Any]:
    link = answer.nominal_bandwidth or 0.0
    most = 1.35 * max(answer.algbw, answer.busbw, link)
    return chart.bars(
        title=where,
        categories=["algbw", "busbw"],
        value=chart.axis("GB/s", (0.0, most), chart.even_ticks(most, _GB)),
        stacks=[chart.stack("measured", "communication", [answer.algbw, answer.busbw])],
        limits=[chart.limit(link, "the link", align="end" if link > most / 2 else "start")],
        texts=[words.bandwidth(answer.algbw), words.bandwidth(answer.busbw)],
        alt=f"{where}. Bars: algorithm bandwidth {words.bandwidth(answer.algbw)}, bus bandwidth "
        f"{words.bandwidth(answer.busbw)}, beside a link of {words.bandwidth(link)}.",
    )


def _ranks_panel(answer: CollectiveDiagnosis, link: float) -> dict[str, Any]:
    perfect = [(n, link / busbw_factor(answer.collective, n)) for n in _POWERS]
    most = 1.15 * max(perfect[0][1], answer.algbw, answer.busbw)
    return chart.lines(
        title="A perfect link, any number of ranks",
        x=chart.axis(
            "ranks N",
            (2, MOST_RANKS),
            [(count, str(count)) for count in (2, 8, 64, 512, 4096)],
            scale="log",
            control="ranks",
        ),
        y=chart.axis("GB/s", (0.0, most), chart.even_ticks(most, _GB)),
        curves=[
            chart.series("busbw", "communication", [(2, link), (MOST_RANKS, link)], "strong"),
            chart.series("its algbw", "communication", perfect, "thin", dashed=True),
        ],
        marks=[
            chart.mark(answer.n_ranks, answer.algbw, "your algbw", shape="ring"),
            chart.mark(answer.n_ranks, answer.busbw, "your busbw", "communication"),
        ],
        alt=f"What a perfect link of {words.bandwidth(link)} prints for 2 to {MOST_RANKS} ranks: the bus bandwidth stays, "
        f"the algorithm bandwidth goes from {words.bandwidth(perfect[0][1])} to {words.bandwidth(perfect[-1][1])}. "
        f"Your busbw is {words.bandwidth(answer.busbw)} at {words.plural(answer.n_ranks, 'rank')}.",
    )


def _readouts(answer: CollectiveDiagnosis, link: float) -> list[dict[str, Any]]:
    factor = busbw_factor(answer.collective, answer.n_ranks)
    return [
        chart.readout("algbw", words.bandwidth(answer.algbw), "size over time"),
        chart.readout(
            "busbw", words.bandwidth(answer.busbw), f"algbw × {words.amount(factor, 4)}", "communication-text"
        ),
        chart.readout("of the link", words.percent(answer.busbw / link), words.bandwidth(link)),
        chart.readout(
            "at line rate",
            words.seconds(factor * answer.n_bytes / link),
            f"measured {words.seconds(answer.time_s)}",
        ),
        chart.readout("over a link", words.n_bytes(factor * answer.n_bytes), "at least, point to point"),
    ]


def _sentences(answer: CollectiveDiagnosis, link: float, where: str) -> list[str]:
    factor = busbw_factor(answer.collective, answer.n_ranks)
    texts = [answer.verdict.text]
    if answer.verdict.checks:
        texts.append("Look first at: " + answer.verdict.checks[0] + ".")
    texts.append(
        f"{where}: the size is {_MEANING[answer.collective]}, {words.n_bytes(answer.n_bytes)}. Over "
        f"{words.seconds(answer.time_s)} that is an algorithm bandwidth of {words.bandwidth(answer.algbw)}; times "
        f"{words.amount(factor, 4)} for this collective it is a bus bandwidth of "
        f"{words.bandwidth(answer.busbw)}, the one to hold against {words.bandwidth(link)}."
    )
    texts += list(answer.notes)
    return texts


def _h200() -> dict[str, Any]:
    """1 GiB on 8 H200 with the switch adding: the table prints the bus bandwidth, and the time follows."""
    table = next(row for row in ALL_REDUCE if "H200" in row.machine)
    place = table.n_bytes.index(2**30)
    size = float(table.n_bytes[place])
    time = size * busbw_factor("all-reduce", table.n_ranks) / table.busbw[place]
    return _measured(size, time, table.n_ranks, 1, table.link_bandwidth)


def _measured(
    n_bytes: float, time_s: float, ranks: int, nodes: int, link: float, **others: Any
) -> dict[str, Any]:
    values: dict[str, Any] = {
        "collective": "all-reduce",
        "n_bytes": n_bytes,
        "time_s": time_s,
        "ranks": ranks,
        "nodes": nodes,
        "link": link,
    }
    values.update(others)
    return values


EXPERIMENT = Experiment(
    name="busbw-calculator",
    title="Is this bandwidth good?",
    question="Type what a benchmark measured: how fast were the wires, and is that what the link should give?",
    controls=(
        choice("collective", "Collective", tuple([(name, name) for name in COLLECTIVES]), "all-gather"),
        slider("n_bytes", "Size", decades(1e3, 1e11), 1e9, "bytes"),
        choice(
            "size_is",
            "The size is",
            (("whole", "the whole buffer, as nccl-tests prints it"), ("part", "one rank's part of it")),
            "whole",
        ),
        slider("time_s", "Measured time", decades(1e-6, 1e2), 0.01, "seconds"),
        slider("ranks", "Ranks N", (2, 3, 4, 6, 8, 16, 24, 32, 64, 128, 256, 512, 1024, 4096), 8, whole=True),
        slider("nodes", "Nodes", (1, 2, 3, 4, 6, 8, 16, 32, 64, 128, 512), 1, whole=True),
        slider("link", "Slowest link crossed", decades(1e8, 1e12, (1, 1.25, 2.5, 5)), 100e9, "bytes/s"),
        choice("backend", "Backend", _BACKENDS, "nccl"),
    ),
    presets=(
        Preset(
            name="a100-node",
            label="8×A100, 1 GiB",
            values=_measured(2.0**30, 8142.6e-6, 8, 1, 300e9),
            source="nccl-tests' time in NVIDIA/nccl issue 527; NVLink 3 carries 300 GB/s a direction.",
        ),
        Preset(
            name="two-boxes",
            label="Two boxes: above the wire?",
            values=_measured(2.0**30, 35215e-6, 16, 2, 50e9),
            source="The same issue, two boxes of 8 A100 with four 100 Gb/s ports each: 50 GB/s a box.",
        ),
        Preset(
            name="four-boxes",
            label="Four boxes",
            values=_measured(2.0**30, 70253e-6, 32, 4, 50e9),
            source="The same issue, four boxes: from three on, the bus bandwidth is the wire's.",
        ),
        Preset(
            name="h200-switch",
            label="8×H200, the switch adds",
            values=_h200(),
            source="463.58 GB/s at 1 GiB (ml-engineering, 2026-08); NVLink 4 carries 450 GB/s a direction.",
        ),
        Preset(
            name="gloo-core",
            label="gloo on one core",
            values=_measured(2e7, 17.251e-3, 2, 2, 5e9, backend="gloo"),
            source="pytorch/gloo issue 248: 5,000,000 floats, two processes of one core each, a 40 Gb/s port.",
        ),
    ),
    picture=picture,
)
