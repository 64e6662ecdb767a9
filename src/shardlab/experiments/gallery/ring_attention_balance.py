"""Ring attention, step by step: who computes which block, who waits, and whether the next block arrives in time."""

from __future__ import annotations

from typing import Any

from shardlab.experiments import chart, words
from shardlab.experiments.controls import Experiment, Preset, choice, decades, slider, stepper, toggle
from shardlab.hardware import accelerator
from shardlab.models.context import RingWork, key_value_bytes, ring_traffic, ring_work
from shardlab.models.kernels import CONSTANTS

MOST_RANKS = 16
# More blocks in a row are too small for a number of two or three digits.
MOST_PERCENTS = 8
_SHORT = {"50": "½", "100": "1"}
# One layer of Llama 3 8B in bf16: query heads, key/value heads, head width.
HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
ELEMENT_BYTES = 2.0
DEVICE = "H100-80GB"
# Five preferred numbers per decade.
R5 = (1, 1.6, 2.5, 4, 6.3)

_SPLITS = (
    ("contiguous", "in order"),
    ("zigzag", "zigzag"),
    ("striped", "striped"),
)


def attention_rate() -> float:
    """FLOP/s of attention on one device: its measured matmul rate times the planner's attention efficiency."""
    return accelerator(DEVICE).matmul_flops * CONSTANTS.attention_efficiency


def whole_sequence(sequence: int, ranks: int) -> int:
    """The sequence as a multiple of 2 N tokens, which a zigzag needs."""
    return max(1, int(sequence / (2 * ranks) + 0.5)) * 2 * ranks


def picture(
    step: int, ranks: int, split: str, sequence: int, bandwidth: float, causal: bool
) -> dict[str, Any]:
    """The blocks of a ring, each rank's work and waiting so far, and the pass in time."""
    state = _Ring(step, ranks, split, sequence, bandwidth, causal)
    return chart.chart(
        panels=[_blocks_panel(state), _ranks_panel(state), _time_panel(state)],
        words=_sentences(state),
        readouts=_readouts(state),
        bounds={"step": {"most": ranks}},
    )


class _Ring:
    """What the reader has set, and the model's answers to it."""

    def __init__(
        self, step: int, ranks: int, split: str, sequence: int, bandwidth: float, causal: bool
    ) -> None:
        self.ranks = ranks
        self.step = min(step, ranks)
        self.split = split
        self.causal = causal
        self.sequence = whole_sequence(sequence, ranks)
        self.size = self.sequence // ranks
        self.work: RingWork = ring_work(self.sequence, ranks, split, causal)
        self.busiest = [max(row) for row in self.work.pairs]
        self.per_pair_s = 4.0 * HEADS * HEAD_DIM / attention_rate()
        block = key_value_bytes(self.sequence, 1, KV_HEADS, HEAD_DIM, ELEMENT_BYTES) / ranks
        self.send_s = block / bandwidth
        self.sent_bytes = ring_traffic(
            self.sequence, 1, KV_HEADS, HEAD_DIM, ranks, ELEMENT_BYTES
        ).forward_bytes
        # When each step begins, and when the pass ends; the last step has nothing to send.
        self.starts = [0.0]
        self.exposed_s = 0.0
        self.exposed_steps = 0
        for index, pairs in enumerate(self.busiest):
            busy = pairs * self.per_pair_s
            wait = max(self.send_s - busy, 0.0) if index < ranks - 1 else 0.0
            self.exposed_s += wait
            self.exposed_steps += 1 if wait > 0 else 0
            self.starts.append(self.starts[-1] + busy + wait)
        self.total_s = self.starts[-1]
        self.idle_share = 1 - self.work.balanced_pairs / self.work.critical_pairs

    def so_far(self, rank: int) -> tuple[float, float]:
        """(work, waiting for the busiest) of a rank in the steps that are done, a fair share of the work being 1."""
        done = wait = 0
        for index in range(self.step):
            done += self.work.pairs[index][rank]
            wait += self.busiest[index] - self.work.pairs[index][rank]
        return done / self.work.balanced_pairs, wait / self.work.balanced_pairs


def _blocks_panel(state: _Ring) -> dict[str, Any]:
    ranks = state.ranks
    shares = [[0.0] * ranks for _ in range(ranks)]
    for index, row in enumerate(state.work.pairs):
        for rank in range(ranks):
            shares[rank][(rank - index) % ranks] = row[rank] / (state.size * state.size)
    now = state.step - 1
    texts = [[f"{words.settled(100 * share):.0f}" for share in row] for row in shares]
    title = "Share of each block to compute"
    if ranks > MOST_PERCENTS:
        texts = [[_SHORT.get(text, text) for text in row] for row in texts]
    else:
        title += " (%)"
    return chart.matrix(
        title=title,
        columns=[str(rank) for rank in range(ranks)],
        rows=[str(rank) for rank in range(ranks)],
        column_label="keys of rank",
        row_label="queries of rank",
        texts=texts,
        levels=shares,
        role="compute",
        marks=[(rank, (rank - now) % ranks, "to") for rank in range(ranks)] if state.step else [],
        alt=f"Table of {ranks} times {ranks} blocks, tokens dealt {_dealt(state)}: rank 0 has "
        f"{words.percent(_part(shares[0]))} of its blocks' pairs to compute, rank {ranks - 1} "
        f"{words.percent(_part(shares[-1]))}.",
    )


def _part(row: list[float]) -> float:
    total = 0.0
    for share in row:
        total += share
    return total / len(row)


def _dealt(state: _Ring) -> str:
    return {"contiguous": "in order", "zigzag": "in a zigzag", "striped": "in stripes"}[state.split]


def _ranks_panel(state: _Ring) -> dict[str, Any]:
    parts = [state.so_far(rank) for rank in range(state.ranks)]
    longest = max([done + wait for done, wait in parts])
    return chart.bars(
        title=f"Each rank after {state.step} of {state.ranks} steps",
        categories=[str(rank) for rank in range(state.ranks)],
        value=chart.axis("time, a fair share of the work = 1", (0.0, 2.2), chart.even_ticks(2.0)),
        stacks=[
            chart.stack("computing", "compute", [done for done, _ in parts]),
            chart.stack("waiting", "idle", [wait for _, wait in parts], texture="hatch"),
        ],
        limits=[chart.limit(1.0, "fair share", align="end")],
        texts=[f"{words.settled(done):.2f}" if state.step else "" for done, _ in parts],
        alt=f"Bars: work and waiting of {state.ranks} ranks so far. The busiest has computed "
        f"{words.amount(max([done for done, _ in parts]))} fair shares, and {words.amount(longest)} have passed.",
    )


def _time_panel(state: _Ring) -> dict[str, Any]:
    spans = []
    for index, pairs in enumerate(state.busiest):
        start = state.starts[index]
        busy = pairs * state.per_pair_s
        label = words.seconds(state.total_s) if index == state.ranks - 1 else ""
        spans.append(chart.span(0, start, start + busy, "compute", label))
        if index < state.ranks - 1:
            spans.append(chart.span(1, start, start + state.send_s, "communication"))
    fair_s = state.work.balanced_pairs * state.per_pair_s
    limits = [
        chart.limit(fair_s, "fair shares, no send", align="end" if fair_s > state.total_s / 2 else "start")
    ]
    return chart.timeline(
        title="Forward pass of one layer",
        lanes=["busiest rank", "send K and V"],
        time=chart.time_axis("time", 1.15 * state.total_s, about=5),
        spans=spans,
        limits=limits,
        alt=f"Time line: {state.ranks} steps of attention, {state.ranks - 1} sends of {words.seconds(state.send_s)} each "
        f"beside them; the pass takes {words.seconds(state.total_s)}, of it {words.seconds(state.exposed_s)} waiting for "
        "sends.",
    )


def _readouts(state: _Ring) -> list[dict[str, Any]]:
    return [
        chart.readout(
            "the ring over fair shares", words.ratio(state.work.slowdown), "what it waits for", "compute-text"
        ),
        chart.readout(
            "idle", words.percent(state.idle_share), "of all ranks' time, sends aside", "idle-text"
        ),
        chart.readout(
            "one hop", words.seconds(state.send_s), f"{words.amount(state.size)} tokens", "communication-text"
        ),
        chart.readout("sent by each rank", words.n_bytes(state.sent_bytes), "forward", "communication-text"),
        chart.readout(
            "forward pass",
            words.seconds(state.total_s),
            f"{words.seconds(state.exposed_s)} waiting for sends" if state.exposed_s else "every send hidden",
        ),
    ]


def _sentences(state: _Ring) -> list[str]:
    return [_balance_words(state), _step_words(state), _send_words(state)]


def _balance_words(state: _Ring) -> str:
    if not state.causal:
        return "Without a mask every block is full: all ranks have the same work in every step, however tokens are dealt."
    last = state.ranks - 1
    first_share = state.work.per_rank[0] / state.work.balanced_pairs
    if state.split == "contiguous":
        return (
            f"In order, rank 0 has {words.amount(first_share, 2)} of a fair share and rank {last} "
            f"{words.ratio(state.work.rank_imbalance)}; every step waits for its busiest rank, so the ring takes "
            f"{words.ratio(state.work.slowdown)} as long as fair shares would."
        )
    if state.split == "zigzag":
        return (
            f"In a zigzag, rank r has the r-th and the r-th from the end of {2 * state.ranks} pieces: the same work for all "
            f"ranks in every step, {words.ratio(state.work.slowdown)} a fair share."
        )
    return (
        f"In stripes, every block is half masked: nearly the same work for all ranks in every step, "
        f"{words.ratio(state.work.slowdown)} a fair share."
    )


def _step_words(state: _Ring) -> str:
    if state.step == 0:
        return "No step is done: each rank holds its own queries, keys and values."
    row = state.work.pairs[state.step - 1]
    empty = len([1 for pairs in row if pairs == 0])
    source = f"the keys that came {words.plural(state.step - 1, 'hop')} round the ring"
    opening = f"Step {state.step}: every rank met {'its own keys' if state.step == 1 else source}. "
    if empty:
        return (
            opening
            + f"For {words.plural(empty, 'rank')} of {state.ranks} they lie in the future: nothing to do."
        )
    return opening + "Every rank had something to do."


def _send_words(state: _Ring) -> str:
    length = f"A sequence of {state.sequence} tokens leaves {state.size} on each rank."
    if state.exposed_s > 0:
        hops = state.ranks - 1
        # In order the first step has half the work of the others: a hop may be too slow for that one alone.
        few = (
            ""
            if state.exposed_steps == hops
            else f" for {state.exposed_steps} of {words.plural(hops, 'hop')}"
        )
        return (
            f"{length} A hop takes {words.seconds(state.send_s)}, longer than the attention beside it{few}: "
            f"{words.percent(state.exposed_s / state.total_s)} of the pass is waiting for keys. A longer sequence or a faster "
            "link hides it."
        )
    return f"{length} A hop takes {words.seconds(state.send_s)} and hides behind the attention of every step."


EXPERIMENT = Experiment(
    name="ring-attention-balance",
    title="Ring attention: who works, who waits",
    question="Keys and values travel round a ring. Who has something to do in each step, and does the next block arrive in time?",
    controls=(
        stepper("step", "Steps done", MOST_RANKS),
        slider("ranks", "Ranks N", tuple(range(2, MOST_RANKS + 1)), 4, whole=True),
        choice("split", "Tokens dealt", _SPLITS, "contiguous"),
        slider("sequence", "Sequence (tokens)", tuple([2**k for k in range(12, 21)]), 32768, whole=True),
        slider("bandwidth", "Bandwidth of a rank", decades(1e9, 1e12, R5), 400e9, "bytes/s"),
        toggle("causal", "Causal mask", True),
    ),
    presets=(
        Preset(
            name="in-order",
            label="In order, 4 ranks",
            values={"step": 4, "ranks": 4, "split": "contiguous", "sequence": 32768},
            source="4 ranks, 32,768 tokens, as measured in mlc-ai/pith-train, pull request 39; the layer is Llama 3 8B's "
            "(arXiv 2407.21783, Table 3), the bandwidth near NVLink's 450 GB/s.",
        ),
        Preset(
            name="zigzag",
            label="Zigzag, 4 ranks",
            values={"step": 4, "ranks": 4, "split": "zigzag", "sequence": 32768},
            source="The same, dealt as in Llama 3 (arXiv 2407.21783, section 3.3.2).",
        ),
        Preset(
            name="long",
            label="16 ranks, 131072 tokens",
            values={"step": 16, "ranks": 16, "split": "zigzag", "sequence": 131_072, "bandwidth": 50e9},
            source="Length and ranks of Llama 3's long-context stage (arXiv 2407.21783, Table 4), which gathers keys and "
            "values instead; 400 Gb/s a rank are 50 GB/s.",
        ),
        Preset(
            name="slow-link",
            label="Too short for the link",
            values={"step": 8, "ranks": 8, "split": "zigzag", "sequence": 16384, "bandwidth": 12.5e9},
            source="100 Gb/s a rank are 12.5 GB/s; 2,048 tokens a rank are too few to hide a hop.",
        ),
        Preset(
            name="no-mask",
            label="No mask",
            values={"step": 4, "ranks": 4, "split": "contiguous", "causal": False},
            source="Attention in both directions, as in an encoder: nothing to balance.",
        ),
    ),
    picture=picture,
)
