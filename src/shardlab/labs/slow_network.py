"""The slow-network lab: data parallelism over cables of a chosen rate, where more ranks can be slower.

>>> from shardlab import labs
>>> run = labs.slow_network(ranks=4)
>>> run.table()
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from shardlab.checks import count, positive
from shardlab.labs import machine, netns
from shardlab.labs.ddp import FP32_BYTES, SAME
from shardlab.labs.lab import RUN_OPTIONS, lab
from shardlab.labs.result import LabRun, common, cores_words, only, ranks_words, teams
from shardlab.labs.run import LabError, run
from shardlab.labs.sent import WIRE_TOLERANCE
from shardlab.labs.table import Table
from shardlab.models.collectives import ring_allreduce_sent_bytes
from shardlab.models.fit import LinkFit, fit_link, sample
from shardlab.models.overlap import bucketed_step
from shardlab.models.scaling import data_parallel
from shardlab.units import format_bit_rate, format_bytes, format_time

WORKER = "shardlab.labs.slow_network_worker:worker"
# Above it the machine's cores, not the cables, would be what is slow.
MOST_RANKS = 4

# The model, shared with the worker: equal layers, so that gradients appear evenly during the backward pass.
FEATURES, LAYERS = 512, 8
# The backward pass computes twice what the forward pass does.
BACKWARD_SHARE = 2 / 3
BUCKET_MIB = 2
# All-reduce alone, bytes: what the link is fitted on, and what is held out.
FITTED_SIZES = (2**16, 2**19, 2**22)
HELD_OUT_SIZES = (2**18, 2**21)
SIZES = tuple(sorted(FITTED_SIZES + HELD_OUT_SIZES))

# No cable passes more than its rate and its burst; this is for reading the clock on one rank only.
RATE_TOLERANCE = 0.1


@dataclass(frozen=True)
class LinkRow:
    """An all-reduce alone.

    Attributes:
        mbit_s: rate of every cable, Mbit/s.
        ranks: N.
        n_bytes: buffer of one rank.
        seconds: measured, median of the slowest rank.
        predicted_s: by the fitted link.
        fitted: whether the link was fitted on it; the others are held out.
    """

    mbit_s: float
    ranks: int
    n_bytes: int
    seconds: float
    predicted_s: float
    fitted: bool

    @property
    def gap(self) -> float:
        """Measured against predicted, as a fraction."""
        return self.seconds / self.predicted_s - 1


@dataclass(frozen=True)
class LinkRate:
    """What the all-reduces alone say of a cable.

    Attributes:
        mbit_s: the rate that was set, Mbit/s.
        bandwidth: fitted, bytes/s. latency_s: fitted, seconds per hop.
    """

    mbit_s: float
    bandwidth: float
    latency_s: float


@dataclass(frozen=True)
class StepRow:
    """One step of a fixed global batch on ``ranks`` ranks (strong scaling).

    Attributes:
        mbit_s: rate of every cable, Mbit/s; None without a limit.
        ranks: N.
        step_s: measured, median over the steps.
        predicted_s: bucket by bucket, each all-reduced as soon as its gradients are there.
        fastest_s, slowest_s: predicted if all of the all-reduce were hidden, and if none of it were.
        speedup, predicted_speedup: one rank's time over this one's.
        predicted_bytes: ``2 (N-1)/N * P``.
        kernel_bytes: what the kernel sent per step, one number per rank; None where it can't be read.
        parameter_gap: largest difference of any rank's parameters from one process, after the last step.
    """

    mbit_s: float | None
    ranks: int
    step_s: float
    predicted_s: float
    fastest_s: float
    slowest_s: float
    speedup: float
    predicted_speedup: float
    predicted_bytes: float
    kernel_bytes: tuple[float, ...] | None
    parameter_gap: float

    @property
    def wire_gap(self) -> float | None:
        """The kernel's bytes against the prediction, of the rank that is farthest off; None if nothing is sent or read."""
        if not self.predicted_bytes or self.kernel_bytes is None:
            return None
        return max([sent / self.predicted_bytes - 1 for sent in self.kernel_bytes], key=abs)


@dataclass(frozen=True, kw_only=True)
class SlowNetworkRun(LabRun):
    """A finished slow-network lab.

    Attributes:
        parameters: of the model; ``n_bytes`` of its gradients in fp32.
        link, rates: all-reduces alone, and what was fitted on part of them.
        steps: training, row by row.
    """

    lab: ClassVar[str] = "slow_network"

    parameters: int
    n_bytes: int
    link: tuple[LinkRow, ...]
    rates: tuple[LinkRate, ...]
    steps: tuple[StepRow, ...]

    # ---- reading it ----

    def step_row(self, mbit_s: float | None, ranks: int) -> StepRow:
        """The row of :attr:`steps` with this rate (None: no limit) and number of ranks."""
        return only(self.steps, "steps", mbit_s=mbit_s if ranks > 1 else None, ranks=ranks)

    def rate(self, mbit_s: float) -> LinkRate:
        """The fitted link at this rate."""
        return only(self.rates, "rates", mbit_s=mbit_s)

    def failed_checks(self) -> list[str]:
        """Sentences about what should have been equal and was not; empty if all is well. Times are never judged."""
        failed = [
            f"{_where(row)}: training is not equal to one process (parameters {row.parameter_gap:.1e}, "
            f"allowed {SAME:.0e})"
            for row in self.steps
            # Written so that a NaN fails.
            if not row.parameter_gap <= SAME
        ]
        failed += [
            f"{_where(row)}: each rank sends {row.wire_gap:+.2%} against the prediction (allowed {WIRE_TOLERANCE:.0%})"
            for row in self.steps
            if row.wire_gap is not None and not abs(row.wire_gap) <= WIRE_TOLERANCE
        ]
        # No judgement of speed: a busy machine is slower than its cables, but nothing is faster.
        failed += [
            f"{_where(row)}: an all-reduce of {format_bytes(row.n_bytes)} took {format_time(row.seconds, 3)}, less than "
            "its bytes need at this rate: the cables were not held to it"
            for row in self.link
            if not row.seconds * (1 + RATE_TOLERANCE) >= _least_time_s(row)
        ]
        return failed

    # ---- showing it ----

    def make_tables(self) -> dict[str, Callable[[], Table]]:
        """``"steps"``, ``"link"``, ``"wire"``."""
        return {"steps": self._steps_table, "link": self._link_table, "wire": self._wire_table}

    def _steps_table(self) -> Table:
        rows = [
            (
                rate_words(row.mbit_s),
                str(row.ranks),
                f"{row.step_s * 1e3:.0f}",
                "given" if row.ranks == 1 else f"{row.predicted_s * 1e3:.0f}",
                "-" if row.ranks == 1 else f"{row.step_s / row.predicted_s - 1:+.0%}",
                f"{row.fastest_s * 1e3:.0f} to {row.slowest_s * 1e3:.0f}",
                f"{row.speedup:.2f}",
                f"{row.predicted_speedup:.2f}",
            )
            for row in self.steps
        ]
        return Table(
            caption=f"Strong scaling: one step of a global batch of {self.settings['batch']}, by the rate of the cables",
            columns=(
                "Cables",
                "Ranks",
                "Measured, ms",
                "Predicted, ms",
                "Measured against predicted",
                "If all is hidden to none, ms",
                "Speedup measured",
                "Speedup predicted",
            ),
            rows=tuple(rows),
            notes=(
                f"Prediction: one rank's time shared by N, with {format_bytes(self.n_bytes)} of gradients in buckets of "
                f"{BUCKET_MIB} MiB, each all-reduced as soon as it is full, at the latency and bandwidth fitted on "
                "all-reduces alone. Without a limit: as if the network took no time.",
                f"Compute is {format_time(self.settings['compute_s'])} of waiting per step, shared by the ranks, as if each "
                "had an accelerator of its own; the layers themselves run on this machine's cores.",
            ),
            label_columns=2,
        )

    def _link_table(self) -> Table:
        rows = [
            (
                rate_words(row.mbit_s),
                str(row.ranks),
                f"{row.n_bytes:,}",
                f"{row.seconds * 1e3:.1f}",
                f"{row.predicted_s * 1e3:.1f}",
                f"{row.gap:+.0%}",
                "fitted" if row.fitted else "held out",
            )
            for row in self.link
        ]
        fits = [
            f"{rate_words(fit.mbit_s)}: fitted {format_bit_rate(fit.bandwidth, 3)} and {format_time(fit.latency_s, 3)} per hop."
            for fit in self.rates
        ]
        return Table(
            caption="All-reduce alone: ring 2(N-1)/N·P/bandwidth + 2(N-1)·latency, fitted on part and held against the rest",
            columns=(
                "Cables",
                "Ranks",
                "P, B",
                "Measured, ms",
                "Predicted, ms",
                "Measured against predicted",
                "Role",
            ),
            rows=tuple(rows),
            notes=tuple(fits),
            label_columns=2,
        )

    def _wire_table(self) -> Table:
        rows = []
        for row in self.steps:
            sent, gap = "not read", "-"
            if row.kernel_bytes is not None:
                sent = f"{statistics.fmean(row.kernel_bytes):,.0f}"
            if row.wire_gap is not None:
                gap = f"{row.wire_gap:+.2%}"
            rows.append((rate_words(row.mbit_s), str(row.ranks), f"{row.predicted_bytes:,.0f}", sent, gap))
        reading = (
            f"The kernel's counters of each rank's TCP connections ({self.reading}), mean over the ranks; the last column "
            "is of the rank farthest off. The rate of the cables changes none of them."
        )
        return Table(
            caption=f"Bytes that one rank sends per step; P = {self.n_bytes:,} B of gradients",
            columns=("Cables", "Ranks", "Predicted 2(N-1)/N·P, B", "Sent (kernel), B", "Against predicted"),
            rows=tuple(rows),
            notes=(reading,) if self.reading else (),
            label_columns=2,
        )

    def explanation(self) -> list[str]:
        """What the numbers say, in words, with the numbers."""
        return [
            *[self._rate_words(rate) for rate in (None, *self.settings["mbit_s"])],
            *[self._fit_words(fit) for fit in self.rates],
            self._miss_words(),
        ]

    def _rate_words(self, rate: float | None) -> str:
        one = self.step_row(None, 1)
        rows = [one, *[row for row in self.steps if row.mbit_s == rate and row.ranks > 1]]
        most, best = rows[-1], min(rows, key=lambda row: row.step_s)
        verdict = "slower" if most.step_s > one.step_s else "faster"
        words = (
            f"{_capital(rate_words(rate))}: {ranks_words(most.ranks)} take {format_time(most.step_s, 3)} per step and one "
            f"takes {format_time(one.step_s, 3)}, a speedup of {most.speedup:.2f}: more ranks are {verdict}. "
            f"The fastest measured is {ranks_words(best.ranks)}."
        )
        if rate is None:
            return words
        return (
            f"{words} Compute falls to {format_time(one.step_s / most.ranks, 3)}, but the all-reduce needs "
            f"{format_time(most.slowest_s - one.step_s / most.ranks, 3)}, which no further rank makes shorter."
        )

    def _fit_words(self, fit: LinkRate) -> str:
        held_out = [row for row in self.link if row.mbit_s == fit.mbit_s and not row.fitted]
        worst = max(held_out, key=lambda row: abs(row.gap))
        share = fit.bandwidth * 8e-6 / fit.mbit_s
        rest = "; packet headers and pauses take the rest" if share < 1 else ""
        return (
            f"{_capital(rate_words(fit.mbit_s))}: the fit finds {format_bit_rate(fit.bandwidth, 3)} of payload, "
            f"{share:.0%} of the rate{rest}, and {format_time(fit.latency_s, 3)} per hop. On what it has not seen it is "
            f"off by at most {abs(worst.gap):.0%} ({ranks_words(worst.ranks)}, {format_bytes(worst.n_bytes)})."
        )

    def _miss_words(self) -> str:
        worst = max(
            [row for row in self.steps if row.ranks > 1],
            key=lambda row: abs(row.step_s / row.predicted_s - 1),
        )
        return (
            f"The prediction of a step is off by at most {abs(worst.step_s / worst.predicted_s - 1):.0%} "
            f"({rate_words(worst.mbit_s)}, {ranks_words(worst.ranks)}). It leaves out that {ranks_words(worst.ranks)} "
            f"share {cores_words(self.stamp.cores)} here for the layers and for copying every byte, that DDP's buckets "
            "are not exactly equal, and whatever else the machine was doing. The cables' rate is set, so the bandwidth "
            "is a network's; the latency is this machine's, and a real network's differs."
        )

    def plot(self, dark: bool = False) -> Any:
        """Speedup against ranks, measured (solid) and predicted (dashed), one line per rate; a figure."""
        from shardlab.labs.slow_network_plot import rate_figure

        return rate_figure(self, dark)


def rate_words(mbit_s: float | None) -> str:
    """``200 Mbit/s``, ``2 Gbit/s``, or ``no limit``."""
    if mbit_s is None:
        return "no limit"
    return f"{mbit_s / 1000:g} Gbit/s" if mbit_s >= 1000 else f"{mbit_s:g} Mbit/s"


def link_ranks(ranks: int) -> list[int]:
    """The numbers of ranks whose all-reduce alone is timed: 2, 3, ... ``ranks``."""
    return list(range(2, ranks + 1))


def _capital(words: str) -> str:
    return words[0].upper() + words[1:]


def _where(row: LinkRow | StepRow) -> str:
    return f"{_capital(rate_words(row.mbit_s))}, {ranks_words(row.ranks)}"


def _least_time_s(row: LinkRow) -> float:
    """The least time in which a cable passes this row's bytes: its burst is free, the rest goes at its rate."""
    rate = row.mbit_s * 1e6 / 8
    return (ring_allreduce_sent_bytes(row.n_bytes, row.ranks) - netns.burst_bytes(rate)) / rate


@lab(
    title="Data parallelism over slow cables: network namespaces held to a rate, where more ranks are slower",
    seconds=30,
    needs="torch, Linux, root or user namespaces",
    options={
        "ranks": "Largest number of ranks, 2 to 4; 1, 2, ... up to it are measured.",
        "mbit_s": "Rates of the cables, Mbit/s; training without a limit comes first.",
        "batch": "Samples in the global batch.",
        "compute_s": "Seconds that one accelerator would compute for, for the whole batch.",
        "steps": "Timed steps for each rate and number of ranks.",
        **RUN_OPTIONS,
    },
    worker_file="slow_network_worker.py",
    shown=("Accelerator", "Model"),
    result=SlowNetworkRun,
)
def slow_network(
    ranks: int = 4,
    *,
    mbit_s: Sequence[float] = (2000, 200),
    batch: int = 48,
    compute_s: float = 0.3,
    steps: int = 4,
    limit_s: float = 150.0,
    start: str = "auto",
    show: bool = True,
) -> SlowNetworkRun:
    """Train with torch DDP on ranks that are joined by cables of a chosen rate; predict, time, count and check.

    Every rank runs in a network namespace of its own (see :mod:`shardlab.labs.netns`). (a) All-reduces alone: latency
    and bandwidth are fitted on part of the sizes and numbers of ranks and predict the rest. (b) Strong scaling: step
    times of a fixed global batch beside the prediction. (c) Bytes by the kernel beside ``2 (N-1)/N * P``. All parameters
    are held against one process.

    Args:
        ranks: largest number of ranks, 2 to 4.
        mbit_s: one or more different rates, Mbit/s, from 10 to 10,000.
        batch: samples in the global batch; every number of ranks must divide it.
        compute_s: seconds that one accelerator would compute for, for the whole batch: the ranks wait, so that the few
            cores here do not stand for an accelerator each.
        steps: timed steps for each rate and number of ranks.
        limit_s: time limit of the whole lab, seconds.
        start: as in :func:`shardlab.labs.run.run`.
        show: show progress.

    Raises:
        ValueError: an argument is out of range.
        LabError: a rank failed or the limit was reached; what was ready is in its ``partial``.

    Without torch, Linux, the rights or the kernel's ``tbf`` it says so and returns the run that was recorded for the
    book. Who is not root becomes root of a user namespace for it. GPUs are not used: the network between CPUs is slow.
    """
    n_ranks = count("ranks", ranks, least=2, most=MOST_RANKS)
    settings = {
        "ranks": n_ranks,
        "mbit_s": _rates(mbit_s),
        "batch": _batch(batch, n_ranks),
        "compute_s": positive("compute_s", compute_s, "seconds"),
        "steps": count("steps", steps),
    }
    limit = positive("limit_s", limit_s, "seconds")
    netns.require_namespaces()
    params = {**settings, "teams": teams(n_ranks)}
    began = time.monotonic()
    if netns.is_root() or not machine.torch_installed():
        results = run(WORKER, n_ranks, params, limit_s=limit, start=start, show=show).results
    else:
        results = netns.run_as_own_root(WORKER, n_ranks, params, limit_s=limit, start=start)
    return _evaluate(results[0], settings, time.monotonic() - began)


def _rates(mbit_s: Sequence[float]) -> list[float]:
    if isinstance(mbit_s, (str, bytes)) or not isinstance(mbit_s, Sequence) or not mbit_s:
        raise ValueError(f"mbit_s must be a list of rates in Mbit/s, not {mbit_s!r}")
    rates = [positive("each of mbit_s", rate, "Mbit/s") for rate in mbit_s]
    if len(set(rates)) != len(rates) or not all(10 <= rate <= 10_000 for rate in rates):
        raise ValueError(f"mbit_s must hold different rates from 10 to 10000 Mbit/s, not {mbit_s!r}")
    return rates


def _batch(batch: int, ranks: int) -> int:
    size = count("batch", batch)
    if any(size % n for n in teams(ranks)):
        raise ValueError(f"batch must be divisible by each number of ranks ({teams(ranks)}), not {size}")
    return size


# ---- from raw measurements to the result ----


def _evaluate(measured: dict[str, Any], settings: dict[str, Any], elapsed_s: float) -> SlowNetworkRun:
    try:
        fits = {rate: _fit(measured["link"], rate, settings["ranks"]) for rate in settings["mbit_s"]}
    except ValueError as error:
        # Not the caller's mistake: the machine was too busy.
        raise LabError(
            f"no prediction can be fitted: {error}", cause="measurement", partial=measured
        ) from None
    n_bytes = FP32_BYTES * measured["parameters"]
    alone_s = statistics.median(next(cell for cell in measured["steps"] if cell["ranks"] == 1)["seconds"])
    return SlowNetworkRun(
        **common(measured, settings, elapsed_s),
        parameters=measured["parameters"],
        n_bytes=n_bytes,
        link=tuple(
            [
                LinkRow(
                    **row,
                    predicted_s=fits[row["mbit_s"]].time_s(row["n_bytes"], row["ranks"]),
                    fitted=_is_fitted(row, settings["ranks"]),
                )
                for row in measured["link"]
            ]
        ),
        rates=tuple([LinkRate(rate, fit.bandwidth, fit.latency_s) for rate, fit in fits.items()]),
        steps=tuple(
            [_step_row(cell, n_bytes, alone_s, fits.get(cell["mbit_s"])) for cell in measured["steps"]]
        ),
    )


def _is_fitted(row: dict[str, Any], most: int) -> bool:
    """On the smallest and the largest number of ranks, at some sizes; everything else is held out."""
    return row["ranks"] in (2, most) and row["n_bytes"] in FITTED_SIZES


def _fit(rows: Sequence[dict[str, Any]], rate: float, most: int) -> LinkFit:
    return fit_link(
        [
            sample(row["n_bytes"], row["seconds"], row["ranks"])
            for row in rows
            if row["mbit_s"] == rate and _is_fitted(row, most)
        ]
    )


def _step_row(cell: dict[str, Any], n_bytes: int, alone_s: float, fit: LinkFit | None) -> StepRow:
    """``fit`` is None without a limit: then the network takes no time."""
    ranks, step_s = cell["ranks"], statistics.median(cell["seconds"])
    on_the_wire = n_bytes if fit else 0
    link = (fit.bandwidth, fit.latency_s) if fit else (1.0, 0.0)
    bracket = data_parallel(ranks, alone_s, on_the_wire, *link, scaling="strong").step_time_bracket_s
    share_s = alone_s / ranks
    backward_s = share_s * BACKWARD_SHARE
    played = bucketed_step(
        ranks, share_s - backward_s, backward_s, on_the_wire, *link, bucket_bytes=BUCKET_MIB * 2**20
    )
    return StepRow(
        mbit_s=cell["mbit_s"],
        ranks=ranks,
        step_s=step_s,
        predicted_s=played.step_time_s,
        fastest_s=bracket[0],
        slowest_s=bracket[1],
        speedup=alone_s / step_s,
        predicted_speedup=alone_s / played.step_time_s,
        predicted_bytes=ring_allreduce_sent_bytes(n_bytes, ranks),
        kernel_bytes=None if cell["kernel"] is None else tuple(cell["kernel"]),
        parameter_gap=cell["parameter_gap"],
    )
