"""Watch any collective round by round: who sends to whom, what every rank holds, and how many bytes each has sent."""

from __future__ import annotations

from typing import Any

from shardlab.experiments import chart, words
from shardlab.experiments.controls import Experiment, Preset, choice, slider, stepper
from shardlab.models.collective_schedules import Message, Round, Schedule, log2_floor
from shardlab.models.collectives import algorithm

MOST_RANKS = 16
# The key is collective and algorithm as the models name them; the ring has a stepper of its own.
_WAYS = (
    ("broadcast / binomial tree", "broadcast: binomial tree"),
    ("reduce / binomial tree", "reduce: binomial tree"),
    ("all-gather / bruck", "all-gather: Bruck"),
    ("reduce-scatter / recursive halving", "reduce-scatter: recursive halving"),
    ("all-to-all / direct", "all-to-all: direct"),
    ("all-to-all / bruck", "all-to-all: Bruck"),
    ("all-reduce / binomial tree", "all-reduce: binomial tree"),
    ("all-reduce / double tree", "all-reduce: double tree"),
    ("all-reduce / recursive doubling", "all-reduce: recursive doubling"),
    ("all-reduce / rabenseifner", "all-reduce: Rabenseifner"),
)
MOST_ROUNDS = 15
# Beyond this many arrows a label on each is clutter.
_LABELLED_ARROWS = 8


class Play:
    """A schedule after some of its rounds.

    ``held[rank]`` maps a chunk to the number of ranks whose part is in it; ``sent[rank]`` is what the rank has sent,
    in buffers of size P.
    """

    def __init__(self, schedule: Schedule, exchanged: bool, position: int) -> None:
        self.schedule = schedule
        self.exchanged = exchanged
        # An all-to-all cuts each rank's own buffer into N; everything else cuts one buffer into n_chunks.
        self.share = 1 / (schedule.n_ranks if exchanged else schedule.n_chunks)
        self.held: list[dict[int, int]] = [dict.fromkeys(chunks, 1) for chunks in schedule.starts]
        self.sent = [0.0] * schedule.n_ranks
        for done in schedule.rounds[:position]:
            self._apply(done)

    def _apply(self, done: Round) -> None:
        # All messages of a round are under way together: read every one before applying any.
        payloads = [
            [self.held[message.source][chunk] for chunk in message.chunks] for message in done.messages
        ]
        if self.exchanged:
            for message in done.messages:
                for chunk in message.chunks:
                    del self.held[message.source][chunk]
        for message, payload in zip(done.messages, payloads):
            self.sent[message.source] += len(message.chunks) * self.share
            mine = self.held[message.destination]
            for chunk, parts in zip(message.chunks, payload):
                mine[chunk] = mine[chunk] + parts if message.reduces and chunk in mine else parts

    def finished(self, rank: int, needed: int) -> float:
        """The share of its result that the rank already holds, 0 to 1."""
        wanted = self.schedule.ends[rank]
        if not wanted:
            return 0.0
        mine = self.held[rank]
        return len([chunk for chunk in wanted if mine.get(chunk, 0) >= needed]) / len(wanted)


def _ranks_for(name: str, ranks: int) -> int:
    """Recursive halving exists for powers of two: the largest that is not above."""
    collective, way = name.split(" / ")
    return 1 << log2_floor(ranks) if algorithm(collective, way).powers_of_two_only else ranks


def picture(way: str, ranks: int, step: int) -> dict[str, Any]:
    """Arrows of the last round, what every rank holds, and what each has sent."""
    collective, name = way.split(" / ")
    n = _ranks_for(way, ranks)
    schedule = algorithm(collective, name).schedule(n)
    last = len(schedule.rounds)
    position = min(step, last)
    play = Play(schedule, collective == "all-to-all", position)
    needed = n if collective in ("all-reduce", "reduce-scatter", "reduce") else 1
    arrived = schedule.rounds[position - 1].messages if position else []
    phase = schedule.rounds[position - 1].phase if position else "before the first round"
    return chart.chart(
        panels=[
            _graph_panel(play, needed, arrived, position, phase),
            _holdings_panel(play, collective, needed, position),
            _sent_panel(play, position),
        ],
        words=_sentences(play, collective, name, ranks, position, arrived),
        readouts=_readouts(play, needed, position, phase),
        bounds={"step": {"most": last}},
    )


def _rounds_text(play: Play, position: int) -> str:
    return f"round {position} of {len(play.schedule.rounds)}"


def _graph_panel(
    play: Play, needed: int, arrived: list[Message], position: int, phase: str
) -> dict[str, Any]:
    n = play.schedule.n_ranks
    places = chart.ring_places(n)
    nodes = [
        chart.node(str(rank), places[rank], role="memory-gradients", level=play.finished(rank, needed))
        for rank in range(n)
    ]
    # Messages of one pair in one round, such as a tree's up and down, share an arrow.
    amounts: dict[tuple[int, int], int] = {}
    for message in arrived:
        pair = (message.source, message.destination)
        amounts[pair] = amounts.get(pair, 0) + len(message.chunks)
    # One amount for all stands in the title: arrows between opposite ranks would pile their labels up in the middle.
    alike = len(set(amounts.values())) == 1
    labelled = not alike and len(amounts) <= _LABELLED_ARROWS
    arrows = [
        chart.arrow(source, target, label=_fraction(amounts[source, target], play) if labelled else "")
        for source, target in sorted(amounts)
    ]
    title = "Who sends to whom"
    if alike:
        title += f" ({_fraction(max(amounts.values()), play)} P each)"
    elif labelled and arrows:
        title += " (× P)"
    return chart.graph(
        title=title,
        nodes=nodes,
        arrows=arrows,
        middle=[] if arrows else [_rounds_text(play, position), phase],
        alt=f"{n} ranks on a circle, {_rounds_text(play, position)}: "
        + (
            "; ".join([f"{source} to {target}" for source, target in sorted(amounts)]) + "."
            if arrows
            else "nothing is sent yet."
        ),
    )


def _fraction(count: int, play: Play) -> str:
    """Chunks as a share of a buffer, in lowest terms: ``"1/8"``, ``"1"``."""
    above, below = count, play.schedule.n_ranks if play.exchanged else play.schedule.n_chunks
    divisor, rest = below, above % below
    while rest:
        divisor, rest = rest, divisor % rest
    above, below = above // divisor, below // divisor
    return str(above) if below == 1 else f"{above}/{below}"


def _buffers(share: float) -> str:
    return words.plain_number(int(share * 1e4 + 0.5) / 1e4)


def _holdings_panel(play: Play, collective: str, needed: int, position: int) -> dict[str, Any]:
    n = play.schedule.n_ranks
    if play.exchanged:
        # How many of a rank's N chunks are where: all on the diagonal before, one in every cell after.
        counts = [
            [len([1 for chunk in play.held[rank] if chunk // n == source]) for rank in range(n)]
            for source in range(n)
        ]
        title, row_label, most = "Chunks by origin and place", "from", n
    else:
        counts = [
            [play.held[rank].get(chunk, 0) for rank in range(n)] for chunk in range(play.schedule.n_chunks)
        ]
        title = f"Contributions summed, of {n}" if needed > 1 else "Who holds which chunk"
        row_label, most = "chunk", needed
    rows = [str(row) for row in range(len(counts))]
    if len(rows) == 1:
        # A buffer in one piece is one row, too low for "chunk" beside it.
        rows, row_label = ["P"], ""
    return chart.matrix(
        title=title,
        columns=[str(rank) for rank in range(n)],
        rows=rows,
        column_label="rank",
        row_label=row_label,
        texts=[[str(count) if count else "" for count in row] for row in counts],
        levels=[[min(count / most, 1.0) for count in row] for row in counts],
        role="memory-gradients",
        alt=f"Table of what {n} ranks hold in the {collective}, {_rounds_text(play, position)}.",
    )


def _sent_panel(play: Play, position: int) -> dict[str, Any]:
    n = play.schedule.n_ranks
    most = max(1.0, max(_totals(play.schedule, play.exchanged)))
    return chart.bars(
        title="Sent by each rank, in buffers P",
        categories=[str(rank) for rank in range(n)],
        value=chart.axis("× P", (0.0, 1.3 * most), chart.even_ticks(1.3 * most)),
        stacks=[chart.stack("sent", "communication", play.sent)],
        limits=[chart.limit(1.0, "P", align="start")],
        texts=[_buffers(sent) if sent else "" for sent in play.sent],
        alt=f"Bars of what each of {n} ranks has sent, {_rounds_text(play, position)}: the most is "
        f"{_buffers(max(play.sent))} P.",
    )


def _totals(schedule: Schedule, exchanged: bool) -> list[float]:
    """What each rank sends in all rounds, in buffers."""
    share = 1 / (schedule.n_ranks if exchanged else schedule.n_chunks)
    sent = [0.0] * schedule.n_ranks
    for step in schedule.rounds:
        for message in step.messages:
            sent[message.source] += len(message.chunks) * share
    return sent


def _readouts(play: Play, needed: int, position: int, phase: str) -> list[dict[str, Any]]:
    n = play.schedule.n_ranks
    with_result = [rank for rank in range(n) if play.schedule.ends[rank]]
    complete = len([rank for rank in with_result if play.finished(rank, needed) >= 1])
    totals = _totals(play.schedule, play.exchanged)
    whole = 0.0
    for sent in totals:
        whole += sent
    return [
        chart.readout("round", f"{position} of {len(play.schedule.rounds)}", phase),
        chart.readout("complete", f"{complete} of {len(with_result)}", "ranks with their result"),
        chart.readout(
            "busiest rank", _buffers(max(totals)) + " P", "sends in all rounds", "communication-text"
        ),
        chart.readout("all ranks", _buffers(whole) + " P", "send together", "communication-text"),
    ]


def _sentences(
    play: Play, collective: str, name: str, asked: int, position: int, arrived: list[Message]
) -> list[str]:
    schedule = play.schedule
    n, last = schedule.n_ranks, len(schedule.rounds)
    totals = _totals(schedule, play.exchanged)
    if position == 0:
        texts = [f"Before the first round: {_start(collective, n)}"]
    else:
        first = arrived[0]
        busy = len({message.source for message in arrived})
        verb = "sends" if busy == 1 else "send"
        what = "adds it to its own" if first.reduces else "keeps it"
        texts = [
            f"Round {position} of {last}: {busy} of {n} ranks {verb}; rank {first.source} sends "
            f"{_buffers(len(first.chunks) * play.share)} P to rank {first.destination}, which {what}."
        ]
    idle = len([1 for sent in totals if sent == 0])
    resting = f", and {words.plural(idle, 'rank')} nothing" if idle else ""
    texts.append(
        f"The whole {collective} takes {words.plural(last, 'round')}; the busiest rank sends {_buffers(max(totals))} P"
        f"{resting}."
    )
    if asked != n:
        texts.append(
            f"{name[0].upper() + name[1:]} pairs ranks off: it exists for powers of two, so {n} are shown."
        )
    if any(step.phase == "fold" for step in schedule.rounds):
        texts.append(
            f"{n} is no power of two: some ranks hand their buffer to a neighbour first and get the result back at the "
            "end, two more rounds with a whole buffer each."
        )
    if name == "double tree":
        texts.append(
            "Each tree carries half of the buffer in 8 pieces that follow each other; an inner rank of one tree is a "
            "leaf or the root of the other."
        )
    return texts


def _start(collective: str, n: int) -> str:
    if collective == "broadcast":
        return "only rank 0 has the buffer."
    if collective == "all-gather":
        return f"every one of the {n} ranks has its own part."
    if collective == "all-to-all":
        return f"every one of the {n} ranks has a buffer with one chunk for each rank."
    return f"every one of the {n} ranks has a buffer of its own, and nothing is summed."


EXPERIMENT = Experiment(
    name="collective-stepper",
    title="Trees, butterflies and exchanges, round by round",
    question="How few rounds can it take, and who carries the bytes?",
    controls=(
        stepper("step", "Round", MOST_ROUNDS),
        choice("way", "What runs", _WAYS, "all-reduce / recursive doubling"),
        slider("ranks", "Ranks N", tuple(range(2, MOST_RANKS + 1)), 8, whole=True),
    ),
    presets=(
        Preset(
            name="doubling",
            label="All-reduce in 3 rounds",
            values={"way": "all-reduce / recursive doubling", "ranks": 8, "step": 1},
            source="Recursive doubling: MPICH's choice for small buffers.",
        ),
        Preset(
            name="rabenseifner",
            label="The same, fewer bytes",
            values={"way": "all-reduce / rabenseifner", "ranks": 8, "step": 3},
            source="Recursive halving, then doubling: Rabenseifner's algorithm, MPICH's choice for large buffers.",
        ),
        Preset(
            name="double-tree",
            label="NCCL's two trees",
            values={"way": "all-reduce / double tree", "ranks": 8, "step": 6},
            source="Both trees as NCCL builds them, src/graph/trees.cc.",
        ),
        Preset(
            name="fold",
            label="6 ranks: no power of two",
            values={"way": "all-reduce / rabenseifner", "ranks": 6, "step": 1},
            source="What MPICH does with the ranks that are left over.",
        ),
        Preset(
            name="all-to-all",
            label="All-to-all",
            values={"way": "all-to-all / direct", "ranks": 8, "step": 3},
            source="The exchange of a mixture of experts: each rank has something for each other.",
        ),
    ),
    picture=picture,
)
