"""Q3: why do 8 ranks give 2.91×, not 8×? Weak scaling, the ring's price, overlap, and what helps."""

from __future__ import annotations

from shardlab.models.scaling import efficiency_cap, strong_speedup_cap
from shardlab.quiz.cluster import (
    BACKWARD,
    CHAPTER,
    Cluster,
    gigabits_per_s,
    gigabytes_per_s,
    given,
    ring_factor,
    ring_slips,
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
from shardlab.quiz.parts import apart, figure, ms, percent, ranking, times
from shardlab.units import format_bandwidth, format_bytes, format_time

SEED = 3

# A change has to lift the efficiency by this factor to count as one that helps.
WORTHWHILE = 1.1


def build(seed: int = SEED) -> Quiz:
    """The chapter's own numbers first, then six fresh variants drawn from ``seed``."""
    base = CHAPTER.step(8)
    return quiz_of(
        id="q3",
        title="Why do 8 ranks give {speedup}, not 8×?",
        question="Where does the rest of the speedup go, and what would bring it back?",
        variants=(
            _chapter(),
            _table(seed),
            _bandwidth(seed),
            _strong(seed),
            _overlap(seed),
            _remedies(seed),
            _latency(seed),
        ),
        values={"speedup": times(base.speedup)},
        seed=seed,
    )


def _chapter() -> Variant:
    n = 8
    base = CHAPTER.step(n)
    ring = CHAPTER.ring_s(n)
    more = CHAPTER.step(8 * n)
    double = CHAPTER.changed(bandwidth=2).step(n)
    half = CHAPTER.changed(n_bytes=0.5).step(n)
    backward = CHAPTER.step(n, overlap=BACKWARD)
    nimble = CHAPTER.changed(latency=0.5).step(n)
    gathered = CHAPTER.changed(compute=4).step(n)
    cap = efficiency_cap(CHAPTER.compute_s, CHAPTER.n_bytes, CHAPTER.bandwidth)
    values = ring_values(CHAPTER, n)
    values.update(
        {
            "step": ms(base.step_time_s),
            "speedup": times(base.speedup),
            "inflation": times(base.step_time_s / CHAPTER.compute_s),
            "inflation_number": decimal(base.step_time_s / CHAPTER.compute_s),
            "speedup_number": decimal(base.speedup),
            "efficiency": percent(base.efficiency),
            "share": percent(base.communication_share),
            "cap": percent(cap),
            "C_split": ms(CHAPTER.step(n, "strong").compute_time_s),
            "more_N": str(8 * n),
            "more_speedup": times(more.speedup),
            "more_efficiency": percent(more.efficiency),
            "double_efficiency": percent(double.efficiency),
            "half_efficiency": percent(half.efficiency),
            "backward_efficiency": percent(backward.efficiency),
            "backward_speedup": times(backward.speedup),
            "nimble_efficiency": percent(nimble.efficiency),
            "gathered_efficiency": percent(gathered.efficiency),
            "two_P": format_bytes(2 * CHAPTER.n_bytes),
        }
    )

    def helps(efficiency: float) -> bool:
        return efficiency > WORTHWHILE * base.efficiency

    changes = [
        (
            gathered.efficiency,
            "gathered",
            "four micro-batches per all-reduce, with `no_sync`",
            "{gathered_efficiency}",
        ),
        (double.efficiency, "double", "twice the bandwidth", "{double_efficiency}"),
        (
            backward.efficiency,
            "backward",
            "the all-reduce hidden under the backward pass as far as it fits",
            "{backward_efficiency}",
        ),
        (base.efficiency, "base", "the eight ranks as they are", "{efficiency}"),
        (more.efficiency, "more", "{more_N} ranks in place of {N}", "{more_efficiency}"),
    ]
    return variant(
        id="chapter",
        title="The chapter's cluster",
        scenario="Eight ranks train with data parallelism. Every rank keeps its own batch (weak scaling) and nothing "
        "overlaps: a step is the compute, then one ring all-reduce of the gradients.",
        given=given(CHAPTER, n),
        values=values,
        parts=(
            figure(
                id="ring-time",
                prompt="How long does the all-reduce take?",
                key=1e3 * ring,
                unit="ms",
                wrong=ring_slips(CHAPTER, n),
                solution=(
                    "Each rank sends 2(*N*−1)/*N* · *P* = {factor} · {P} = {sent}.",
                    "At {B} that takes {transfer}.",
                    "The 2(*N*−1) = {hops} hops add {latency}, so *T* = {T}.",
                ),
            ),
            figure(
                id="speedup",
                prompt="How many times as many samples per second do the {N} ranks process as one rank?",
                key=base.speedup,
                unit="×",
                wrong=speedup_slips(CHAPTER, n),
                solution=(
                    "A step takes *C* + *T* = {C} + {T} = {step}.",
                    "It processes {N} batches, where one rank processes one in {C}.",
                    "Speedup = *N*·*C*/(*C*+*T*) = {N} · {C} / {step} = {speedup}.",
                ),
            ),
            choice(
                id="reason",
                prompt="Which sentence says why it is not {N}×?",
                options=(
                    wrong(
                        "split",
                        "Each rank computes for only {C_split}, too little to keep it busy.",
                        "strong-for-weak",
                        "Every rank keeps its batch and computes for {C}. Only a fixed global batch would be split.",
                    ),
                    right(
                        "wait",
                        "A step takes {inflation} as long as on one rank, because all ranks wait {T} for the gradients.",
                        "The wait is {share} of the step. {N} batches in {inflation} the time are {speedup} the throughput.",
                    ),
                    wrong(
                        "volume",
                        "Eight ranks send eight times the gradients over each link.",
                        "volume-grows",
                        "Each rank sends {sent}, and never {two_P} however many ranks there are.",
                    ),
                    wrong(
                        "ceiling",
                        "On this network no number of ranks gets past about 3×.",
                        "cap-on-speedup",
                        "{more_N} ranks give {more_speedup}. What levels off is the efficiency, near {cap}.",
                    ),
                    wrong(
                        "hops",
                        "The {hops} hops of the ring cost too much latency.",
                        "latency-blamed",
                        "All hops together cost {latency} of the {T}.",
                    ),
                ),
            ),
            several(
                id="helps",
                prompt="Which changes, each on its own, lift the efficiency of {efficiency} by at least a tenth of itself?",
                options=(
                    judged(
                        "double",
                        "twice the bandwidth",
                        helps(double.efficiency),
                        "It rises to {double_efficiency}.",
                    ),
                    judged(
                        "sharding",
                        "sharding the optimizer state with ZeRO-1",
                        helps(base.efficiency),
                        "",
                        "sharding-saves-bytes",
                    ),
                    judged(
                        "half",
                        "gradients sent in bf16 in place of fp32",
                        helps(half.efficiency),
                        "It rises to {half_efficiency}.",
                    ),
                    judged(
                        "more",
                        "{more_N} ranks in place of {N}",
                        helps(more.efficiency),
                        "It falls to {more_efficiency}, while the speedup rises to {more_speedup}.",
                        "ranks-for-efficiency",
                    ),
                    judged(
                        "backward",
                        "overlapping the all-reduce with the backward pass",
                        helps(backward.efficiency),
                        "It rises to {backward_efficiency}.",
                    ),
                    judged(
                        "nimble",
                        "half the latency of a hop",
                        helps(nimble.efficiency),
                        "It becomes {nimble_efficiency}: the hops cost {latency} in all.",
                        "latency-blamed",
                    ),
                ),
            ),
            ranking(
                id="ranking",
                prompt="Put these in order of the efficiency they give.",
                first="highest efficiency",
                last="lowest efficiency",
                rows=changes,
                highest=True,
                start=("more", "backward", "gathered", "base", "double"),
                traps=(Trap(above="more", below="base", misconception="ranks-for-efficiency", why=""),),
            ),
            open_question(
                id="explain",
                prompt="A colleague bought {N} GPUs and expected {N}×. In two or three sentences: why is it {speedup}, and what would you try first?",
                answer="A step processes {N} batches, but it takes {inflation} as long as on one rank: {C} of compute and {T} in "
                "which every rank waits for the all-reduce. {N} divided by {inflation_number} is {speedup_number}. I would first let the "
                "all-reduce run while the backward pass still computes (up to {backward_speedup} here, with no new hardware), "
                "then send fewer bytes per sample, by bf16 gradients or accumulation, or get a faster link.",
                points=(
                    "*C* and *T* add up, and both times are named.",
                    "A step processes {N} batches: this is throughput, in weak scaling.",
                    "A first remedy that hides *T*, or that makes it shorter.",
                    "No claim that the speedup can't grow further: what levels off is the efficiency, near {cap}.",
                ),
            ),
        ),
    )


def _fresh(draw: Draw) -> Cluster:
    """A cluster with numbers that are easy to work with."""
    return Cluster(
        compute_s=draw.pick((0.06, 0.08, 0.12, 0.15, 0.2, 0.25, 0.3)),
        n_bytes=draw.pick((0.4e9, 0.8e9, 1.2e9, 1.6e9, 2e9, 3e9)),
        bandwidth=draw.pick((4e9, 5e9, 8e9, 12.5e9, 16e9, 20e9, 25e9)),
        latency_s=draw.pick((5e-6, 10e-6, 20e-6)),
    )


def _table(seed: int) -> Variant:
    draw = Draw(seed, "q3/table")
    cluster, (few, many, most) = draw.until(
        lambda: (_fresh(draw), draw.pick(((4, 16, 64), (4, 32, 128), (8, 32, 256), (8, 64, 512)))),
        # The all-reduce should matter at once, and the steps be nearly flat after that.
        lambda drawn: (
            0.8 < drawn[0].ring_s(4) / drawn[0].compute_s < 3
            and drawn[0].latency_term_s(drawn[1][2]) < 0.1 * drawn[0].ring_s(4)
        ),
    )
    one, small, large = cluster.step(1), cluster.step(few), cluster.step(many)
    exposed = small.exposed_communication_s
    busy = cluster.sent_bytes(few) / exposed
    growth = large.speedup / small.speedup
    values = {
        "C": ms(one.step_time_s),
        "P": format_bytes(cluster.n_bytes),
        "few": str(few),
        "many": str(many),
        "ranks_ratio": str(many // few),
        "few_step": ms(small.step_time_s),
        "many_step": ms(large.step_time_s),
        "many_speedup": times(large.speedup),
        "growth": times(growth),
        "step_ratio": times(large.step_time_s / small.step_time_s),
        "exposed": ms(exposed),
        "factor": ring_factor(few),
        "sent": format_bytes(cluster.sent_bytes(few)),
        "busy": gigabytes_per_s(busy),
        "inflation": times(large.step_time_s / cluster.compute_s),
        "inflation_number": decimal(large.step_time_s / cluster.compute_s),
    }
    rows = [(str(n), str(n), decimal(1e3 * cluster.step(n).step_time_s, 4)) for n in (1, few, many, most)]
    return variant(
        id="table",
        title="Read a table of step times",
        scenario="A team adds ranks and writes down how long a step takes (the times come from the chapter's model). Each rank has the same batch in "
        "every run (weak scaling), nothing overlaps, and a step all-reduces {P} of gradients over a ring.",
        table=Table(
            caption="Step times",
            columns=("ranks", "batches per step", "step (ms)"),
            rows=tuple(rows),
        ),
        values=values,
        parts=(
            figure(
                id="growth",
                prompt="By what factor does the number of samples per second grow from {few} to {many} ranks?",
                key=growth,
                unit="×",
                wrong=[
                    (large.step_time_s / small.step_time_s, "flat-step"),
                    (small.step_time_s / large.step_time_s, "flat-step"),
                    (many / few, "free-lunch"),
                    (large.speedup, "one-rank-baseline"),
                    (large.efficiency / small.efficiency, "efficiency-for-speedup"),
                ],
                solution=(
                    "Samples per second are batches per step divided by the step time.",
                    "From {few} to {many} ranks: {ranks_ratio} times the batches in {step_ratio} the time, {growth} the samples per second.",
                ),
            ),
            figure(
                id="speedup",
                prompt="What is the speedup of {many} ranks over one rank?",
                key=large.speedup,
                unit="×",
                wrong=[
                    (large.step_time_s / cluster.compute_s, "step-inflation"),
                    (large.efficiency, "efficiency-for-speedup"),
                    (many, "free-lunch"),
                    (growth, "one-rank-baseline"),
                    (cluster.step(many, "strong").speedup, "strong-for-weak"),
                ],
                solution=(
                    "A step of {many} ranks takes {many_step} / {C} = {inflation} as long as that of one rank.",
                    "It processes {many} batches: the speedup is {many} / {inflation_number} = {many_speedup}.",
                ),
            ),
            figure(
                id="bandwidth",
                prompt="From the step at {few} ranks: at what rate does a rank send while the all-reduce runs? Leave the latency aside.",
                key=busy / 1e9,
                unit="GB/s",
                relative=0.02,
                wrong=[
                    (cluster.n_bytes / exposed / 1e9, "algorithm-bandwidth"),
                    (2 * cluster.n_bytes / exposed / 1e9, "full-2p"),
                    (cluster.sent_bytes(few) / small.step_time_s / 1e9, "whole-step"),
                    (busy * 8 / 1e9, "bits-for-bytes"),
                    (busy / 2 / 1e9, "one-phase"),
                ],
                solution=(
                    "Without compute, {few_step} − {C} = {exposed} remain for the all-reduce.",
                    "In that time a rank sends 2(*N*−1)/*N* · *P* = {factor} · {P} = {sent}.",
                    "That is {busy}, the bus bandwidth in the words of nccl-tests.",
                ),
            ),
            choice(
                id="flat",
                prompt="“From {few} to {many} ranks the step hardly changes, so the new ranks bring nothing.” What do you answer?",
                options=(
                    wrong(
                        "agree",
                        "Right: a step takes {few_step}, then {many_step}, so training takes as long as before.",
                        "flat-step",
                        "A step of {many} ranks processes {ranks_ratio} times the samples. An epoch goes by {growth} as fast.",
                    ),
                    wrong(
                        "broken",
                        "Something is broken: each rank has less to compute, so the step should become shorter.",
                        "strong-for-weak",
                    ),
                    right(
                        "epoch",
                        "A step now processes {ranks_ratio} times the samples, so an epoch is {growth} as fast.",
                        "The step became {step_ratio} as long, with {ranks_ratio} times the samples in it.",
                    ),
                    wrong(
                        "cap",
                        "The speedup has met its ceiling of {inflation}, the step in units of the compute.",
                        "cap-on-speedup",
                        "The speedup at {many} ranks is {many_speedup}. {inflation} is how much longer a step takes.",
                    ),
                ),
            ),
        ),
    )


# Link speeds that one can buy, Gb/s per rank.
LINKS = (10, 25, 50, 100, 200, 400, 800, 1600, 3200)


def _bandwidth(seed: int) -> Variant:
    draw = Draw(seed, "q3/bandwidth")

    def propose() -> tuple[Cluster, int, float]:
        cluster = Cluster(
            compute_s=draw.pick((0.12, 0.15, 0.2, 0.25, 0.3, 0.4)),
            n_bytes=draw.pick((0.8e9, 1.2e9, 1.6e9, 2e9, 3e9, 4e9, 6e9)),
            bandwidth=10e9,
            latency_s=draw.pick((5e-6, 10e-6)),
        )
        return cluster, draw.pick((4, 8, 16, 32)), draw.pick((0.6, 0.75, 0.8, 0.9))

    def fits(drawn: tuple[Cluster, int, float]) -> bool:
        cluster, n_ranks, target = drawn
        needed = cluster.bandwidth_for(n_ranks, cluster.compute_s * (1 / target - 1)) * 8 / 1e9
        # No link within 8 % of the need; at least two too slow ones and one larger one to choose from.
        return 40 < needed < 1400 and all(abs(link / needed - 1) > 0.08 for link in LINKS)

    cluster, n, target = draw.until(propose, fits)
    allowed = cluster.compute_s * (1 / target - 1)
    needed = cluster.bandwidth_for(n, allowed)
    enough = next(link for link in LINKS if link * 1e9 / 8 >= needed)
    position = LINKS.index(enough)
    offered = LINKS[position - 2 : position + 2]
    misread = next(link for link in LINKS if link * 1e9 >= needed)
    if misread not in offered:
        offered = (misread,) + offered  # noqa: RUF005 (MicroPython has no star in a tuple)
    values = ring_values(cluster, n)
    values.update(
        {
            "target": f"{target * 100:.0f} %",
            "allowed": ms(allowed),
            "latency": f"{cluster.latency_term_s(n) * 1e3:.2f} ms",
            "room": ms(allowed - cluster.latency_term_s(n)),
            "needed": gigabytes_per_s(needed),
            "needed_bits": gigabits_per_s(needed),
            "enough": f"{enough} Gb/s",
            "offers": ", ".join([str(link) for link in offered[:-1]]) + f" and {offered[-1]}",
        }
    )
    options = []
    for index, link in enumerate(offered):
        speed = link * 1e9 / 8
        reached = cluster.changed(bandwidth=speed / cluster.bandwidth).step(n)
        values[f"link_{index}"] = f"{link} Gb/s"
        values[f"outcome_{index}"] = f"{format_bandwidth(speed)}: {percent(reached.efficiency)}"
        name, text, outcome = f"link-{index}", f"{{link_{index}}}", f"{{outcome_{index}}}. "
        if link == enough:
            options.append(right(name, text, outcome + "Every slower one misses {target}."))
        elif link > enough:
            options.append(wrong(name, text, "oversized", outcome + "{enough} do too."))
        elif link == misread:
            options.append(
                wrong(name, text, "bits-for-bytes", outcome + "You need {needed}, which is {needed_bits}.")
            )
        else:
            options.append(
                wrong(name, text, "too-slow", outcome + "You need {needed}, which is {needed_bits}.")
            )
    return variant(
        id="bandwidth",
        title="The bandwidth for an efficiency",
        scenario="You plan {N} ranks, each with its own batch (weak scaling), without overlap. You want an efficiency of at least {target}.",
        given=given(cluster, n, bandwidth="to be found"),
        values=values,
        parts=(
            figure(
                id="allowed",
                prompt="How long may the all-reduce take?",
                key=1e3 * allowed,
                unit="ms",
                wrong=[
                    (1e3 * cluster.compute_s * (1 - target), "share-of-step"),
                    (
                        1e3 * cluster.compute_s / target,
                        "no-compute",
                        "That is the whole step, *C*/*E*. Take the compute off.",
                    ),
                    (
                        1e3 * cluster.compute_s,
                        "comm-under-compute",
                        "*T* = *C* gives an efficiency of one half.",
                    ),
                    (1e3 * cluster.compute_s * target, "share-of-step"),
                ],
                solution=(
                    "Efficiency is *C*/(*C*+*T*), and it should be {target}.",
                    "So *T* = *C*·(1/*E* − 1) = {allowed} at most.",
                ),
            ),
            figure(
                id="needed",
                prompt="What bandwidth does a rank need for that, in GB/s?",
                key=needed / 1e9,
                unit="GB/s",
                relative=0.015,
                wrong=[
                    (2 * cluster.n_bytes / allowed / 1e9, "full-2p"),
                    (cluster.n_bytes / allowed / 1e9, "single-copy"),
                    (needed / 2e9, "one-phase"),
                    (needed * 8 / 1e9, "bits-for-bytes"),
                    (needed / 8 / 1e9, "bits-for-bytes"),
                    (needed * n / 1e9, "whole-cluster"),
                    (cluster.sent_bytes(n) / (cluster.compute_s / target) / 1e9, "whole-step"),
                ],
                solution=(
                    "A rank sends 2(*N*−1)/*N* · *P* = {factor} · {P} = {sent}.",
                    "Of the {allowed}, the {hops} hops take {latency}: {room} remain for the bytes.",
                    "{sent} in {room} are {needed}.",
                ),
            ),
            figure(
                id="bits",
                prompt="Vendors quote links in Gb/s. What is that bandwidth in Gb/s?",
                key=needed * 8 / 1e9,
                unit="Gb/s",
                relative=0.015,
                wrong=[
                    (needed / 1e9, "bits-for-bytes"),
                    (needed / 8 / 1e9, "inverted"),
                    (needed * 8 / 2**30, "binary-giga"),
                    (needed * 10 / 1e9, "bits-for-bytes", "A byte has 8 bits, not 10."),
                ],
                solution=("A byte is 8 bits: 8 · {needed} = {needed_bits}.",),
            ),
            choice(
                id="link",
                prompt="You can have {offers} Gb/s per rank. Which is the slowest that reaches {target}?",
                options=tuple(options),
                solution=("The need is {needed}, or {needed_bits}: the next link up is {enough}.",),
            ),
        ),
    )


def _strong(seed: int) -> Variant:
    draw = Draw(seed, "q3/strong")

    def propose() -> tuple[Cluster, int]:
        cluster = Cluster(
            compute_s=draw.pick((0.4, 0.5, 0.6, 0.8, 1.0)),
            n_bytes=draw.pick((0.4e9, 0.5e9, 0.8e9, 1e9)),
            bandwidth=draw.pick((4e9, 5e9, 8e9, 10e9, 12.5e9)),
            latency_s=draw.pick((5e-6, 10e-6)),
        )
        return cluster, draw.pick((8, 16, 32))

    def fits(drawn: tuple[Cluster, int]) -> bool:
        cluster, n_ranks = drawn
        cap = strong_speedup_cap(cluster.compute_s, cluster.n_bytes, cluster.bandwidth)
        return 3 <= cap <= 8 and cluster.step(n_ranks, "strong").speedup < 0.85 * cap

    cluster, n = draw.until(propose, fits)
    step, weak = cluster.step(n, "strong"), cluster.step(n)
    more = cluster.step(8 * n, "strong")
    cap = strong_speedup_cap(cluster.compute_s, cluster.n_bytes, cluster.bandwidth)
    values = ring_values(cluster, n)
    values.update(
        {
            "C_split": ms(step.compute_time_s),
            "step": ms(step.step_time_s),
            "speedup": times(step.speedup),
            "share": percent(step.communication_share),
            "more_N": str(8 * n),
            "more_C": ms(more.compute_time_s),
            "more_T": ms(more.communication_time_s),
            "more_share": percent(more.communication_share),
            "cap": times(cap),
            "floor": ms(2 * cluster.n_bytes / cluster.bandwidth),
        }
    )
    steps = [
        (cluster.step(1).step_time_s, "one", "one rank", "{C}"),
        (step.step_time_s, "strong", "{N} ranks, global batch fixed", "{step}"),
        (weak.step_time_s, "weak", "{N} ranks, batch per rank fixed", "{weak_step}"),
        (
            cluster.step(n, "strong", 1.0).step_time_s,
            "hidden",
            "{N} ranks, global batch fixed, the all-reduce hidden under the whole compute",
            "{hidden_step}",
        ),
    ]
    values["weak_step"] = ms(weak.step_time_s)
    values["hidden_step"] = ms(cluster.step(n, "strong", 1.0).step_time_s)
    traps = []
    if weak.step_time_s > cluster.step(1).step_time_s:
        traps.append(
            Trap(
                above="weak",
                below="one",
                misconception="strong-for-weak",
                why="With the batch per rank fixed, a step computes as long as on one rank and then waits.",
            )
        )
    return variant(
        id="strong",
        title="The same job, global batch fixed",
        scenario="Now the global batch stays the same however many ranks there are (strong scaling): {N} ranks share the batch of one. Nothing overlaps unless it is said.",
        given=given(cluster, n, compute="compute of the whole batch on one rank"),
        values=values,
        parts=(
            figure(
                id="speedup",
                prompt="How many times as fast as one rank do the {N} ranks work through the batch?",
                key=step.speedup,
                unit="×",
                wrong=speedup_slips(cluster, n, "strong"),
                solution=(
                    "Compute shrinks to *C*/*N* = {C} / {N} = {C_split}.",
                    "The all-reduce does not shrink: *T* = {T}.",
                    "A step takes {step}, and {C} / {step} = {speedup}.",
                ),
            ),
            figure(
                id="cap",
                prompt="What speedup do ever more ranks tend to? Leave the latency aside.",
                key=cap,
                unit="×",
                wrong=[
                    (2 * cap, "single-copy"),
                    (
                        1 / cap,
                        "inverted",
                        "Turn it over: speedup is the time of one rank divided by the new time.",
                    ),
                    (
                        1 + 1 / cap,
                        "weak-for-strong",
                        "That is (*C* + 2*P*/*B*)/*C*, the step inflation of weak scaling.",
                    ),
                    (
                        efficiency_cap(cluster.compute_s, cluster.n_bytes, cluster.bandwidth),
                        "weak-for-strong",
                    ),
                    (
                        step.speedup,
                        "not-the-limit",
                        "That is the speedup at {N} ranks; it still grows a little.",
                    ),
                    (cap * 8, "bits-for-bytes"),
                    (cap / 8, "bits-for-bytes"),
                ],
                solution=(
                    "Compute shrinks to nothing, and the all-reduce tends to 2*P*/*B* = {floor}.",
                    "So the speedup tends to *B*·*C*/(2*P*) = {C} / {floor} = {cap}.",
                ),
            ),
            choice(
                id="share",
                prompt="What happens to the communication share of the step ({share} at {N} ranks) with more and more ranks?",
                options=(
                    right(
                        "all",
                        "It tends to 100 %.",
                        "Compute is split, the all-reduce is not: at {more_N} ranks {more_C} against {more_T}, a share of {more_share}.",
                    ),
                    wrong(
                        "level",
                        "It levels off, because the all-reduce levels off.",
                        "weak-for-strong",
                        "That is so while compute stays *C*. Here compute shrinks to {more_C} at {more_N} ranks.",
                    ),
                    wrong("chunks", "It falls, because the chunks become smaller.", "smaller-chunks"),
                    wrong(
                        "both",
                        "It stays, because each rank has less to compute and less to send.",
                        "smaller-chunks",
                        "Each rank sends the gradients of all its parameters, however few samples it has: {T} at {N} ranks, {more_T} at {more_N}.",
                    ),
                ),
            ),
            ranking(
                id="steps",
                prompt="Put these steps in order of time.",
                first="shortest step",
                last="longest step",
                rows=steps,
                start=draw,
                traps=tuple(traps),
                solution=(
                    "A long step is no loss by itself: with the batch per rank fixed it processes {N} batches.",
                ),
            ),
        ),
    )


def _overlap(seed: int) -> Variant:
    draw = Draw(seed, "q3/overlap")

    def propose() -> tuple[Cluster, int, float]:
        return _fresh(draw), draw.pick((4, 8, 16, 32)), draw.pick((0.25, 0.3, 0.4, 0.45))

    def fits(drawn: tuple[Cluster, int, float]) -> bool:
        cluster, n_ranks, part = drawn
        ratio = cluster.ring_s(n_ranks) / cluster.compute_s
        # T between C and 2.2 C: nothing hides it all; and what is hidden must fit under the backward pass.
        return 1.15 < ratio < 2.2 and part * ratio < 0.95 * BACKWARD

    cluster, n, part = draw.until(propose, fits)
    ring, none, full = cluster.ring_s(n), cluster.step(n), cluster.step(n, overlap=1.0)
    backward = cluster.step(n, overlap=BACKWARD)
    # The measured step as the reader sees it, in tenths of a millisecond: the key follows from what is shown.
    measured = float(f"{none.step_time_s - part * ring:.4f}")
    exposed = measured - cluster.compute_s
    hidden = 1 - exposed / ring
    values = ring_values(cluster, n)
    values.update(
        {
            "lower": ms(full.step_time_s),
            "upper": ms(none.step_time_s),
            "backward_C": ms(BACKWARD * cluster.compute_s),
            "forward_C": ms(cluster.compute_s - BACKWARD * cluster.compute_s),
            "backward_step": ms(backward.step_time_s),
            "backward_speedup": times(backward.speedup),
            "full_efficiency": percent(full.efficiency),
            "measured": ms(measured),
            "exposed": ms(exposed),
            "hidden": percent(hidden),
            "hidden_time": ms(ring - exposed),
        }
    )
    statements = (
        judged(
            "bytes",
            "The bytes that each rank sends stay the same.",
            True,
            "Overlap moves the all-reduce in time, nothing else.",
        ),
        judged(
            "floor",
            "No overlap brings the step below {T}.",
            full.step_time_s >= ring,
            "The step can't end before the all-reduce does.",
        ),
        judged(
            "all",
            "With perfect overlap the efficiency is 100 %.",
            full.efficiency > 0.999,
            "With perfect overlap it is {full_efficiency}, because *T* = {T} is longer than *C* = {C}.",
            "perfect-overlap",
        ),
        judged(
            "volume",
            "Buckets that overlap send less than 2(*N*−1)/*N*·*P* per rank.",
            False,
            "",
            "overlap-saves-bytes",
        ),
        judged(
            "cap",
            "Faster links still help when the overlap is perfect.",
            cluster.changed(bandwidth=2).step(n, overlap=1.0).step_time_s < full.step_time_s,
            "The step is then as long as the all-reduce, so a shorter one shows at once.",
        ),
    )
    return variant(
        id="overlap",
        title="Overlap: a bracket, not a number",
        scenario="Real DDP starts to all-reduce while the backward pass still runs. Weak scaling; the forward pass takes a third of *C*, the backward pass two thirds.",
        given=given(cluster, n),
        values=values,
        parts=(
            figure(
                id="lower",
                prompt="Without overlap a step takes {upper}. How long is it if the all-reduce could hide under the whole compute?",
                key=1e3 * full.step_time_s,
                unit="ms",
                wrong=[
                    (1e3 * none.step_time_s, "no-overlap"),
                    (1e3 * cluster.compute_s, "perfect-overlap"),
                    (
                        1e3 * backward.step_time_s,
                        "no-overlap",
                        "That hides it under the backward pass only. Here it may hide under all of *C*.",
                    ),
                    (
                        1e3 * (ring - cluster.compute_s),
                        "no-compute",
                        "That is what remains exposed. The step also has the compute in it.",
                    ),
                    (1e3 * 2 * cluster.n_bytes / cluster.bandwidth, "full-2p"),
                ],
                solution=(
                    "*T* = {T} and *C* = {C} run side by side, so the longer one counts: max(*C*, *T*) = {lower}.",
                    "Every real step lies between {lower} and {upper}.",
                ),
            ),
            figure(
                id="speedup",
                prompt="What is the speedup if it can hide under the backward pass, and only there?",
                key=backward.speedup,
                unit="×",
                wrong=[
                    (none.speedup, "no-overlap"),
                    (full.speedup, "full-overlap"),
                    (cluster.step(n, overlap=1 - BACKWARD).speedup, "forward-overlap"),
                    (backward.step_time_s / cluster.compute_s, "step-inflation"),
                    (backward.efficiency, "efficiency-for-speedup"),
                    (n, "free-lunch"),
                ],
                solution=(
                    "Forward takes {forward_C}; then backward ({backward_C}) and the all-reduce ({T}) run side by side.",
                    "The step takes {forward_C} + {T} = {backward_step}.",
                    "*N*·*C* / {backward_step} = {backward_speedup}.",
                ),
            ),
            figure(
                id="hidden",
                prompt="Suppose you measure {measured} per step. What share of the all-reduce was hidden?",
                key=100 * hidden,
                unit="%",
                relative=0.0,
                absolute=1.0,
                wrong=[
                    (100 * (1 - hidden), "hidden-exposed"),
                    (100 * exposed / measured, "wrong-whole"),
                    (100 * (none.step_time_s - measured) / none.step_time_s, "wrong-whole"),
                    (
                        100 * (none.step_time_s - measured) / cluster.compute_s,
                        "wrong-whole",
                        "The question asks for a share of the all-reduce, not of the compute.",
                    ),
                ],
                solution=(
                    "Exposed: {measured} − {C} = {exposed}.",
                    "Hidden: {T} − {exposed} = {hidden_time}, which is {hidden} of *T*.",
                ),
            ),
            several(
                id="statements",
                prompt="Which statements about overlap hold for this cluster?",
                options=statements,
            ),
        ),
    )


def _remedies(seed: int) -> Variant:
    draw = Draw(seed, "q3/remedies")

    def efficiencies(cluster: Cluster, n_ranks: int, micro: int, factor: int) -> dict[str, float]:
        return {
            "base": cluster.step(n_ranks).efficiency,
            "half": cluster.changed(n_bytes=0.5).step(n_ranks).efficiency,
            "faster": cluster.changed(bandwidth=factor).step(n_ranks).efficiency,
            "backward": cluster.step(n_ranks, overlap=BACKWARD).efficiency,
            "gathered": cluster.changed(compute=micro).step(n_ranks).efficiency,
        }

    def fits(drawn: tuple[Cluster, int, int, int]) -> bool:
        cluster = drawn[0]
        return (
            apart(list(efficiencies(*drawn).values()))
            and 0.8 < cluster.ring_s(drawn[1]) / cluster.compute_s < 3
        )

    cluster, n, micro, factor = draw.until(
        lambda: (_fresh(draw), draw.pick((4, 8, 16)), draw.pick((2, 3, 6, 8)), draw.pick((3, 4, 5))), fits
    )
    found = efficiencies(cluster, n, micro, factor)
    gathered = cluster.changed(compute=micro).step(n)
    values = ring_values(cluster, n)
    values.update(
        {
            "micro": str(micro),
            "faster": str(factor),
            "micro_C": ms(micro * cluster.compute_s),
            "gathered_step": ms(gathered.step_time_s),
            "gathered_share": percent(gathered.communication_share),
        }
    )
    for name in found:
        values[name + "_efficiency"] = percent(found[name])
    texts = {
        "base": "the ranks as they are",
        "half": "gradients sent in bf16 in place of fp32",
        "faster": "links {faster} times as fast",
        "backward": "the all-reduce hidden under the backward pass (2/3 of *C*) as far as it fits",
        "gathered": "{micro} micro-batches per all-reduce, with `no_sync`",
    }
    return variant(
        id="remedies",
        title="Which change helps most?",
        scenario="A job runs on {N} ranks in weak scaling without overlap, at an efficiency of {base_efficiency}. You can afford one change.",
        given=given(cluster, n, compute="compute of one micro-batch on one rank"),
        values=values,
        parts=(
            ranking(
                id="ranking",
                prompt="Put the changes in order of the efficiency they give.",
                first="highest efficiency",
                last="lowest efficiency",
                rows=[(found[name], name, texts[name], "{" + name + "_efficiency}") for name in found],
                highest=True,
                start=draw,
            ),
            figure(
                id="gathered",
                prompt="With {micro} micro-batches per all-reduce: what share of the time is communication?",
                key=100 * gathered.communication_share,
                unit="%",
                relative=0.0,
                absolute=0.6,
                wrong=[
                    (100 * gathered.efficiency, "hidden-exposed", "That is the share of the compute."),
                    (100 * cluster.step(n).communication_share, "bytes-per-micro-batch"),
                    (
                        100 * cluster.step(n).communication_share / micro,
                        "wrong-whole",
                        "The compute in the step grows: the share does not simply divide by {micro}.",
                    ),
                    (
                        100 * cluster.ring_s(n) / (micro * cluster.compute_s),
                        "wrong-whole",
                        "That is *T* over the compute. The question asks for its share of both together.",
                    ),
                ],
                solution=(
                    "The compute between two all-reduces is {micro} · {C} = {micro_C}.",
                    "One all-reduce of {T} follows: together {gathered_step}, of which {gathered_share} is communication.",
                ),
            ),
            several(
                id="bytes",
                prompt="Which changes make a rank send fewer bytes per sample?",
                options=(
                    judged(
                        "half",
                        texts["half"],
                        cluster.changed(n_bytes=0.5).sent_bytes(n) < cluster.sent_bytes(n),
                        "2 bytes per gradient in place of 4.",
                    ),
                    judged(
                        "gathered",
                        texts["gathered"],
                        cluster.sent_bytes(n) / micro < cluster.sent_bytes(n),
                        "One all-reduce of the same size for {micro} micro-batches.",
                    ),
                    wrong("backward", texts["backward"], "overlap-saves-bytes"),
                    wrong("faster", texts["faster"], "speed-for-volume"),
                    wrong("zero", "sharding the optimizer state with ZeRO-1", "sharding-saves-bytes"),
                ),
            ),
            choice(
                id="price",
                prompt="What do you pay for {micro} micro-batches per all-reduce?",
                options=(
                    wrong("memory", "Memory for {micro} sets of gradients.", "memory-grows"),
                    wrong("traffic", "{micro} times the bytes per optimizer step.", "bytes-per-micro-batch"),
                    right(
                        "batch",
                        "A global batch {micro} times as large, so fewer optimizer steps per sample.",
                        "The learning rate and the number of steps have to be chosen again.",
                    ),
                    wrong(
                        "nothing", "Nothing: the same samples give the same training.", "accumulation-is-free"
                    ),
                ),
            ),
        ),
    )


def _latency(seed: int) -> Variant:
    draw = Draw(seed, "q3/latency")

    def propose() -> tuple[Cluster, int]:
        cluster = Cluster(
            compute_s=draw.pick((0.05, 0.08, 0.1, 0.12)),
            n_bytes=draw.pick((50e6, 80e6, 100e6, 160e6, 200e6)),
            bandwidth=draw.pick((10e9, 12.5e9, 20e9, 25e9, 50e9)),
            latency_s=draw.pick((5e-6, 10e-6, 20e-6)),
        )
        return cluster, draw.pick((512, 1024, 2048, 4096))

    def fits(drawn: tuple[Cluster, int]) -> bool:
        cluster, n_ranks = drawn
        return 0.6 < cluster.latency_term_s(n_ranks) / cluster.ring_s(n_ranks) < 0.9

    cluster, n = draw.until(propose, fits)
    ring, hops = cluster.ring_s(n), cluster.latency_term_s(n)
    share = hops / ring
    # Both terms carry 2 (N-1), so they are equal where a chunk takes as long as a hop: P/(N B) = alpha.
    even = cluster.n_bytes / (cluster.bandwidth * cluster.latency_s)
    values = ring_values(cluster, n)
    values.update(
        {
            "alpha": format_time(cluster.latency_s),
            "share": percent(share),
            "even": decimal(even),
            "chunk_bytes": format_bytes(cluster.n_bytes / n),
            "chunk_time": format_time(cluster.n_bytes / n / cluster.bandwidth, 3),
            "double_T": ms(cluster.changed(bandwidth=2).ring_s(n)),
            "half_T": ms(cluster.changed(n_bytes=0.5).ring_s(n)),
            "nimble_T": ms(cluster.changed(latency=0.5).ring_s(n)),
        }
    )
    return variant(
        id="latency",
        title="A long ring",
        scenario="A small model runs on {N} ranks in one ring, each with its own batch (weak scaling).",
        given=given(cluster, n),
        values=values,
        parts=(
            figure(
                id="ring-time",
                prompt="How long does the all-reduce take?",
                key=1e3 * ring,
                unit="ms",
                wrong=ring_slips(cluster, n),
                solution=(
                    "Bytes: 2(*N*−1)/*N* · *P* = {sent} at {B} take {transfer}.",
                    "Hops: 2(*N*−1)·*α* = {hops} · {alpha} = {latency}.",
                    "Together {T}.",
                ),
            ),
            figure(
                id="share",
                prompt="What share of it is latency?",
                key=100 * share,
                unit="%",
                relative=0.0,
                absolute=1.0,
                wrong=[
                    (100 * (1 - share), "other-term"),
                    (100 * hops / (cluster.compute_s + ring), "wrong-whole"),
                    (
                        100 * share / (1 - share),
                        "wrong-whole",
                        "That is the hops over the bytes. The question asks for the hops' share of both.",
                    ),
                    (
                        100 * cluster.latency_s / ring,
                        "no-latency",
                        "That is one hop. The ring has {hops}.",
                    ),
                ],
                solution=("{latency} of {T} are {share}.",),
            ),
            figure(
                id="even",
                prompt="At about how many ranks do hops and bytes take equally long?",
                key=even,
                unit="ranks",
                relative=0.02,
                wrong=[
                    (
                        2 * even,
                        "full-2p",
                        "Both terms carry the same 2(*N*−1): set one chunk, *P*/(*N*·*B*), equal to one hop, *α*.",
                    ),
                    (even / 2, "one-phase"),
                    (8 * even, "bits-for-bytes"),
                    (even / 8, "bits-for-bytes"),
                ],
                solution=(
                    "A step of the ring sends one chunk of *P*/*N* bytes: *P*/(*N*·*B*) + *α*.",
                    "The two are equal at *N* = *P*/(*B*·*α*) = {even}.",
                    "At {N} ranks a chunk is {chunk_bytes} and takes {chunk_time}, less than the {alpha} of a hop.",
                ),
            ),
            choice(
                id="remedy",
                prompt="Which change shortens this all-reduce most?",
                options=(
                    wrong("double", "twice the bandwidth", "bandwidth-blamed", "That gives {double_T}."),
                    wrong(
                        "half",
                        "gradients sent in bf16 in place of fp32",
                        "bandwidth-blamed",
                        "That gives {half_T}.",
                    ),
                    wrong(
                        "overlap",
                        "overlapping it with the backward pass",
                        "overlap-saves-bytes",
                        "Overlap hides it. It takes as long as before.",
                    ),
                    judged(
                        "nimble",
                        "half the latency per hop",
                        cluster.changed(latency=0.5).ring_s(n) < cluster.changed(bandwidth=2).ring_s(n),
                        "That gives {nimble_T}. Trees and rings of rings do even better: they need far fewer hops in a row.",
                    ),
                ),
            ),
        ),
    )
