"""What splitting one transformer layer over t ranks costs, on NVLink and between nodes: guess first, then look."""

from __future__ import annotations

from typing import Any

from shardlab.experiments import chart, words
from shardlab.experiments.controls import Experiment, Preset, choice, slider, toggle
from shardlab.hardware import Cluster, Link, Node, cluster_of, custom_node, node
from shardlab.models.kernels import LayerTime, layer_time
from shardlab.models.software import software_named
from shardlab.models.tensor import layer_sent_bytes
from shardlab.transformer import Transformer, gpt

HEAD_WIDTH = 128
MOST_RANKS = 64
RANK_STOPS = (1, 2, 4, 8, 16, 32, 64)
HIDDEN_STOPS = (1024, 1536, 2048, 3072, 4096, 6144, 8192, 12_288, 16_384, 20_480, 25_600)
SOFTWARE = "megatron-core"

MACHINES = (
    ("dgx-a100", "8 A100, NVLink, 8×200 Gb/s"),
    ("a100-4xhdr", "8 A100, NVLink, 4×200 Gb/s"),
    ("p4d", "8 A100, NVLink, 4×100 Gb/s"),
    ("dgx-h100", "8 H100, NVLink, 8×400 Gb/s"),
    ("dgx-b200", "8 B200, NVLink, 8×400 Gb/s"),
    ("gb200-nvl72", "72 GB200 in one NVLink domain"),
    ("a100-pcie", "8 A100, PCIe, 200 Gb/s"),
)


def layer_model(hidden: int) -> Transformer:
    """One GPT layer of this width, with heads 128 wide."""
    heads = max(hidden // HEAD_WIDTH, 1)
    return gpt(1, heads * HEAD_WIDTH, heads, name=f"h = {hidden}")


def spread(kind: Node) -> Node:
    """The same devices, one a node, each with its share of the ports: every byte crosses the network."""
    port = Link(
        name=kind.nic.name,
        bandwidth=kind.network_bandwidth_per_gpu,
        latency_s=kind.nic.latency_s,
        efficiency=kind.nic.efficiency,
        source=kind.nic.source,
    )
    return custom_node("one a node", kind.accelerator, 1, kind.intra, 1, port)


class Cost:
    """One layer on t ranks, forward and backward.

    Attributes:
        compute: seconds of one rank. communication: seconds of the collectives.
        hidden: seconds of those that run beside weight-gradient products. step: what is waited for.
    """

    def __init__(self, time: LayerTime) -> None:
        self.compute = time.forward + time.backward_input + time.backward_weight
        self.communication = time.tensor_forward + time.tensor_backward
        self.hidden = min(time.tensor_hidden, self.communication)
        self.step = self.compute + self.communication - self.hidden


class _Setting:
    """What the reader has set, and the models' answers to it."""

    def __init__(
        self, ranks: int, hidden: int, sequence: int, micro_batch: int, machine: str, sequence_parallel: bool
    ) -> None:
        self.sequence, self.micro_batch = sequence, micro_batch
        self.sequence_parallel = sequence_parallel
        self.software = software_named(SOFTWARE)
        self.model = layer_model(hidden)
        self.heads = self.model.heads
        self.ranks = min(ranks, self.heads)
        self.node = node(machine)
        self.packed = cluster_of(self.node, self.node.gpus)
        self.spread = cluster_of(spread(self.node), 1)
        self.one = self.cost(self.packed, 1)
        self.here = self.cost(self.packed, self.ranks)
        self.far = self.cost(self.spread, self.ranks)
        self.sent = layer_sent_bytes(sequence, micro_batch, self.model.hidden, self.ranks)

    def cost(self, cluster: Cluster, ranks: int, model: Transformer | None = None) -> Cost:
        """The layer's cost on another number of ranks, or of another width."""
        return Cost(
            layer_time(
                model or self.model,
                cluster,
                self.software,
                self.sequence,
                self.micro_batch,
                tensor=ranks,
                sequence_parallel=self.sequence_parallel,
            )
        )

    def efficiency(self, cost: Cost, ranks: int) -> float:
        """Speedup over t: one rank's time over t times the time on t ranks."""
        return self.one.step / (ranks * cost.step)


def picture(
    ranks: int,
    hidden: int,
    sequence: int,
    micro_batch: int,
    machine: str,
    sequence_parallel: bool,
    guess: float,
    answer: bool,
) -> dict[str, Any]:
    """Efficiency over t, the share of communication over the width, and the layer's time on t ranks."""
    setting = _Setting(ranks, hidden, sequence, micro_batch, machine, sequence_parallel)
    return chart.chart(
        panels=[
            _efficiency_panel(setting, guess, answer),
            _width_panel(setting, hidden, answer),
            _time_panel(setting) if answer else _guess_panel(setting, guess),
        ],
        words=_sentences(setting, guess, answer),
        readouts=_readouts(setting, guess, answer),
        bounds={"ranks": {"most": min(setting.heads, MOST_RANKS)}},
    )


def _guessed(guess: float, answer: bool) -> bool:
    """Whether the reader's guess is shown: 100 % is where the slider stands before anyone guessed."""
    return guess < 1 or not answer


def _ideal(start: float, end: float, value: float) -> dict[str, Any]:
    """Where no rank ever waits."""
    return chart.series("ideal", "muted", [(start, value), (end, value)], "thin", dashed=True)


def _efficiency_panel(setting: _Setting, guess: float, answer: bool) -> dict[str, Any]:
    most = min(setting.heads, MOST_RANKS)
    counts = [stop for stop in RANK_STOPS if stop <= most]
    for count in (setting.ranks, most):
        if count not in counts:
            counts.append(count)
    counts.sort()
    near, far = [], []
    for count in counts:
        near.append((count, setting.efficiency(setting.cost(setting.packed, count), count)))
        far.append((count, setting.efficiency(setting.cost(setting.spread, count), count)))
    reached = setting.efficiency(setting.here, setting.ranks)
    marks = [chart.mark(setting.ranks, guess, "your guess", shape="ring")] if _guessed(guess, answer) else []
    curves, alt = (
        [_ideal(1, MOST_RANKS, 1.0)],
        f"The guess is {words.percent(guess)} at {words.plural(setting.ranks, 'rank')}.",
    )
    if answer:
        marks.append(chart.mark(setting.ranks, reached, words.percent(reached), "compute"))
        curves += [
            chart.series("one a node", "communication", far),
            chart.series("packed", "compute", near, "strong"),
        ]
        alt = (
            f"Efficiency over the number of ranks. At {words.plural(setting.ranks, 'rank')} it is "
            f"{words.percent(reached)} with ranks packed into nodes, "
            f"{words.percent(setting.efficiency(setting.far, setting.ranks))} with one rank a node."
        )
    return chart.lines(
        title="Efficiency: speedup / t (%)",
        x=chart.axis(
            "ranks t", (1, MOST_RANKS), [(n, str(n)) for n in RANK_STOPS], scale="log", control="ranks"
        ),
        y=chart.axis("", (0.0, 1.05), chart.even_ticks(1.0, 0.01)),
        curves=curves,
        marks=marks,
        alt=alt,
    )


def _share(cost: Cost) -> float:
    return (cost.communication - cost.hidden) / cost.step


def _width_panel(setting: _Setting, hidden: int, answer: bool) -> dict[str, Any]:
    near, far = [], []
    for stop in HIDDEN_STOPS:
        model = layer_model(stop)
        if model.heads >= setting.ranks:
            near.append((stop, _share(setting.cost(setting.packed, setting.ranks, model))))
            far.append((stop, _share(setting.cost(setting.spread, setting.ranks, model))))
    here = _share(setting.here)
    ideal = _ideal(HIDDEN_STOPS[0], HIDDEN_STOPS[-1], 0.0)
    curves, marks, alt = [ideal], [], "Hidden until the answer is shown."
    if answer:
        curves += [
            chart.series("one a node", "communication", far),
            chart.series("packed", "compute", near, "strong"),
        ]
        marks = [chart.mark(hidden, here, "", "compute")]
        alt = (
            f"Share of the layer's time spent waiting for communication, over the hidden width, at "
            f"{words.plural(setting.ranks, 'rank')}: {words.percent(here)} at {hidden}, falling as layers get wider."
        )
    return chart.lines(
        title="Waiting for the wire (% of the layer)",
        x=chart.axis(
            "hidden width h",
            (HIDDEN_STOPS[0], HIDDEN_STOPS[-1]),
            [(1024, "1024"), (4096, "4096"), (16_384, "16384")],
            scale="log",
            control="hidden",
        ),
        y=chart.axis("", (0.0, 1.0), chart.even_ticks(1.0, 0.01)),
        curves=curves,
        marks=marks,
        alt=alt,
    )


def _time_panel(setting: _Setting) -> dict[str, Any]:
    rows = (
        ("1 rank", setting.one),
        (f"t = {setting.ranks}, packed", setting.here),
        ("one a node", setting.far),
    )
    most = 1.35 * max([cost.step for _, cost in rows])
    spans = []
    for lane, (_, cost) in enumerate(rows):
        waits = cost.step > cost.compute
        total = words.seconds(cost.step)
        spans.append(chart.span(lane, 0.0, cost.compute, "compute", "" if waits else total))
        if waits:
            spans.append(chart.span(lane, cost.compute, cost.step, "communication", total, text_role="text"))
    return chart.timeline(
        title="One layer, forward and backward: compute, then the wait",
        lanes=[name for name, _ in rows],
        time=chart.time_axis("time", most, about=5),
        spans=spans,
        alt=f"Time of one layer: {words.seconds(setting.one.step)} on one rank, {words.seconds(setting.here.step)} on "
        f"{words.plural(setting.ranks, 'rank')} packed into nodes, {words.seconds(setting.far.step)} with one rank a node.",
    )


def _guess_panel(setting: _Setting, guess: float) -> dict[str, Any]:
    """One rank's time, and the time that the guess comes to."""
    most = 1.35 * setting.one.step
    # A guess below 1/t is slower than one rank: the bar ends at the edge.
    guessed = min(setting.one.step / (setting.ranks * guess), most) if guess > 0 else most
    return chart.timeline(
        title="One layer, forward and backward: compute, then the wait",
        lanes=["1 rank", "your guess"],
        time=chart.time_axis("time", most, about=5),
        spans=[
            chart.span(0, 0.0, setting.one.step, "compute", words.seconds(setting.one.step)),
            chart.span(1, 0.0, guessed, "idle", ""),
        ],
        alt=f"Time of one layer: {words.seconds(setting.one.step)} on one rank; the guess for "
        f"{words.plural(setting.ranks, 'rank')} beneath it.",
    )


def _readouts(setting: _Setting, guess: float, answer: bool) -> list[dict[str, Any]]:
    sent = chart.readout(
        "sent by each rank",
        words.n_bytes(setting.sent),
        "layer and micro-batch",
        "communication-text",
    )
    if not answer:
        return [chart.readout("your guess", words.percent(guess), "efficiency"), sent]
    here = setting.here
    reached = setting.efficiency(here, setting.ranks)
    return [
        chart.readout("efficiency", words.percent(reached), _guess_note(setting, guess)),
        chart.readout("compute", words.seconds(here.compute), "one rank", "compute-text"),
        chart.readout(
            "communication",
            words.seconds(here.communication),
            f"wait {words.percent(_share(here))} of the layer",
            "communication-text",
        ),
        sent,
    ]


def _guess_note(setting: _Setting, guess: float) -> str:
    return (
        f"your guess {words.percent(guess)}"
        if guess < 1
        else f"{words.plural(setting.ranks, 'rank')} would be 100 %"
    )


def _sentences(setting: _Setting, guess: float, answer: bool) -> list[str]:
    t = setting.ranks
    if t == 1:
        return ["One rank has the whole layer: nothing is split and nothing is sent. Choose more ranks."]
    if not answer:
        return [
            f"What share of {t} times one rank's speed is left when this layer is split over {t} ranks? Set your guess, "
            "then show the answer."
        ]
    reached = setting.efficiency(setting.here, t)
    texts = [
        _verdict(setting, reached) + (" " + _compared(guess, reached) if guess < 1 else ""),
        _placement(setting),
        "Once buffers are large, more sequences lengthen compute and communication alike; a wider layer lengthens "
        "compute more, and so does a longer sequence where the layer is narrow. Other traffic on the ports is not in "
        "the model, and would slow what leaves a node.",
    ]
    if setting.heads % t:
        texts.append(
            f"Heads are taken to be {HEAD_WIDTH} wide, and {t} ranks can't share {setting.heads} of them evenly: a real layer "
            "of this width and t has other heads."
        )
    return texts


def _verdict(setting: _Setting, reached: float) -> str:
    here, t = setting.here, setting.ranks
    wait = here.step - here.compute
    if wait > here.compute:
        return (
            f"Communication dominates: the layer computes {words.seconds(here.compute)} and then waits "
            f"{words.seconds(wait)}; {t} ranks do the work of {words.amount(reached * t)}."
        )
    return (
        f"Compute dominates: {words.seconds(here.compute)}, and {words.seconds(wait)} of waiting; "
        f"{t} ranks do the work of {words.amount(reached * t)}."
    )


def _compared(guess: float, reached: float) -> str:
    gap = reached - guess
    if -0.05 <= gap <= 0.05:
        return "Your guess is within five points."
    side = "too high" if gap < 0 else "too low"
    return f"Your guess was {words.amount(100 * abs(gap), 2)} points {side}."


def _placement(setting: _Setting) -> str:
    t, near = setting.ranks, setting.efficiency(setting.here, setting.ranks)
    far = setting.efficiency(setting.far, t)
    if t <= setting.node.gpus:
        return (
            f"All {t} ranks share one node. The same ranks on {t} nodes would reach {words.percent(far)} instead of "
            f"{words.percent(near)}."
        )
    inside = setting.node.gpus
    kept = setting.efficiency(setting.cost(setting.packed, inside), inside)
    ports = "the one port" if setting.node.nics == 1 else f"all {setting.node.nics} ports"
    return (
        f"{t} ranks don't fit into a node of {inside}: the ring crosses the network, which lends it "
        f"{ports} of a node. At {inside} ranks, inside one node, the efficiency is "
        f"{words.percent(kept)}."
    )


def _layer(hidden: int, sequence: int, micro_batch: int, ranks: int, machine: str) -> dict[str, Any]:
    """A preset that shows its answer."""
    return {
        "answer": True,
        "hidden": hidden,
        "sequence": sequence,
        "micro_batch": micro_batch,
        "ranks": ranks,
        "machine": machine,
    }


EXPERIMENT = Experiment(
    name="tensor-parallel-cost",
    title="The price of splitting a layer",
    question="How much of t ranks is left when one layer is split over them, and where does the rest go?",
    controls=(
        slider("ranks", "Ranks t", RANK_STOPS, 8, whole=True),
        slider("hidden", "Hidden width h", HIDDEN_STOPS, 12_288, whole=True),
        slider(
            "sequence", "Sequence s, tokens", (512, 1024, 2048, 4096, 8192, 16_384, 32_768), 2048, whole=True
        ),
        slider("micro_batch", "Micro-batch b", (1, 2, 4, 8, 16), 1, whole=True),
        choice("machine", "Machine", MACHINES, "dgx-a100"),
        toggle("sequence_parallel", "Sequence parallel", False),
        slider("guess", "Your guess, 0 to 1", tuple([n / 20 for n in range(21)]), 1.0),
        toggle("answer", "Show the answer", False),
    ),
    presets=(
        Preset(
            name="gpt3",
            label="Guess first: GPT-3, 8 A100",
            values={"guess": 0.5, "answer": False},
            source="h, s, t and the machine: Narayanan et al., SC21 (arXiv 2104.04473), Table 1, 145.6B; micro-batch 1: "
            "Korthikanti et al. (arXiv 2205.05198), Table 3.",
        ),
        Preset(
            name="measured",
            label="3.6B over 16 A100",
            values=_layer(3072, 2048, 8, 16, "a100-4xhdr"),
            source="h, s, b, t and the machine: a run that vTrain measured (arXiv 2312.12391); on 8 ranks a step took half "
            "as long.",
        ),
        Preset(
            name="two-nodes",
            label="GPT-3 over two p4d nodes",
            values=_layer(12_288, 2048, 1, 16, "p4d"),
            source="GPT-3's layer over two AWS p4d nodes of 400 Gb/s each.",
        ),
        Preset(
            name="h100",
            label="Width of Llama 405B, 8 H100",
            values=_layer(16_384, 8192, 1, 8, "dgx-h100"),
            source="h, s and t: Llama 3 herd (arXiv 2407.21783), Tables 3 and 4; here with a GPT's MLP.",
        ),
        Preset(
            name="pcie",
            label="8 A100 on PCIe",
            values=_layer(8192, 2048, 1, 8, "a100-pcie"),
            source="h of a 70B model (Llama 3, Table 3) on a server without NVLink.",
        ),
    ),
    picture=picture,
)
