"""Q4: at 2 GB/s, why are 8 ranks slower than one? Break-even in weak and strong scaling, and what moves it.

The source's premise, that compute has to take longer than communication, is exact in strong scaling without
overlap only (C > 2P/B). In weak scaling N ranks gain as soon as T < (N-1) C.
"""

from __future__ import annotations

import math

from shardlab.models.scaling import break_even_ranks, strong_speedup_cap
from shardlab.quiz.cluster import (
    CHAPTER,
    SLOW,
    Cluster,
    gigabits_per_s,
    gigabytes_per_s,
    given,
    ring_values,
    speedup_slips,
)
from shardlab.quiz.draw import Draw
from shardlab.quiz.model import (
    Quiz,
    Table,
    Trap,
    Variant,
    choice,
    decimal,
    judged,
    open_question,
    quiz_of,
    right,
    several,
    variant,
    wrong,
)
from shardlab.quiz.parts import apart, figure, ms, percent, ranking, times, whole
from shardlab.units import format_bandwidth, format_bytes, format_time

SEED = 4


def build(seed: int = SEED) -> Quiz:
    """The chapter's slow network first, then six fresh variants drawn from ``seed``."""
    return quiz_of(
        id="q4",
        title="At {B}, why are 8 ranks slower than one?",
        question="When exactly do more ranks make training slower, and from where on do they pay?",
        variants=(
            _chapter(),
            _ranks(seed),
            _bandwidth(seed),
            _tables(seed),
            _overlap(seed),
            _accumulate(seed),
            _bits(seed),
        ),
        values={"B": format_bandwidth(SLOW.bandwidth)},
        seed=seed,
    )


def _break_even(cluster: Cluster, scaling: str = "weak", overlap: float = 0.0) -> int | None:
    return break_even_ranks(
        cluster.compute_s,
        cluster.n_bytes,
        cluster.bandwidth,
        cluster.latency_s,
        scaling=scaling,
        overlap=overlap,
    )


def _chapter() -> Variant:
    n = 8
    step = SLOW.step(n)
    strong = SLOW.step(n, "strong")
    fast = CHAPTER.step(n)
    even = _break_even(SLOW)
    assert even is not None, "the chapter's slow network breaks even in weak scaling"
    last_loss = SLOW.step(even - 1)
    far = SLOW.step(64)
    long_ring = 2 * SLOW.n_bytes / SLOW.bandwidth
    values = ring_values(SLOW, n)
    values.update(
        {
            "step": ms(step.step_time_s),
            "speedup": times(step.speedup, 2),
            "room": ms((n - 1) * SLOW.compute_s),
            "fast_T": ms(fast.communication_time_s),
            "fast_speedup": times(fast.speedup),
            "fast_B": format_bandwidth(CHAPTER.bandwidth),
            "even": str(even),
            "even_speedup": times(SLOW.step(even).speedup),
            "even_T": ms(SLOW.ring_s(even)),
            "even_room": ms((even - 1) * SLOW.compute_s),
            "last": str(even - 1),
            "last_speedup": times(last_loss.speedup, 4),
            "last_T": ms(SLOW.ring_s(even - 1)),
            "last_room": ms((even - 2) * SLOW.compute_s),
            "far_N": "64",
            "far_speedup": times(far.speedup),
            "floor": ms(long_ring),
            "two_P": format_bytes(2 * SLOW.n_bytes),
        }
    )
    strong_even = _break_even(SLOW, "strong")
    runs = [
        (step.speedup, "slow-weak", "{N} ranks at {B}, batch per rank fixed", "{speedup}"),
        (fast.speedup, "fast-weak", "{N} ranks at {fast_B}, batch per rank fixed", "{fast_speedup}"),
        (far.speedup, "far-weak", "{far_N} ranks at {B}, batch per rank fixed", "{far_speedup}"),
        (
            CHAPTER.step(n, "strong").speedup,
            "fast-strong",
            "{N} ranks at {fast_B}, global batch fixed",
            "{fast_strong}",
        ),
    ]
    values["fast_strong"] = times(CHAPTER.step(n, "strong").speedup, 2)
    return variant(
        id="chapter",
        title="The chapter's slow network",
        scenario="The same eight ranks as before, now on links of {B}. Every rank keeps its own batch (weak scaling) and nothing overlaps.",
        given=given(SLOW, n),
        values=values,
        parts=(
            figure(
                id="step",
                prompt="How long does a step take?",
                key=1e3 * step.step_time_s,
                unit="ms",
                wrong=[
                    (1e3 * step.communication_time_s, "no-compute"),
                    (1e3 * strong.step_time_s, "strong-for-weak"),
                    (1e3 * (SLOW.compute_s + long_ring), "full-2p"),
                    (
                        1e3 * fast.step_time_s,
                        "other-network",
                        "That is the step at {fast_B}. The links are slower now.",
                    ),
                    (1e3 * (SLOW.compute_s + long_ring / 2), "single-copy"),
                    (1e3 * (SLOW.compute_s + step.communication_time_s / 2), "one-phase"),
                    (1e3 * SLOW.changed(bandwidth=1 / 8).step(n).step_time_s, "bits-for-bytes"),
                ],
                solution=(
                    "The all-reduce sends {sent} per rank: {transfer} at {B}, and {latency} for the hops.",
                    "*C* + *T* = {C} + {T} = {step}.",
                ),
            ),
            figure(
                id="speedup",
                prompt="What is the speedup in samples per second over one rank?",
                key=step.speedup,
                unit="×",
                digits=2,
                wrong=speedup_slips(SLOW, n),
                solution=(
                    "{N} batches in {step}, against one in {C}.",
                    "{N} · {C} / {step} = {speedup}: slower than one rank.",
                ),
            ),
            choice(
                id="rule",
                prompt="Which comparison makes it a loss?",
                options=(
                    wrong(
                        "premise",
                        "Communication takes longer than compute: {T} against {C}.",
                        "comm-under-compute",
                        "At {fast_B} communication takes longer too ({fast_T} against {C}), and {N} ranks gain {fast_speedup}.",
                    ),
                    right(
                        "gain",
                        "Communication takes longer than the compute that the other ranks add: {T} against (*N*−1)·*C* = {room}.",
                        "A step does the work of {N} steps of one rank. It gains while *C* + *T* < *N*·*C*, that is *T* < (*N*−1)·*C*.",
                    ),
                    wrong(
                        "volume",
                        "Each link carries the gradients of all {N} ranks.",
                        "volume-grows",
                        "Each link carries {sent} with {N} ranks, and less than {two_P} with any number of them.",
                    ),
                    wrong(
                        "hops",
                        "The hops: {hops} of them in every all-reduce.",
                        "latency-blamed",
                        "They cost {latency} of {T}.",
                    ),
                ),
            ),
            whole(
                id="even",
                prompt="With the batch per rank fixed: from how many ranks on is it faster than one rank?",
                key=even,
                unit="ranks",
                wrong=[
                    (
                        even - 1,
                        "tie-is-a-gain",
                        "At {last} ranks *T* = {last_T} and (*N*−1)·*C* = {last_room}: a speedup of {last_speedup}, just short.",
                    ),
                    (
                        math.floor(1 + long_ring / SLOW.compute_s) + 1,
                        "full-2p",
                        "*T* < (*N*−1)·*C* with *T* = 2*P*/*B* = {floor}. The ring of a few ranks takes less.",
                    ),
                    (_break_even(SLOW, overlap=1.0) or math.inf, "off-by-one"),
                ],
                solution=(
                    "*T* grows slowly towards 2*P*/*B* = {floor}; (*N*−1)·*C* grows by {C} with every rank.",
                    "{last} ranks: {last_T} against {last_room}, a speedup of {last_speedup}.",
                    "{even} ranks: {even_T} against {even_room}, a speedup of {even_speedup}.",
                ),
            ),
            several(
                id="statements",
                prompt="Which statements hold on this network, without overlap?",
                options=(
                    judged(
                        "strong",
                        "With the global batch fixed, no number of ranks is faster than one.",
                        strong_even is None,
                        "There *N* ranks gain only if *C* > 2*P*/*B*, whatever *N* is: {C} against {floor}.",
                    ),
                    judged(
                        "premise",
                        "Whenever communication takes longer than compute, more ranks are a loss.",
                        far.communication_time_s <= SLOW.compute_s,
                        "With the batch per rank fixed, {far_N} ranks give {far_speedup}, with *T* ten times *C*.",
                        "comm-under-compute",
                    ),
                    judged(
                        "ever",
                        "With the batch per rank fixed, adding ranks keeps it below the speed of one rank.",
                        far.speedup < 1,
                        "It turns at {even} ranks; {far_N} give {far_speedup}.",
                        "loss-for-ever",
                    ),
                    judged(
                        "accumulate",
                        "Two micro-batches per all-reduce make {N} ranks faster than one.",
                        SLOW.changed(compute=2).step(n).speedup > 1,
                        "The gain doubles to 2·(*N*−1)·*C*, while the all-reduce stays as it is.",
                    ),
                    judged(
                        "fewer",
                        "Four ranks are faster than eight, because the ring has fewer hops.",
                        SLOW.step(4).speedup > step.speedup,
                        "",
                        "fewer-ranks-faster",
                    ),
                ),
            ),
            ranking(
                id="runs",
                prompt="Put these runs in order of speedup over one rank.",
                first="highest speedup",
                last="lowest speedup",
                rows=runs,
                highest=True,
                start=("slow-weak", "fast-weak", "fast-strong", "far-weak"),
                traps=(
                    Trap(above="slow-weak", below="far-weak", misconception="loss-for-ever", why=""),
                    Trap(
                        above="fast-strong",
                        below="slow-weak",
                        misconception="comm-under-compute",
                        why="A fast link does not help a fixed batch here: 2*P*/*B* is still longer than *C*.",
                    ),
                ),
            ),
            open_question(
                id="explain",
                prompt="“Distributed training pays only if compute takes longer than communication.” Correct this sentence for a colleague, for a fixed batch per rank and for a fixed global batch.",
                answer="With the batch per rank fixed (weak scaling), *N* ranks do the work of *N* steps in one. They gain as soon as the "
                "all-reduce takes less than the compute that was added, *T* < (*N*−1)·*C*. At {fast_B} that holds with *T* = {fast_T} "
                "and *C* = {C}; at {B} it holds from {even} ranks on. With the global batch fixed (strong scaling) and no overlap, compute and "
                "saving both carry the factor (*N*−1)/*N*, so *N* cancels: the sentence is right there, in the form *C* > 2*P*/*B*.",
                points=(
                    "Weak scaling: the condition is *T* < (*N*−1)·*C*.",
                    "An example that breaks the sentence, such as {fast_speedup} with *T* = {fast_T} > *C* = {C}.",
                    "Strong scaling without overlap: *C* > 2*P*/*B*, for every *N*.",
                ),
            ),
        ),
    )


def _slow(draw: Draw) -> Cluster:
    """A slow network with numbers that are easy to work with."""
    return Cluster(
        compute_s=draw.pick((0.05, 0.06, 0.08, 0.1, 0.12, 0.15, 0.2, 0.25)),
        n_bytes=draw.pick((0.8e9, 1e9, 1.2e9, 1.5e9, 2e9, 2.4e9, 3e9)),
        bandwidth=draw.pick((1e9, 1.25e9, 1.5e9, 2e9, 2.5e9, 3e9, 4e9)),
        latency_s=draw.pick((5e-6, 10e-6, 20e-6)),
    )


def _ranks(seed: int) -> Variant:
    draw = Draw(seed, "q4/ranks")

    def fits(cluster: Cluster) -> bool:
        even = _break_even(cluster)
        # Neither side of the break-even should be a matter of rounding.
        return (
            cluster != SLOW
            and even is not None
            and 5 <= even <= 30
            and cluster.step(even).speedup > 1.01
            and cluster.step(even - 1).speedup < 0.99
        )

    cluster = draw.until(lambda: _slow(draw), fits)
    even = _break_even(cluster)
    assert even is not None, "the drawn cluster breaks even"
    fleet = draw.pick((4, 6)) * even
    step = cluster.step(fleet)
    hours = draw.pick((12, 20, 24, 30, 48))
    long_ring = 2 * cluster.n_bytes / cluster.bandwidth
    values = ring_values(cluster, even)
    values.update(
        {
            "even": str(even),
            "even_room": ms((even - 1) * cluster.compute_s),
            "even_speedup": times(cluster.step(even).speedup),
            "last": str(even - 1),
            "last_T": ms(cluster.ring_s(even - 1)),
            "last_room": ms((even - 2) * cluster.compute_s),
            "last_speedup": times(cluster.step(even - 1).speedup),
            "floor": ms(long_ring),
            "fleet": str(fleet),
            "fleet_T": ms(step.communication_time_s),
            "fleet_step": ms(step.step_time_s),
            "fleet_speedup": times(step.speedup),
            "fleet_number": decimal(step.speedup),
            "fleet_strong": times(cluster.step(fleet, "strong").speedup),
            "hours": str(hours),
            "fleet_hours": decimal(hours / step.speedup) + " h",
            "half_even": str((even + 1) // 2),
            "double_even": str(2 * even),
        }
    )
    return variant(
        id="ranks",
        title="Where does it break even?",
        scenario="A cheap cluster with slow links. Every rank has its own batch (weak scaling), nothing overlaps.",
        given=given(cluster),
        values=values,
        parts=(
            whole(
                id="even",
                prompt="What is the smallest number of ranks, above one, that processes more samples per second than one rank?",
                key=even,
                unit="ranks",
                wrong=[
                    (even - 1, "tie-is-a-gain", "At {last} ranks the speedup is {last_speedup}."),
                    (
                        math.floor(1 + long_ring / cluster.compute_s) + 1,
                        "full-2p",
                        "With *T* = 2*P*/*B* = {floor} for any *N*. The ring of a few ranks takes less.",
                    ),
                    (_break_even(cluster, overlap=1.0) or math.inf, "off-by-one"),
                    (_break_even(cluster.changed(n_bytes=0.5)) or math.inf, "one-phase"),
                ],
                solution=(
                    "A gain needs *T* < (*N*−1)·*C*.",
                    "{last} ranks: {last_T} against {last_room}, a speedup of {last_speedup}.",
                    "{even} ranks: {T} against {even_room}, a speedup of {even_speedup}.",
                ),
            ),
            figure(
                id="hours",
                prompt="An epoch takes {hours} h on one rank. How long does it take on {fleet} ranks?",
                key=hours / step.speedup,
                unit="h",
                wrong=[
                    (hours / fleet, "free-lunch"),
                    (
                        hours * step.step_time_s / cluster.compute_s,
                        "flat-step",
                        "A step takes that much longer, but there are {fleet} times fewer of them in an epoch.",
                    ),
                    (hours * step.speedup, "inverted", "A speedup divides the time."),
                    (hours / cluster.step(fleet, overlap=1.0).speedup, "full-overlap"),
                    (hours / cluster.step(fleet, "strong").speedup, "strong-for-weak"),
                ],
                solution=(
                    "A step takes {C} + {fleet_T} = {fleet_step} and processes {fleet} batches.",
                    "The speedup is {fleet} · {C} / {fleet_step} = {fleet_speedup}, so the epoch takes {hours} h / {fleet_number} = {fleet_hours}.",
                ),
            ),
            choice(
                id="strong",
                prompt="The algorithm can't use a larger global batch, so the batch of one rank is split (strong scaling). From how many ranks on is it faster now?",
                options=(
                    wrong(
                        "same",
                        "Also from {even} ranks on.",
                        "weak-for-strong",
                        "With {fleet} ranks and the global batch fixed the speedup is {fleet_strong}.",
                    ),
                    wrong("later", "From about {double_even} ranks on.", "gain-for-ever"),
                    wrong(
                        "sooner",
                        "From about {half_even} ranks on, because each rank computes less.",
                        "weak-for-strong",
                        "Computing less is the only gain there is: at most *C* = {C}, against an all-reduce that tends to {floor}.",
                    ),
                    judged(
                        "never",
                        "From no number of ranks on.",
                        _break_even(cluster, "strong") is None,
                        "Gain (*N*−1)/*N*·*C* and price (*N*−1)/*N*·2*P*/*B* shrink alike: {C} against {floor}, for every *N*.",
                    ),
                ),
            ),
        ),
    )


def _bandwidth(seed: int) -> Variant:
    draw = Draw(seed, "q4/bandwidth")

    def propose() -> tuple[Cluster, int]:
        return _slow(draw), draw.pick((4, 6, 10, 12, 16))

    def fits(drawn: tuple[Cluster, int]) -> bool:
        cluster, n_ranks = drawn
        even = cluster.bandwidth_for(n_ranks, (n_ranks - 1) * cluster.compute_s)
        return 0.4e9 < even < 8e9

    cluster, n = draw.until(propose, fits)
    room = (n - 1) * cluster.compute_s
    weak = cluster.bandwidth_for(n, room)
    saved = cluster.compute_s - cluster.compute_s / n
    strong = cluster.bandwidth_for(n, saved)
    values = ring_values(cluster, n)
    values.update(
        {
            "room": ms(room),
            "weak": gigabytes_per_s(weak),
            "weak_bits": gigabits_per_s(weak),
            "saved": ms(saved),
            "strong": gigabytes_per_s(strong),
            "C_split": ms(cluster.compute_s / n),
            "ratio": decimal(strong / weak, 2),
        }
    )
    return variant(
        id="bandwidth",
        title="The break-even bandwidth",
        scenario="You have {N} ranks and may choose the links. At which bandwidth are {N} ranks exactly as fast as one? Nothing overlaps.",
        given=given(cluster, n, compute="compute of the batch on one rank", bandwidth="to be found"),
        values=values,
        parts=(
            figure(
                id="weak",
                prompt="The batch per rank is fixed (weak scaling). Which bandwidth breaks even?",
                key=weak / 1e9,
                unit="GB/s",
                relative=0.015,
                wrong=[
                    (
                        cluster.bandwidth_for(n, cluster.compute_s) / 1e9,
                        "comm-under-compute",
                        "That makes *T* equal to *C*. But the ranks may wait as long as (*N*−1)·*C*.",
                    ),
                    (strong / 1e9, "strong-for-weak"),
                    (cluster.bandwidth_for(n, n * cluster.compute_s) / 1e9, "off-by-one"),
                    (weak * 8 / 1e9, "bits-for-bytes"),
                    (weak / 2 / 1e9, "one-phase"),
                ],
                solution=(
                    "Break-even: *T* = (*N*−1)·*C* = {room}.",
                    "A rank sends {factor} · {P} = {sent}; the hops take {latency}.",
                    "{sent} in the time that remains are {weak}, about 2*P*/(*N*·*C*).",
                ),
            ),
            figure(
                id="strong",
                prompt="The global batch is fixed (strong scaling). Which bandwidth breaks even now?",
                key=strong / 1e9,
                unit="GB/s",
                relative=0.015,
                wrong=[
                    (weak / 1e9, "weak-for-strong"),
                    (
                        cluster.bandwidth_for(n, cluster.compute_s) / 1e9,
                        "wrong-saving",
                        "That lets *T* take all of *C*. But each rank still computes *C*/*N*, so it saves *C* − *C*/*N*.",
                    ),
                    (strong * 8 / 1e9, "bits-for-bytes"),
                    (strong / 2 / 1e9, "one-phase"),
                    (
                        cluster.bandwidth_for(n, cluster.compute_s / n) / 1e9,
                        "wrong-saving",
                        "That sets *T* to what each rank still computes. Set it to what each rank saves, *C* − *C*/*N*.",
                    ),
                ],
                solution=(
                    "Each rank saves *C* − *C*/*N* = {C} − {C_split} = {saved}, and that is what *T* may be.",
                    "{sent} in that time are {strong}, about 2*P*/*C*: *N* has cancelled.",
                ),
            ),
            choice(
                id="ratio",
                prompt="Strong scaling needs {ratio} times the bandwidth here. Where does this factor come from?",
                options=(
                    right(
                        "batches",
                        "It is about *N*: in weak scaling {N} batches share the price of one all-reduce, in strong scaling one batch does.",
                        "(*N*−1)·*C* against (*N*−1)/*N*·*C*: the ratio is *N*.",
                    ),
                    wrong(
                        "bytes",
                        "In strong scaling each rank sends {N} times as many bytes.",
                        "volume-grows",
                        "A rank sends {sent} in both.",
                    ),
                    wrong(
                        "chunks",
                        "In strong scaling the chunks are smaller, so the links work less well.",
                        "smaller-chunks",
                        "The all-reduce is the same in both: as many bytes in as many chunks.",
                    ),
                    wrong(
                        "hops",
                        "In strong scaling the latency of {hops} hops counts.",
                        "latency-blamed",
                        "It is {latency} in both.",
                    ),
                ),
            ),
            figure(
                id="bits",
                prompt="In weak scaling, what is the break-even bandwidth in the unit of link speeds?",
                key=weak * 8 / 1e9,
                unit="Gb/s",
                relative=0.015,
                wrong=[
                    (weak / 1e9, "bits-for-bytes"),
                    (weak / 8 / 1e9, "inverted"),
                    (strong * 8 / 1e9, "strong-for-weak"),
                    (weak * 8 / 2**30, "binary-giga"),
                ],
                solution=("8 · {weak} = {weak_bits}.",),
            ),
        ),
    )


def _tables(seed: int) -> Variant:
    draw = Draw(seed, "q4/tables")
    sizes = (2, 4, 8, 16, 32)

    def fits(cluster: Cluster) -> bool:
        speedups = [cluster.step(n).speedup for n in sizes]
        # The weak series turns between 4 and 16 ranks, and never by a hair.
        return (
            speedups[1] < 0.95
            and speedups[3] > 1.05
            and all(abs(speedup - 1) > 0.03 for speedup in speedups)
            and strong_speedup_cap(cluster.compute_s, cluster.n_bytes, cluster.bandwidth) < 0.9
        )

    cluster = draw.until(lambda: _slow(draw), fits)
    asked = draw.pick((16, 32))
    weak_team, strong_team = draw.shuffled(("A", "B"))
    weak, strong = cluster.step(asked), cluster.step(asked, "strong")
    values = {
        "P": format_bytes(cluster.n_bytes),
        "C": ms(cluster.compute_s),
        "asked": str(asked),
        "weak_team": weak_team,
        "strong_team": strong_team,
        "strong_step": ms(strong.step_time_s),
        "strong_speedup": times(strong.speedup),
        "C_split": ms(strong.compute_time_s),
        "weak_even": str(_break_even(cluster)),
        "floor": ms(2 * cluster.n_bytes / cluster.bandwidth),
    }
    rows = []
    for n in (1,) + sizes:  # noqa: RUF005 (MicroPython has no star in a tuple)
        steps = {weak_team: cluster.step(n), strong_team: cluster.step(n, "strong")}
        rows.append(
            (str(n), decimal(1e3 * steps["A"].step_time_s, 4), decimal(1e3 * steps["B"].step_time_s, 4))
        )
    faster = []
    for n in sizes[1:]:
        values[f"speedup_{n}"] = times(cluster.step(n).speedup)
        text = f"{n} ranks"
        if cluster.step(n).speedup > 1:
            faster.append(right(f"ranks-{n}", text, f"{n} batches per step give {{speedup_{n}}}."))
        else:
            why = f"The speedup is {{speedup_{n}}}: a step takes longer than {n} steps of one rank."
            faster.append(wrong(f"ranks-{n}", text, "free-lunch", why))
    return variant(
        id="tables",
        title="Two teams, two tables",
        scenario="Two teams run the same model on the same slow network, without overlap. One keeps the batch per rank, the other keeps the "
        "global batch. Both write down their step times (here from the chapter's model), and nobody wrote down who did which.",
        table=Table(caption="Step times", columns=("ranks", "team A (ms)", "team B (ms)"), rows=tuple(rows)),
        values=values,
        parts=(
            choice(
                id="which",
                prompt="Which team kept the batch per rank (weak scaling)?",
                options=(
                    right(
                        "weak",
                        "Team {weak_team}: its steps are longer, because each rank still computes for {C}.",
                        "At {asked} ranks team {weak_team} computes for {C}, team {strong_team} for {C_split}, and both wait as long for the all-reduce.",
                    ),
                    wrong(
                        "strong",
                        "Team {strong_team}: its steps are shorter, as more ranks should make them.",
                        "weak-for-strong",
                        "Steps become shorter when each rank computes less, and that takes a fixed global batch.",
                    ),
                    wrong("neither", "Neither: in weak scaling the step time stays at {C}.", "free-lunch"),
                ),
            ),
            several(
                id="faster",
                prompt="With which numbers of ranks does team {weak_team} process more samples per second than one rank?",
                options=tuple(faster),
                solution=("*N* · {C} divided by the step has to be above 1. It turns at {weak_even} ranks.",),
            ),
            figure(
                id="strong",
                prompt="What is the speedup of team {strong_team} with {asked} ranks?",
                key=strong.speedup,
                unit="×",
                wrong=[
                    (asked * cluster.compute_s / strong.step_time_s, "weak-for-strong"),
                    (
                        1 / strong.speedup,
                        "inverted",
                        "Turn it over: the time of one rank divided by the new time.",
                    ),
                    (strong.efficiency, "efficiency-for-speedup"),
                    (weak.speedup, "weak-for-strong", "That is the number of team {weak_team}."),
                    (asked, "free-lunch"),
                ],
                solution=(
                    "The step processes the same batch as one rank: {C} / {strong_step} = {strong_speedup}.",
                ),
            ),
            open_question(
                id="advice",
                prompt="Team {strong_team} asks whether {asked} more ranks would help. What do you advise, and why?",
                answer="No. With the global batch fixed, a step can't become shorter than its all-reduce, which tends to 2*P*/*B* = {floor}. "
                "One rank needs {C}. Every number of ranks loses, because gain and price carry the same factor (*N*−1)/*N*. "
                "Team {strong_team} should stay on one rank, use faster links, send fewer bytes, or raise the global batch if training allows it.",
                points=(
                    "The all-reduce alone takes longer than the step of one rank.",
                    "More ranks don't change that: *N* cancels.",
                    "A way out that changes *C*, *P* or *B*, not *N*.",
                ),
            ),
        ),
    )


def _overlap(seed: int) -> Variant:
    draw = Draw(seed, "q4/overlap")

    def fits(drawn: tuple[Cluster, int]) -> bool:
        cluster, n_ranks = drawn
        needed = cluster.ring_s(n_ranks) / cluster.compute_s - (n_ranks - 1)
        return 0.15 < needed < 0.6

    cluster, n = draw.until(lambda: (_slow(draw), draw.pick((3, 4, 5, 6, 8))), fits)
    none, full = cluster.step(n), cluster.step(n, overlap=1.0)
    needed = cluster.ring_s(n) / cluster.compute_s - (n - 1)
    strong = cluster.step(n, "strong", 1.0)
    values = ring_values(cluster, n)
    values.update(
        {
            "none_speedup": times(none.speedup),
            "full_speedup": times(full.speedup),
            "none_step": ms(none.step_time_s),
            "full_step": ms(full.step_time_s),
            "room": ms((n - 1) * cluster.compute_s),
            "full_room": ms(n * cluster.compute_s),
            "needed": percent(needed),
            "missing": ms(cluster.ring_s(n) - (n - 1) * cluster.compute_s),
            "strong_speedup": times(strong.speedup),
        }
    )
    return variant(
        id="overlap",
        title="Can overlap rescue it?",
        scenario="Weak scaling on a slow network. The all-reduce may run while a part of the compute still goes on.",
        given=given(cluster, n),
        values=values,
        parts=(
            figure(
                id="none",
                prompt="What is the speedup of {N} ranks without overlap?",
                key=none.speedup,
                unit="×",
                wrong=speedup_slips(cluster, n),
                solution=(
                    "*T* = {T}, so a step takes {none_step}.",
                    "{N} · {C} / {none_step} = {none_speedup}: a loss.",
                ),
            ),
            figure(
                id="full",
                prompt="And if the all-reduce could hide under the whole compute?",
                key=full.speedup,
                unit="×",
                wrong=speedup_slips(cluster, n, overlap=1.0),
                solution=(
                    "The step then takes max(*C*, *T*) = {full_step}.",
                    "{N} · {C} / {full_step} = {full_speedup}: a gain.",
                ),
            ),
            figure(
                id="needed",
                prompt="Which share of the compute has to hide communication for {N} ranks to break even?",
                key=100 * needed,
                unit="%",
                relative=0.0,
                absolute=1.0,
                wrong=[
                    (100 * (1 - needed), "hidden-exposed"),
                    (
                        100 * (cluster.ring_s(n) - (n - 1) * cluster.compute_s) / cluster.ring_s(n),
                        "wrong-whole",
                        "That is a share of the all-reduce. The question asks for a share of the compute.",
                    ),
                ],
                solution=(
                    "At most (*N*−1)·*C* = {room} may stay exposed, so {T} − {room} = {missing} have to hide.",
                    "That is {needed} of *C*. Backward alone offers two thirds.",
                ),
            ),
            choice(
                id="rule",
                prompt="What is the break-even rule of weak scaling if everything may overlap?",
                options=(
                    wrong(
                        "premise",
                        "*T* < *C*",
                        "comm-under-compute",
                        "Here *T* = {T} is longer than *C* = {C}, and {N} ranks still gain {full_speedup}.",
                    ),
                    right(
                        "all",
                        "*T* < *N*·*C*",
                        "The step takes max(*C*, *T*) and does the work of *N*·*C* = {full_room}.",
                    ),
                    wrong(
                        "less",
                        "*T* < (*N*−1)·*C*",
                        "no-overlap",
                        "That is the rule without overlap: {T} against {room}, a loss.",
                    ),
                    wrong(
                        "strong",
                        "2*P*/*B* < *C*",
                        "strong-for-weak",
                        "In strong scaling the all-reduce alone has to be shorter than *C*: {strong_speedup} here, even with full overlap.",
                    ),
                ),
            ),
        ),
    )


def _micro_batches(cluster: Cluster, n_ranks: int) -> int:
    """The smallest number of micro-batches per all-reduce with which N ranks beat one."""
    micro = 1
    while cluster.changed(compute=micro).step(n_ranks).speedup <= 1:
        micro += 1
    return micro


def _accumulate(seed: int) -> Variant:
    draw = Draw(seed, "q4/accumulate")

    def fits(drawn: tuple[Cluster, int]) -> bool:
        cluster, n_ranks = drawn
        exact = cluster.ring_s(n_ranks) / ((n_ranks - 1) * cluster.compute_s)
        return 2.1 < exact < 8 and 0.1 < exact - math.floor(exact) < 0.9

    cluster, n = draw.until(lambda: (_slow(draw), draw.pick((2, 3, 4, 6, 8))), fits)
    micro = _micro_batches(cluster, n)
    none, enough = cluster.step(n), cluster.changed(compute=micro).step(n)
    ample = 4 * micro
    far = cluster.changed(compute=ample).step(n)
    ring = cluster.ring_s(n)
    values = ring_values(cluster, n)
    values.update(
        {
            "none_speedup": times(none.speedup),
            "micro": str(micro),
            "less": str(micro - 1),
            "less_speedup": times(cluster.changed(compute=micro - 1).step(n).speedup),
            "room": ms((n - 1) * cluster.compute_s),
            "speedup": times(enough.speedup),
            "exact": decimal(ring / ((n - 1) * cluster.compute_s)),
            "ample": str(ample),
            "ample_C": format_time(ample * cluster.compute_s),
            "ample_step": ms(far.step_time_s),
            "ample_efficiency": percent(far.efficiency),
        }
    )
    return variant(
        id="accumulate",
        title="Send less often",
        scenario="{N} ranks on a slow network are slower than one: {none_speedup} (weak scaling, no overlap). With gradient accumulation under "
        "`no_sync`, each rank adds up several micro-batches and all-reduces once. Compare with one rank that accumulates as much.",
        given=given(cluster, n, compute="compute of one micro-batch on one rank"),
        values=values,
        parts=(
            whole(
                id="micro",
                prompt="What is the smallest number of micro-batches per all-reduce with which {N} ranks beat one?",
                key=micro,
                unit="micro-batches",
                wrong=[
                    (micro - 1, "tie-is-a-gain", "With {less} the speedup is {less_speedup}."),
                    (math.floor(ring / cluster.compute_s) + 1, "comm-under-compute"),
                    (math.floor(ring / (n * cluster.compute_s)) + 1, "off-by-one"),
                ],
                solution=(
                    "With *k* micro-batches a step computes *k*·*C*, so the gain is *k*·(*N*−1)·*C* = *k* · {room}.",
                    "It has to exceed *T* = {T}: *k* > {exact}, so {micro}.",
                    "With {micro} the speedup is {speedup}, with {less} it is {less_speedup}.",
                ),
            ),
            figure(
                id="efficiency",
                prompt="What is the efficiency with {ample} micro-batches per all-reduce?",
                key=100 * far.efficiency,
                unit="%",
                relative=0.0,
                absolute=0.6,
                wrong=[
                    (
                        100 * far.communication_share,
                        "hidden-exposed",
                        "That is the share of communication. Efficiency is the share of compute.",
                    ),
                    (100 * none.efficiency, "bytes-per-micro-batch"),
                    (100 * far.speedup, "speedup-for-efficiency"),
                    (
                        100 * none.efficiency * ample,
                        "wrong-whole",
                        "Efficiency does not grow in proportion: it is *k*·*C*/(*k*·*C* + *T*).",
                    ),
                ],
                solution=(
                    "Compute: {ample} · {C} = {ample_C}. One all-reduce: {T}. Together {ample_step}.",
                    "{ample_C} / {ample_step} = {ample_efficiency}.",
                ),
            ),
            several(
                id="effects",
                prompt="What does accumulating over *k* micro-batches change?",
                options=(
                    right(
                        "bytes",
                        "Bytes sent per sample: divided by *k*.",
                        "One all-reduce of *P* serves *k* times the samples.",
                    ),
                    right(
                        "batch",
                        "Samples per optimizer step: multiplied by *k*.",
                        "The global batch is *k*·*N* micro-batches.",
                    ),
                    wrong(
                        "step-bytes",
                        "Bytes sent per optimizer step: multiplied by *k*.",
                        "bytes-per-micro-batch",
                    ),
                    wrong("memory", "Memory for gradients: multiplied by *k*.", "memory-grows"),
                    wrong("free", "Nothing that training could notice.", "accumulation-is-free"),
                ),
            ),
        ),
    )


def _bits(seed: int) -> Variant:
    draw = Draw(seed, "q4/bits")

    def propose() -> tuple[Cluster, int, float]:
        width = draw.pick((2, 4))
        parameters = draw.pick((0.25e9, 0.35e9, 0.5e9, 0.75e9, 1e9, 1.5e9))
        cluster = Cluster(
            compute_s=draw.pick((0.08, 0.1, 0.12, 0.15, 0.2)),
            n_bytes=parameters * width,
            bandwidth=draw.pick((10e9, 16e9, 20e9, 25e9, 40e9)) / 8,
            latency_s=10e-6,
        )
        return cluster, draw.pick((4, 6, 8)), width

    def fits(drawn: tuple[Cluster, int, float]) -> bool:
        cluster, n_ranks, _ = drawn
        planned = cluster.changed(bandwidth=8)
        return (
            planned.step(n_ranks).speedup > 1.5
            and cluster.step(n_ranks).speedup < 0.95
            and apart([1.0, cluster.step(n_ranks).speedup, planned.step(n_ranks).speedup])
        )

    cluster, n, width = draw.until(propose, fits)
    planned = cluster.changed(bandwidth=8)
    parameters = cluster.n_bytes / width
    real, hoped = cluster.step(n), planned.step(n)
    even = cluster.bandwidth_for(n, (n - 1) * cluster.compute_s)
    values = ring_values(cluster, n)
    values.update(
        {
            "parameters": f"{parameters / 1e6:.0f} million",
            "dtype": "fp32" if width == 4 else "bf16",
            "width": str(width),
            "quoted": f"{cluster.bandwidth * 8 / 1e9:.0f}",
            "hoped": times(hoped.speedup),
            "hoped_T": ms(hoped.communication_time_s),
            "real": times(real.speedup),
            "even": gigabytes_per_s(even),
            "even_bits": gigabits_per_s(even),
            "room": ms((n - 1) * cluster.compute_s),
        }
    )
    other = 4 if width == 2 else 2
    believed = speedup_slips(cluster, n)
    believed.insert(
        0,
        (hoped.speedup, "bits-for-bytes", "That is the plan's number. A link of {quoted} Gb/s carries {B}."),
    )
    return variant(
        id="bits",
        title="A link of {quoted} giga-what?",
        scenario="A plan for {N} ranks in weak scaling, without overlap, promises a speedup of {hoped}. It reads the vendor's “{quoted} Gb/s” as {quoted} GB/s. "
        "The model has {parameters} parameters, and its gradients are sent in {dtype}.",
        # The first question asks for P.
        given=tuple([row for row in given(cluster, n, bandwidth="{quoted} Gb/s") if row.symbol != "P"]),
        values=values,
        parts=(
            figure(
                id="size",
                prompt="How large are the gradients of one rank, in GB?",
                key=cluster.n_bytes / 1e9,
                unit="GB",
                wrong=[
                    (parameters * other / 1e9, "gradient-width"),
                    (
                        parameters / 1e9,
                        "gradient-width",
                        "That is the number of parameters in billions: each takes {width} bytes.",
                    ),
                    (cluster.n_bytes * 8 / 1e9, "bits-for-bytes"),
                    (cluster.n_bytes / 2**30, "binary-giga"),
                ],
                solution=("{parameters} parameters of {width} bytes are {P}.",),
            ),
            figure(
                id="speedup",
                prompt="What is the speedup really?",
                key=real.speedup,
                unit="×",
                wrong=believed,
                solution=(
                    "{quoted} Gb/s are {B}, so the all-reduce takes {T}, not {hoped_T}.",
                    "{N} · {C} / ({C} + {T}) = {real}.",
                ),
            ),
            figure(
                id="even",
                prompt="From which link speed on are the {N} ranks faster than one?",
                key=even * 8 / 1e9,
                unit="Gb/s",
                relative=0.015,
                wrong=[
                    (even / 1e9, "bits-for-bytes"),
                    (cluster.bandwidth_for(n, cluster.compute_s) * 8 / 1e9, "comm-under-compute"),
                    (
                        cluster.bandwidth_for(n, cluster.compute_s - cluster.compute_s / n) * 8 / 1e9,
                        "strong-for-weak",
                    ),
                    (even * 4 / 1e9, "one-phase"),
                    (cluster.bandwidth_for(n, n * cluster.compute_s) * 8 / 1e9, "off-by-one"),
                ],
                solution=(
                    "A gain needs *T* < (*N*−1)·*C* = {room}.",
                    "{sent} in that time are {even}, or {even_bits}.",
                ),
            ),
            choice(
                id="check",
                prompt="Which measurement before buying would have shown it?",
                options=(
                    right(
                        "allreduce",
                        "The time of an all-reduce of the gradients on two or more such nodes, beside the step of one rank.",
                        "It takes the promised {hoped_T} or the real {T}: one number tells the two apart.",
                    ),
                    wrong(
                        "one",
                        "The step of one rank, measured precisely.",
                        "free-lunch",
                        "One rank sends nothing. Its step is right in the plan already.",
                    ),
                    wrong("latency", "The latency of a hop.", "latency-blamed"),
                    wrong(
                        "overlap",
                        "Whether the backward pass can hide communication.",
                        "perfect-overlap",
                        "The all-reduce takes {T}, longer than all of the compute: no overlap brings the promise back.",
                    ),
                ),
            ),
        ),
    )
