"""FSDP layer by layer: what the link and the compute units do when, and how many whole weights a rank holds."""

from __future__ import annotations

from typing import Any

from shardlab import hardware
from shardlab.experiments import chart, words
from shardlab.experiments.controls import Experiment, Preset, choice, slider, toggle
from shardlab.models.collectives import ring_allgather_cost, ring_reduce_scatter_cost

WIRE_BYTES = 2
PEAK_SHARE = 0.5
"""Share of the data sheet's peak at which ranks compute; SC21's Table 1 has 43 to 52 % on A100."""

_CARDS = (
    ("A100-80GB", "A100"),
    ("H100-80GB", "H100"),
    ("B200-180GB", "B200"),
)
_LAYERS = (2, 3, 4, 5, 6, 8, 10, 12, 16)
_MILLIONS = (7, 31, 50, 100, 218, 400, 855, 1812, 3188)
_RANKS = (2, 4, 8, 16, 32, 64, 128, 256, 512)
_BANDWIDTHS = (1.25e9, 2.5e9, 5e9, 12.5e9, 25e9, 50e9, 69e9, 100e9, 150e9, 250e9, 450e9)
_TOKENS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
AHEAD = (0, 1, 2, 3)


class Event:
    """One all-gather, pass or reduce-scatter of one layer, from ``start`` to ``end`` (seconds)."""

    def __init__(self, kind: str, layer: int, start: float, end: float) -> None:
        self.kind = kind
        self.layer = layer
        self.start = start
        self.end = end


def schedule(
    layers: int, gather_s: float, forward_s: float, reduce_s: float, ahead: int, reshard: bool
) -> list[Event]:
    """When each layer is gathered, computed and reduced in one micro-batch.

    The link does one thing at a time, in the order in which things are asked for. A layer's pass waits for its weights;
    its gather waits until no more than ``ahead`` layers would be gathered before their turn. The backward pass takes
    twice the forward; as it leaves a layer it first asks for the reduction of its gradients, then for the next gather.

    Args:
        layers: equal layers, one FSDP unit each.
        gather_s, forward_s, reduce_s: all-gather, forward pass and reduce-scatter of one layer, seconds.
        ahead: layers gathered ahead of the one at work; 0 is no prefetch.
        reshard: free the weights after the forward pass, and gather them again for the backward pass.

    Source: Zhao et al., PyTorch FSDP (arXiv 2304.11277), sections 3.3.1 and 3.3.2 (overlap, prefetch, one communication stream).
    """
    events: list[Event] = []
    link = work = 0.0
    done: list[float] = []
    for layer in range(layers):
        ready = done[layer - 1 - ahead] if layer > ahead else 0.0
        gather = Event("gather", layer, max(link, ready), max(link, ready) + gather_s)
        link = gather.end
        start = max(work, link)
        work = start + forward_s
        done.append(work)
        events += [gather, Event("forward", layer, start, work)]

    turn = work
    done = []
    waiting: list[int] = []
    for position in range(layers):
        layer = layers - 1 - position
        start = work
        if reshard:
            ready = done[position - 1 - ahead] if position > ahead else turn
            while waiting and max(link, done[waiting[0]]) <= max(link, ready):
                link = _reduce(events, layers, waiting.pop(0), done, link, reduce_s)
            gather = Event("gather", layer, max(link, ready), max(link, ready) + gather_s)
            link = gather.end
            events.append(gather)
            start = max(work, link)
        work = start + 2 * forward_s
        done.append(work)
        waiting.append(position)
        events.append(Event("backward", layer, start, work))
    for position in waiting:
        link = _reduce(events, layers, position, done, link, reduce_s)
    return events


def _reduce(
    events: list[Event], layers: int, position: int, done: list[float], link: float, reduce_s: float
) -> float:
    """Reduce the gradients of the layer that the backward pass did at ``position``; when the link is free again."""
    start = max(link, done[position])
    events.append(Event("reduce", layers - 1 - position, start, start + reduce_s))
    return start + reduce_s


def most_held(events: list[Event], reshard: bool) -> int:
    """The most layers' worth of whole weights and gradients that a rank holds at one moment.

    Weights take memory from the start of their gather to the end of their pass (kept: of the backward pass), gradients
    from the start of the backward pass to the end of their reduction.
    """
    changes = []
    for event in events:
        if event.kind == "gather":
            changes.append((event.start, 1))
        elif event.kind == "backward":
            changes += [(event.start, 1), (event.end, -1)]
        elif event.kind == "reduce" or reshard:
            changes.append((event.end, -1))
    # What is freed at a moment goes before what is taken at it.
    changes.sort()
    held = most = 0
    for _, change in changes:
        held += change
        most = max(most, held)
    return most


def picture(
    layers: int,
    millions: float,
    ranks: int,
    bandwidth: float,
    card: str,
    tokens: int,
    ahead: int,
    reshard: bool,
) -> dict[str, Any]:
    """The lanes of one micro-batch, and its time and memory for each number of layers gathered ahead."""
    setting = _Setting(layers, millions, ranks, bandwidth, card, tokens, ahead, reshard)
    return chart.chart(
        panels=[_timeline_panel(setting), _time_panel(setting), _memory_panel(setting)],
        words=_sentences(setting),
        readouts=_readouts(setting),
    )


class _Setting:
    """What the reader has set, and the schedule that follows."""

    def __init__(
        self,
        layers: int,
        millions: float,
        ranks: int,
        bandwidth: float,
        card: str,
        tokens: int,
        ahead: int,
        reshard: bool,
    ) -> None:
        self.layers = layers
        self.ahead = ahead
        self.reshard = reshard
        self.bandwidth = bandwidth
        self.layer_bytes = millions * 1e6 * WIRE_BYTES
        self.gather_bytes = ring_allgather_cost(self.layer_bytes, ranks).sent_bytes
        self.reduce_bytes = ring_reduce_scatter_cost(self.layer_bytes, ranks).sent_bytes
        flops = PEAK_SHARE * hardware.accelerator(card).peak_flops
        self.forward_s = 2 * millions * 1e6 * tokens / flops
        self.plans = [self._plan(count) for count in AHEAD]
        self.events = self.plans[ahead]
        self.ends_s = [max([event.end for event in plan]) for plan in self.plans]
        self.end_s = self.ends_s[ahead]
        self.compute_s = 3 * self.forward_s * layers
        gathers = 2 if reshard else 1
        self.sent_bytes = layers * (gathers * self.gather_bytes + self.reduce_bytes)
        self.link_s = self.sent_bytes / bandwidth
        self.held_bytes = [most_held(plan, reshard) * self.layer_bytes for plan in self.plans]

    def _plan(self, ahead: int) -> list[Event]:
        return schedule(
            self.layers,
            self.gather_bytes / self.bandwidth,
            self.forward_s,
            self.reduce_bytes / self.bandwidth,
            ahead,
            self.reshard,
        )


_LANES = ("compute", "all-gather", "reduce-scatter")
_LANE = {"forward": 0, "backward": 0, "gather": 1, "reduce": 2}


def _timeline_panel(setting: _Setting) -> dict[str, Any]:
    spans = []
    for event in setting.events:
        lane = _LANE[event.kind]
        spans.append(
            chart.span(
                lane,
                event.start,
                event.end,
                "communication" if lane else "compute",
                texture="light" if event.kind == "forward" else "solid",
            )
        )
    return chart.timeline(
        title="One micro-batch: forward (striped) and backward, layer by layer",
        lanes=list(_LANES),
        time=chart.time_axis("time", 1.02 * setting.end_s, about=5),
        spans=spans,
        alt=f"Time line of {setting.layers} layers. Compute works {words.seconds(setting.compute_s)}, the link "
        f"{words.seconds(setting.link_s)}, and all is done after {words.seconds(setting.end_s)}.",
    )


def _ahead_names(setting: _Setting) -> list[str]:
    return [
        ("none" if count == 0 else str(count)) + (" ◂" if count == setting.ahead else "") for count in AHEAD
    ]


def _time_panel(setting: _Setting) -> dict[str, Any]:
    return chart.bars(
        title="Time, by layers gathered ahead",
        categories=_ahead_names(setting),
        value=chart.time_axis("time", 1.36 * max(setting.ends_s)),
        stacks=[
            chart.stack("compute", "compute", [setting.compute_s for _ in AHEAD]),
            chart.stack(
                "waits", "idle", [end - setting.compute_s for end in setting.ends_s], texture="hatch"
            ),
        ],
        texts=[words.seconds(end) for end in setting.ends_s],
        alt="Bars: time of a micro-batch: "
        + ", ".join([f"{count} ahead {words.seconds(end)}" for count, end in zip(AHEAD, setting.ends_s)])
        + ".",
    )


def _memory_panel(setting: _Setting) -> dict[str, Any]:
    everything = setting.layers * setting.layer_bytes
    most = max(setting.held_bytes)
    stacks = [chart.stack("on top of the shards", "memory-parameters", setting.held_bytes, texture="light")]
    limits = []
    if everything <= 1.3 * most:
        # Up to the line, so that what is held stands beyond it.
        rest = [max(everything - held, 0.0) for held in setting.held_bytes]
        if max(rest) > 0:
            stacks.append(chart.stack("up to all weights", "grid", rest))
        limits.append(chart.limit(everything, "all weights", align="end"))
        most = max(most, everything)
    return chart.bars(
        title="Most held whole: weights and gradients",
        categories=_ahead_names(setting),
        value=chart.size_axis("bytes", 1.36 * most),
        stacks=stacks,
        limits=limits,
        texts=[words.n_bytes(held) for held in setting.held_bytes],
        alt="Bars: whole weights and gradients on a rank, at most: "
        + ", ".join(
            [f"{count} ahead {words.n_bytes(held)}" for count, held in zip(AHEAD, setting.held_bytes)]
        )
        + f"; all weights are {words.n_bytes(everything)}.",
    )


def _readouts(setting: _Setting) -> list[dict[str, Any]]:
    held = setting.held_bytes[setting.ahead]
    waits = setting.end_s - setting.compute_s
    return [
        chart.readout(
            "micro-batch", words.seconds(setting.end_s), f"{words.seconds(setting.compute_s)} of compute"
        ),
        chart.readout(
            "compute waits",
            words.seconds(waits),
            f"{words.percent(waits / setting.end_s)} of it",
            "idle-text",
        ),
        chart.readout(
            "link works",
            words.seconds(setting.link_s),
            words.n_bytes(setting.sent_bytes),
            "communication-text",
        ),
        chart.readout("held whole at most", words.n_bytes(held), _layers_worth(setting), "memory-text"),
    ]


def _layers_worth(setting: _Setting) -> str:
    return f"{int(setting.held_bytes[setting.ahead] / setting.layer_bytes + 0.5)} layers' worth"


def _sentences(setting: _Setting) -> list[str]:
    return [_waiting(setting), _ahead(setting), _held(setting)]


def _waiting(setting: _Setting) -> str:
    share = 1 - setting.compute_s / setting.end_s
    opening = f"Compute waits for {words.percent(share)} of the {words.seconds(setting.end_s)}"
    link, compute = words.seconds(setting.link_s), words.seconds(setting.compute_s)
    if setting.link_s > setting.compute_s:
        return f"{opening}: the link needs {link} and compute only {compute}, which no prefetch can change."
    if setting.ahead == 0:
        return f"{opening}: nothing is gathered ahead, so every layer waits for its weights."
    return f"{opening}, though the link needs {link} and compute {compute}: {_unhidden(setting)} nothing to hide under."


def _unhidden(setting: _Setting) -> str:
    """What compute waits for where the link is the faster of the two."""
    if setting.reshard:
        return "the first gather of each pass and the last reduce-scatter have"
    if setting.gather_bytes / setting.bandwidth <= setting.forward_s:
        return "the first gather and the last reduce-scatter have"
    return "a gather takes longer than a layer's forward pass, and the last reduce-scatter has"


def _ahead(setting: _Setting) -> str:
    none, one = words.seconds(setting.ends_s[0]), words.seconds(setting.ends_s[1])
    if setting.ahead == 0:
        return f"Gathering one layer ahead would take {one} instead of {none}, for the same bytes."
    return (
        f"With {words.plural(setting.ahead, 'layer')} gathered ahead a micro-batch takes {words.seconds(setting.end_s)} "
        f"instead of {none}, for the same bytes."
    )


def _held(setting: _Setting) -> str:
    if setting.reshard:
        kept = "Weights are freed after the forward pass and gathered again"
    else:
        kept = "Weights stay from the forward to the backward pass, which saves the second gather"
    return (
        f"{kept}: a rank holds at most {_layers_worth(setting)} of whole weights and gradients, "
        f"{words.n_bytes(setting.held_bytes[setting.ahead])} on top of its shards. Latency is not counted, layers are equal, "
        "ranks compute at half of the data sheet's peak."
    )


_LLAMA_70B = {
    "layers": 8,
    "millions": 855,
    "ranks": 64,
    "bandwidth": 69e9,
    "card": "H100-80GB",
    "tokens": 8192,
}
_KEPT_70B = dict(_LLAMA_70B)
_KEPT_70B["reshard"] = False
_HF = "all-gather bus bandwidth measured by Hugging Face (Ultra-Scale Playbook, 2025)"

EXPERIMENT = Experiment(
    name="fsdp-timeline",
    title="FSDP, layer by layer",
    question="When does gathering ahead hide the all-gathers, and what does it cost in memory?",
    controls=(
        slider("layers", "Layers", _LAYERS, 6, whole=True),
        slider("millions", "Million parameters a layer", _MILLIONS, 218),
        slider("ranks", "Ranks N", _RANKS, 8, whole=True),
        slider("bandwidth", "Bandwidth per rank", _BANDWIDTHS, 250e9, "bytes/s"),
        choice("card", "GPU", _CARDS, "H100-80GB"),
        slider("tokens", "Tokens per micro-batch and rank", _TOKENS, 4096, whole=True),
        slider("ahead", "Layers gathered ahead", AHEAD, 1, whole=True),
        toggle("reshard", "Free weights after forward", True),
    ),
    presets=(
        Preset(
            name="llama-8b-node",
            label="8B, one node",
            values={"layers": 6, "millions": 218, "ranks": 8, "bandwidth": 250e9, "tokens": 4096},
            source=f"6 of the 32 layers of Llama 3 8B (arXiv 2407.21783) on 8 H100; 250 GB/s: {_HF}, one node.",
        ),
        Preset(
            name="llama-8b-none-ahead",
            label="8B, none ahead",
            values={
                "layers": 6,
                "millions": 218,
                "ranks": 8,
                "bandwidth": 250e9,
                "tokens": 4096,
                "ahead": 0,
            },
            source="The same without prefetch.",
        ),
        Preset(
            name="llama-70b-8-nodes",
            label="70B, 8 nodes",
            values=_LLAMA_70B,
            source=f"8 of the 80 layers of Llama 3 70B (arXiv 2407.21783) on 64 H100; 69 GB/s: {_HF}, 8 nodes.",
        ),
        Preset(
            name="llama-70b-kept",
            label="70B, weights kept",
            values=_KEPT_70B,
            source="The same with weights kept from the forward to the backward pass, as Llama 3 was trained (section 3.3.2).",
        ),
        Preset(
            name="ethernet-10",
            label="GPT-2 XL, 10 GbE",
            values={
                "layers": 8,
                "millions": 31,
                "ranks": 8,
                "bandwidth": 1.25e9,
                "card": "A100-80GB",
                "tokens": 4096,
            },
            source="8 of the 48 layers of GPT-2 XL on 8 servers with one A100 each; 10 Gb/s of line rate are 1.25 GB/s.",
        ),
    ),
    picture=picture,
)
